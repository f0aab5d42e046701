"""Permissions that an agent asks for: given by the policy, or decided by a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conversations.harness import answer, events, kinds, one, open_harness, say, settled, turn, until

ALWAYS = {"kind": "AlwaysConfirm"}


async def test_permissions_are_given_once_without_a_person(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("options=allow_always,reject_once,allow_once")
        found = await turn(conversation, "!perm")
        assert kinds(found).count("ACPToolCallEvent") == 2
        assert "allow" in answer(found)
        outcome = [
            r["message"]["result"] for r in harness.log.records("received") if "result" in r["message"]
        ]
        assert {"outcome": {"outcome": "selected", "optionId": "opt-allow_once"}} in outcome


async def test_a_person_is_asked_and_accepts(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        await conversation.send(say("!write made.txt content"), run=True)
        await until(lambda: conversation.record.now.execution_status == "waiting_for_confirmation")
        found = await events(conversation)
        action = found[[e["kind"] for e in found].index("ActionEvent")]
        assert action["action"]["kind"] == "MCPToolAction"
        assert kinds(found)[-1] == "ActionEvent"
        assert not (tmp_path / "workspace" / "made.txt").exists()
        await conversation.run()  # what the Python client does to accept
        assert await settled(conversation) == "finished"
        assert (tmp_path / "workspace" / "made.txt").read_text().strip() == "content"
        observation = next(e for e in await events(conversation) if e.get("action_id") == action["id"])
        assert observation["kind"] == "ObservationEvent"


async def test_a_person_is_asked_and_rejects(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        await conversation.send(say("!write made.txt content"), run=True)
        await until(lambda: conversation.record.now.execution_status == "waiting_for_confirmation")
        await conversation.respond(False, "better not")
        await settled(conversation)
        found = await events(conversation)
        rejection = one(found, "UserRejectObservation")
        assert rejection["rejection_reason"] == "better not"
        assert rejection["action_id"] == next(e["id"] for e in found if e["kind"] == "ActionEvent")
        assert not (tmp_path / "workspace" / "made.txt").exists()


@pytest.mark.guarantee(name="control-always-returns")
async def test_an_interrupt_answers_what_is_asked(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        await conversation.send(say("!perms 3"), run=True)
        await until(lambda: len(conversation.runner.permissions._pending) == 3)
        await conversation.interrupt()
        assert conversation.record.now.execution_status == "paused"
        outcomes = [
            r["message"]["result"] for r in harness.log.records("received") if "result" in r["message"]
        ]
        assert outcomes == [{"outcome": {"outcome": "cancelled"}}] * 3
        found = await events(conversation)
        assert kinds(found).count("ActionEvent") == 3
        assert kinds(found).count("AgentErrorEvent") == 3
