"""Requests that the end of a real server cuts: each is told so, once."""

from __future__ import annotations

import shlex
import signal
from urllib.parse import urlencode

import pytest
import trio

from tests.support.processes import kill
from tests.support.server import running_server
from tests.workspace.test_bash import until

REQUESTS = 8  # several, since the order in which the tasks of a server end is random
SIZE = 32 * 1024 * 1024  # of a file: more than the kernel takes for a client that does not read

ENDS = {
    "grace over": {"OSTLER_GRACE_SECONDS": "0.1"},
    "second signal": {"OSTLER_GRACE_SECONDS": "300"},
    "warden killed": {"OSTLER_GRACE_SECONDS": "300"},
}


async def end(server, how):
    if how == "warden killed":
        kill([server.pid])
        return
    server.signal(signal.SIGTERM)
    if how == "second signal":
        await until(lambda: "signal=SIGTERM" in server.output.read_text())
        server.signal(signal.SIGTERM)


@pytest.mark.guarantee(name="nothing-hangs")
@pytest.mark.parametrize("how", ENDS)
async def test_a_request_that_is_cut_is_told_to_be_sent_again(tmp_path, how):
    answers = []

    async def ask(server, number):
        command = f"touch {shlex.quote(str(tmp_path / f'begun{number}'))}; sleep 300"
        answers.append(
            await server.rest.http.post("/api/bash/execute_bash_command", json={"command": command})
        )

    async with running_server(tmp_path, ENDS[how]) as server, trio.open_nursery() as nursery:
        for number in range(REQUESTS):
            nursery.start_soon(ask, server, number)
        await until(lambda: len(list(tmp_path.glob("begun*"))) == REQUESTS)
        await end(server, how)
    assert len(answers) == REQUESTS
    for answer in answers:
        assert (answer.status_code, answer.reason_phrase) == (503, "Service Unavailable")
        assert answer.headers["Content-Type"] == "application/json"
        assert int(answer.headers["Retry-After"]) > 0
        assert answer.headers["Connection"] == "close"
        assert answer.json()["detail"].startswith("The server is ending. ")
    assert "Traceback" not in server.output.read_text()


@pytest.mark.guarantee(name="nothing-hangs")
async def test_an_answer_that_has_begun_breaks_off(tmp_path):
    """Nothing follows what was sent of it."""
    with (tmp_path / "large").open("wb") as file:
        file.truncate(SIZE)
    async with running_server(tmp_path, ENDS["grace over"]) as server:
        host, port = server.url.removeprefix("http://").split(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            query = urlencode({"path": str(tmp_path / "large")})
            await stream.send_all(f"GET /api/file/download?{query} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            received = bytearray(await stream.receive_some())
            await server.stop()
            async for data in stream:
                received += data
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert len(body) < SIZE
    assert not any(body)
