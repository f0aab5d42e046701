"""A real server, and files that do not answer: held by a process with a lease, as any process of the user
can."""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager

import pytest
import trio

from tests.support.lease import leased
from tests.support.server import running_server
from tests.support.tiny import tiny_command

pytestmark = pytest.mark.guarantee(name="malicious-agents")

SPAWN_S = 3.0
SOON_S = 2.0  # a lease would hold up an answer for 45 s
ENDED_S = 12.0  # the warden kills after 25 s


async def soon(server, path="/health"):
    with trio.fail_after(SOON_S):
        return await server.rest.call("GET", path)


@asynccontextmanager
async def answering(server):
    """The server answers all the time."""
    asked = 0

    async def ask():
        nonlocal asked
        while True:
            await soon(server)
            asked += 1
            await trio.sleep(0.05)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        yield
        nursery.cancel_scope.cancel()
    assert asked


async def create(server, name, command, key="custom"):
    agent = {"acp_server": key, "acp_command": command}
    return (await server.rest.create(server.directory / name, agent))["id"]


def program(path):
    path.write_text("#!/bin/sh\nexec " + " ".join(f"'{word}'" for word in tiny_command()) + "\n")
    path.chmod(0o755)
    return path


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_programs_under_a_lease_hold_up_nothing(tmp_path):
    variables = {"OSTLER_DEADLINE_SPAWN": str(SPAWN_S)}
    held = [program(tmp_path / f"held{number}") for number in range(3)]
    async with running_server(tmp_path, environment=variables) as server:
        other = await create(server, "other", tiny_command())
        await server.rest.turn(other, "hello")
        hanging = [await create(server, f"work{number}", [str(path)]) for number, path in enumerate(held)]
        with leased(*held):
            async with answering(server):
                for each in hanging:
                    await server.rest.send(each, "hello")
                await trio.sleep(0.3)
                with trio.fail_after(SPAWN_S):
                    await server.rest.turn(other, "another")
                for each in hanging:
                    await server.rest.wait_status(each, "error", timeout=SPAWN_S + SOON_S)
                    events = await server.rest.events(each)
                    text = json.dumps(events)
                    assert f"did not start within {SPAWN_S:g} s: its file or file system" in text
            for each in hanging:
                await server.rest.send(each, "once more")
            await trio.sleep(0.3)
            before = time.monotonic()
            assert await server.stop() == 0
            assert time.monotonic() - before < ENDED_S
        assert server.left() == []


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_logins_under_a_lease_hold_up_nothing(tmp_path):
    async with running_server(tmp_path) as server:
        logins = {
            ".claude/.credentials.json": {"claudeAiOauth": {"accessToken": "at", "refreshToken": "rt"}},
            ".codex/auth.json": {"tokens": {"access_token": "at", "refresh_token": "rt"}},
        }
        for name, login in logins.items():
            (server.home / name).parent.mkdir()
            (server.home / name).write_text(json.dumps(login))
        found = await soon(server, "/api/agents/credentials")
        other = await create(server, "other", tiny_command())
        with leased(*(server.home / name for name in logins)):
            async with answering(server), trio.open_nursery() as nursery:
                for _ in range(10):  # more than there are threads for it
                    nursery.start_soon(soon, server, "/api/agents/credentials")
                with trio.fail_after(SOON_S):
                    await server.rest.turn(other, "hello")
            before = time.monotonic()
            assert await server.stop() == 0
            assert time.monotonic() - before < ENDED_S
        assert found


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_a_login_that_agents_share_under_a_lease_holds_up_nothing(tmp_path):
    """The agent's own file, which the server looks at when the agent starts and when it has ended."""
    async with running_server(tmp_path) as server:
        login = json.dumps({"tokens": {"access_token": "at-12345", "refresh_token": "rt-12345"}})
        await server.rest.put_secrets({"CODEX_AUTH_JSON": login})
        one = await create(server, "one", tiny_command(), key="codex")
        await server.rest.turn(one, "hello")
        (shared,) = (server.state / "data/logins/CODEX_AUTH_JSON").glob("*/value")
        other = await create(server, "other", tiny_command())
        with leased(shared):
            async with answering(server):
                second = await create(server, "second", tiny_command(), key="codex")
                await server.rest.send(second, "hello")
                with trio.fail_after(SOON_S):
                    await server.rest.turn(other, "hello")
                # The one that wants the login is told why it cannot have it.
                await server.rest.wait_status(second, "error", timeout=ENDED_S)
                text = json.dumps(await server.rest.events(second))
                assert "another process holds a lease on a file in it" in text
            before = time.monotonic()
            assert await server.stop() == 0
            assert time.monotonic() - before < ENDED_S
        assert server.left() == []
        assert json.loads(shared.read_text()) == json.loads(login)
