"""A model API that cannot be reached: what the agent says of it, wherever it does, is what a person reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import trio

from tests.interop.real_agents import CLAUDE_CODE, CODEX, GEMINI_CLI, MORE_AGENTS, OPENCODE, RealAgent
from tests.interop.talk import TURN_S, Open

pytestmark = [pytest.mark.interop, pytest.mark.guarantee(name="nothing-hangs")]

NO_PORT = "http://127.0.0.1:9"
"""The port of a service that no machine offers any more."""


@pytest.fixture
def server_environment() -> dict[str, str]:
    return {"OSTLER_DEADLINE_SILENCE_TOLD": "15"}


def patient(secrets: Mapping[str, str]) -> dict[str, str]:
    """With as many attempts of Codex as its users have."""
    found = dict(secrets)
    if "CODEX_CONFIG" in found:
        config = json.loads(found["CODEX_CONFIG"])
        for name in ("request_max_retries", "stream_max_retries"):
            del config["model_providers"]["local"][name]
        found["CODEX_CONFIG"] = json.dumps(config)
    return found


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (CODEX, "Reconnecting... waiting for network: Connection failed: error sending request"),
        (CLAUDE_CODE, "no HTTP answer (attempt "),
        (GEMINI_CLI, "Retrying with backoff... Error: exception TypeError: fetch failed"),
        (OPENCODE, "Cannot connect to API: Unable to connect."),
        (MORE_AGENTS["mistral-vibe"], "Its call of the model failed"),
        # Its log has both lines in turn.
        (MORE_AGENTS["fast-agent"], "Retrying in |Provider Error: Request timed out"),
    ],
    ids=lambda each: each.key if isinstance(each, RealAgent) else "",
)
async def test_what_the_agent_says_of_it_is_told(talk: Open, agent: RealAgent, words: str) -> None:
    lost = replace(agent, secrets=lambda _: patient(agent.secrets(NO_PORT)))
    async with talk(lost) as one:
        await one.begin("hello")

        async def told() -> list[Any]:
            found = await one.rest.events(one.id)
            return [e for e in found if e["kind"] == "MessageEvent" and e["source"] == "environment"]

        with trio.fail_after(TURN_S):
            while not (notes := await told()):
                await trio.sleep(0.2)
        text = notes[0]["llm_message"]["content"][0]["text"]
        assert "The agent has said nothing for " in text
        assert any(each in text for each in words.split("|"))
        assert "written nothing else" not in text
        await one.rest.act(one.id, "interrupt")
