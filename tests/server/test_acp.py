"""Ostler as an ACP agent, over its WebSocket: real server, scripted agents."""

from __future__ import annotations

import signal
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.acp_client import AcpClient, Failed, acp_client, prompt_of, texts
from tests.support.scripted import ScriptedLog, scripted_command
from tests.support.server import ServerProcess, running_server

ALLOW = {"outcome": {"outcome": "selected", "optionId": "allow"}}


def log_of(server: ServerProcess) -> ScriptedLog:
    return ScriptedLog(server.directory / "scripted.log")


@asynccontextmanager
async def scripted_server(
    directory: Path, *modes: str, arguments: Sequence[str] = ()
) -> AsyncIterator[ServerProcess]:
    """A server whose agent is a scripted one."""
    async with running_server(directory, arguments=arguments) as server:
        (directory / "workspace").mkdir(exist_ok=True)
        command = scripted_command(*modes, log=directory / "scripted.log", home=directory / "scripted-home")
        settings = {"agent_kind": "acp", "acp_server": "custom", "acp_command": command}
        await server.rest.call("PATCH", "/api/settings", {"agent_settings_diff": settings})
        yield server


async def opened(client: AcpClient, server: ServerProcess) -> str:
    made = await client.call("session/new", {"cwd": str(server.directory / "workspace"), "mcpServers": []})
    session: str = made["sessionId"]
    return session


@asynccontextmanager
async def two_clients(server: ServerProcess) -> AsyncIterator[tuple[str, AcpClient, AcpClient]]:
    """A session that two clients have open."""
    async with acp_client(server.url) as one, acp_client(server.url) as two:
        session = await opened(one, server)
        await two.call("session/resume", {"sessionId": session, "cwd": "/x"})
        yield session, one, two


async def test_a_session_a_prompt_and_its_answer(tmp_path: Path) -> None:
    async with scripted_server(tmp_path) as server, acp_client(server.url) as client:
        made = await client.call("session/new", {"cwd": str(tmp_path / "workspace"), "mcpServers": []})
        session = made["sessionId"]
        assert made["modes"]["availableModes"]
        assert len(log_of(server).received("session/new")) == 1  # started at once
        answer = await client.prompt(session, "hello")
        assert answer["stopReason"] == "end_turn"
        assert texts(client.updates(session))
        assert texts(client.updates(session), "user_message_chunk") == ""
        position = client.received.index(await client.wait(lambda m: m.get("result") == answer))
        assert position == len(client.received) - 1 or all(
            "method" not in each
            or each["method"] != "session/update"
            or each["params"]["update"]["sessionUpdate"] != "agent_message_chunk"
            for each in client.received[position:]
        )
        listed = await client.call("session/list", {"cwd": str(tmp_path / "workspace")})
        assert [each["sessionId"] for each in listed["sessions"]] == [session]
        assert (await client.call("session/list", {"cwd": "/elsewhere"}))["sessions"] == []


async def test_a_load_shows_what_was_there_once(tmp_path: Path) -> None:
    async with scripted_server(tmp_path) as server:
        async with acp_client(server.url) as client:
            session = await opened(client, server)
            await client.prompt(session, "!tool\n!text the answer")
            live = client.updates(session)
        async with acp_client(server.url) as client:
            await client.call("session/load", {"sessionId": session, "cwd": "/x", "mcpServers": []})
            loaded = client.updates(session)
            assert texts(loaded, "user_message_chunk") == "!tool\n!text the answer"
            assert texts(loaded) == texts(live)
            calls = [each for each in live if each["sessionUpdate"].startswith("tool_call")]
            assert [each for each in loaded if each["sessionUpdate"].startswith("tool_call")] == calls
            await client.call("session/resume", {"sessionId": session, "cwd": "/x"})
            assert client.updates(session) == loaded


async def test_prompts_wait_in_the_queue_and_a_cancel_is_only_for_ones_own(tmp_path: Path) -> None:
    async with scripted_server(tmp_path) as server, two_clients(server) as (session, one, two):
        running = await one.begin("session/prompt", prompt_of(session, "!text begun\n!hang"))
        await two.wait(lambda m: "begun" in str(m))
        waiting = await two.begin("session/prompt", prompt_of(session, "second"))
        await one.wait(lambda m: "second" in str(m))  # it sees the other's message
        await two.send({"method": "session/cancel", "params": {"sessionId": session}})
        assert await two.answer(waiting) == {"stopReason": "cancelled"}
        third = await two.begin("session/prompt", prompt_of(session, "third"))
        await one.wait(lambda m: "third" in str(m))
        await one.send({"method": "session/cancel", "params": {"sessionId": session}})
        assert (await one.answer(running))["stopReason"] == "cancelled"
        assert (await two.answer(third))["stopReason"] == "end_turn"
        assert log_of(server).prompts() == ["!text begun\n!hang", "third"]


async def test_the_first_answer_to_a_permission_request_counts(tmp_path: Path) -> None:
    async with scripted_server(tmp_path) as server, two_clients(server) as (session, one, two):
        running = await one.begin("session/prompt", prompt_of(session, "!perm"))
        asked, other = [
            await each.wait(lambda m: m.get("method") == "session/request_permission") for each in (one, two)
        ]
        assert asked == other
        allow = next(o for o in asked["params"]["options"] if o["kind"] == "allow_once")
        # A client that cannot ask its user is no answer.
        await one.send({"id": asked["id"], "error": {"code": -32601, "message": "Method not found"}})
        outcome = {"outcome": {"outcome": "selected", "optionId": allow["optionId"]}}
        await two.send({"id": other["id"], "result": outcome})
        assert (await one.answer(running))["stopReason"] == "end_turn"
        assert not [m for m in two.received if m.get("method") == "$/cancel_request"]

        running = await one.begin("session/prompt", prompt_of(session, "!perm"))
        asked = await one.wait(lambda m: m.get("method") == "session/request_permission" and m != asked)
        await two.wait(lambda m: m == asked)
        await one.send({"id": asked["id"], "result": outcome})
        await two.wait(
            lambda m: m.get("method") == "$/cancel_request" and m["params"]["requestId"] == asked["id"]
        )
        await one.answer(running)


async def test_an_option_that_rejects_is_an_answer(tmp_path: Path) -> None:
    async with scripted_server(tmp_path) as server, acp_client(server.url) as one:
        session = await opened(one, server)
        running = await one.begin("session/prompt", prompt_of(session, "!perm"))
        asked = await one.wait(lambda m: m.get("method") == "session/request_permission")
        reject = next(o for o in asked["params"]["options"] if o["kind"] == "reject_once")
        outcome = {"outcome": {"outcome": "selected", "optionId": reject["optionId"]}}
        await one.send({"id": asked["id"], "result": outcome})
        assert (await one.answer(running))["stopReason"] == "end_turn"
        assert log_of(server).records("permission")[-1]["outcome"]["optionId"] == reject["optionId"]


async def test_a_client_that_leaves_finds_its_question_again(tmp_path: Path) -> None:
    async with scripted_server(tmp_path) as server:
        async with acp_client(server.url) as client:
            session = await opened(client, server)
            await client.begin("session/prompt", prompt_of(session, "!perm\n!text done"))
            asked = await client.wait(lambda m: m.get("method") == "session/request_permission")
        async with acp_client(server.url) as client:
            await client.call("session/load", {"sessionId": session, "cwd": "/x", "mcpServers": []})
            again = await client.wait(lambda m: m.get("method") == "session/request_permission")
            assert again == asked
            allow = next(o for o in again["params"]["options"] if o["kind"] == "allow_once")
            outcome = {"outcome": {"outcome": "selected", "optionId": allow["optionId"]}}
            await client.send({"id": again["id"], "result": outcome})
            await client.wait(
                lambda m: (
                    "done"
                    in texts(
                        [m.get("params", {}).get("update")] if m.get("method") == "session/update" else []
                    )
                )
            )


async def test_a_file_is_read_from_the_editors_buffer(tmp_path: Path) -> None:
    async with scripted_server(tmp_path) as server, acp_client(server.url, fs=True) as client:
        session = await opened(client, server)
        client.answers["fs/read_text_file"] = lambda m: {"content": "unsaved"}
        (tmp_path / "workspace" / "a.txt").write_text("saved")
        await client.prompt(session, "!read a.txt")
        assert "unsaved" in texts(client.updates(session))
        client.answers.clear()  # it does not answer: the disk is read
        await client.prompt(session, "!read a.txt")
        assert "saved" in texts(client.updates(session)).replace("unsaved", "")


async def test_modes_and_options(tmp_path: Path) -> None:
    async with scripted_server(tmp_path) as server, acp_client(server.url) as client:
        made = await client.call("session/new", {"cwd": str(tmp_path), "mcpServers": []})
        session, modes = made["sessionId"], made["modes"]
        other = next(m["id"] for m in modes["availableModes"] if m["id"] != modes["currentModeId"])
        assert await client.call("session/set_mode", {"sessionId": session, "modeId": other}) == {}
        chosen = log_of(server).received("session/set_config_option")[-1]["params"]
        assert (chosen["configId"], chosen["value"]) == ("mode", other)
        again = await client.call("session/resume", {"sessionId": session, "cwd": str(tmp_path)})
        assert again["modes"] == {**modes, "currentModeId": other}
        with pytest.raises(Failed) as failed:
            await client.call("session/set_mode", {"sessionId": session, "modeId": "no-such-mode"})
        assert "no-such-mode" in failed.value.message


async def test_a_server_that_was_killed_tells_what_became_of_the_prompt(tmp_path: Path) -> None:
    name = str(uuid.uuid4())
    async with scripted_server(tmp_path, arguments=["--no-warden"]) as server:
        async with acp_client(server.url, client=name) as client:
            session = await opened(client, server)
            await client.prompt(session, "before")
            await client.begin("session/prompt", prompt_of(session, "!text begun\n!hang"), 77)
            await client.wait(lambda m: "begun" in str(m))
            seen = len(client.updates(session))
            position = client.positions[session]
        server.signal(signal.SIGKILL)
        await server.wait()
        await server.start()
        async with acp_client(server.url, client=name) as client:
            attach = {"sessionId": session, "position": position, "cwd": "/x", "mcpServers": []}
            await client.call("_ostler/attach", attach)
            await client.begin("session/prompt", prompt_of(session, "!text begun\n!hang"), 77)
            with pytest.raises(Failed) as failed:
                await client.answer(77)
            assert "ended during the turn" in failed.value.message
            assert "before" not in texts(client.updates(session), "user_message_chunk")
            assert (await client.prompt(session, "after"))["stopReason"] == "end_turn"
            assert seen
        assert log_of(server).prompts().count("!text begun\n!hang") == 1


@pytest.mark.parametrize(
    ("method", "params", "code", "words"),
    [
        ("session/nothing", {}, -32601, "session/nothing"),
        ("session/new", {"cwd": "relative"}, -32602, "cwd"),
        ("session/new", {}, -32602, "cwd"),
        ("session/new", {"cwd": "/x", "mcpServers": [{"name": "a"}]}, -32602, "either command or url"),
        ("session/prompt", {"sessionId": str(uuid.uuid4()), "prompt": []}, -32602, "session/load"),
        ("session/load", {"sessionId": "x"}, -32602, "sessionId"),
        ("session/load", {"sessionId": str(uuid.uuid4())}, -32002, "not found"),
    ],
)
async def test_mistakes_are_named(tmp_path: Path, method: str, params: Any, code: int, words: str) -> None:
    async with running_server(tmp_path) as server, acp_client(server.url) as client:
        with pytest.raises(Failed) as failed:
            await client.call(method, params)
        assert failed.value.code == code
        assert words in failed.value.message


async def test_an_agent_that_cannot_start_is_an_error_and_leaves_no_conversation(tmp_path: Path) -> None:
    async with scripted_server(tmp_path, "crash=new") as server, acp_client(server.url) as client:
        with pytest.raises(Failed) as failed:
            await opened(client, server)
        assert failed.value.data["code"]
        assert (await client.call("session/list"))["sessions"] == []


async def test_the_remote_transport_is_off_until_it_is_asked_for(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server:
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        headers = {**upgrade, "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        answer = await server.rest.http.get("/acp", headers=headers)
        assert answer.status_code == 403
    async with (
        running_server(tmp_path, {"OSTLER_ACP": "on"}) as server,
        acp_client(server.url, "/acp", agent="demo") as client,
    ):
        headers = client.socket.handshake_headers
        assert [value for name, value in headers if name.lower() == b"acp-connection-id"]
        (tmp_path / "workspace").mkdir(exist_ok=True)
        session = await opened(client, server)
        assert (await client.prompt(session, "Hello"))["stopReason"] == "end_turn"
        assert not client.positions


async def test_the_prompts_of_two_clients_with_the_same_ids_are_told_apart(tmp_path: Path) -> None:
    async with scripted_server(tmp_path) as server, two_clients(server) as (session, one, two):
        async with trio.open_nursery() as nursery:
            for client, text in ((one, "first"), (two, "second")):
                nursery.start_soon(client.prompt, session, text)
        for client, text in ((one, "second"), (two, "first")):
            assert texts(client.updates(session), "user_message_chunk") == text


async def test_a_message_that_is_too_large_closes_the_socket_with_its_code(tmp_path: Path) -> None:
    async with (
        running_server(tmp_path, {"OSTLER_MAX_MESSAGE_BYTES": "10000"}) as server,
        acp_client(server.url) as client,
    ):
        await client.send({"id": 1, "method": "session/list", "params": {"cursor": "x" * 20_000}})
        with trio.fail_after(30):
            while client.socket.closed is None:
                await trio.sleep(0.01)
        assert client.socket.closed.code == 1009


async def test_a_call_with_more_values_than_are_read_here_is_shown_as_it_came(tmp_path: Path) -> None:
    async with scripted_server(tmp_path) as server, acp_client(server.url) as client:
        session = await opened(client, server)
        assert (await client.prompt(session, "!heavy 100000\n!text done"))["stopReason"] == "end_turn"
        assert texts(client.updates(session)).endswith("done")
        await client.call("session/load", {"sessionId": session, "cwd": "/x", "mcpServers": []})
        assert (await client.prompt(session, "again"))["stopReason"] == "end_turn"


async def test_what_a_terminal_showed_comes_at_the_end_of_its_call(tmp_path: Path) -> None:
    async with scripted_server(tmp_path) as server, acp_client(server.url) as client:
        session = await opened(client, server)
        await client.prompt(session, "!shell echo shown-by-the-terminal")
        calls = [each for each in client.updates(session) if each["sessionUpdate"].startswith("tool_call")]
        assert not any("terminalId" in str(each) for each in calls)
        assert "shown-by-the-terminal" in str(calls[-1]["content"])
        assert calls[-1]["status"] == "completed"


async def test_a_call_that_its_agent_leaves_open_fails_with_its_turn(tmp_path: Path) -> None:
    async with scripted_server(tmp_path) as server, acp_client(server.url) as client:
        session = await opened(client, server)
        await client.prompt(session, "!opentool")
        calls = [each for each in client.updates(session) if each["sessionUpdate"].startswith("tool_call")]
        assert calls[-1]["status"] == "failed"


async def test_a_prompt_whose_agent_cannot_start_fails_and_is_taken_back(tmp_path: Path) -> None:
    async with scripted_server(tmp_path) as server, acp_client(server.url) as client:
        session = await opened(client, server)
        await server.rest.call("POST", f"/api/agents/{session}/stop")
        command = ["/nonexistent/agent"]
        settings = {"agent_kind": "acp", "acp_server": "custom", "acp_command": command}
        await server.rest.call("PATCH", "/api/settings", {"agent_settings_diff": settings})
        (tmp_path / "scripted-home").rename(tmp_path / "gone")
        (tmp_path / "scripted-home").write_text("no directory: the agent ends")
        with pytest.raises(Failed) as failed:
            await client.prompt(session, "hello")
        assert failed.value.message
        info = await server.rest.info(session)
        assert info["execution_status"] == "error"
        (tmp_path / "scripted-home").unlink()
        (tmp_path / "gone").rename(tmp_path / "scripted-home")
        assert (await client.prompt(session, "again"))["stopReason"] == "end_turn"
        assert log_of(server).prompts() == ["again"]


async def test_a_session_whose_agent_has_ended_still_says_what_it_offers(tmp_path: Path) -> None:
    async with scripted_server(tmp_path) as server, acp_client(server.url) as client:
        made = await client.call("session/new", {"cwd": str(tmp_path), "mcpServers": []})
        session, modes = made["sessionId"], made["modes"]
        other = next(m["id"] for m in modes["availableModes"] if m["id"] != modes["currentModeId"])
        await client.prompt(session, "hello")
        await client.call("session/set_mode", {"sessionId": session, "modeId": other})
        await server.rest.call("POST", f"/api/agents/{session}/stop")
        asked = {"sessionId": session, "cwd": "/x", "mcpServers": []}
        loaded = await client.call("session/load", asked)
        assert [m["id"] for m in loaded["modes"]["availableModes"]] == [
            m["id"] for m in modes["availableModes"]
        ]
        assert [o["id"] for o in loaded["configOptions"]] == [o["id"] for o in made["configOptions"]]
