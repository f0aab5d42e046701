"""Messages during a turn of an agent that takes them: each joins the turn, or is the next one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.conversations.conversation import Conversation
from supervisor.conversations.forking import ForkRequest
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.turns import mid_turn
from tests.conversations.harness import (
    Harness,
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
from tests.conversations.telling import ALWAYS, handed, repeats, told

ASKS = "!act a ls\n!confirm a\n!observe a files\n!answer m One"


def offered(harness: Harness) -> list[str]:
    """The ids of the messages that the agent was offered during a turn."""
    return [each["params"]["message_id"] for each in harness.log.received("_ostler/message")]


def answered(harness: Harness) -> list[bool]:
    """Whether it took them."""
    return [each["taken"] for each in harness.log.records("message")]


def answers(found: list[dict[str, Any]]) -> list[str]:
    """What the agent said."""
    said = [event for event in found if event["kind"] == "MessageEvent" and event["source"] == "agent"]
    return [event["llm_message"]["content"][0]["text"] for event in said]


def turns(found: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(each["number"], each["status"]) for each in states(found, "turn")]


def taken_up(found: list[dict[str, Any]]) -> list[str]:
    """The messages in the order in which turns began with them, or they joined one."""
    began = [each for each in states(found, "turn") if each["status"] != "ended"]
    return [each.get("joined", each["message_id"]) for each in began]


async def begun(conversation: Conversation, script: str) -> str:
    """Begin a turn that has told something; the id of its message."""
    lines = script.splitlines()
    # These first: once the agent has told something, the next message may come.
    lines.sort(key=lambda line: not line.startswith("!on-message"))
    first = sum(line.startswith("!on-message") for line in lines)
    script = "\n".join([*lines[:first], "!act z ls", "!observe z files", *lines[first:]])
    sent = await conversation.send(say(script), run=True)
    await until(lambda: conversation.record.now.session_used)
    return sent


async def queue_is_empty(conversation: Conversation) -> None:
    await until(lambda: not conversation.queued, "the end of the queue")


async def are_told_again(root: Path, conversation: Conversation, *ids: str) -> None:
    """The agent tells the next server's conversation these messages again: each stays one event."""
    async with open_harness(root) as next_harness:
        conversation = await next_harness.supervisor.get(conversation.id)
        assert await settled(conversation) == "error"
        again = "\n".join(map(repeats, ids))
        found = await turn(conversation, f"{again}\n!answer back Back")
        assert conversation.record.now.execution_status == "finished"
        assert answers(found) == ["Back"]
        there = [event["id"] for event in await events(conversation)]
        assert [there.count(each) for each in ids] == [1] * len(ids)


@pytest.mark.parametrize("run", [True, False])
async def test_it_is_read_in_the_turn_that_runs(tmp_path: Path, run: bool) -> None:
    async with told(tmp_path, "takes") as (harness, conversation):
        first = await begun(conversation, "!until-message\n!answer m One")
        second = await conversation.send(say("!act b pwd\n!observe b here\n!answer n Two"), run=run)
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        assert (handed(harness), offered(harness)) == ([first], [second])
        assert answers(found) == ["Two", "One"]
        assert [event["id"] for event in found if event["source"] == "user"] == [first, second]
        assert turns(found) == [(1, "running"), (1, "joined"), (1, "ended")]
        joined = states(found, "turn")[1]
        assert (joined["message_id"], joined["joined"]) == (first, second)
        (given,) = harness.log.received("_ostler/message")
        assert given["params"]["message"]["content"][0]["text"].endswith("Two")
        assert conversation.record.now.last_user_message_id == second
        assert not conversation.queued
        # Nor is it prompted by whatever comes next.
        await turn(conversation, "!answer o Three")
        assert len(handed(harness)) == 2


async def test_many_are_read_in_their_order(tmp_path: Path) -> None:
    async with told(tmp_path, "takes") as (harness, conversation):
        first = await begun(conversation, "!until-message\n" * 6)
        sent = [await conversation.send(say(f"!answer m{n} {n}"), run=True) for n in range(8)]
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        assert taken_up(found) == [first, *sent]
        assert offered(harness)[:6] == sent[:6]
        assert answers(found) == [str(n) for n in range(8)]
        assert len(handed(harness)) + answered(harness).count(True) == 9


async def test_so_many_without_a_word_of_the_agent_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mid_turn, "JOINED_MAX", 2)
    async with told(tmp_path, "takes") as (harness, conversation):
        first = await begun(conversation, "!until-message\n!until-message\n!sleep 0.3\n!answer m One")
        await until(lambda: conversation.record.leaf_event_id == "z-done")
        sent = [await conversation.send(say(f"!sleep 0\n# {n}"), run=True) for n in range(3)]
        assert await settled(conversation) == "finished"
        assert offered(harness) == sent[:2]
        assert handed(harness) == [first, sent[2]]


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_one_that_comes_too_late_for_the_turn_is_the_next_one(tmp_path: Path) -> None:
    async with told(tmp_path, "takes", confirmation_policy=ALWAYS) as (harness, conversation):
        first = await begun(conversation, f"!on-message refuse\n{ASKS}")
        await until(lambda: conversation.waiting)
        second = await conversation.send(say("!answer n Two"), run=True)
        third = await conversation.send(say("!answer o Three"), run=True)
        await until(lambda: answered(harness))
        assert len(conversation.queued) == 2
        await conversation.respond(True, "")
        assert await settled(conversation) == "finished"
        assert handed(harness)[:2] == [first, second]
        found = await events(conversation)
        assert taken_up(found) == [first, second, third]  # the third in the turn of the second, perhaps
        assert answers(found) == ["One", "Two", "Three"]


async def test_one_whose_answer_comes_after_the_turn_is_the_next_one(tmp_path: Path) -> None:
    async with told(tmp_path, "takes", confirmation_policy=ALWAYS) as (harness, conversation):
        first = await begun(conversation, f"!on-message keep\n{ASKS}")
        await until(lambda: conversation.waiting)
        second = await conversation.send(say("!answer n Two"), run=True)
        await until(lambda: offered(harness))
        await conversation.respond(True, "")
        assert await settled(conversation) == "finished"
        assert handed(harness) == [first, second]
        assert answers(await events(conversation)) == ["One", "Two"]


async def test_an_agent_that_takes_none_gets_it_as_its_next_turn(tmp_path: Path) -> None:
    async with told(tmp_path, confirmation_policy=ALWAYS) as (harness, conversation):
        first = await begun(conversation, ASKS)
        await until(lambda: conversation.waiting)
        second = await conversation.send(say("!answer n Two"), run=True)
        await until(lambda: offered(harness))
        await conversation.respond(True, "")
        assert await settled(conversation) == "finished"
        assert handed(harness) == [first, second]


async def test_agents_whose_descriptor_does_not_say_so_are_not_offered_any(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("tells", "takes")
        await conversation.send(say("one\n!sleep 0.3"), run=True)
        await until(lambda: harness.log.prompts())
        await turn(conversation, "two")
        assert len(harness.log.prompts()) == 2
        assert not offered(harness)


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_one_that_the_agent_dies_of_is_handed_over_by_a_run(tmp_path: Path) -> None:
    async with told(tmp_path, "takes") as (harness, conversation):
        first = await begun(conversation, "!on-message crash\n!hang")
        second = await conversation.send(say("!answer n Two"), run=True)
        assert await settled(conversation) == "error"
        assert len(conversation.queued) == 1
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert handed(harness) == [first, second]
        assert answers(await events(conversation)) == ["Two"]


async def test_the_one_before_it_that_the_agent_died_of_comes_first(tmp_path: Path) -> None:
    async with told(tmp_path, "takes", "crash=prompt", "until-start=1") as (_, conversation):
        first = await conversation.send(say("!answer m One"), run=True)
        second = await conversation.send(say("!answer n Two"), run=False)
        assert await settled(conversation) == "error"
        await conversation.run()
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        assert taken_up(found) == [first, first, second]
        assert answers(found) == ["One", "Two"]


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_one_that_it_had_when_it_died_is_not_handed_over_again(tmp_path: Path) -> None:
    async with told(tmp_path, "takes") as (harness, conversation):
        first = await begun(conversation, "!until-message")
        second = await conversation.send(say("!act b ls\n!crash SIGKILL"), run=True)
        assert await settled(conversation) == "error"
        assert not conversation.queued
        await conversation.run()  # it goes on from its memory
        assert await settled(conversation) == "finished"
        assert (handed(harness), offered(harness)) == ([first, None], [second])


async def test_one_that_it_tells_again_to_the_next_server_is_no_second_event(tmp_path: Path) -> None:
    async with told(tmp_path, "takes") as (_, conversation):
        await begun(conversation, "!act a ls\n!until-message")
        # In its log this one may be behind what it told last, in Ostler's it is before.
        second = await conversation.send(say("!observe a files\n!hang"), run=True)
        await until(lambda: conversation.record.leaf_event_id == "a-done")
        await conversation.log.flushed()
        root = killed_now(tmp_path)
    await are_told_again(root, conversation, second)


@pytest.mark.guarantee(name="no-blind-retry")
async def test_one_from_before_its_last_word_that_is_told_again_is_no_second_event(tmp_path: Path) -> None:
    async with told(tmp_path, confirmation_policy=ALWAYS) as (_, conversation):
        await conversation.send(say(ASKS), run=True)
        await until(lambda: conversation.record.now.execution_status == "waiting_for_confirmation")
        second = await conversation.send(say("!hang"), run=True)
        await conversation.run()
        # Handed over in a turn of its own, behind what the agent told meanwhile.
        await until(lambda: not conversation.queued and conversation.record.now.turns == 2)
        await conversation.log.flushed()
        root = killed_now(tmp_path)
    await are_told_again(root, conversation, second)


@pytest.mark.guarantee(name="no-blind-retry")
async def test_one_that_was_taken_before_an_interrupt_and_is_told_again_is_no_second_event(
    tmp_path: Path,
) -> None:
    async with told(tmp_path, "takes", confirmation_policy=ALWAYS) as (_, conversation):
        asks = "!act a ls\n!on-message late\n!confirm a\n!observe a files\n!until-message"
        await conversation.send(say(asks), run=True)
        await until(lambda: conversation.record.now.execution_status == "waiting_for_confirmation")
        second = await conversation.send(say("!hang"), run=True)
        await conversation.run()
        await queue_is_empty(conversation)  # in the agent's log it is behind the result, in Ostler's before
        await conversation.interrupt()
        third = await conversation.send(say("!hang"), run=True)
        await queue_is_empty(conversation)
        await conversation.log.flushed()
        root = killed_now(tmp_path)
    await are_told_again(root, conversation, second, third)


async def test_an_interrupt_leaves_one_that_was_not_taken_for_the_next_run(tmp_path: Path) -> None:
    async with told(tmp_path, "takes") as (harness, conversation):
        first = await begun(conversation, "!on-message keep\n!hang")
        second = await conversation.send(say("!answer n Two"), run=True)
        await until(lambda: offered(harness))
        await conversation.interrupt()
        assert conversation.record.now.execution_status == "paused"
        assert len(conversation.queued) == 1
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert handed(harness) == [first, second]
        assert answers(await events(conversation)) == ["Two"]


async def test_after_an_interrupt_the_agent_goes_on_with_one_that_it_took(tmp_path: Path) -> None:
    async with told(tmp_path, "takes") as (harness, conversation):
        first = await begun(conversation, "!status paused\n!until-message")
        second = await conversation.send(say("!hang"), run=True)
        await queue_is_empty(conversation)
        await conversation.interrupt()
        assert conversation.record.now.execution_status == "paused"
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert (handed(harness), offered(harness)) == ([first, None], [second])


async def test_one_that_is_taken_after_the_interrupt_is_there_once(tmp_path: Path) -> None:
    async with told(tmp_path, "takes") as (harness, conversation):
        await begun(conversation, "!on-message keep\n!hang")
        second = await conversation.send(say("!answer n Two"), run=True)
        await until(lambda: offered(harness))
        await conversation.interrupt()
        await until(lambda: not conversation.busy)
        # The agent tells of it when the turn is over: it waits for the next run all the same.
        run = conversation.agent.ready
        assert run is not None
        assert run.session is not None
        late = {"sessionId": run.session.session_id, "message_id": second}
        conversation.runner._handler.notification("_ostler/received", late)
        assert len(conversation.queued) == 1
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert handed(harness)[1:] == [second]


async def test_a_pause_keeps_what_comes_for_the_next_run(tmp_path: Path) -> None:
    async with told(tmp_path, "takes") as (harness, conversation):
        first = await begun(conversation, "!until-paused\n!sleep 0.2\n!status paused")
        await conversation.pause()
        second = await conversation.send(say("!answer n Two"), run=False)
        await until(lambda: not conversation.busy)
        assert conversation.record.now.execution_status == "paused"
        assert not offered(harness)
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert handed(harness) == [first, second]


async def test_what_is_not_for_the_agent_waits_and_so_does_what_is_behind_it(tmp_path: Path) -> None:
    async with told(tmp_path, "takes", confirmation_policy=ALWAYS) as (harness, conversation):
        first = await begun(conversation, ASKS)
        await until(lambda: conversation.waiting)
        await conversation.send(say("/mcp"), run=True)
        third = await conversation.send(say("!answer o Three"), run=True)
        await conversation.respond(True, "")
        assert await settled(conversation) == "finished"
        assert not offered(harness)
        assert handed(harness) == [first, third]
        assert answers(await events(conversation))[-1] == "Three"


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_killed_server_prompts_with_one_that_was_not_taken(tmp_path: Path) -> None:
    async with told(tmp_path, "takes") as (harness, conversation):
        first = await begun(conversation, "!on-message keep\n!hang")
        second = await conversation.send(say("!answer n Two"), run=True)
        await until(lambda: offered(harness))
        await conversation.log.flushed()
        root = killed_now(tmp_path)
        before = len(handed(harness))
    async with open_harness(root) as next_harness:
        conversation = await next_harness.supervisor.get(conversation.id)
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        assert one(found, "ConversationErrorEvent")["code"] == "ServerRestarted"
        assert handed(harness)[:before] == [first]
        assert handed(harness)[before:].count(second) == 1
        assert answers(found) == ["Two"]


async def test_a_killed_server_tells_of_the_turn_that_one_had_joined(tmp_path: Path) -> None:
    async with told(tmp_path, "takes") as (harness, conversation):
        first = await begun(conversation, "!until-message")
        await conversation.send(say("!act b ls\n!hang"), run=True)
        await queue_is_empty(conversation)
        await until(lambda: conversation.runner.turns._voice.calling)
        await conversation.log.flushed()
        root = killed_now(tmp_path)
        before = len(handed(harness))
    async with open_harness(root) as next_harness:
        conversation = await next_harness.supervisor.get(conversation.id)
        assert await settled(conversation) == "error"
        found = await events(conversation)
        assert one(found, "ConversationErrorEvent")["code"] == "ServerRestarted"
        assert turns(found) == [(1, "running"), (1, "joined"), (1, "ended")]
        assert states(found, "turn")[-1]["message_id"] == first
        assert not conversation.queued
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert handed(harness)[before:] == [None]


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_the_record_says_so_before_anything_that_comes_of_it(tmp_path: Path) -> None:
    async with told(tmp_path, "takes") as (_, conversation):
        await begun(conversation, "!until-message")
        second = await conversation.send(say("!sleep 0.3\n!answer n Two"), run=True)
        await until(lambda: conversation.record.now.joined)
        stored = ConversationRecord.load(conversation.record.dump())
        assert (stored.now.joined, stored.now.prompted_seq > 0) == ((second,), True)
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        joined = next(n for n, each in enumerate(found) if "joined" in str(each.get("value")))
        said = next(n for n, each in enumerate(found) if each["id"] == "n")
        assert joined < said
        assert conversation.record.now.joined == ()


async def test_a_fork_in_the_middle_ends_the_turn_that_one_had_joined(tmp_path: Path) -> None:
    async with told(tmp_path, "takes") as (harness, conversation):
        first = await begun(conversation, "!until-message")
        await conversation.send(say("!hang"), run=True)
        await queue_is_empty(conversation)
        fork = await harness.supervisor.fork(conversation.id, ForkRequest())
        ended = states(await events(fork), "turn")[-1]
        assert (ended["status"], ended["stop_reason"]) == ("ended", "interrupted")
        assert ended["message_id"] == first
        await conversation.interrupt()


async def test_what_it_puts_beside_a_message_is_told(tmp_path: Path) -> None:
    async with told(tmp_path, "takes") as (_, conversation):
        extended = {
            "message_id": "of-a-message",
            "activated_skills": ["greeting"],
            "extended_content": [{"type": "text", "text": "Say ahoy.", "cache_prompt": False}],
        }
        plain = {"message_id": "of-another", "activated_skills": [], "extended_content": []}
        script = "\n".join(f"!tell received {json.dumps(each)}" for each in (extended, plain))
        found = await turn(conversation, script)
        assert states(found, "message_extended") == [
            {**extended, "extended_content": [{"type": "text", "text": "Say ahoy."}]}
        ]
        assert kinds(found) == ["MessageEvent"]


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"message_id": 7},
        {"message_id": "m", "activated_skills": "x"},
        {"message_id": "m", "activated_skills": [1]},
        {"message_id": "m", "extended_content": {}},
        {"message_id": "m", "extended_content": [{"type": "image"}]},
    ],
)
async def test_what_is_wrong_is_refused(tmp_path: Path, broken: dict[str, Any]) -> None:
    async with told(tmp_path, "takes") as (_, conversation):
        found = await turn(conversation, f"!tell received {json.dumps(broken)}\n!answer m Yes")
        assert states(found, "message_extended") == []
        assert conversation.record.now.execution_status == "finished"
