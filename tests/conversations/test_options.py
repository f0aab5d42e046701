"""Models and modes that the agent does not take, and the option that names models."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from supervisor.acp import model_option
from supervisor.acp.schema.session_options import mode_option, parse_config_options
from tests.conversations.harness import answer, open_harness, states, turn

PROVIDERS = {
    "id": "provider",
    "name": "Provider",
    "category": "model",
    "type": "select",
    "currentValue": "anthropic",
    "options": [{"value": "anthropic", "name": "Anthropic"}, {"value": "openai", "name": "OpenAI"}],
}


def told(found: list[dict[str, object]]) -> list[str]:
    """What clients show of Ostler's own words."""
    return [
        event["llm_message"]["content"][0]["text"]  # type: ignore[index]
        for event in found
        if event["kind"] == "MessageEvent" and event["source"] == "environment"
    ]


@pytest.mark.parametrize(
    ("modes", "reason", "current"),
    [
        (["refuse=huge"], "huge is not for you", "small"),
        (["refuse=huge", "legacy-models"], "huge is not for you", "small"),
        ([], "Cannot set model to 'huge'", "small"),
        (["refuse=~huge"], "it answers that it has another one", "small"),
        (["without=config"], "it does not let its model be chosen", None),
    ],
)
async def test_a_model_that_the_agent_does_not_take_is_told_once(
    tmp_path: Path, modes: list[str], reason: str, current: str | None
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(*modes, settings={"acp_model": "huge"})
        found = await turn(conversation, "hello")
        (value,) = states(found, "agent_option_refused")
        assert (value["option"], value["value"], value["current"]) == ("model", "huge", current)
        assert reason in value["reason"]
        (text,) = told(found)
        assert text.startswith("The agent does not take the model 'huge': ")
        assert reason in text
        assert ("It continues with 'small'." in text) is (current is not None)
        assert answer(found) == "echo: hello "
        assert conversation.info()["current_model_id"] == current
        await conversation.stop_agent()
        again = await turn(conversation, "hello again")
        assert not states(again, "agent_option_refused")
        assert not told(again)


@pytest.mark.parametrize(
    "modes", [["refuse=yolo"], ["refuse=yolo", "without=config"], ["without=modes,config"]]
)
async def test_a_mode_that_the_agent_does_not_take_is_told(tmp_path: Path, modes: list[str]) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(*modes, settings={"acp_session_mode": "yolo"})
        found = await turn(conversation, "hello")
        (value,) = states(found, "agent_option_refused")
        assert (value["option"], value["value"]) == ("mode", "yolo")
        assert len(told(found)) == 1


async def test_what_is_taken_later_and_refused_again_is_told_again(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("refuse=large", settings={"acp_model": "large"})
        assert states(await turn(conversation, "hello"), "agent_option_refused")
        for model, tells in (("small", False), ("large", True)):
            await conversation.stop_agent()
            conversation.record.agent = attrs.evolve(conversation.record.agent, acp_model=model)
            found = await turn(conversation, "hello")
            assert bool(states(found, "agent_option_refused")) is tells


async def test_of_several_options_the_one_that_names_models_is_taken(tmp_path: Path) -> None:
    mode = f"options-before={json.dumps([PROVIDERS])}"
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(mode, settings={"acp_model": "large"})
        found = await turn(conversation, "hello")
        assert not states(found, "agent_option_refused")
        info = conversation.info()
        assert info["current_model_id"] == "large"
        assert [each["model_id"] for each in info["available_models"]] == ["small", "large"]
        (call,) = harness.log.received("session/set_config_option")
        assert (call["params"]["configId"], call["params"]["value"]) == ("model", "large")


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ([("provider", "Provider"), ("model", "Model")], "model"),
        ([("modelProvider", "Model provider"), ("llm", "LLM")], "llm"),
        ([("apiProvider", "API Provider"), ("modelId", "Model")], "modelId"),
        ([("reasoning_effort", "Effort"), ("cline_model_id", "Model ID")], "cline_model_id"),
        ([("x", "Model"), ("y", "Vendor")], "x"),
        ([("a", "A"), ("b", "B")], "a"),
        ([("only_provider", "Provider")], "only_provider"),
    ],
)
def test_which_option_names_models(options: list[tuple[str, str]], chosen: str) -> None:
    raw = [
        {"id": key, "name": name, "category": "model", "type": "select", "options": []}
        for key, name in options
    ]
    found = model_option(parse_config_options({"configOptions": raw}) or ())
    assert found is not None
    assert found.id == chosen


def test_the_mode_is_found_in_the_same_way() -> None:
    raw = [
        {"id": key, "name": key, "category": "mode", "type": "select", "options": []}
        for key in ("effort", "mode")
    ]
    found = mode_option(parse_config_options({"configOptions": raw}) or ())
    assert found is not None
    assert found.id == "mode"
