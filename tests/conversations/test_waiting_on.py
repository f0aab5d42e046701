"""A question of the built-in agent that waits for a person waits on, whatever becomes of server and agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.errors import AlreadyRunning, NotAccepted, NotPossible
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.turns.permissions import Pending
from tests.conversations.harness import (
    Harness,
    answer,
    become,
    events,
    killed_now,
    kinds,
    one,
    open_harness,
    say,
    settled,
    states,
    turn,
    until,
)
from tests.conversations.telling import ALWAYS, start

ASKED = "!system s\n!act a ls\n!act b pwd\n!confirm a b"


async def asked(harness: Harness, script: str = ASKED) -> Conversation:
    conversation = await start(harness, confirmation_policy=ALWAYS)
    await conversation.send(say(script), run=True)
    await until(lambda: len(conversation.runner.permissions._open()) == 2)
    await conversation.log.flushed()
    return conversation


@asynccontextmanager
async def waited_on(
    tmp_path: Path, how: str, begin: Any = asked
) -> AsyncIterator[tuple[Harness, Conversation]]:
    """The conversation on the next server: the one before was killed, or ended in order."""
    root = tmp_path
    async with open_harness(tmp_path) as harness:
        conversation = await begin(harness)
        if how == "killed":
            root = killed_now(tmp_path)
    async with open_harness(root) as harness:
        yield (
            Harness(harness.supervisor, tmp_path, {}, harness.settings),
            await harness.supervisor.get(conversation.id),
        )


HOW = pytest.mark.parametrize("how", ["killed", "ended"])


@pytest.mark.guarantee(name="nothing-survives")
@HOW
@pytest.mark.parametrize("by", ["answer", "run"])
async def test_an_accepted_action_runs_after_a_restart(tmp_path: Path, how: str, by: str) -> None:
    async with waited_on(tmp_path, how) as (harness, conversation):
        assert conversation.record.now.execution_status == "waiting_for_confirmation"
        assert conversation.waiting
        assert not conversation.agent.live  # it is started for the answer
        starts = len(harness.log.pids())
        if by == "answer":
            await conversation.respond(True, "")
        else:
            await conversation.run()
        assert await settled(conversation) == "finished"
        assert len(harness.log.pids()) == starts + 1
        found = await events(conversation)
        assert not [event for event in found if event["kind"].endswith("ErrorEvent")]
        assert "PauseEvent" not in kinds(found)
        assert [e["action_id"] for e in found if e["kind"] == "ObservationEvent"] == ["a", "b"]
        assert [e["status"] for e in states(found, "permission_request")] == ["waiting"] * 2 + ["allowed"] * 2
        assert states(found, "execution_status") == [
            *["running", "waiting_for_confirmation"],
            *["running", "finished"],
        ]
        assert conversation.record.now.asked == {}
        assert not conversation.waiting


@pytest.mark.guarantee(name="nothing-survives")
@HOW
async def test_a_rejected_action_is_rejected_after_a_restart(tmp_path: Path, how: str) -> None:
    async with waited_on(tmp_path, how) as (_, conversation):
        await conversation.respond(False, "Not on a Sunday.")
        assert await settled(conversation) == "idle"
        found = await events(conversation)
        rejected = [e for e in found if e["kind"] == "UserRejectObservation"]
        assert [(e["action_id"], e["rejection_reason"]) for e in rejected] == [
            ("a", "Not on a Sunday."),
            ("b", "Not on a Sunday."),
        ]
        assert not [event for event in found if event["kind"] in ("ObservationEvent", "AgentErrorEvent")]


@HOW
async def test_one_answer_of_two_is_kept(tmp_path: Path, how: str) -> None:
    async def half(harness: Harness) -> Conversation:
        conversation = await asked(harness)
        first = conversation.record.reported.agent_state["permissions"][0]["id"]
        await conversation.respond(True, "", first)
        return conversation

    async with waited_on(tmp_path, how, half) as (_, conversation):
        (left,) = [
            e for e in conversation.record.reported.agent_state["permissions"] if e["status"] == "waiting"
        ]
        assert left["action_id"] == "b"
        with pytest.raises(NotPossible):
            await conversation.respond(True, "", "another")
        with pytest.raises(NotAccepted, match="Unknown option"):
            await conversation.respond(True, "", left["id"], "perhaps")
        assert conversation.record.now.execution_status == "waiting_for_confirmation"
        await conversation.respond(True, "", left["id"], "accept")
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        assert [e["action_id"] for e in found if e["kind"] == "ObservationEvent"] == ["a", "b"]


@pytest.mark.guarantee(name="nothing-survives")
@HOW
async def test_an_answer_that_the_agent_did_not_hear_counts(tmp_path: Path, how: str) -> None:
    async def answered(harness: Harness) -> Conversation:
        conversation = await asked(harness)
        # The server ends before the agent has the answers.
        accepted = {"outcome": {"outcome": "selected", "optionId": "accept"}}
        become(conversation, asked={"a": accepted, "b": accepted})
        for each in conversation.record.reported.agent_state["permissions"]:
            each["status"] = "allowed"
        conversation.recorder.save()
        await conversation.log.flushed()
        return conversation

    async with waited_on(tmp_path, how, answered) as (_, conversation):
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        assert [e["action_id"] for e in found if e["kind"] == "ObservationEvent"] == ["a", "b"]


@pytest.mark.guarantee(name="nothing-survives")
async def test_a_server_that_is_killed_while_the_answered_actions_run_says_that_it_was(
    tmp_path: Path,
) -> None:
    async def running(harness: Harness) -> Conversation:
        conversation = await asked(harness, ASKED + "\n!observe a it ran\n!act c id\n!hang")
        await conversation.respond(True, "")
        await until(lambda: conversation.runner.permissions._voice.action("c") is not None)
        await conversation.log.flushed()
        return conversation

    async with waited_on(tmp_path, "killed", running) as (_, conversation):
        assert conversation.record.now.execution_status == "error"
        assert not conversation.busy
        found = await events(conversation)
        assert one(found, "ConversationErrorEvent")["code"] == "ServerRestarted"
        ends = [e["tool_call_id"] for e in found if e["kind"] in ("ObservationEvent", "AgentErrorEvent")]
        assert sorted(ends) == ["call-a", "call-b", "call-c"]  # each of them once
        assert conversation.record.now.asked == {}


async def test_an_action_with_a_result_is_not_asked_about_again(tmp_path: Path) -> None:
    """Whatever the record says: the log tells that the agent had the answer."""

    async def left(harness: Harness) -> Conversation:
        conversation = await asked(harness, ASKED + "\n!observe a it ran\n!act c id\n!hang")
        before = dict(conversation.record.now.asked)
        await conversation.respond(True, "")
        await until(lambda: conversation.runner.permissions._voice.action("c") is not None)
        accepted = {"outcome": {"outcome": "selected", "optionId": "accept"}}
        become(conversation, asked=dict.fromkeys(before, accepted))
        conversation.recorder.save()
        await conversation.log.flushed()
        return conversation

    async with waited_on(tmp_path, "killed", left) as (_, conversation):
        assert conversation.record.now.execution_status == "error"
        assert not conversation.busy
        assert one(await events(conversation), "ConversationErrorEvent")["code"] == "ServerRestarted"
        assert conversation.record.now.asked == {}


@pytest.mark.parametrize("again", [False, True])
async def test_the_agent_gets_an_answer_after_the_record_says_so(tmp_path: Path, again: bool) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await asked(harness)
        permissions = conversation.runner.permissions
        become(conversation, asked={"a": {}})
        if again:
            permissions._repeated = {"a"}
            params = {
                "sessionId": "s",
                "toolCall": {"toolCallId": "call-a", "_meta": {"ostler": {"eventId": "a"}}},
                "options": [],
            }
            await permissions.ask(params)
        else:
            first = permissions._open()[0]
            one_more = Pending(None, first.entry, first.options, native=True, ends=True)
            permissions._pending.append(one_more)
            for each in permissions._open():
                each.decide({})
            await permissions._decision(one_more)
        (stored,) = await harness.supervisor.journal.get_records([conversation.id])
        assert stored is not None
        assert ConversationRecord.load(stored.record).now.asked == {}


@HOW
async def test_a_message_waits_for_the_answer_as_it_does_beside_a_living_agent(
    tmp_path: Path, how: str
) -> None:
    async with waited_on(tmp_path, how) as (harness, conversation):
        before = len(harness.log.prompts())
        await conversation.send(say("!answer after Then this."), run=True)
        assert conversation.record.now.execution_status == "waiting_for_confirmation"
        assert not conversation.busy
        await conversation.respond(True, "")
        assert await settled(conversation) == "finished"
        assert len(harness.log.prompts()) == before + 2
        found = await events(conversation)
        ids = [event["id"] for event in found]
        assert ids.index("b-done") < ids.index("resumed") < ids.index("after")


@HOW
@pytest.mark.parametrize("moment", ["waiting", "answered"])
async def test_an_interrupt_ends_the_waiting(tmp_path: Path, how: str, moment: str) -> None:
    async with waited_on(tmp_path, how) as (_, conversation):
        if moment == "answered":
            await conversation.respond(True, "")
        await conversation.interrupt()
        await until(lambda: not conversation.busy)
        assert conversation.record.now.execution_status == "paused"
        assert not conversation.waiting
        found = await events(conversation)
        one(found, "InterruptEvent")
        closed = [event["error"] for event in found if event["kind"] == "AgentErrorEvent"]
        assert len(closed) == 2
        if moment == "waiting":
            assert all("Nothing of it has begun" in each for each in closed)
            assert not conversation.agent.live
            with pytest.raises(NotPossible, match="Nothing waits for confirmation"):
                await conversation.respond(True, "")
            await conversation.respond(False, "")  # nothing runs, as it was wished
        # What was asked about is not asked about again, and does not run.
        found = await turn(conversation, "!answer n Next.")
        assert "ObservationEvent" not in kinds(found)
        assert conversation.record.now.asked == {}


@HOW
async def test_what_cannot_be_done_while_it_waits_is_refused(tmp_path: Path, how: str) -> None:
    async with waited_on(tmp_path, how) as (_, conversation):
        for attempt in (
            lambda: conversation.navigate(None),
            lambda: conversation.start_goal("all is well", 2),
        ):
            with pytest.raises(AlreadyRunning):
                await attempt()
        await conversation.pause()
        assert conversation.record.now.execution_status == "waiting_for_confirmation"
        await conversation.restart_agent()
        assert conversation.waiting
        await conversation.stop_agent()
        await conversation.respond(True, "")
        assert await settled(conversation) == "finished"


async def asked_by_an_external_agent(harness: Harness) -> Conversation:
    conversation = await harness.start(confirmation_policy=ALWAYS)
    await conversation.send(say("!perm"), run=True)
    await until(lambda: conversation.waiting)
    await conversation.log.flushed()
    return conversation


@pytest.mark.guarantee(name="nothing-survives")
@HOW
async def test_an_external_agent_says_that_nothing_had_begun(tmp_path: Path, how: str) -> None:
    async with waited_on(tmp_path, how, asked_by_an_external_agent) as (_, conversation):
        assert conversation.record.now.execution_status == "error"
        found = await events(conversation)
        error = one(found, "ConversationErrorEvent")
        assert error["code"] == "ServerRestarted"
        assert "Nothing of that has begun" in error["detail"]
        assert "Run the conversation" in error["detail"]
        assert states(found, "execution_status")[-1] == "error"
        (closed,) = [e for e in found if e["kind"] == "AgentErrorEvent"]
        assert "Nothing of it has begun" in closed["error"]
        with pytest.raises(NotPossible, match="Nothing waits for confirmation"):
            await conversation.respond(True, "")
        assert conversation.record.now.execution_status == "error"
        assert "hello" in answer(await turn(conversation, "hello"))


@HOW
async def test_a_run_continues_an_external_agent_that_had_asked(tmp_path: Path, how: str) -> None:
    async with waited_on(tmp_path, how, asked_by_an_external_agent) as (harness, conversation):
        before = len(harness.log.prompts())
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert len(harness.log.prompts()) == before + 1
