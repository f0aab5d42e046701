"""Agents and MCP servers behind a login: a header with a token that lasts, or a proxy that adds one.

The servers and their authorization server are the MCP SDK's own, on loopback. Ostler's helpers run inside the
test, except where the fixture `helper_processes` is asked for.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
import trio

from supervisor.conversations.mcp.logins import CannotRenew, McpLogins
from supervisor.conversations.mcp.probe import McpProbe
from supervisor.documents.files import FileDocuments
from supervisor.mcp.logins import LoginStore
from tests.conversations.harness import Harness, NoCipher, answer, open_harness, states, turn
from tests.support.mcp_helper import helpers_inside
from tests.support.mcp_servers import TOOLS, RealServer, real_server

SECONDS = 60.0


@pytest.fixture(autouse=True)
def helpers(request: pytest.FixtureRequest) -> Iterator[None]:
    with ExitStack() as stack:
        if "helper_processes" not in request.fixturenames:
            stack.enter_context(helpers_inside(logins=True))
        yield


@pytest.fixture
def helper_processes() -> None:
    """Helpers are processes, as everywhere else."""


def store(root: Path) -> LoginStore:
    return LoginStore(FileDocuments(root), NoCipher())


def probe(root: Path) -> McpProbe:
    return McpProbe(dict(os.environ), root, McpLogins(store(root), dict(os.environ), root))


async def log_in(root: Path, server: RealServer) -> None:
    entry = {"url": server.url, "auth": {"strategy": "oauth2"}}
    async with probe(root).login("calc", entry, {}) as login:
        while (event := await login.event())["event"] != "done":
            back = await trio.to_thread.run_sync(lambda url=event["url"]: httpx2.get(url).headers["Location"])
            await login.answer(callback_url=back)
    assert event["ok"], event


def change(root: Path, server: RealServer, **fields: Any) -> None:
    """Change the login that is kept."""
    state = store(root).get(server.url)
    assert state is not None
    store(root).put(server.url, {**state, **fields})


def configure(root: Path, **entry: Any) -> None:
    (root / "mcp.json").write_text(json.dumps({"mcpServers": {"calc": {"auth": "oauth", **entry}}}))


@asynccontextmanager
async def logged_in(root: Path, server: RealServer) -> AsyncIterator[Harness]:
    await log_in(root, server)
    configure(root, url=server.url)
    async with open_harness(root) as harness:
        yield harness


def given(harness: Harness) -> dict[str, Any]:
    (server,) = harness.log.received("session/new")[-1]["params"]["mcpServers"]
    return server


async def uses(root: Path, url: str, **headers: str) -> dict[str, Any]:
    """What an agent gets that speaks MCP at this address."""
    call = {"name": "secret_sum", "arguments": {"a": 1, "b": 1}}
    entry = {"url": url, "headers": headers}
    return await probe(root).test("x", entry, {}, seconds=SECONDS, tool_call=call)


async def ask(url: str, method: str = "POST", **more: Any) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=20) as client:
        return await client.request(method, url, **more)


async def test_a_token_that_lasts_is_a_header(tmp_path: Path) -> None:
    with real_server("oauth", tmp_path, "--lifetime", "0") as server:
        async with logged_in(tmp_path, server) as harness:
            conversation = await harness.start()
            await turn(conversation, "hello")
            token = server.lines("took")[-1].split()[1]
            assert given(harness)["url"] == server.url
            assert given(harness)["headers"] == [{"name": "Authorization", "value": f"Bearer {token}"}]
            assert token not in answer(await turn(conversation, f"!text it is {token}"))


@pytest.mark.guarantee(name="mcp-servers")
@pytest.mark.guarantee(name="mcp-servers-are-mounted-or-it-is-said-why-not")
async def test_a_token_that_expires_is_added_by_a_proxy(tmp_path: Path, oauth: RealServer) -> None:
    async with logged_in(tmp_path, oauth) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "hello")
        assert states(found, "mcp_servers")[0]["active"] == [
            {"name": "calc", "transport": "http", "source": "file"}
        ]
        url = given(harness)["url"]
        parts = urlsplit(url)
        assert parts.hostname == "127.0.0.1"
        assert len(parts.path) > 40
        assert given(harness)["headers"] == []
        works = await uses(tmp_path, url)
        assert (works["ok"], works["tool_result"]["text"]) == (True, "the secret sum is 1002"), works
        assert [tool["name"] for tool in works["tools"]] == TOOLS

        # The conversation goes on for longer than the token lives.
        first = oauth.lines("took")[-1]
        change(tmp_path, oauth, token_expires_at=time.time() + 10)
        assert (await uses(tmp_path, url))["ok"]
        assert oauth.lines("refreshed") == ["refreshed"]
        assert oauth.lines("took")[-1] != first
        assert oauth.lines("refused") == []

        # What an agent says of itself or sends on purpose changes nothing.
        assert (await uses(tmp_path, url, Authorization="Bearer mine"))["ok"]

        # Nobody else gets in.
        origin = f"http://{parts.netloc}"
        for wrong, status in (
            (f"{origin}/mcp", 404),
            (f"{origin}/{'x' * 43}/mcp", 404),
            (f"{url}/", 404),
            (f"{origin}/", 404),
        ):
            assert (await ask(wrong)).status_code == status
        assert (await ask(url, headers={"Host": "evil.example"})).status_code == 421
        assert (await ask(url, "PUT")).status_code == 405
        path = parts.path.split("/")[1]
        assert path not in answer(await turn(conversation, f"!text it is {path}"))
        before = len(oauth.lines("took"))

        await harness.supervisor.stop_agent(conversation.id)
        with pytest.raises(httpx2.ConnectError):
            await ask(url)
        assert len(oauth.lines("took")) == before
        assert "access-" not in harness.log.path.read_text()


async def test_a_token_that_is_refused_is_renewed_at_once(
    tmp_path: Path, oauth: RealServer, helper_processes: None
) -> None:
    async with logged_in(tmp_path, oauth) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        state = store(tmp_path).get(oauth.url)
        assert state is not None
        change(tmp_path, oauth, tokens={**state["tokens"], "access_token": "access-no-longer"})
        assert (await uses(tmp_path, given(harness)["url"]))["ok"]
        assert oauth.lines("refreshed") == ["refreshed"]


async def test_a_login_that_ends_is_told_to_the_agent(tmp_path: Path, oauth: RealServer) -> None:
    async with logged_in(tmp_path, oauth) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        store(tmp_path).drop(oauth.url)
        refused = await ask(given(harness)["url"], json={})
        assert refused.status_code == 401
        assert "ostler mcp login calc" in refused.text
        assert "www-authenticate" not in refused.headers


async def test_without_a_login_the_server_is_left_out(tmp_path: Path) -> None:
    configure(tmp_path, url="http://127.0.0.1:1/mcp")
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "hello")
        (dropped,) = states(found, "mcp_servers")[0]["dropped"]
        assert dropped == {"name": "calc", "reason": "it requires a login; run `ostler mcp login calc`"}
        assert harness.log.received("session/new")[-1]["params"]["mcpServers"] == []
        assert "ostler mcp login calc" in answer(await turn(conversation, "/mcp"))


async def test_a_server_over_sse_gets_a_header_and_a_note(tmp_path: Path, oauth: RealServer) -> None:
    async with logged_in(tmp_path, oauth) as harness:
        configure(tmp_path, url=oauth.url, transport="sse")
        conversation = await harness.start('capability={"mcpCapabilities": {"http": true, "sse": true}}')
        found = await turn(conversation, "hello")
        assert given(harness)["headers"][0]["value"].startswith("Bearer access-")
        (note,) = states(found, "mcp_servers")[0]["notes"]
        assert "cannot renew" in note["reason"]


async def test_two_at_once_renew_a_login_once(tmp_path: Path, oauth: RealServer) -> None:
    await log_in(tmp_path, oauth)
    change(tmp_path, oauth, token_expires_at=time.time() + 1)
    logins = McpLogins(store(tmp_path), dict(os.environ), tmp_path)
    entry = {"url": oauth.url, "auth": {"strategy": "oauth2"}}
    tokens: list[str] = []

    async def one() -> None:
        tokens.append((await logins.token("calc", entry)).value)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(one)
    assert len(set(tokens)) == 1
    assert oauth.lines("refreshed") == ["refreshed"]


async def test_an_authorization_server_that_is_away_ends_no_login_that_still_counts(tmp_path: Path) -> None:
    with real_server("oauth", tmp_path) as server:
        await log_in(tmp_path, server)
    change(tmp_path, server, token_expires_at=time.time() + 40)
    logins = McpLogins(store(tmp_path), dict(os.environ), tmp_path)
    entry = {"url": server.url, "auth": {"strategy": "oauth2"}}
    assert (await logins.token("calc", entry)).value.startswith("access-")
    change(tmp_path, server, token_expires_at=time.time() - 1)
    with pytest.raises(CannotRenew, match="cannot be reached"):
        await logins.token("calc", entry)


async def test_a_stream_through_the_proxy_ends_with_the_agents_connection(
    tmp_path: Path, oauth: RealServer
) -> None:
    """A stream that says nothing is held open for as long as the agent wants it, and no longer."""
    async with logged_in(tmp_path, oauth) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        parts = urlsplit(given(harness)["url"])
        head = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: text/event-stream\r\n\r\n"
        open_one = partial(socket.create_connection, (parts.hostname, parts.port), 10)
        for _ in range(70):  # more than there may be at once
            with await trio.to_thread.run_sync(open_one) as connection:
                connection.sendall(head.encode())
        with trio.fail_after(30):
            while not (await uses(tmp_path, given(harness)["url"]))["ok"]:
                await trio.sleep(0.2)
        assert oauth.lines("took")


async def test_requests_that_are_none(tmp_path: Path, oauth: RealServer) -> None:
    async with logged_in(tmp_path, oauth) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        parts = urlsplit(given(harness)["url"])
        for sent in (
            b"\x00\xff\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"A" * 200_000,
            b"POST /x HTTP/1.1\r\nHost: a\r\n",
        ):
            stream = await trio.open_tcp_stream(parts.hostname or "", parts.port or 0)
            async with stream:
                with trio.move_on_after(5):
                    try:
                        await stream.send_all(sent)
                        await stream.send_eof()
                        await stream.receive_some(100)
                    except trio.BrokenResourceError:
                        pass
        assert (await uses(tmp_path, given(harness)["url"]))["ok"]
