"""What an agent may have of the secrets: those that its profile named when it was launched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.conversations.conversation import Conversation
from tests.conversations.harness import answer, open_harness, turn


def profile(*refs: str) -> dict[str, Any]:
    return {"agent_profile_id": "p", "revision": 1, "secret_refs": list(refs), "llm_profile_ref": None}


async def has(conversation: Conversation, *names: str) -> set[str]:
    """Which of these variables the agent has."""
    return {name for name in names if "unset" not in answer(await turn(conversation, f"!env {name}"))}


GLOBAL = {"ONE": "first-value", "TWO": "second-value"}


async def test_a_profile_that_names_none_restricts_nothing(tmp_path: Path) -> None:
    async with open_harness(tmp_path, secrets=dict(GLOBAL)) as harness:
        unrestricted = {**profile(), "secret_refs": None}
        conversation = await harness.start(secrets={"OWN": "own-value"}, launched_agent_profile=unrestricted)
        assert await has(conversation, "ONE", "TWO", "OWN") == {"ONE", "TWO", "OWN"}


@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize("refs", [(), ("ONE",), ("ONE", "OWN"), ("MISSING", "OWN")])
async def test_the_agent_gets_those_of_its_profile_alone(tmp_path: Path, refs: tuple[str, ...]) -> None:
    async with open_harness(tmp_path, secrets=dict(GLOBAL)) as harness:
        conversation = await harness.start(
            secrets={"OWN": "own-value", "MORE": "more-value"}, launched_agent_profile=profile(*refs)
        )
        assert await has(conversation, "ONE", "TWO", "OWN", "MORE") == {*refs} - {"MISSING"}
        kept = conversation.info()["secret_registry"]["secret_sources"]
        assert set(kept) == {"OWN"} & {*refs}


@pytest.mark.guarantee(name="secrets-stay-in")
async def test_later_secrets_and_a_restart_change_nothing(tmp_path: Path) -> None:
    async with open_harness(tmp_path, secrets=dict(GLOBAL)) as harness:
        conversation = await harness.start(launched_agent_profile=profile("ONE", "LATER"))
        await conversation.changes.set_secrets(
            {"TWO": "again", "LATER": "later-value", "OTHER": "other-value"}
        )
        assert await has(conversation, "ONE", "TWO", "LATER", "OTHER") == {"ONE", "LATER"}
        identity = conversation.id
    async with open_harness(tmp_path, secrets=dict(GLOBAL)) as harness:
        again = await harness.supervisor.get(identity)
        assert await has(again, "ONE", "TWO", "LATER", "OTHER") == {"ONE", "LATER"}


async def test_what_it_may_not_have_is_hidden_all_the_same(tmp_path: Path) -> None:
    async with open_harness(tmp_path, secrets=dict(GLOBAL)) as harness:
        conversation = await harness.start(launched_agent_profile=profile("ONE"))
        assert "second-value" not in answer(await turn(conversation, "!text it is second-value"))
