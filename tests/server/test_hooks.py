"""Hooks of a whole server: its kill, its end, and what a start request may say."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
import trio

from tests.support.processes import kill, mentioning
from tests.support.scripted import scripted_command
from tests.support.server import ServerProcess, running_server

WAIT_S = 30.0


def agent(place: Path) -> dict[str, Any]:
    return {"acp_server": "custom", "acp_command": scripted_command(home=place / "agents")}


def hooks(event: str, command: str) -> dict[str, Any]:
    return {"hooks": {event: [{"hooks": [{"command": command, "timeout": 600}]}]}}


async def until(condition: Any) -> None:
    with trio.fail_after(WAIT_S):
        while not condition():
            await trio.sleep(0.01)


async def hanging(server: ServerProcess, place: Path, event: str, text: str) -> tuple[str, Path]:
    """A conversation with a hook that hangs, a daemon of its beside it."""
    place.mkdir()
    mark = place / "mark"
    command = f"exec 3>{mark}; (setsid sh -c 'sleep 600; : {mark}' &); sh -c 'sleep 600; : {mark}'"
    created = await server.rest.create(place / "work", agent(place), hook_config=hooks(event, command))
    await server.rest.send(created["id"], text)
    await until(lambda: mark.exists() and len(mentioning(mark)) >= 2)
    return created["id"], mark


CUT_OFF = (("PreToolUse", "!perm", "turn was running"), ("Stop", "hello", "hook was running"))


@pytest.mark.guarantee(name="repositories-with-hooks")
@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.guarantee(name="nothing-survives")
async def test_a_killed_server_leaves_no_hook_and_tells_the_truth(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server:
        begun = [await hanging(server, tmp_path / event, event, text) for event, text, _ in CUT_OFF]
        pid_file = server.state / "server.pid"
        before = int(pid_file.read_text())
        kill([before])
        for _, mark in begun:
            await until(lambda mark=mark: not mentioning(mark))
        await until(lambda: pid_file.exists() and int(pid_file.read_text() or before) != before)
        for (event, _, said), (conversation, _) in zip(CUT_OFF, begun, strict=True):
            found: list[dict[str, Any]] = []
            with trio.fail_after(WAIT_S):
                while not any(e["kind"] == "ConversationErrorEvent" for e in found):
                    with suppress(OSError, httpx2.HTTPError):  # the next server is on its way
                        found = await server.rest.events(conversation)
                    await trio.sleep(0.05)
            (told,) = [e for e in found if e["kind"] == "HookExecutionEvent"]
            assert told["hook_event_type"] == event
            assert (told["success"], told["blocked"], told["exit_code"]) == (False, False, -1)
            assert "server stopped" in told["error"]
            (error,) = [e for e in found if e["kind"] == "ConversationErrorEvent"]
            assert said in error["detail"]
            assert not any(e["kind"] == "UserRejectObservation" for e in found)
            assert await server.rest.status(conversation) == "error"
        # The end of a server ends hooks as well.
        _, mark = await hanging(server, tmp_path / "end", "UserPromptSubmit", "hello")
        await server.stop()
        assert not mentioning(mark)


async def test_hooks_of_a_request_and_of_a_project(tmp_path: Path) -> None:
    file = tmp_path / "project" / ".openhands" / "hooks.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(orjson.dumps(hooks("SessionStart", "echo project")))
    async with running_server(tmp_path, {"OSTLER_HOOKS": "project"}) as server:
        bad = {"stop": [{"hooks": [{"type": "command"}]}]}
        answer = await server.rest.call(
            "POST",
            "/api/conversations",
            {"workspace": {"working_dir": str(tmp_path / "work")}, "hook_config": bad},
            expect=422,
        )
        assert answer["detail"][0]["loc"] == ["body", "hook_config", "stop", 0, "hooks", 0]
        block = hooks("UserPromptSubmit", "echo no >&2; exit 2")
        created = await server.rest.create(tmp_path / "work", agent(tmp_path), hook_config=block)
        (matcher,) = created["hook_config"]["user_prompt_submit"]
        assert matcher["hooks"][0]["timeout"] == 600
        assert created["hook_config"]["stop"] == []
        found = await server.rest.turn(created["id"], "hello")
        ids = [e["id"] for e in found if e["kind"] == "HookExecutionEvent"]
        (told,) = await server.rest.events_by_id(created["id"], ids)
        assert told["source"] == "hook"
        assert told["blocked"]
        assert set(told) >= {"tool_name", "reason", "additional_context", "error", "action_id", "hook_input"}
        created = await server.rest.create(tmp_path / "project", agent(tmp_path))
        found = await server.rest.turn(created["id"], "hello")
        assert [e["stdout"] for e in found if e["kind"] == "HookExecutionEvent"] == ["project\n"]
        metrics = (await server.rest.http.get("/metrics")).text
        assert 'ostler_hooks_total{outcome="blocked"} 1.0' in metrics
        assert 'ostler_hooks_total{outcome="succeeded"} 1.0' in metrics
