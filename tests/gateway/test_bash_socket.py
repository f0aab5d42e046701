"""The socket of commands over real connections: what a web page does with it, and what it must not."""

from __future__ import annotations

import json
from functools import partial

import orjson
import pytest
import trio

from gateway.configuration.config import load_supervision
from supervisor.conversations.state.start import StartRequest
from supervisor.workspace.access import Access
from tests.gateway.test_sockets import KEY, connected, refused

PATH = "/sockets/bash-events"


async def output_of(client, command_id):
    """All frames up to the end of that command."""
    frames = []
    while not frames or frames[-1].get("exit_code") is None or frames[-1]["command_id"] != command_id:
        frames.append(await client.next())
    return frames


async def test_a_probe_is_echoed_and_answered_nulls_included(server):
    async with connected(server, PATH) as client:
        await client.send({"command": "true", "timeout": 30})
        echo, output = await client.take(2)
    assert echo == {
        "command": "true",
        "cwd": None,
        "timeout": 30,
        "id": echo["id"],
        "timestamp": echo["timestamp"],
        "kind": "BashCommand",
    }
    assert output == {
        "id": output["id"],
        "timestamp": output["timestamp"],
        "command_id": echo["id"],
        "order": 0,
        "exit_code": 0,
        "stdout": None,
        "stderr": None,
        "kind": "BashOutput",
    }
    description = (await server.call("GET", "/openapi.json"))[1]["components"]["schemas"]
    assert set(description["BashCommand"]["required"]) == set(echo)
    assert set(description["BashOutput"]["required"]) == set(output)


async def test_requests_are_echoed_in_their_order_to_everybody(server):
    async with connected(server, PATH) as one, connected(server, PATH) as other:
        for number in range(5):
            await one.send({"command": f"sleep 0.{5 - number}; echo {number}"})
        seen = await one.take(10)
        assert await other.take(10) == seen
    echoes = [frame["command"][-1] for frame in seen if frame["kind"] == "BashCommand"]
    assert echoes == list("01234")
    outputs = [frame for frame in seen if frame["kind"] == "BashOutput"]
    assert {frame["stdout"] for frame in outputs} == {f"{number}\n" for number in range(5)}


async def test_what_is_no_request_is_an_error_for_its_sender_behind_what_was_told(server):
    async with connected(server, PATH) as client, connected(server, PATH) as other:
        for frame in ("rubbish", "[]", "{}", {"command": 3}, b"\xff\xfe", '{"command": "a\\u0000b"}'):
            await client.send(frame)
            error = await client.next()
            assert error == {
                "id": error["id"],
                "timestamp": error["timestamp"],
                "code": "JSONDecodeError" if frame in ("rubbish", b"\xff\xfe") else "ValidationError",
                "detail": error["detail"],
                "kind": "BashError",
            }
            assert error["detail"]
        await client.send({"type": "auth", "session_api_key": "late"})  # ignored
        await client.send({"command": "true"})
        await client.send("rubbish")
        kinds = [frame["kind"] for frame in await client.take(3)]
        assert kinds.index("BashCommand") < kinds.index("BashError")
        assert [frame["kind"] for frame in await other.take(2)] == ["BashCommand", "BashOutput"]
        await other.nothing()


async def test_too_many_commands_are_an_error(server_with):
    async with (
        server_with(supervision=load_supervision({"OSTLER_BASH_COMMANDS": "1"})) as server,
        connected(server, PATH) as client,
    ):
        for _ in range(2):
            await client.send({"command": "sleep 300"})
        echo, error = await client.take(2)
        assert (echo["kind"], error["kind"], error["code"]) == ("BashCommand", "BashError", "TooManyCommands")
        assert "OSTLER_BASH_COMMANDS" in error["detail"]


@pytest.mark.parametrize("query", ["?resend_mode=all", "?resend_all=true"])
async def test_past_events_come_first_where_they_are_wanted(server, query):
    async with connected(server, PATH) as client:
        await client.send({"command": "echo past"})
        past = await output_of(client, (first := await client.next())["id"])
    async with connected(server, PATH + query) as again, connected(server, PATH) as fresh:
        assert await again.take(2) == [first, *past]
        await fresh.nothing()
        await again.send({"command": "echo now"})
        assert (await again.next())["command"] == (await fresh.next())["command"] == "echo now"


@pytest.mark.parametrize("query", ["?resend_mode=since", "?resend_mode=", "?resend_all=perhaps"])
async def test_an_unknown_resend_mode_is_refused(server, query):
    assert await refused(server, PATH + query) == (403, b"")


async def test_commands_of_conversations_are_not_told(server, tmp_path):
    conversation, _ = await server.supervisor.create(StartRequest(working_dir=str(tmp_path / "w")))
    base = f"/api/conversations/{conversation.id}/bash"
    async with connected(server, PATH) as client:
        await server.call("POST", f"{base}/execute_bash_command", {"command": "echo private"})
        await client.nothing()


async def test_a_command_goes_on_when_its_client_leaves(server, tmp_path):
    async with connected(server, PATH) as client:
        await client.send({"command": f"sleep 0.5; touch {tmp_path}/done"})
        await client.next()
    with trio.fail_after(30):
        while not (tmp_path / "done").exists():
            await trio.sleep(0.01)


async def test_so_many_clients_may_watch(server_with):
    async with server_with(max_subscribers=2) as server:
        async with connected(server, PATH), connected(server, PATH), connected(server, PATH) as third:
            assert await third.closed() == (1013, "Too many bash event connections")
        with trio.fail_after(20):
            while server.services.subscribers.total:
                await trio.sleep(0.01)
        async with connected(server, PATH) as again:
            await again.send({"command": "true"})
            await again.next()


async def test_a_client_that_takes_nothing_is_let_go(server):
    async with connected(server, PATH) as client:
        await client.send({"command": "true"})
        await client.take(2)
        # When: workspace/test_bash_log.py
        (watcher,) = server.services.bash.log._watchers[None]
        watcher.overrun.set()
        assert await client.closed() == (1013, "Too slow: events were dropped")
    assert None not in server.services.bash.log._watchers


@pytest.mark.guarantee(name="workspace-routes")
async def test_a_key_is_asked_for(server_with, tmp_path):
    body = {"command": f"touch {tmp_path}/x"}
    async with server_with(session_api_keys=(KEY,), auth_seconds=0.5) as server:
        assert await refused(server, f"{PATH}?session_api_key=no") == (403, b"")
        assert await refused(server, PATH, [("X-Session-API-Key", "no")]) == (403, b"")
        for frame in (body, {"type": "auth", "session_api_key": "no"}, "rubbish"):
            async with connected(server, PATH) as client:
                await client.send(frame)
                assert await client.closed() == (4001, "Authentication failed")
        async with connected(server, PATH) as silent:
            assert await silent.closed() == (4001, "Authentication failed")
        assert not (tmp_path / "x").exists()
        for path, first in ((f"{PATH}?session_api_key={KEY}", None), (PATH, KEY)):
            async with connected(server, path) as client:
                if first:
                    await client.send({"type": "auth", "session_api_key": KEY})
                await client.send(body)
                assert (await client.next())["kind"] == "BashCommand"


@pytest.mark.guarantee(name="workspace-routes")
async def test_foreign_pages_open_no_socket_on_an_open_server(server):
    for origin in ("http://evil.example", "null", "http://localhost.evil.example"):
        assert await refused(server, PATH, [("Origin", origin)]) == (403, b"")
    assert await refused(server, PATH, host="evil.example") == (403, b"")


@pytest.mark.parametrize("access", [Access.OFF, Access.WORKSPACES])
async def test_an_operator_can_switch_it_off(server_with, access):
    async with server_with(workspace_access=access) as server:
        assert await refused(server, PATH) == (403, b"")


async def test_the_server_ends_with_clients_and_commands_there(server_with):
    async with server_with() as server:
        opened = partial(connected, server, PATH)
        async with opened() as client:
            await client.send({"command": "sleep 300"})
            await client.next()
            server.services.closing.set()
            assert (await client.closed())[0] == 1001


async def test_a_large_frame_is_no_command(server_with):
    async with server_with(max_message_bytes=100_000) as server, connected(server, PATH) as client:
        await client.send(json.dumps({"command": "x" * 200_000}))
        assert (await client.closed())[0] == 1009


async def test_an_error_does_not_repeat_what_it_is_about(server):
    async with connected(server, PATH) as client:
        await client.send(orjson.dumps({"command": "x" * 1_000_000}).decode())
        error = await client.next()
        assert error["kind"] == "BashError"
        assert len(error["detail"]) < 5000
