"""`ostler acp` with a real server: connections that are cut, servers that are killed, editors that leave."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.commands.editor import Editor, editor
from tests.server.test_acp import log_of, scripted_server
from tests.support.processes import mentioning, wait_until
from tests.support.server import running_server


class Proxy:
    """A network that can be cut, before a server."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self.url = ""
        self._scopes: set[trio.CancelScope] = set()

    async def serve(self, task_status: Any) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        task_status.started()
        await trio.serve_listeners(self._pass, [listener])

    async def _pass(self, client: trio.SocketStream) -> None:
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            server = await trio.open_tcp_stream("127.0.0.1", self._port)
            async with server, trio.open_nursery() as nursery:
                nursery.start_soon(self._one_way, client, server, scope)
                nursery.start_soon(self._one_way, server, client, scope)
        self._scopes.discard(scope)

    async def _one_way(self, source: Any, target: Any, scope: trio.CancelScope) -> None:
        try:
            while data := await source.receive_some():
                await target.send_all(data)
        except trio.BrokenResourceError:
            pass
        scope.cancel()

    def cut(self) -> None:
        for each in list(self._scopes):
            each.cancel()


@asynccontextmanager
async def network(url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(url)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.serve)
        yield proxy
        nursery.cancel_scope.cancel()


async def begun(ide: Editor, directory: Path) -> str:
    """Initialize, and open a session."""
    await ide.ask("initialize", {"protocolVersion": 1, "clientCapabilities": {}}, identity=0)
    assert (await ide.next())["result"]["agentInfo"]["name"] == "ostler"
    await ide.ask("session/new", {"cwd": str(directory / "workspace"), "mcpServers": []}, identity=1)
    session: str = (await until(ide, 1))[-1]["result"]["sessionId"]
    return session


async def until(ide: Editor, identity: Any) -> list[Any]:
    """The messages to the answer of this request, with that."""
    return await _up_to(ide, lambda message: message.get("id") == identity and "method" not in message)


async def until_asked(ide: Editor) -> list[Any]:
    """The messages to the next permission request, with that."""
    return await _up_to(ide, lambda message: message.get("method") == "session/request_permission")


async def _up_to(ide: Editor, last: Callable[[Any], bool]) -> list[Any]:
    found = [await ide.next()]
    while not last(found[-1]):
        found.append(await ide.next())
    return found


def prompt(session: str, text: str) -> dict[str, Any]:
    return {"sessionId": session, "prompt": [{"type": "text", "text": text}]}


def texts(messages: list[Any], kind: str = "agent_message_chunk") -> str:
    updates = [each["params"]["update"] for each in messages if each.get("method") == "session/update"]
    return "".join(each["content"]["text"] for each in updates if each["sessionUpdate"] == kind)


async def test_a_connection_that_is_cut_loses_and_repeats_nothing(tmp_path: Path) -> None:
    async with (
        scripted_server(tmp_path) as server,
        network(server.url) as net,
        editor(tmp_path, "--url", net.url) as ide,
    ):
        session = await begun(ide, tmp_path)
        await ide.ask("session/prompt", prompt(session, "!slow 40 20"), identity=2)
        found: list[Any] = []
        while found[-1:] == [] or found[-1].get("id") != 2:
            found.append(await ide.next())
            if len(found) in (3, 5, 17, 30):
                net.cut()
        assert found[-1]["result"]["stopReason"] == "end_turn"
        assert log_of(server).prompts() == ["!slow 40 20"]
        (tmp_path / "plain").mkdir()
        async with editor(tmp_path / "plain", "--url", server.url) as other:
            await other.ask("initialize", {"protocolVersion": 1}, identity=0)
            await until(other, 0)
            await other.ask("session/load", {"sessionId": session, "cwd": "/x", "mcpServers": []}, identity=1)
            loaded = await until(other, 1)
        assert texts(found) == texts(loaded) != ""
        assert texts(loaded, "user_message_chunk") == "!slow 40 20"
        assert texts(found, "user_message_chunk") == ""


@pytest.mark.parametrize("when", ["asked", "answered"])
async def test_a_permission_request_outlives_the_connection(tmp_path: Path, when: str) -> None:
    async with (
        scripted_server(tmp_path) as server,
        network(server.url) as net,
        editor(tmp_path, "--url", net.url) as ide,
    ):
        session = await begun(ide, tmp_path)
        await ide.ask("session/prompt", prompt(session, "!perm\n!text done"), identity=2)
        found = await until_asked(ide)
        asked = found[-1]
        allow = next(o for o in asked["params"]["options"] if o["kind"] == "allow_once")
        outcome = {"outcome": {"outcome": "selected", "optionId": allow["optionId"]}}
        net.cut()
        if when == "asked":
            # Another request is answered: the connection is there again.
            await ide.ask("session/list", {}, identity=3)
            found += await until(ide, 3)
        await ide.send({"jsonrpc": "2.0", "id": asked["id"], "result": outcome})
        found += await until(ide, 2)
        assert found[-1]["result"]["stopReason"] == "end_turn"
        others = [each["method"] for each in found if each.get("method") not in (None, "session/update")]
        assert others == ["session/request_permission"]
        calls = [each["params"]["update"] for each in found if each.get("method") == "session/update"]
        assert [each["sessionUpdate"] for each in calls].count("tool_call") == 1
        assert "done" in texts(found)


async def test_a_permission_request_that_is_answered_meanwhile_ends(tmp_path: Path) -> None:
    async with (
        scripted_server(tmp_path) as server,
        network(server.url) as net,
        editor(tmp_path, "--url", net.url) as ide,
    ):
        session = await begun(ide, tmp_path)
        await ide.ask("session/prompt", prompt(session, "!perm\n!text done"), identity=2)
        found = await until_asked(ide)
        net.cut()
        path = f"/api/conversations/{session}/events/respond_to_confirmation"
        await server.rest.call("POST", path, {"accept": True})
        rest = await until(ide, 2)
        ended = [each["params"] for each in rest if each.get("method") == "$/cancel_request"]
        assert ended == [{"requestId": found[-1]["id"]}]
        assert "done" in texts(rest)


async def test_an_editor_that_resumes_is_asked_what_waits(tmp_path: Path) -> None:
    async with (
        scripted_server(tmp_path) as server,
        editor(tmp_path, "--url", server.url) as ide,
        editor(tmp_path, "--url", server.url) as other,
    ):
        session = await begun(ide, tmp_path)
        await ide.ask("session/prompt", prompt(session, "!perm"), identity=2)
        found = await until_asked(ide)
        await other.ask("initialize", {"protocolVersion": 1}, identity=0)
        await until(other, 0)
        await other.ask("session/resume", {"sessionId": session, "cwd": "/x", "mcpServers": []}, identity=1)
        messages = [await other.next(), await other.next()]
        asked = next(each for each in messages if each.get("method") == "session/request_permission")
        assert asked["id"] == found[-1]["id"]
        assert asked["params"]["options"] == found[-1]["params"]["options"]


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_server_that_is_killed_comes_back_for_the_editor(tmp_path: Path) -> None:
    async with scripted_server(tmp_path) as server, editor(tmp_path, "--url", server.url) as ide:
        session = await begun(ide, tmp_path)
        await ide.ask("session/prompt", prompt(session, "!text begun\n!hang"), identity=2)
        found = [await ide.next()]
        while "begun" not in texts(found):
            found.append(await ide.next())
        os.kill(int((server.state / "server.pid").read_text().split()[0]), signal.SIGKILL)
        cut_off = await until(ide, 2)
        assert "ended during the turn" in cut_off[-1]["error"]["message"]
        assert "begun" not in texts(cut_off)
        await ide.ask("session/prompt", prompt(session, "!text again"), identity=3)
        after = await until(ide, 3)
        assert after[-1]["result"]["stopReason"] == "end_turn"
        assert "again" in texts(after)
        assert log_of(server).prompts()[0] == "!text begun\n!hang"
        assert len([each for each in log_of(server).prompts() if "begun" in each.splitlines()[0]]) == 1
        status, words = await ide.leave()
        assert status == 0
        assert "connection lost" in words


async def test_the_turn_continues_without_its_editor(tmp_path: Path) -> None:
    async with scripted_server(tmp_path) as server:
        async with editor(tmp_path, "--url", server.url) as ide:
            session = await begun(ide, tmp_path)
            await ide.ask("session/prompt", prompt(session, "!slow 30 20"), identity=2)
            await ide.next()
            status, words = await ide.leave()
            assert status == 0
            assert f"`ostler attach {session}`" in words
        async with editor(tmp_path, "--url", server.url) as ide:
            await ide.ask("initialize", {"protocolVersion": 1}, identity=0)
            await until(ide, 0)
            await ide.ask("session/load", {"sessionId": session, "cwd": "/x", "mcpServers": []}, identity=1)
            loaded = await until(ide, 1)
            await ide.ask("session/prompt", prompt(session, "!text next"), identity=2)
            loaded += await until(ide, 2)
        async with editor(tmp_path, "--url", server.url) as ide:
            await ide.ask("initialize", {"protocolVersion": 1}, identity=0)
            await until(ide, 0)
            await ide.ask("session/load", {"sessionId": session, "cwd": "/x", "mcpServers": []}, identity=1)
            assert texts(await until(ide, 1)) == texts(loaded)


async def test_a_key(tmp_path: Path) -> None:
    async with running_server(tmp_path, {"OSTLER_SESSION_API_KEY": "the-right-key"}) as server:
        (tmp_path / "workspace").mkdir()
        for given in ({}, {"OSTLER_API_KEY": "wrong"}):
            async with editor(tmp_path, "--url", server.url, **given) as ide:
                await ide.ask("initialize", {"protocolVersion": 1}, identity=0)
                assert (await ide.next())["result"]["authMethods"]
                await ide.ask("session/list", {}, identity=1)
                assert (await ide.next())["error"]["code"] == -32000
        async with editor(
            tmp_path, "--url", server.url, "--agent", "demo", OSTLER_API_KEY="the-right-key"
        ) as ide:
            assert await begun(ide, tmp_path)


async def test_an_agent_that_is_not_there_is_told(tmp_path: Path) -> None:
    async with (
        running_server(tmp_path) as server,
        editor(tmp_path, "--url", server.url, "--agent", "nope") as ide,
    ):
        await ide.ask("initialize", {"protocolVersion": 1}, identity=0)
        await ide.next()
        await ide.ask("session/new", {"cwd": str(tmp_path), "mcpServers": []}, identity=1)
        assert "acp_server" in (await until(ide, 1))[-1]["error"]["message"]


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("how", ["end of input", "SIGTERM"])
async def test_a_temporary_server_ends_with_the_editor(tmp_path: Path, how: str) -> None:
    async with editor(tmp_path, "--agent", "demo", OSTLER_PORT="1") as ide:
        session = await begun(ide, tmp_path)
        await ide.ask("session/prompt", prompt(session, "slowly please"), identity=2)
        await ide.next()
        if how == "SIGTERM":
            ide.process.send_signal(signal.SIGTERM)
            status, words = await ide.end()
            assert status == 128 + signal.SIGTERM
        else:
            status, words = await ide.leave()
            assert status == 0
            assert f"the temporary server ends, and the turn of {session}" in words
        assert "starting a temporary server" in words
    assert wait_until(lambda: mentioning(tmp_path) == []), mentioning(tmp_path)
