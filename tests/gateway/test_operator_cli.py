"""The operators' commands, run against a gateway on a real port."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from contextlib import ExitStack, contextmanager

import orjson
import pytest
import trio

from gateway.cli import main
from gateway.cli.client import Server
from gateway.cli.failures import BadInput
from supervisor.acp import TraceLine
from supervisor.conversations.state.errors import AgentFailure, AtCapacity
from supervisor.events import Message, MessageEvent, TextContent
from supervisor.journal.rows import Frame

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
TWIN = "0f8fad5b-0000-4000-8000-000000000000"
OTHER = "7c9e6679-7425-40de-944b-e07fc1f90ae7"

pytestmark = pytest.mark.usefixtures("bare_environment")


@pytest.fixture
def ostler(capsys):
    """Runs a command in a thread beside the server; its status, output and errors."""

    async def run(*arguments):
        status = await trio.to_thread.run_sync(main, arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def environment(url, **more):
    return {"PATH": os.environ["PATH"], "OSTLER_URL": url, "PYTHONUNBUFFERED": "1", **more}


class Running:
    """A command as a process; its lines are read without stopping the server in this one."""

    def __init__(self, process):
        self.process = process

    async def line(self):
        with trio.fail_after(20):
            return await trio.to_thread.run_sync(self.process.stdout.readline, abandon_on_cancel=True)

    async def end(self, number=None):
        """Its status and errors; it is sent a signal first."""
        if number is not None:
            self.process.send_signal(number)
        with trio.fail_after(20):
            _, errors = await trio.to_thread.run_sync(self.process.communicate, abandon_on_cancel=True)
        return self.process.returncode, errors


@contextmanager
def running(url, *arguments, **more):
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", *arguments],
        env=environment(url, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Running(process)
        finally:
            process.kill()


# -- which server, with which key


@pytest.mark.parametrize(
    ("url", "env", "expected"),
    [
        (None, {}, ("http", "127.0.0.1", 8000, None)),
        (None, {"OSTLER_PORT": "81", "OSTLER_HOST": "0.0.0.0"}, ("http", "127.0.0.1", 81, None)),
        (None, {"OSTLER_HOST": "::"}, ("http", "::1", 8000, None)),
        (None, {"OSTLER_URL": "https://h", "OSTLER_PORT": "81"}, ("https", "h", 443, None)),
        ("http://[::2]:9/", {"OSTLER_URL": "https://h"}, ("http", "::2", 9, None)),
        ("http://h", {"OSTLER_API_KEY": "a", "OSTLER_SESSION_API_KEYS": "b"}, ("http", "h", 80, "a")),
        ("http://h", {"OSTLER_SESSION_API_KEYS": "b,c"}, ("http", "h", 80, "b")),
        ("http://h", {"OH_SESSION_API_KEYS": '["d"]'}, ("http", "h", 80, "d")),
    ],
)
def test_which_server(url, env, expected):
    server = Server.of(url, env)
    assert ("https" if server.secure else "http", server.host, server.port, server.key) == expected


def test_a_server_behind_a_prefix():
    assert Server("http://h/ostler/", None).path("/api/agents") == "/ostler/api/agents"


@pytest.mark.parametrize(
    ("url", "env"),
    [
        ("h:80", {}),
        ("ftp://h", {}),
        ("http://", {}),
        ("http://h:99999", {}),
        (None, {"OSTLER_PORT": "0"}),
        (None, {"OSTLER_PORT": "x"}),
        (None, {"OH_SESSION_API_KEYS": "no array"}),
    ],
)
def test_no_server_by_that_name(url, env):
    with pytest.raises(BadInput):
        Server.of(url, env)


# -- what goes wrong


def one_line(errors):
    assert errors.startswith("ostler: ")
    assert errors.count("\n") == 1
    return errors


@pytest.mark.parametrize(
    "arguments",
    [
        ["restart", "a", "b"],
        ["ps", "x"],
        ["ps", "--watch", "0"],
        ["ps", "--watch", "inf"],
        ["logs", "0f", "-n", "-1"],
        ["attach", "a", "b"],
    ],
)
def test_bad_usage(capsys, arguments):
    with pytest.raises(SystemExit) as info:
        main(arguments)
    assert info.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["ps"], ["status", "--json"], ["stop", ID], ["attach", ID], ["logs", "0f"]]
)
def test_no_server(capsys, arguments):
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert main([*arguments, "--url", url]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert url in one_line(captured.err)


@pytest.mark.parametrize("answer", [b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"])
def test_something_else_answers(capsys, answer):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert main(["ps", "--url", f"http://127.0.0.1:{listening.getsockname()[1]}"]) == 3
        thread.join()
    assert "not an Ostler server" in one_line(capsys.readouterr().err)


def test_a_server_that_does_not_answer(capsys, monkeypatch):
    monkeypatch.setattr("gateway.cli.client.ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(Server.call, "__kwdefaults__", {"seconds": 0.05})
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        assert main(["ps", "--url", f"http://127.0.0.1:{deaf.getsockname()[1]}"]) == 3
    assert "has not answered for 0.05 s; its log may say why" in one_line(capsys.readouterr().err)


async def test_keys(server_with, ostler, monkeypatch):
    async with server_with(session_api_keys=("schlüssel",)) as server:
        server.supervisor.add_agent(ID)
        status, out, errors = await ostler("ps", "--url", server.url)
        assert (status, out) == (1, "")
        assert "OSTLER_API_KEY" in one_line(errors)
        monkeypatch.setenv("OSTLER_API_KEY", "wrong")
        for command in (["ps"], ["attach", ID]):
            status, _, errors = await ostler(*command, "--url", server.url)
            assert status == 1
            assert "key" in one_line(errors)
        monkeypatch.setenv("OSTLER_API_KEY", "schlüssel")
        assert (await ostler("ps", "--url", server.url))[0] == 0
        monkeypatch.delenv("OSTLER_API_KEY")
        monkeypatch.setenv("OSTLER_SESSION_API_KEY", "schlüssel")
        assert (await ostler("status", "--url", server.url))[0] == 0


def test_commands_load_little():
    code = (
        "import sys; from gateway.cli import main\n"
        "assert main(['ps', '--url', 'http://127.0.0.1:9']) == 3\n"
        "heavy = {'trio', 'quart', 'orjson', 'attr', 'wsproto', 'gateway.configuration.config'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "[]\n"


# -- ps and status


async def test_ps(server, ostler):
    assert await ostler("ps", "--url", server.url) == (0, "no agents\n", "")
    server.supervisor.add_agent(ID)
    server.supervisor.add_agent(OTHER, state="parked", pid=None)
    status, out, _ = await ostler("ps", "--url", server.url)
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == ["ID", "0f8fad5b", "7c9e6679"]
    status, out, _ = await ostler("ps", "--url", server.url, "--json")
    assert [agent["state"] for agent in json.loads(out)["agents"]] == ["running", "parked"]


async def test_status(server, ostler):
    status, out, _ = await ostler("status", "--url", server.url)
    assert status == 0
    assert f"{server.url}, ready" in out
    status, out, _ = await ostler("status", "--url", server.url, "--json")
    assert json.loads(out)["agents"]["live"] == 3


async def test_watching(server):
    server.supervisor.add_agent(ID)
    with running(server.url, "ps", "--watch", "0.1", "--json") as watching:
        for _ in range(2):
            assert len(json.loads(await watching.line())["agents"]) == 1
        server.supervisor.views.clear()
        with trio.fail_after(20):
            while json.loads(await watching.line()) != {"agents": [], "spares": []}:
                pass
        assert await watching.end(signal.SIGINT) == (130, "")


async def test_watching_waits_for_a_server_that_went_away(server_with, free_port):
    with ExitStack() as stack:
        async with server_with(port=free_port) as server:
            watching = stack.enter_context(running(server.url, "ps", "-w", "0.1"))
            assert await watching.line() == "no agents\n"
        while "waiting for the server" not in await watching.line():
            pass
        async with server_with(port=free_port):
            while await watching.line() != "no agents\n":
                pass


async def test_a_terminal_is_drawn_over_and_never_overflows(server):
    for number in range(30):
        server.supervisor.add_agent(f"{number:08}{ID[8:]}", title="long " * 40)
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 60, 0, 0))
    command = [sys.executable, "-m", "gateway", "ps", "--watch", "0.1"]
    process = subprocess.Popen(command, env=environment(server.url), stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        shown = b""
        with trio.fail_after(20):
            while shown.count(b"\x1b[H") < 3:
                shown += await trio.to_thread.run_sync(os.read, ours, 65536, abandon_on_cancel=True)
    finally:
        process.kill()
        await trio.to_thread.run_sync(process.wait)
        os.close(ours)
    screen = shown.decode().split("\x1b[H")[1]
    assert screen.endswith("\x1b[J")
    lines = screen.removesuffix("\x1b[J").removesuffix("\r\n").split("\x1b[K\r\n")
    lines[-1] = lines[-1].removesuffix("\x1b[K")
    assert len(lines) == 9  # one below the height, so that nothing scrolls
    assert max(len(line) for line in lines) == 60


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


async def test_a_reader_that_has_seen_enough(server):
    for _ in range(2000):  # more than a pipe holds
        server.supervisor.add_agent(str(len(server.supervisor.views)).rjust(8, "0") + ID[8:])
    with running(server.url, "ps", "--json") as reading:
        await reading.line()
        reading.process.stdout.close()
        with trio.fail_after(20):
            status = await trio.to_thread.run_sync(reading.process.wait, abandon_on_cancel=True)
        assert (status, reading.process.stderr.read()) == (141, "")


# -- restart and stop


@pytest.mark.parametrize("text", [ID, ID.replace("-", ""), ID.upper(), "0f8fad5b", "0f", "0F8FAD5BD9CB"])
async def test_restart_by_any_beginning(server, ostler, text):
    server.supervisor.add_agent(ID)
    server.supervisor.add_agent(OTHER)
    status, out, _ = await ostler("restart", text, "--url", server.url)
    assert (status, out) == (0, f"restarted the agent of {ID}\n")
    status, out, _ = await ostler("restart", "--force", text, "--url", server.url, "--json")
    assert (status, json.loads(out)) == (0, {"success": True})
    assert server.supervisor.calls == [("restart", ID, False), ("restart", ID, True)]


async def test_stop(server, ostler):
    server.supervisor.add_agent(ID)
    assert await ostler("stop", "0f", "--url", server.url) == (0, f"stopped the agent of {ID}\n", "")
    assert server.supervisor.calls == [("stop", ID)]


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        ("0f8fad5b", 1, "2 ids"),
        ("ab", 1, "no conversation"),
        ("demo", 2, "is not an id"),
        (OTHER, 1, "not found"),
    ],
)
async def test_an_id_that_does_not_do(server, ostler, text, status, reason):
    server.supervisor.add_agent(ID)
    server.supervisor.add_agent(TWIN)
    found, out, errors = await ostler("stop", text, "--url", server.url)
    assert (found, out) == (status, "")
    assert reason in one_line(errors)
    assert server.supervisor.calls == []


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (AgentFailure("ACPAuthRequired", "it wants\na key"), "it wants a key"),
        (AtCapacity("no room", 4.2), "no room (try again in 5 s)"),
    ],
)
async def test_a_restart_that_fails(server, ostler, failure, reason):
    server.supervisor.add_agent(ID)
    server.supervisor.failure = failure
    assert await ostler("restart", ID, "--url", server.url) == (1, "", f"ostler: {reason}\n")


# -- logs


async def test_logs(server, ostler):
    server.supervisor.add_agent(ID)
    server.supervisor.lines = ["one", "\x1b[31mtwo\x1b[0m", "three"]
    assert await ostler("logs", "0f", "--url", server.url) == (0, "one\ntwo\nthree\n", "")
    assert await ostler("logs", "0f", "-n", "1", "--url", server.url) == (0, "three\n", "")
    assert await ostler("logs", "0f", "-n", "0", "--url", server.url) == (0, "", "")
    _, out, _ = await ostler("logs", "0f", "-n", "2", "--json", "--url", server.url)
    assert json.loads(out) == {"lines": ["\x1b[31mtwo\x1b[0m", "three"]}


async def test_trace(server, ostler):
    server.supervisor.add_agent(ID)
    server.supervisor.frames = [TraceLine(">", trio.current_time(), 20, '{"id":1}')]
    status, out, _ = await ostler("logs", "0f", "--trace", "--url", server.url)
    assert status == 0
    assert out.split()[1:] == [">", "20B", '{"id":1}']
    _, out, _ = await ostler("logs", "0f", "--trace", "--json", "--url", server.url)
    assert json.loads(out)["frames"][0]["text"] == '{"id":1}'


async def test_logs_are_followed(server):
    server.supervisor.add_agent(ID)
    server.supervisor.lines = ["zero", "one"]
    with running(server.url, "logs", "0f", "-f", "-n", "1") as following:
        assert await following.line() == "one\n"
        server.supervisor.lines = ["one", "two", "three"]
        assert [await following.line(), await following.line()] == ["two\n", "three\n"]
        server.supervisor.lines = ["x", "y"]
        assert [await following.line() for _ in range(3)] == ["[...]\n", "x\n", "y\n"]
        assert await following.end(signal.SIGINT) == (130, "")


# -- attach


def said(text):
    return MessageEvent(source="user", llm_message=Message(role="user", content=(TextContent(text=text),)))


def piece(content):
    frame = {"type": "delta", "item_id": "i", "kind": "text", "content": content}
    return Frame(legacy=None, session=orjson.dumps(frame))


async def test_attach_shows_what_comes(server):
    conversation = await server.conversation()
    await conversation.record(said("before"))
    with running(server.url, "attach", conversation.id[:8]) as attached:
        assert await attached.line() == "attached to " + conversation.id + "\n"
        while not server.services.subscribers.total:
            await trio.sleep(0.01)
        await conversation.record(said("after\x1b[2J"))
        assert (await attached.line()).split()[1:] == ["user", "after"]
        conversation.log.publish(piece("str"))
        conversation.log.publish(piece("eams"))
        await conversation.record(said("end"))
        assert (await attached.line()).split()[1:] == ["says", "streams"]
        assert (await attached.line()).split()[1:] == ["user", "end"]
        assert await attached.end(signal.SIGINT) == (130, "")
    with trio.fail_after(30):
        while server.services.subscribers.total:
            await trio.sleep(0.01)


async def test_attach_to_the_newest_from_the_start_as_frames(server):
    conversation = await server.conversation()
    await conversation.record(said("before"))
    with running(server.url, "attach", "--all", "--json") as attached:
        frames = [json.loads(await attached.line()) for _ in range(3)]
    assert [frame["type"] for frame in frames] == ["sync", "transient", "durable"]
    assert frames[2]["event"]["llm_message"]["content"][0]["text"] == "before"


async def test_attach_with_a_key(server_with):
    async with server_with(session_api_keys=("schlüssel",)) as server:
        conversation = await server.conversation()
        with running(server.url, "attach", conversation.id, "--json", OSTLER_API_KEY="schlüssel") as attached:
            assert json.loads(await attached.line())["type"] == "sync"


async def test_attach_goes_on_with_the_next_server(server_with, free_port):
    with ExitStack() as stack:
        async with server_with(port=free_port) as server:
            old = await server.conversation(conversation_id=ID)
            await old.record(said("one"))
            attached = stack.enter_context(running(server.url, "attach", "--all", ID))
            assert await attached.line() == f"attached to {ID}\n"
            assert (await attached.line()).endswith("one\n")
            server.services.closing.set()
            with trio.fail_after(20):
                notice = await trio.to_thread.run_sync(attached.process.stderr.readline)
            assert "trying again" in notice
            await old.record(said("two"))
        async with server_with(port=free_port) as server:
            log = await server.supervisor.journal.log(ID)
            new = server.supervisor.conversations[ID] = type(old)(old.request, ID, log)
            await new.record(said("three"))
            assert (await attached.line()).endswith("two\n")
            assert (await attached.line()).endswith("three\n")
            server.services.closing.set()
        async with server_with(port=free_port):  # one that has never heard of it
            status, errors = await attached.end()
            assert status == 1
            assert errors.endswith("ostler: the server has no such conversation\n")


async def test_attach_to_nothing(server, ostler):
    status, _, errors = await ostler("attach", "--url", server.url)
    assert (status, errors) == (
        1,
        "ostler: there is no conversation yet; `ostler chat` or `ostler run` begins one\n",
    )
    status, _, errors = await ostler("attach", ID, "--url", server.url)
    assert (status, errors) == (1, "ostler: the server has no such conversation\n")
