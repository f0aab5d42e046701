"""Commands that follow a conversation, where connections, readers and signals misbehave."""

from __future__ import annotations

import io
import json
import signal
import socket
import threading

import pytest
import trio

from gateway.cli.client import Server
from gateway.cli.failures import Failure
from gateway.cli.follow import stream
from gateway.cli.follow.stream import LOST, Position, following
from gateway.cli.talk.narration import Narration
from gateway.cli.talk.talk import RefuseAll, Talk
from gateway.cli.tasks import run_tasks
from gateway.cli.terminal import console


async def first(url, count):
    """The first frames of a conversation."""
    found = []
    async with following(Server(url, None), "x", -1) as frames:
        async for _, frame in frames:
            found.append(frame)
            if len(found) == count:
                break
    return found


@pytest.fixture
def abrupt():
    """A server that ends each connection when it has read the request, with what it is given to say."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answers = []

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(answers.pop(0) if answers else b"")

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", answers
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 101 Switch", b"\x00nonsense\r\n\r\n"])
async def test_a_server_that_ends_during_the_handshake_is_tried_again(abrupt, monkeypatch, said):
    url, answers = abrupt
    answers.append(said)
    monkeypatch.setattr(stream, "RETRY_SECONDS", 0)
    monkeypatch.setattr(stream, "PATIENCE_SECONDS", 0)
    with pytest.raises(stream.Unreachable):
        await first(url, 2)
    assert (await first(url, 1))[0]["type"] == LOST


def test_a_turn_ends_with_the_reason_where_the_server_stays_away(abrupt, monkeypatch):
    monkeypatch.setattr(stream, "RETRY_SECONDS", 0)
    monkeypatch.setattr(stream, "PATIENCE_SECONDS", 0)
    shown = io.StringIO()
    narration = Narration(console(shown, {}))
    with pytest.raises(stream.Unreachable, match="the connection ended"):
        Talk(Server(abrupt[0], None), "x", narration, RefuseAll(narration)).outcome()
    assert shown.getvalue().count("connection lost") == 1


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_whose_handler_raises_ends_the_tasks(number, error):
    def end(number, frame):
        raise error(128 + number)

    async def command():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            signal.raise_signal(number)
            await trio.sleep_forever()

    before = signal.signal(number, end)
    try:
        with pytest.raises(error, match=str(128 + number)):
            run_tasks(command)
        assert signal.getsignal(number) is end
    finally:
        signal.signal(number, before)


async def test_a_server_that_is_none_of_ours(abrupt):
    url, answers = abrupt
    answers.append(b"HTTP/1.1 500 Oh\r\ncontent-length: 4\r\n\r\noops")
    with pytest.raises(Failure, match=r"refused the connection \(status 500\)"):
        await first(url, 1)


def test_a_position_goes_on_where_it_was():
    position = Position(None)
    position.note({"type": "sync", "from_seq": 3, "through_seq": 2})
    assert (position.after_seq, position.behind) == (2, False)
    position.note({"type": "sync", "from_seq": 3, "through_seq": 5})
    assert not position.caught_up({"type": "transient"})
    position.note({"type": "durable", "seq": 5})
    assert position.caught_up({"type": "durable"})


def test_by_the_control_socket(served):
    assert served.run("run", "hello").returncode == 0
    place = {**served.env, "OSTLER_URL": ""}
    with served.going_on("attach", "--all", "--json", **place) as attached:
        assert json.loads(attached.stdout.readline())["type"] == "sync"


def test_large_frames(served):
    assert served.run("run", "-", given="x" * 1_500_000).returncode == 0
    events = served.run("events", served.newest(), "--json")
    assert max(map(len, events.stdout.splitlines())) > 1_500_000


def test_a_reader_that_has_seen_enough(served):
    assert served.run("run", "hello").returncode == 0
    with served.going_on("attach", "--all", "--json", "--url", served.server.url) as attached:
        attached.stdout.readline()
        attached.stdout.close()
        served.run("run", "--continue", "more")
        assert (attached.wait(30), attached.stderr.read()) == (141, "")


def test_events_beyond_the_end(served):
    assert served.run("run", "hello").returncode == 0
    done = served.run("events", served.newest(), "--since-seq", "100000")
    assert (done.returncode, done.stdout) == (0, "")
