"""`ostler acp` between an editor and a scripted server that speaks the socket's dialect."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket

import pytest
import trio

from gateway.cli.acp import bridge
from gateway.cli.acp.exchange import LINE_BYTES, Exchange
from gateway.cli.client import Server
from gateway.cli.failures import Unreachable
from supervisor.agents.remote.streams import Input, Output
from tests.commands.editor import editor, scripted
from tests.gateway.test_cli import imported_by

CLIENT = {"fs": {"readTextFile": True}, "auth": {"terminal": True}}


@pytest.fixture
async def server():
    async with scripted() as found:
        yield found


@pytest.fixture
async def ide(tmp_path, server):
    async with editor(tmp_path, "--url", server.url) as found:
        yield found


async def started(ide, server):
    """The connection of an editor that has initialized."""
    link = await server.link()
    await ide.ask("initialize", {"protocolVersion": 1, "clientCapabilities": CLIENT}, identity=0)
    asked = await link.next()
    assert asked["method"] == "initialize"
    await link.answer(0, {"protocolVersion": 1})
    assert (await ide.next())["result"] == {"protocolVersion": 1}
    return link


async def opened(ide, link, session="s1"):
    """Open a session."""
    identity = await ide.ask("session/new", {"cwd": "/w", "mcpServers": [{"name": "m", "command": "c"}]})
    assert (await link.next())["method"] == "session/new"
    await link.answer(identity, {"sessionId": session})
    assert (await ide.next())["result"] == {"sessionId": session}


async def reattached(ide, server, position="7", session="s1"):
    """The connection after a lost one, which has what that had."""
    link = await server.link()
    again = await link.next()
    assert again["method"] == "initialize"
    assert again["params"]["clientCapabilities"] == CLIENT
    await link.answer(again["id"], {"protocolVersion": 1})
    attach = await link.next()
    assert attach["method"] == "_ostler/attach"
    assert attach["params"] == {
        "sessionId": session,
        "position": position,
        "cwd": "/w",
        "mcpServers": [{"name": "m", "command": "c"}],
    }
    return link, attach["id"]


async def test_messages_pass_in_both_directions(ide, server):
    link = await started(ide, server)
    await opened(ide, link)
    identity = await ide.ask("session/prompt", {"sessionId": "s1", "prompt": []}, identity="a text")
    assert (await link.next())["id"] == "a text"
    await link.update("s1", "5", sessionUpdate="agent_message_chunk", _meta={"é": [1]})
    assert (await ide.next())["params"]["update"] == {
        "sessionUpdate": "agent_message_chunk",
        "_meta": {"é": [1]},
    }
    await link.send({"jsonrpc": "2.0", "id": "ostler-1", "method": "fs/read_text_file", "params": {}})
    assert (await ide.next())["id"] == "ostler-1"
    await ide.send({"jsonrpc": "2.0", "id": "ostler-1", "result": {"content": "x"}})
    assert (await link.next())["result"] == {"content": "x"}
    await link.answer(identity, {"stopReason": "end_turn"})
    assert (await ide.next()) == {"jsonrpc": "2.0", "id": identity, "result": {"stopReason": "end_turn"}}
    assert await ide.leave() == (0, "")


async def test_the_socket_is_given_a_client_and_the_agent(tmp_path, server):
    async with editor(
        tmp_path, "--url", server.url, "--agent", "a&b", "--model", "m", OSTLER_API_KEY="key"
    ) as ide:
        link = await server.link()
        path, _, query = link.path.partition("?")
        assert path == "/sockets/acp"
        names = dict(each.split("=") for each in query.split("&"))
        assert len(names.pop("client")) == 36
        assert names == {"agent": "a%26b", "model": "m"}
        assert {k.lower(): v for k, v in link.headers.items()}["x-session-api-key"] == "key"
        await ide.leave()


async def test_a_new_connection_continues_where_one_was_lost(ide, server):
    link = await started(ide, server)
    await opened(ide, link)
    await ide.ask("session/prompt", {"sessionId": "s1", "prompt": []}, identity=9)
    prompt = await link.next()
    await link.update("s1", "6", sessionUpdate="a")
    await link.update("s1", "7", sessionUpdate="b")
    await ide.next()
    await ide.next()
    await link.drop()
    link, attach = await reattached(ide, server)
    await link.update("s1", "8", sessionUpdate="c")
    await link.answer(attach, {})
    assert (await ide.next())["params"]["update"] == {"sessionUpdate": "c"}
    assert await link.next() == prompt
    await link.drop()
    link, attach = await reattached(ide, server, "8")
    await link.answer(attach, {})
    assert await link.next() == prompt
    await link.answer(9, {"stopReason": "end_turn"})
    assert (await ide.next())["id"] == 9
    status, words = await ide.leave()
    assert status == 0
    assert words.count("connection lost (the connection ended); trying again for 60 s") == 2


async def test_what_the_editor_says_meanwhile_is_sent_in_its_order(ide, server):
    link = await started(ide, server)
    await opened(ide, link)
    await ide.ask("session/prompt", {"sessionId": "s1", "prompt": [1]}, identity=1000)
    await link.next()
    await ide.tell("session/cancel", {"sessionId": "s1"})
    assert (await link.next())["method"] == "session/cancel"
    server.refuse = 503
    await link.drop()
    await ide.ask("session/prompt", {"sessionId": "s1", "prompt": [2]}, identity=1001)
    await ide.tell("session/cancel", {"sessionId": "s1"})
    await ide.ask("session/list", {}, identity=1002)
    await trio.sleep(0.05)
    server.refuse = None
    link, attach = await reattached(ide, server, "")
    await link.answer(attach, {})
    found = [await link.next() for _ in range(5)]
    assert [each.get("id", each["method"]) for each in found] == [
        1000,
        "session/cancel",
        1001,
        "session/cancel",
        1002,
    ]


def permission(name):
    return {
        "jsonrpc": "2.0",
        "id": f"permission-{name}",
        "method": "session/request_permission",
        "params": {"sessionId": "s1"},
    }


def chosen(name):
    outcome = {"outcome": {"outcome": "selected", "optionId": "yes"}}
    return {"jsonrpc": "2.0", "id": f"permission-{name}", "result": outcome}


async def test_a_permission_request_that_comes_again_is_shown_once(ide, server):
    link = await started(ide, server)
    await opened(ide, link)
    for name in "abc":
        await link.send(permission(name))
        assert await ide.next() == permission(name)
    await link.drop()
    link, attach = await reattached(ide, server, "")
    await ide.send(chosen("a"))
    await trio.sleep(0.05)
    for name in "ab":
        await link.send(permission(name))
    await link.answer(attach, {})
    # That of `a` was given while there was no connection, that of `c` by another client.
    assert await link.next() == chosen("a")
    assert await ide.next() == {
        "jsonrpc": "2.0",
        "method": "$/cancel_request",
        "params": {"requestId": "permission-c"},
    }
    await ide.send({"jsonrpc": "2.0", "id": "permission-c", "error": {"code": -32800, "message": "x"}})
    await ide.send(chosen("b"))
    found = [await link.next()]
    if found[0] == chosen("a"):  # once when it was given, once when it was asked for
        found = [await link.next()]
    assert found == [chosen("b")]
    assert await ide.leave() == (
        0,
        "ostler acp: connection lost (the connection ended); trying again for 60 s\n",
    )


async def test_an_answer_that_the_server_did_not_get_is_given_again(ide, server):
    link = await started(ide, server)
    await opened(ide, link)
    await link.send(permission("a"))
    await ide.next()
    await ide.send(chosen("a"))
    assert await link.next() == chosen("a")
    await link.drop()
    link, _attach = await reattached(ide, server, "")
    await link.send(permission("a"))
    assert await link.next() == chosen("a")


async def test_another_client_answers_a_permission_request(ide, server):
    link = await started(ide, server)
    await opened(ide, link)
    await link.send(permission("a"))
    await ide.next()
    ended = {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": "permission-a"}}
    await link.send(ended)
    assert await ide.next() == ended
    await link.drop()
    link, attach = await reattached(ide, server, "")
    await link.answer(attach, {})
    # It is not ended twice.
    await link.update("s1", "1", sessionUpdate="a")
    assert (await ide.next())["method"] == "session/update"


async def test_a_load_that_was_cut_off_continues(ide, server):
    link = await started(ide, server)
    params = {"sessionId": "s2", "cwd": "/w", "mcpServers": []}
    await ide.ask("session/load", params, identity=77)
    assert (await link.next())["params"] == params
    await link.update("s2", "3", sessionUpdate="a")
    await ide.next()
    await link.drop()
    link = await server.link()
    await link.answer((await link.next())["id"], {})
    again = await link.next()
    assert again == {
        "jsonrpc": "2.0",
        "id": 77,
        "method": "_ostler/attach",
        "params": {**params, "position": "3"},
    }
    await link.answer(77, {"modes": {}})
    assert await ide.next() == {"jsonrpc": "2.0", "id": 77, "result": {"modes": {}}}


async def test_a_closed_session_is_not_attached_again(ide, server):
    link = await started(ide, server)
    await opened(ide, link, "s1")
    await opened(ide, link, "s2")
    await link.update("s1", "7", sessionUpdate="a")
    await ide.next()
    identity = await ide.ask("session/close", {"sessionId": "s2"})
    await link.next()
    await link.answer(identity, {})
    await ide.next()
    await link.drop()
    link, attach = await reattached(ide, server)
    await link.answer(attach, {})
    await ide.ask("session/list", identity="l")
    assert (await link.next())["id"] == "l"


async def test_frames_of_megabytes_pass(ide, server):
    link = await started(ide, server)
    text = "é" * 1_500_000
    identity = await ide.ask("session/prompt", {"sessionId": "s", "prompt": [text]})
    assert (await link.next())["params"]["prompt"] == [text]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.answer, identity, {"text": text})
        assert (await ide.next())["result"] == {"text": text}


async def test_an_editor_that_does_not_read_holds_the_server_back(ide, server):
    link = await started(ide, server)
    sent = 0
    with trio.move_on_after(1):
        while True:
            await link.update("s", str(sent), sessionUpdate="a", text="x" * 100_000)
            sent += 1
    # What pipes and sockets take, not what the process has in memory.
    assert sent < 300
    for number in range(sent):
        assert (await ide.next())["params"]["update"]["sessionUpdate"] == "a", number
    assert (await ide.leave())[0] == 0


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", -32700),
        (b"[]", -32600),
        (b'"x"', -32600),
        (b'{"id":[1],"method":"x"}', -32600),
        (b'{"id":1,"method":2}', -32600),
        (b"{}", -32600),
        (b"\xff", -32700),
        (b"x" * (16 * 1024 * 1024 + 1), -32600),
    ],
)
async def test_a_line_that_is_no_message_is_answered(ide, server, line, code):
    link = await started(ide, server)
    await ide.send(line)
    assert (await ide.next())["error"]["code"] == code
    await ide.send(b"  \r")
    await ide.send(b'{"jsonrpc":"2.0","id":5,"method":"session/list"}\r')
    assert (await link.next())["id"] == 5


async def test_an_id_is_used_once_at_a_time(ide, server):
    link = await started(ide, server)
    await ide.ask("session/list", identity=1)
    await link.next()
    await ide.ask("session/list", identity=1)
    assert (await ide.next())["error"]["code"] == -32600
    await ide.ask("session/list", identity="1")
    assert (await link.next())["id"] == "1"


async def test_too_many_requests_are_refused(ide, server):
    link = await started(ide, server)
    for number in range(1, 1001):
        await ide.ask("session/list", identity=number)
        await link.next()
    await ide.ask("session/list", identity=1001)
    assert "too many requests are unanswered" in (await ide.next())["error"]["message"]
    await link.answer(1, {})
    await ide.next()
    await ide.ask("session/list", identity=1002)
    assert (await link.next())["id"] == 1002


async def test_no_server_is_told_in_the_editor(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with editor(tmp_path, "--url", url) as ide:
            await ide.ask("initialize", {"protocolVersion": 1})
            error = (await ide.next())["error"]
            assert error["code"] == -32603
            assert f"no server at {url}" in error["message"]
            assert "ostler serve" in error["message"]
            status, words = await ide.end()
            assert status == 3
            assert f"no server at {url}" in words


async def test_a_program_that_is_no_server_of_ours_is_told(ide, server):
    server.refuse = 404
    await ide.ask("initialize", {"protocolVersion": 1})
    assert "is not an Ostler server" in (await ide.next())["error"]["message"]
    assert (await ide.end())[0] == 3


async def test_a_refused_key_is_told_and_can_be_given(tmp_path, server):
    server.refuse = 403
    async with editor(tmp_path, "--url", server.url, OSTLER_API_KEY="wrong") as ide:
        await ide.ask("initialize", {"protocolVersion": 1, "clientCapabilities": CLIENT}, identity=1)
        result = (await ide.next())["result"]
        assert result["protocolVersion"] == 1
        assert result["agentInfo"]["name"] == "ostler"
        variable, login = result["authMethods"]
        assert variable["type"] == "env_var"
        assert [each["name"] for each in variable["vars"]] == ["OSTLER_API_KEY"]
        assert (login["type"], login["args"]) == ("terminal", ["--login"])
        for method in ("authenticate", "session/new", "session/list"):
            await ide.ask(method, {"methodId": "ostler-key"}, identity=method)
            error = (await ide.next())["error"]
            assert error["code"] == -32000
            assert "OSTLER_API_KEY" in error["message"]
        server.refuse = None
        await ide.ask("session/new", {"cwd": "/w", "mcpServers": []}, identity=2)
        link = await server.link()
        initialize = await link.next()
        assert initialize["params"]["clientCapabilities"] == CLIENT
        await link.answer(initialize["id"], {})
        assert (await link.next())["id"] == 2
        await link.answer(2, {"sessionId": "s"})
        assert (await ide.next())["id"] == 2
        status, words = await ide.leave()
        assert status == 0
        assert words.count("set OSTLER_API_KEY") == 1


async def test_a_terminal_is_offered_only_where_the_editor_has_one(tmp_path, server):
    server.refuse = 403
    async with editor(tmp_path, "--url", server.url) as ide:
        await ide.ask("initialize", {"protocolVersion": 1})
        methods = (await ide.next())["result"]["authMethods"]
        assert [each["type"] for each in methods] == ["env_var"]


async def test_a_server_that_asks_for_the_key_later_is_the_same(ide, server):
    link = await server.link()
    await ide.ask("initialize", {"protocolVersion": 1})
    await link.next()
    await link.close(4001)
    assert (await ide.next())["result"]["authMethods"]


async def test_a_request_at_which_the_server_fails_is_given_up(ide, server):
    link = await started(ide, server)
    await ide.ask("session/list", identity=5)
    for _ in range(3):
        await link.next()
        await link.close(1011)
        link = await server.link()
        await link.answer((await link.next())["id"], {})
    assert "failed at this request" in (await ide.next())["error"]["message"]
    await ide.ask("session/list", identity=6)
    assert (await link.next())["id"] == 6


async def test_a_message_that_is_too_large_for_the_server_is_given_up(ide, server):
    link = await started(ide, server)
    await ide.ask("session/list", identity=5)
    await link.next()
    await ide.ask("session/prompt", {"sessionId": "s", "prompt": ["x" * 10_000]}, identity=6)
    await link.next()
    await link.close(1009)
    assert (await ide.next())["id"] == 6
    link = await server.link()
    await link.answer((await link.next())["id"], {})
    assert (await link.next())["id"] == 5


async def test_the_end_of_input_leaves_the_turn_to_the_server(ide, server):
    link = await started(ide, server)
    await opened(ide, link)
    await ide.ask("session/prompt", {"sessionId": "s1", "prompt": []})
    await ide.process.stdin.aclose()
    assert (await link.next())["method"] == "session/prompt"
    assert await link.ended()
    status, words = await ide.end()
    assert status == 0
    assert "the turn continues on the server; `ostler attach s1` shows it" in words


async def test_what_stands_before_the_end_of_input_is_answered(ide, server):
    link = await server.link()
    await ide.ask("initialize", {"protocolVersion": 1}, identity=0)
    await ide.process.stdin.aclose()
    await link.next()
    await link.answer(0, {})
    assert (await ide.next())["id"] == 0
    assert await link.ended()
    assert await ide.end() == (0, "")


async def test_the_end_of_input_while_the_server_is_away(ide, server):
    link = await started(ide, server)
    server.refuse = 503
    await link.drop()
    await ide.ask("session/list")
    status, words = await ide.leave()
    assert status == 3
    assert "the last messages are not sent" in words


async def test_a_closed_standard_output_ends_it(ide, server):
    link = await started(ide, server)
    await ide.process.stdout.aclose()
    await link.update("s", "1", sessionUpdate="a")
    with trio.fail_after(10):
        assert await ide.process.wait() == 141
    words = b""
    async for data in ide.process.stderr:
        words += data
    assert words == b""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
async def test_a_signal_ends_it_without_words(ide, server, number, status):
    await started(ide, server)
    ide.process.send_signal(number)
    assert await ide.end() == (status, "")


async def test_words_that_are_not_read_do_not_stop_it(ide, server):
    link = await started(ide, server)
    full = os.open(f"/proc/{ide.process.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, b"\n" * 4096)
    os.close(full)
    await link.drop()
    link = await server.link()
    await link.answer((await link.next())["id"], {})
    await ide.ask("session/list", identity=5)
    assert (await link.next())["id"] == 5


async def away(tmp_path, url, monkeypatch):
    """A bridge in this process, whose server never comes back; the lines that its editor got."""
    monkeypatch.setattr(bridge, "PATIENCE_SECONDS", 0)
    given, ours = os.pipe()
    theirs, out = os.pipe()
    exchange = Exchange()

    async def run():
        with pytest.RaisesGroup(pytest.RaisesExc(Unreachable, match="tried again for 0 s")):
            await bridge.Bridge(
                lambda: (Server(url, None), "/sockets/acp"), exchange, Input(given, LINE_BYTES), Output(out)
            ).run()
        os.close(out)

    async with scripted(int(url.rpartition(":")[2])) as server, trio.open_nursery() as nursery:
        nursery.start_soon(run)
        link = await server.link()
        os.write(ours, b'{"jsonrpc":"2.0","id":1,"method":"session/list"}\n')
        await link.next()
        server.refuse = 502
        await link.drop()
    with open(theirs, "rb") as found:
        lines = found.read().splitlines()
    os.close(ours)
    os.close(given)
    return lines


async def test_a_server_that_stays_away_is_told(tmp_path, monkeypatch):
    async with scripted() as server:
        url = server.url
    lines = await away(tmp_path, url, monkeypatch)
    assert len(lines) == 1
    answer = json.loads(lines[0])
    assert answer["id"] == 1
    assert "is not there (status 502); tried again for 0 s" in answer["error"]["message"]


def test_a_key_is_typed_once(serve):
    place = serve(OSTLER_SESSION_API_KEY="the-right-key")
    del place.env["OSTLER_API_KEY"]
    refused = place.run("ps")
    assert refused.returncode == 1
    with place.terminal("acp", "--login") as terminal:
        terminal.wait_for("Session key of ")
        terminal.type("a wrong one\n")
        assert terminal.end() == 1
        assert "does not know this key" in terminal.text
    with place.terminal("acp", "--login") as terminal:
        terminal.wait_for("Session key of ")
        terminal.type("the-right-key\n")
        assert terminal.end() == 0
        assert "the-right-key" not in terminal.text
    assert (place.state / "client-keys.json").stat().st_mode & 0o777 == 0o600
    assert place.run("ps").returncode == 0
    with place.terminal("acp", "--login", OSTLER_API_KEY="x") as terminal:
        assert terminal.end() == 2
        assert "OSTLER_API_KEY is set" in terminal.text
    assert "requires a terminal" in place.run("acp", "--login").stderr


def test_the_help_imports_nothing_heavy():
    assert imported_by("acp", "--help") == set()
