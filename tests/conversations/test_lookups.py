"""Secrets that are kept elsewhere, as an agent gets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conversations.harness import answer, open_harness, turn
from tests.support.elsewhere import KEY, elsewhere, reply


@pytest.mark.guarantee(name="secrets-stay-in")
async def test_the_agent_gets_what_is_there_at_its_start(tmp_path: Path) -> None:
    async with elsewhere(reply(b"far-value")) as server:
        async with open_harness(tmp_path) as harness:
            conversation = await harness.start(secrets={"FAR": server.source(), "NEAR": "near-value"})
            assert server.asked == []
            found = await turn(conversation, "!env FAR")
            assert "unset" not in answer(found)
            assert "far-value" not in str(found)  # it is as secret as any other
            await turn(conversation, "!env NEAR")
            assert len(server.asked) == 1
            state = conversation.info()["secret_registry"]["secret_sources"]["FAR"]
            assert state == {
                "description": None,
                "url": f"http://127.0.0.1:{server.port}",
                "headers": {},
                "kind": "LookupSecret",
            }
            assert KEY not in (conversation.full_state().decode() + str(conversation.info()))
            identity = conversation.id
        server.answer = reply(b"")
        async with open_harness(tmp_path) as harness:
            again = await harness.supervisor.get(identity)
            (failure,) = [e for e in await turn(again, "hi") if e["kind"] == "ConversationErrorEvent"]
            assert failure["detail"].startswith("Secret FAR cannot be looked up at http://127.0.0.1:")
            assert "Check the address" in failure["detail"]
            assert KEY not in str(failure)
            # What is said last counts, and the next message finds it.
            await again.changes.set_secrets({"FAR": "given-now"})
            assert "unset" not in answer(await turn(again, "!env FAR"))
            assert len(server.asked) == 2


async def test_what_the_profile_does_not_allow_is_not_even_asked_for(tmp_path: Path) -> None:
    profile = {"agent_profile_id": "p", "revision": 0, "secret_refs": ["NEAR"], "llm_profile_ref": None}
    async with elsewhere(reply(b"far-value")) as server, open_harness(tmp_path) as harness:
        conversation = await harness.start(secrets={"FAR": server.source()}, launched_agent_profile=profile)
        await conversation.changes.set_secrets({"FAR": server.source()})
        assert "unset" in answer(await turn(conversation, "!env FAR"))
        assert server.asked == []
