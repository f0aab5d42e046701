"""Real agents that are not in the catalogue, given by a command: older ones, and one that is given up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.interop.custom_agents.installed import (
    CustomAgents,
    Make,
    claude_of_before,
    codex_of_zed,
    deepagents,
    gemini_cli,
    gptme,
    hermes,
    iac_code,
    kimi_cli,
    kimi_cli_at_its_end,
    nooa,
)
from tests.interop.model_api.server import ModelApi
from tests.interop.real_agents import GEMINI_CLI, install
from tests.interop.talk import ASK_ME, Open, Talk
from tests.support.client import answer_text, of_kind, summary
from tests.support.processes import environment

pytestmark = pytest.mark.interop

EACH = {
    "codex-acp-of-zed": codex_of_zed,
    "claude-agent-acp-of-before": claude_of_before,
    "kimi-cli": kimi_cli,
}
each_agent = pytest.mark.parametrize("make", EACH.values(), ids=EACH)


def states(events: list[Any], key: str) -> list[Any]:
    return [event["value"] for event in events if event.get("key") == key]


async def asked(one: Talk, text: str) -> tuple[int, Any]:
    """Prompt it; how many events there were, and the action that waits."""
    before = await one.begin(text)
    events = await one.settle(before, "waiting_for_confirmation")
    return before, of_kind(events, "ActionEvent")[-1]


def written(file: Path) -> dict[str, str]:
    """The variables in the output of `env`."""
    return dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)


@each_agent
async def test_it_answers_is_interrupted_and_remembers(
    talk: Open, custom: CustomAgents, make: Make, model_api: ModelApi
) -> None:
    async with talk(await custom(make)) as one:
        assert "ECHO: remember PINEAPPLE" in answer_text(await one.turn("remember PINEAPPLE"))
        before = await one.begin("SLOW 600 50")
        await one.wait_delta("s3")
        await one.rest.act(one.id, "interrupt")
        events = await one.settle(before, "paused")
        assert of_kind(events, "InterruptEvent"), summary(events)
        await one.rest.call("POST", f"/api/agents/{one.id}/stop")
        assert "what was the word" in answer_text(await one.turn("what was the word"))
        assert "PINEAPPLE" in json.dumps(model_api.last_saying("what was the word").body)


async def test_a_method_of_type_env_var_whose_variables_are_given_logs_in(
    talk: Open, custom: CustomAgents, model_api: ModelApi
) -> None:
    """Zed's codex-acp requires a login at session/new, and takes it from its environment."""
    agent = await custom(codex_of_zed)
    async with talk(agent, with_key=False) as one:
        events = await one.turn("say hello", wanted=("error",))
        (error,) = of_kind(events, "ConversationErrorEvent")
        assert error["code"] == "ACPAuthRequired"
        assert "OPENAI_API_KEY" in error["detail"]
        needs = (await one.rest.info(one.id))["agent_state"]["needs_credentials"]
        assert "OPENAI_API_KEY" in needs["secrets"]
        assert "given" not in needs
        await one.rest.put_secrets(agent.secrets(model_api.url))
        events = await one.turn("say hello again")
        assert "ECHO: say hello again" in answer_text(events), summary(events)
        assert "needs_credentials" not in (await one.rest.info(one.id))["agent_state"]


@pytest.mark.parametrize("make", [codex_of_zed, kimi_cli], ids=["codex-acp", "kimi"])
async def test_custom_means_custom_whatever_the_command_is_called(
    talk: Open, custom: CustomAgents, make: Make
) -> None:
    """Neither gets what the catalogue's Codex and Kimi Code would get: data directories and files."""
    agent = await custom(make)
    async with talk(agent) as one:
        logins = {"CODEX_AUTH_JSON": json.dumps({"OPENAI_API_KEY": "sk-of-the-catalogues-codex-Qx81"})}
        logins["KIMI_CODE_CONFIG_TOML"] = "# of-the-catalogues-kimi-code-Wm27"
        await one.rest.put_secrets(logins)
        await one.turn("TOOL: env > env.txt")
        settings = (await one.rest.info(one.id))["agent"]
        assert settings["acp_server"] == "custom"
        assert settings["acp_command"] == agent.settings["acp_command"]
        # One overwrites its environment with its name, the other one's commands are in a sandbox.
        variables = environment(one.pids()[0]) if one.pids() else written(one.workspace / "env.txt")
        assert not {"CODEX_HOME", "KIMI_CODE_HOME", *logins} & variables.keys()
        # Its home is its conversation's own.
        assert one.id in str(await trio.Path(variables["HOME"]).resolve())


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize("make", [claude_of_before, kimi_cli], ids=["claude-agent-acp-of-before", "kimi-cli"])
async def test_who_is_asked_sees_the_command_and_the_diff(
    talk: Open, custom: CustomAgents, make: Make
) -> None:
    async with talk(await custom(make), confirmation_policy=ASK_ME) as one:
        before, action = await asked(one, "TOOL: touch x")
        assert "touch x" in json.dumps(action["action"]["data"])
        assert "touch x" in json.dumps([action["thought"], action["summary"]])
        await one.rest.respond(one.id, accept=True)
        await one.settle(before, "finished")
        assert (one.workspace / "x").exists()

        before, action = await asked(one, f"WRITE: {one.workspace / 'made.txt'} these-are-words")
        (diff,) = [b for b in action["action"]["data"]["permission"]["content"] if b["type"] == "diff"]
        assert diff["path"].endswith("made.txt")
        assert "these-are-words" in diff["new_text"]
        assert "+these-are-words" in "".join(part["text"] for part in action["thought"])
        assert not (one.workspace / "made.txt").exists()
        await one.rest.respond(one.id, accept=True)
        events = await one.settle(before, "finished")
        (result,) = [e for e in of_kind(events, "ObservationEvent") if e["action_id"] == action["id"]]
        assert "+these-are-words" in json.dumps(result)


async def each_once(one: Talk, before: int, *, accept: bool) -> list[Any]:
    """Answer all that it asks until its turn is over. Each action was shown once, and has one end."""
    while True:
        await one.rest.respond(one.id, accept=accept, reason=None if accept else "not that")
        events = await one.settle(before, "finished", "waiting_for_confirmation")
        if states(events, "execution_status")[-1] == "finished":
            break
    actions = [e for e in of_kind(events, "ActionEvent") if e["tool_name"] != "finish"]
    ends = [e.get("action_id") or e["tool_call_id"] for e in events if e["kind"] in ENDS]
    assert len(ends) == len(actions) + 1, summary(events)  # the turn's own
    assert "without asking" not in json.dumps(events)
    assert not of_kind(events, "AgentErrorEvent"), summary(events)
    return actions


ENDS = ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation")


async def test_hermes_asks_under_an_id_of_its_own_and_never_ends_an_edit(
    talk: Open, custom: CustomAgents
) -> None:
    async with talk(await custom(hermes), confirmation_policy=ASK_ME) as one:
        for word, accept in (("yes", True), ("no", False)):
            path = one.workspace / f"{word}.txt"
            before, action = await asked(one, f"WRITE: {path} these-are-words")
            assert (action["tool_name"], action["security_risk"]) == ("edit", "MEDIUM")
            assert "+these-are-words" in "".join(part["text"] for part in action["thought"])
            assert len(await each_once(one, before, accept=accept)) == 1
            assert path.exists() is accept
        before, action = await asked(one, "TOOLS 2: rm -rf gone-%i")
        assert action["action"]["data"]["command"] == "rm -rf gone-0"
        assert len(await each_once(one, before, accept=False)) == 2


async def test_deep_agents_ask_under_other_ids_and_complete_what_was_refused(
    talk: Open, custom: CustomAgents
) -> None:
    async with talk(await custom(deepagents), confirmation_policy=ASK_ME) as one:
        for accept in (True, False):
            before, action = await asked(one, f"TOOLS 2: touch {accept}-%i")
            assert (action["tool_name"], action["security_risk"]) == ("execute", "HIGH")
            assert len(await each_once(one, before, accept=accept)) == 2
            assert (one.workspace / f"{accept}-1").exists() is accept


async def test_iac_code_which_takes_every_option_for_a_yes_is_told_a_no(
    talk: Open, custom: CustomAgents
) -> None:
    async with talk(await custom(iac_code), confirmation_policy=ASK_ME) as one:
        before, action = await asked(one, "TOOL: touch x")
        assert "touch x" in json.dumps(action["action"]["data"])
        await each_once(one, before, accept=False)
        assert not (one.workspace / "x").exists()
        before, _ = await asked(one, f"WRITE: {one.workspace / 'y'} words")  # which it would write by itself
        await each_once(one, before, accept=False)
        assert not (one.workspace / "y").exists()
        before, _ = await asked(one, "TOOL: touch x")
        await each_once(one, before, accept=True)
        assert (one.workspace / "x").exists()


async def test_a_failed_call_of_the_model_is_no_empty_success(talk: Open, custom: CustomAgents) -> None:
    """Kimi CLI ends its turn then as if it had answered."""
    async with talk(await custom(kimi_cli)) as one:
        events = await one.turn("ERROR 400")
        assert "The agent ended its turn without an answer." in answer_text(events), summary(events)
        (ended,) = [each for each in states(events, "turn") if each["status"] == "ended"]
        assert (ended["stop_reason"], ended["answered"]) == ("end_turn", False)
        assert "go on" in answer_text(await one.turn("go on"))


async def test_what_an_agent_says_on_stdout_before_it_ends_is_its_reason(
    talk: Open, custom: CustomAgents
) -> None:
    async with talk(await custom(kimi_cli_at_its_end)) as one:
        events = await one.turn("say hello", wanted=("error",))
        (error,) = of_kind(events, "ConversationErrorEvent")
        assert "kimi-cli is no longer maintained" in error["detail"], error
        assert error["classification"]["retryable"] is False


async def test_the_banner_of_gptme_is_no_part_of_its_answer(talk: Open, custom: CustomAgents) -> None:
    """It is a message of its own."""
    async with talk(await custom(gptme)) as one:
        (answer,) = [
            e for e in of_kind(await one.turn("say hello"), "ActionEvent") if e["tool_name"] == "finish"
        ]
        # Its tools stand in its prompt's text, so the model takes the request for a side question.
        assert answer["action"]["message"] == "Test title"
        messages = of_kind(await one.rest.events(one.id), "MessageEvent")
        assert "Using model: local/test-model" in answer_text(messages)


async def test_an_internal_error_of_nooa_names_its_cause(
    talk: Open, custom: CustomAgents, model_api: ModelApi
) -> None:
    """It is in the error's data."""
    model_api.key = "another key"
    async with talk(await custom(nooa)) as one:
        (error,) = of_kind(await one.turn("say hello", wanted=("error",)), "ConversationErrorEvent")
        assert error["detail"].startswith("[-32603] Internal error: ")
        assert "Incorrect API key provided" in error["detail"]


async def test_gemini_cli_by_a_command_writes_files_and_remembers(
    talk: Open, agents_prefix: Path, model_api: ModelApi
) -> None:
    """It is known by the name that it introduces itself with: offered the client's files it creates none, and
    restored in the minute of its start it overwrites its own memory."""
    await install(GEMINI_CLI, agents_prefix)
    async with talk(gemini_cli(agents_prefix, model_api.url)) as one:
        await one.turn("remember PINEAPPLE")
        await one.turn(f"WRITE: {one.workspace / 'made.txt'} these-are-words")
        assert (one.workspace / "made.txt").read_text().strip() == "these-are-words"
        await one.rest.call("POST", f"/api/agents/{one.id}/stop")
        assert "what was the word" in answer_text(await one.turn_after_a_kill("what was the word"))
        assert (await one.rest.info(one.id))["agent_state"]["memory"] == "loaded"
        assert "PINEAPPLE" in json.dumps(model_api.last_saying("what was the word").body)
