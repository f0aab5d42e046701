"""Real agents that ask: what a person gets to see, what is kept of it, and the mode that they ask in."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import trio

from tests.interop.real_agents import (
    CLAUDE_CODE,
    CODEX,
    GEMINI_CLI,
    MORE_AGENTS,
    OPENCODE,
    OPENHANDS_CLI,
    REAL_AGENTS,
    RealAgent,
)
from tests.interop.talk import ASK_ME, TURN_S, Open
from tests.support.sockets import collect, session_socket

pytestmark = pytest.mark.interop

each_agent = pytest.mark.parametrize("agent", REAL_AGENTS.values(), ids=list(REAL_AGENTS))

FULL_ACCESS = dataclasses.replace(
    CODEX, secrets=lambda url: {**CODEX.secrets(url), "INITIAL_AGENT_MODE": "agent-full-access"}
)
"""Codex as clients of the wire start it: it asks nobody."""

WRITES_ASKING = {"codex": {"acp_session_mode": "read-only"}}
"""Settings with which an agent asks before it writes a file in its workspace."""


def of_kind(events: list[Any], kind: str) -> list[Any]:
    return [event for event in events if event["kind"] == kind]


def states(events: list[Any], key: str) -> list[Any]:
    return [event["value"] for event in events if event.get("key") == key]


def changed(agent: RealAgent, settings: dict[str, Any]) -> RealAgent:
    return dataclasses.replace(agent, settings={**agent.settings, **settings})


@each_agent
async def test_the_diff_of_an_edit_is_shown_to_who_is_asked(talk: Open, keep: Open, agent: RealAgent) -> None:
    changes = WRITES_ASKING.get(agent.key)
    async with (
        talk(changed(agent, changes), confirmation_policy=ASK_ME) if changes else keep(agent, asking=True)
    ) as one:
        before = await one.begin(f"WRITE: {one.workspace / 'made.txt'} these-are-words")
        events = await one.settle(before, "waiting_for_confirmation")
        action = of_kind(events, "ActionEvent")[-1]
        blocks = action["action"]["data"]["permission"]["content"]
        (diff,) = [block for block in blocks if block["type"] == "diff"]
        assert diff["path"].endswith("made.txt")
        assert "these-are-words" in diff["new_text"]
        assert "\n+these-are-words" in "".join(part["text"] for part in action["thought"])
        (request,) = states(events, "permission_request")
        assert (request["action_id"], request["status"]) == (action["id"], "waiting")
        assert {"allow_once"} <= {option["kind"] for option in request["options"]}
        await one.rest.act(
            one.id, "events/respond_to_confirmation", {"accept": True, "request_id": request["id"]}
        )
        events = await one.settle(before, "finished")
        assert (one.workspace / "made.txt").read_text().strip() == "these-are-words"
        (result,) = [e for e in of_kind(events, "ObservationEvent") if e["action_id"] == action["id"]]
        assert "+these-are-words" in json.dumps(result)
        assert [(each["status"], each["by"]) for each in states(events, "permission_request")] == [
            ("waiting", None),
            ("allowed", "person"),
        ]


@each_agent
async def test_several_calls_of_one_answer_appear_once_each(keep: Open, agent: RealAgent) -> None:
    if agent is CODEX:
        pytest.skip("asks only for commands that want out of its sandbox")
    async with keep(agent, asking=True) as one:
        before = await one.begin("TOOLS 2: echo call-%i > out-%i.txt")
        while True:
            events = await one.settle(before, "waiting_for_confirmation", "finished")
            asked = of_kind(events, "ActionEvent")
            if states(events, "execution_status")[-1] == "finished":
                break
            waits = [e for e in states(events, "permission_request") if e["status"] == "waiting"]
            answered = {e["id"] for e in states(events, "permission_request") if e["status"] != "waiting"}
            for each in waits:
                if each["id"] not in answered:
                    body = {"accept": True, "request_id": each["id"]}
                    await one.rest.act(one.id, "events/respond_to_confirmation", body)
            await one.rest.wait_status(one.id, "finished", "waiting_for_confirmation", timeout=TURN_S)
        calls = [event["tool_call_id"] for event in asked if event["tool_name"] != "finish"]
        assert len(calls) == len(set(calls)) == 2
        assert not of_kind(events, "ACPToolCallEvent")
        assert not of_kind(events, "AgentErrorEvent")


@pytest.mark.parametrize(
    ("agent", "mode", "asks", "chosen"),
    [
        pytest.param(CLAUDE_CODE, "default", True, False, id="claude-code"),
        pytest.param(FULL_ACCESS, "read-only", True, True, id="codex"),
        pytest.param(GEMINI_CLI, "default", True, False, id="gemini-cli"),
        pytest.param(OPENCODE, "build", False, False, id="opencode"),
    ],
)
async def test_an_agent_is_in_a_mode_that_asks(
    talk: Open, agent: RealAgent, mode: str, asks: bool, chosen: bool
) -> None:
    agent = changed(agent, {"acp_session_mode": None})
    async with talk(agent, confirmation_policy=ASK_ME) as one:
        events = await one.turn("hello")
        assert states(events, "confirmation") == [{"mode": mode, "asks": asks, "set": chosen}]


STREAMS = {"claude-code", "codex"}
"""The agents that tell what their shells write while they run."""


@each_agent
async def test_the_output_of_a_command_is_in_its_result_and_streamed_where_the_agent_tells_it(
    keep: Open, agent: RealAgent
) -> None:
    async with (
        keep(agent) as one,
        collect(session_socket(one.server.url, one.id, None)) as live,
    ):
        events = await one.turn("TOOL: sleep 1; echo early; sleep 1; echo late")
        ended = [event for event in of_kind(events, "ACPToolCallEvent") if event["status"] == "completed"]
        assert "early" in json.dumps(ended[-1])
        assert "late" in json.dumps(ended[-1])
        with trio.move_on_after(10 if agent.key in STREAMS else 0):
            while "early" not in str(live.frames):
                await trio.sleep(0.05)  # this socket may be behind the other one
        pieces = [frame for frame in live.frames if frame.get("type") == "tool_output"]
        said = "".join(frame["content"] for frame in pieces)
        assert ("early" in said) == (agent.key in STREAMS)
        assert {frame["tool_call_id"] for frame in pieces} <= {ended[-1]["tool_call_id"]}


async def test_kimi_code_asks_in_words_and_runs_its_commands_in_ostlers_terminals(talk: Open) -> None:
    """Its raw input is empty, its title "Bash"; its shell is the client's."""
    async with (
        talk(MORE_AGENTS["kimi-code"], confirmation_policy=ASK_ME) as one,
        collect(session_socket(one.server.url, one.id)) as live,
    ):
        before = await one.begin("TOOL: echo early; sleep 1; echo late")
        events = await one.settle(before, "waiting_for_confirmation")
        action = of_kind(events, "ActionEvent")[-1]
        assert "echo early; sleep 1; echo late" in json.dumps(action["action"]["data"])
        assert "echo early; sleep 1; echo late" in action["thought"][0]["text"]
        await one.rest.respond(one.id, accept=True)
        events = await one.settle(before, "finished")
        (result,) = [e for e in of_kind(events, "ObservationEvent") if e["action_id"] == action["id"]]
        assert result["observation"]["content"][0]["text"] == "early\nlate\n"
        pieces = [frame["content"] for frame in live.frames if frame.get("type") == "tool_output"]
        assert pieces[0] == "early\n"


async def test_kimi_code_is_told_a_no(talk: Open) -> None:
    """It announces a refused call once more, with its input, and then as failed."""
    async with talk(MORE_AGENTS["kimi-code"], confirmation_policy=ASK_ME) as one:
        before = await one.begin("TOOL: touch made.txt")
        await one.settle(before, "waiting_for_confirmation")
        await one.rest.respond(one.id, accept=False, reason="not today")
        events = await one.settle(before, "finished")
        assert not (one.workspace / "made.txt").exists()
        assert len([e for e in of_kind(events, "ActionEvent") if e["tool_name"] != "finish"]) == 1
        assert not of_kind(events, "AgentErrorEvent")
        assert not of_kind(events, "ACPToolCallEvent")


async def test_qwen_code_tells_the_input_of_a_call_after_its_action(talk: Open) -> None:
    """When it asks, it has told a title alone."""
    async with talk(MORE_AGENTS["qwen-code"], confirmation_policy=ASK_ME) as one:
        before = await one.begin("TOOL: touch made.txt")
        events = await one.settle(before, "waiting_for_confirmation")
        action = of_kind(events, "ActionEvent")[-1]
        assert "touch made.txt" in json.dumps([event for event in events if event["source"] == "agent"])
        await one.rest.respond(one.id, accept=True)
        events = await one.settle(before, "finished")
        told = [each["input"] for each in states(events, "action_input") if each["action_id"] == action["id"]]
        assert [each["command"] for each in [action["action"]["data"], *told] if each] == ["touch made.txt"]


async def test_mistral_vibe_is_put_into_the_mode_that_asks(talk: Open) -> None:
    """It starts in one that accepts edits."""
    async with talk(MORE_AGENTS["mistral-vibe"], confirmation_policy=ASK_ME) as one:
        before = await one.begin(f"WRITE: {one.workspace / 'made.txt'} these-are-words")
        events = await one.settle(before, "waiting_for_confirmation")
        (told,) = states(events, "confirmation")
        assert (told["asks"], told["set"]) == (True, True)
        assert not (one.workspace / "made.txt").exists()
        await one.rest.respond(one.id, accept=False)
        await one.settle(before, "finished")
        assert not (one.workspace / "made.txt").exists()


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
async def test_openhands_asks_once_for_all_under_an_id_of_its_own(talk: Open) -> None:
    """Its question says nothing, and no call of that id ever comes: it is about the calls that are open."""
    agent = OPENHANDS_CLI
    async with talk(agent, confirmation_policy=ASK_ME) as one:
        before = await one.begin("TOOL: echo made > made.txt")
        events = await one.settle(before, "waiting_for_confirmation")
        (question,) = of_kind(events, "ActionEvent")
        assert question["action"]["data"]["command"] == "echo made > made.txt"
        assert "echo made > made.txt" in question["thought"][0]["text"]
        assert (question["tool_name"], question["security_risk"]) == ("execute", "HIGH")
        assert not (one.workspace / "made.txt").exists()
        await one.rest.respond(one.id, accept=True)
        events = await one.settle(before, "finished")
        assert (one.workspace / "made.txt").read_text() == "made\n"
        assert not of_kind(events, "AgentErrorEvent")
        (closed,) = [e for e in of_kind(events, "ObservationEvent") if e["action_id"] == question["id"]]
        assert "Exit code: 0" in json.dumps(closed)
        before = await one.begin("TOOLS 2: echo %i > out-%i.txt")
        events = await one.settle(before, "waiting_for_confirmation")
        actions = of_kind(events, "ActionEvent")
        (request,) = states(events, "permission_request")
        assert request["tool_call_ids"] == [action["tool_call_id"] for action in actions]
        await one.rest.respond(one.id, accept=True)
        events = await one.settle(before, "finished")
        assert (one.workspace / "out-1.txt").read_text() == "1\n"
        assert not of_kind(events, "AgentErrorEvent")


async def test_openhands_is_told_a_no(talk: Open) -> None:
    agent = OPENHANDS_CLI
    async with talk(agent, confirmation_policy=ASK_ME) as one:
        before = await one.begin("TOOL: echo made > made.txt")
        await one.settle(before, "waiting_for_confirmation")
        await one.rest.respond(one.id, accept=False, reason="not today")
        events = await one.settle(before, "finished")
        assert not (one.workspace / "made.txt").exists()
        (rejection,) = of_kind(events, "UserRejectObservation")
        assert rejection["rejection_reason"] == "not today"
        begun = {e["id"] for e in of_kind(events, "ActionEvent")}
        ended = [e["action_id"] for e in events if e.get("action_id") in begun and "key" not in e]
        assert sorted(ended) == sorted(set(ended))  # each call ends once
        assert states(events, "confirmation")[-1]["asks"] is True
        # One of its modes has these words in its description.
        assert "without asking" not in json.dumps(of_kind(events, "MessageEvent"))


async def test_a_conversation_says_once_that_pi_does_not_ask(talk: Open) -> None:
    """It offers no mode that asks."""
    async with talk(MORE_AGENTS["pi"], confirmation_policy=ASK_ME) as one:
        events = await one.turn("TOOL: echo one > one.txt")
        events += await one.turn("TOOL: echo two > two.txt")
        assert (one.workspace / "two.txt").exists()
        told = states(events, "confirmation")
        assert told[0]["asks"] is False
        assert told[0]["set"] is False
        assert [each["unasked"]["tool_kind"] for each in told if "unasked" in each] == ["execute"]
        notes = [e for e in of_kind(events, "MessageEvent") if e["source"] == "environment"]
        assert len(notes) == 1
        assert "without asking" in json.dumps(notes)
        info = await one.rest.info(one.id)
        assert "unasked" in info["agent_state"]["confirmation"]


async def test_pis_failed_call_of_its_model_is_no_empty_success(talk: Open) -> None:
    async with talk(MORE_AGENTS["pi"]) as one:
        await one.turn("hello")  # its first answer begins with its version
        events = await one.turn("ERROR 400")
        finish = of_kind(events, "ActionEvent")[-1]["action"]["message"]
        assert "The agent ended its turn without an answer." in finish
        (ended,) = [each for each in states(events, "turn") if each["status"] == "ended"]
        assert ended["answered"] is False


async def test_of_clines_options_the_one_that_names_models_is_taken(talk: Open) -> None:
    """Its first one of category `model` lists providers."""
    agent = changed(MORE_AGENTS["cline"], {"acp_model": "test-model"})
    async with talk(agent) as one:
        await one.turn("hello")
        state = (await one.rest.info(one.id))["agent_state"]
        assert state["acp_current_model_id"] == "test-model"
        listed = {model["model_id"] for model in state["acp_available_models"]}
        assert listed
        assert not listed & {"anthropic", "openai-native", "openai-compatible", "openrouter", "cline"}


async def test_a_session_that_clines_hub_took_along_is_loaded_again(talk: Open) -> None:
    """In a shared home the hub is the first conversation's, and ends with it: the second one's session is not
    found then."""
    agent = changed(MORE_AGENTS["cline"], {"acp_home": "shared"})
    async with talk(agent) as first, talk(agent) as second:
        await first.turn("hello")
        await second.turn("remember the word PINEAPPLE")
        first.deleted = True
        await first.rest.call("DELETE", f"/api/conversations/{first.id}")
        events = await second.turn("what was the word")
        assert "what was the word" in json.dumps(of_kind(events, "ActionEvent"))
        assert not of_kind(events, "ConversationErrorEvent")
        assert "PINEAPPLE" in json.dumps(second.model_api.last_saying("what was the word").body)
