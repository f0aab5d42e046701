"""The process of a remote agent, between a test's pipes and a test's WebSocket."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from trio_websocket import ConnectionClosed

from supervisor.agents.remote import __main__ as program
from supervisor.agents.remote.__main__ import Failed, Relay
from supervisor.agents.remote.relay import ARGV, variables
from supervisor.agents.remote.streams import Input, Output
from tests.commands.editor import Editor, scripted

MOST = 4 * 1024 * 1024


@pytest.fixture
async def server():
    async with scripted() as found:
        yield found


@asynccontextmanager
async def relay(url, headers=None):
    env = {**os.environ, **variables(url, headers or {}, MOST)}
    process = await trio.lowlevel.open_process(
        ARGV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    try:
        yield Editor(process)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                await stream.aclose()


async def test_messages_pass_and_the_end_of_input_closes(server, nursery):
    async with relay(server.url, {"X-Team": "blue"}) as agent:
        link = await server.link()
        assert link.path == "/acp"
        text = "é" * 500_000
        await agent.send({"id": 1, "text": text})
        assert await link.next() == {"id": 1, "text": text}
        nursery.start_soon(link.send, {"id": 2, "text": text})
        assert await agent.next() == {"id": 2, "text": text}
        await link._socket.send_message(b"binary")
        await link.send('{"a":\n1}')
        assert await agent.next() == {"a": 1}
        await agent.send(b"")
        await agent.send({"id": 3})
        await agent.process.stdin.aclose()
        assert await link.next() == {"id": 3}
        assert await link.ended()
        assert await agent.end() == (0, "")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1001, "the remote agent ended the connection (1001)"),
        (None, "the connection was lost"),
    ],
)
async def test_the_end_of_the_connection_is_told(server, nursery, code, words):
    async with relay(server.url) as agent:
        link = await server.link()
        await (link.drop() if code is None else link.close(code))
        status, said = await agent.end()
        assert status == 1
        assert said == f"ws://127.0.0.1:{server.port}/acp: {words}\n"


async def test_a_message_that_is_too_large(server, nursery):
    async with relay(server.url) as agent:
        link = await server.link()
        with suppress(ConnectionClosed):
            await link.send({"text": "x" * (MOST + 1)})
        status, said = await agent.end()
        assert status == 1
        assert "1009" in said


async def test_tls_that_fails(server, nursery):
    async with relay(server.url.replace("http", "https")) as agent:
        status, said = await agent.end()
        assert status == 1
        assert f"wss://127.0.0.1:{server.port}/acp: TLS failed: " in said
        assert said.count("\n") == 1


async def test_a_program_without_websockets(nursery):
    async def answer(stream):
        await stream.receive_some()
        await stream.send_all(b"\x00\x01 nonsense\r\n\r\n")

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, answer, [listener])
    async with relay(f"ws://127.0.0.1:{listener.socket.getsockname()[1]}") as agent:
        status, said = await agent.end()
        assert status == 1
        assert "what answers is not a WebSocket" in said


async def test_an_agent_that_does_not_answer_pings(nursery, monkeypatch):
    """It accepts, and then is gone, as a machine without power."""
    monkeypatch.setattr(program, "PING_SECONDS", 0.01)
    monkeypatch.setattr(program, "PONG_SECONDS", 0.05)

    async def accept(stream):
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some()
        key = head.lower().partition(b"sec-websocket-key: ")[2]
        key = head[len(head) - len(key) :].partition(b"\r\n")[0]
        made = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        await stream.send_all(
            b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Accept: "
            + made
            + b"\r\n\r\n"
        )
        await trio.sleep_forever()

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, accept, [listener])
    given, ours = os.pipe()
    theirs, out = os.pipe()
    try:
        url = f"ws://127.0.0.1:{listener.socket.getsockname()[1]}/acp"
        with trio.fail_after(10), pytest.raises(Failed, match="has not answered a ping"):
            await Relay({"url": url, "headers": {}, "max_bytes": MOST}).run(Input(given, MOST), Output(out))
    finally:
        for each in (given, ours, theirs, out):
            os.close(each)
