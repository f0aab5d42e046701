"""Forks, side questions and models with real agents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.interop.model_api.server import ModelApi
from tests.interop.real_agents import (
    CLAUDE_CODE,
    CODEX,
    KIMI_CODE,
    MISTRAL_VIBE,
    OPENCODE,
    REAL_AGENTS,
    RealAgent,
    install,
)
from tests.interop.talk import TURN_S, Open, Talk
from tests.support.client import answer_text

pytestmark = pytest.mark.interop


@attrs.frozen
class Does:
    """What an agent does, with the versions of the catalogue.

    `forks`: a fork's agent gets its session. `asks`: how a side session begins.
    """

    forks: bool
    asks: str
    switches: bool


DOES = {
    "claude-code": Does(forks=True, asks="session/fork", switches=True),
    "codex": Does(forks=True, asks="session/fork", switches=True),
    "gemini-cli": Does(forks=False, asks="session/new", switches=True),
    "opencode": Does(forks=True, asks="session/fork", switches=True),
}

each_agent = pytest.mark.parametrize("agent", REAL_AGENTS.values(), ids=REAL_AGENTS)


async def post(one: Talk, name: str, body: object, *, of: str | None = None) -> dict[str, object]:
    found: dict[str, object] = await one.rest.call(
        "POST", f"/api/conversations/{of or one.id}/{name}", body, expect=(200, 201)
    )
    return found


async def frames(one: Talk) -> list[dict[str, Any]]:
    """The last ones between the server and this agent, oldest first."""
    found: list[dict[str, Any]] = (await one.rest.call("GET", f"/api/agents/{one.id}/trace"))["frames"]
    return found


def untitled(events: list[dict[str, object]]) -> list[dict[str, object]]:
    """Without the title, which an agent may find long after the turn."""
    return [event for event in events if event.get("key") != "title"]


@each_agent
async def test_a_side_question_leaves_no_trace(keep: Open, agent: RealAgent, model_api: ModelApi) -> None:
    async with keep(agent) as one:
        await one.turn("say hello please")
        before = untitled(await one.rest.events(one.id))
        asked_at = (await frames(one))[-1]["timestamp"]
        answer = await post(one, "ask_agent", {"question": "what is a tulip"})
        assert "what is a tulip" in str(answer["response"])
        assert untitled(await one.rest.events(one.id)) == before
        since = [frame for frame in await frames(one) if frame["timestamp"] > asked_at]
        sent = [m for m in ("session/fork", "session/new") if any(m in str(frame) for frame in since)]
        assert sent[:1] == [DOES[agent.key].asks]
        events = await one.turn("and now this")
        assert "and now this" in answer_text(events)


@each_agent
async def test_a_fork_goes_on_with_what_was_said(keep: Open, agent: RealAgent, model_api: ModelApi) -> None:
    async with keep(agent) as one:
        await one.turn("the word is lily")
        made = await post(one, "fork", {})
        state = made["agent_state"]
        assert isinstance(state, dict)
        assert (state["memory"] == "forked") == DOES[agent.key].forks, state["memory"]
        assert state["memory"] in {"forked", "lost"}
        model_api.calls.clear()
        events = await one.rest.turn(str(made["id"]), "what was it", timeout=60)
        assert "what was it" in answer_text(events)
        # By its own memory or by a transcript, the model got what was said before.
        assert any("the word is lily" in str(call) for call in model_api.calls)
        memory = [e["value"]["memory"] for e in events if e.get("key") == "agent_state"]
        assert memory[-1] in ({"resumed", "loaded"} if state["memory"] == "forked" else {"lost"}), memory
        await one.rest.call("DELETE", f"/api/conversations/{made['id']}")


@each_agent
async def test_a_fork_of_an_agent_that_does_not_run_goes_on_with_what_was_said(
    keep: Open, agent: RealAgent, model_api: ModelApi
) -> None:
    async with keep(agent) as one:
        await one.turn("the word is lotus")
        await one.rest.call("POST", f"/api/agents/{one.id}/stop", expect=(200,))
        made = await post(one, "fork", {})
        state = made["agent_state"]
        assert isinstance(state, dict)
        assert state["memory"] == ("forked" if DOES[agent.key].forks else "lost")
        model_api.calls.clear()
        events = await one.rest.turn(str(made["id"]), "what was it", timeout=60)
        assert "the word is lotus" in str(model_api.last_saying("what was it").body)
        memory = [e["value"]["memory"] for e in events if e.get("key") == "agent_state"]
        assert memory[-1] in ({"resumed", "loaded"} if state["memory"] == "forked" else {"lost"}), memory
        await one.rest.call("DELETE", f"/api/conversations/{made['id']}")


@pytest.mark.parametrize(
    "agent", [CLAUDE_CODE, CODEX, MISTRAL_VIBE, OPENCODE, KIMI_CODE], ids=lambda agent: agent.key
)
async def test_a_fork_of_an_agent_with_a_data_directory_of_its_own_remembers(
    talk: Open, agent: RealAgent, agents_prefix: Path, model_api: ModelApi
) -> None:
    await install(agent, agents_prefix)
    alone = replace(agent, settings={**agent.settings, "acp_isolate_data_dir": True})
    async with talk(alone) as one:
        await one.turn("the word is lily")
        made = str((await post(one, "fork", {}))["id"])
        await one.turn("the word is walrus")
        await one.rest.call("DELETE", f"/api/conversations/{one.id}")
        one.deleted = True
        model_api.calls.clear()
        events = await one.rest.turn(made, "what was it", timeout=TURN_S)
        memory = [e["value"]["memory"] for e in events if e.get("key") == "agent_state"]
        assert memory[-1] in {"resumed", "loaded"}, memory
        asked = str(model_api.last_saying("what was it").body)
        assert "the word is lily" in asked
        assert "walrus" not in asked
        await one.rest.call("DELETE", f"/api/conversations/{made}")


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
@each_agent
async def test_a_fork_from_an_earlier_event_knows_nothing_of_what_came_later(
    keep: Open, agent: RealAgent, model_api: ModelApi
) -> None:
    async with keep(agent) as one:
        first = await one.turn("the word is tulip")
        await one.turn("the word is walrus")
        last = [event["id"] for event in first if event["kind"] != "ConversationStateUpdateEvent"][-1]
        made = await post(one, "fork", {"from_event_id": last})
        state = made["agent_state"]
        assert isinstance(state, dict)
        # No agent forks its session at an earlier point.
        assert (state["memory"], made["forked_from_event_id"]) == ("lost", last)
        copied = str(await one.rest.events(str(made["id"])))
        assert "tulip" in copied
        assert "walrus" not in copied
        model_api.calls.clear()
        events = await one.rest.turn(str(made["id"]), "what was it", timeout=60)
        assert "what was it" in answer_text(events)
        # The source's agent may still ask something of its own.
        asked = [call for call in model_api.calls if "what was it" in str(call)]
        assert "the word is tulip" in str(asked)
        assert "walrus" not in str(asked)
        await one.rest.call("DELETE", f"/api/conversations/{made['id']}")
        # The source goes on with all of it.
        model_api.calls.clear()
        await one.turn("and now this")
        assert "walrus" in str(model_api.calls)


@each_agent
async def test_models_are_found_and_switched(keep: Open, agent: RealAgent) -> None:
    async with keep(agent) as one:
        await one.turn("say hello please")
        info = await one.rest.info(one.id)
        assert info["supports_runtime_model_switch"] == DOES[agent.key].switches
        if not DOES[agent.key].switches:
            refused = await one.rest.call(
                "POST", f"/api/conversations/{one.id}/switch_acp_model", {"model": "x"}, expect=(400,)
            )
            assert "does not let its model be chosen" in refused["detail"]
            return
        models = [each["model_id"] for each in info["available_models"]]
        wanted = next((each for each in models if each != info["current_model_id"]), info["current_model_id"])
        for model in (wanted, info["current_model_id"]):
            await post(one, "switch_acp_model", {"model": model})
            assert (await one.rest.info(one.id))["current_model_id"] == model
