"""Questions beside the conversation: answered by the agent, and no trace of them in the conversation."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from supervisor.conversations.agent.side.registry import ANSWER_BYTES, CUT
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.errors import AgentFailure, AgentTimeout, TooManyQuestions
from tests.conversations.harness import (
    QUICK,
    Harness,
    answer,
    events,
    open_harness,
    say,
    settled,
    speaking,
    turn,
    until,
)


def sides(conversation: Conversation) -> int:
    """How many side sessions the agent has open."""
    run = conversation.agent.current
    return 0 if run is None else len(run.sides)


async def nothing_came_of(conversation: Conversation, before: list[object]) -> bool:
    return await events(conversation) == before


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_it_is_asked_in_a_fork_that_is_closed_and_deleted(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("usage")
        await turn(conversation, "the word is tulip")
        before, info = await events(conversation), conversation.info()
        assert "tulip" in await conversation.ask_agent("!remember")
        assert await nothing_came_of(conversation, before)
        assert conversation.info() == info
        (asked,) = harness.log.received("session/fork")
        assert asked["params"]["sessionId"] == conversation.record.now.session_id
        ended = [harness.log.received(f"session/{how}") for how in ("close", "delete")]
        assert [len(each) for each in ended] == [1, 1]
        assert ended[0][0]["params"] == ended[1][0]["params"]
        assert ended[0][0]["params"]["sessionId"] != conversation.record.now.session_id
        assert sides(conversation) == 0
        # The conversation's own session knows nothing of it.
        assert "side question" not in answer(await turn(conversation, "!remember"))


@pytest.mark.parametrize("modes", [["without=fork,close,delete"], ["error=fork:-32603:not now"]])
async def test_else_in_a_second_session_with_a_transcript(tmp_path: Path, modes: list[str]) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(*modes)
        await turn(conversation, "the word is tulip")
        before = await events(conversation)
        said = await conversation.ask_agent("what was it")
        assert said.rstrip().endswith("what was it")
        assert "tulip" in harness.log.prompts()[-1]
        assert await nothing_came_of(conversation, before)
        assert len(harness.log.received("session/new")) == 2
        assert harness.log.received("session/new")[-1]["params"]["mcpServers"] == []


async def test_it_is_answered_while_a_turn_runs_and_that_goes_on(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "the word is tulip")
        await conversation.send(say("!slow 40 20"), run=True)
        await speaking(conversation)
        assert "tulip" in await conversation.ask_agent("!remember")
        assert conversation.busy
        assert await settled(conversation) == "finished"
        assert (await conversation.final_response()).split() == [f"s{n}" for n in range(40)]


async def test_an_agent_that_does_one_thing_at_a_time_refuses_and_its_turn_goes_on(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("single")
        await conversation.send(say("!slow 20 20"), run=True)
        await speaking(conversation)
        with pytest.raises(AgentFailure, match="one thing at a time"):
            await conversation.ask_agent("hello")
        assert await settled(conversation) == "finished"


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_what_it_wants_to_do_there_is_refused_and_asks_nobody(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy={"kind": "AlwaysConfirm"})
        await turn(conversation, "hello")
        before = await events(conversation)
        asked = "!perm\n!write note.txt hello\n!fswrite other.txt hello\n!rich\n!usage"
        said = await conversation.ask_agent(asked)
        assert "allowed" not in said
        assert not conversation.waiting
        assert [each.name for each in (tmp_path / "workspace").iterdir()] == [".git"]  # Ostler's own
        assert await nothing_came_of(conversation, before)
        assert conversation.record.now.execution_status == "finished"
        with pytest.raises(AgentFailure, match="terminal/create"):
            await conversation.ask_agent("!terminal touch third.txt")


async def test_an_agent_that_sleeps_is_woken_and_stays_awake_for_it(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "the word is tulip")
        await conversation.stop_agent()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(conversation.ask_agent, "!sleep 0.3\n!remember")
            await until(lambda: sides(conversation))
            assert conversation.agent.idle_since is None
        assert conversation.agent.idle_since is not None
        assert len(harness.log.pids()) == 2


async def test_a_conversation_that_never_ran_can_be_asked(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        assert "hello" in await conversation.ask_agent("hello")
        assert conversation.record.now.execution_status == "idle"
        assert "RESUMED" not in harness.log.prompts()[-1]


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_an_answer_has_a_bound(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        said = await conversation.ask_agent("!pour text 3000000\n!hang")
        assert said.endswith(CUT)
        assert len(said.encode()) == ANSWER_BYTES + len(CUT)
        await until(lambda: harness.log.received("session/cancel"))
        assert "hello" in answer(await turn(conversation, "hello"))


async def test_a_large_update_of_a_side_session_leaves_no_attachment(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        before = conversation.record.blob_bytes
        await conversation.ask_agent("!bigtool 3000000\n!huge 3000000")
        assert conversation.record.blob_bytes == before


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_it_has_a_deadline(tmp_path: Path, mock_clock: MockClock) -> None:
    deadlines = attrs.evolve(QUICK, side_question=100.0, initialize=1000, new_session=1000, close=1000)
    async with open_harness(tmp_path, deadlines=deadlines, clock=mock_clock) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        failed: list[Exception] = []

        async def ask() -> None:
            try:
                await conversation.ask_agent("!hang")
            except AgentTimeout as error:
                failed.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(lambda: len(harness.log.prompts()) == 2)
            mock_clock.jump(99)
            await trio.testing.wait_all_tasks_blocked()
            assert failed == []
            mock_clock.jump(2)
        assert "within 100 s" in str(failed[0])
        assert (
            harness.log.received("session/cancel")[0]["params"]["sessionId"]
            != conversation.record.now.session_id
        )


async def test_who_goes_away_cancels_it(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(conversation.ask_agent, "!hang")
            await until(lambda: len(harness.log.prompts()) == 2)
            nursery.cancel_scope.cancel()
        (cancelled,) = harness.log.received("session/cancel")
        assert harness.log.received("session/close")[0]["params"] == cancelled["params"]
        assert sides(conversation) == 0
        assert "again" in await conversation.ask_agent("again")


@pytest.mark.parametrize("how", ["!crash SIGKILL", "!stop refusal", "!error -32603 out of order"])
async def test_an_agent_that_dies_or_refuses_is_told(tmp_path: Path, how: str) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        with pytest.raises(AgentFailure):
            # Only the fork is asked: nothing is said before it fails.
            await ask_alone(harness, conversation, how)
        assert "hello" in answer(await turn(conversation, "hello"))


async def ask_alone(harness: Harness, conversation: Conversation, how: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("supervisor.conversations.history.prompt.SIDE_HEAD", "")
        return await conversation.ask_agent(how)


async def test_so_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.conversations.turns.runner.SIDE_QUESTIONS_MAX", 2)
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        said: list[str] = []

        async def ask(text: str) -> None:
            said.append(await conversation.ask_agent(text))

        async with trio.open_nursery() as nursery:
            for name in ("one", "two"):
                nursery.start_soon(partial(ask, f"!sleep 0.3\n{name}"))
            await until(lambda: sides(conversation) == 2)
            with pytest.raises(TooManyQuestions):
                await conversation.ask_agent("three")
        assert sorted(each.split()[-1] for each in said) == ["one", "two"]


async def test_a_conversation_that_is_deleted_meanwhile_fails_it(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        failed: list[Exception] = []

        async def ask() -> None:
            try:
                await conversation.ask_agent("!hang")
            except AgentFailure as error:
                failed.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(lambda: len(harness.log.prompts()) == 2)
            await harness.supervisor.delete(conversation.id)
        assert failed
        with pytest.raises(AgentFailure, match="being closed"):
            await conversation.ask_agent("anybody there")


async def test_what_is_asked_for_there_too_late_is_not_the_conversations(tmp_path: Path) -> None:
    """The agent ignores the cancel and goes on in a session that is closed, while a turn runs."""
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(
            "without=close", "cancel=ignore", confirmation_policy={"kind": "AlwaysConfirm"}
        )
        await turn(conversation, "hello")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(conversation.ask_agent, "!sleep 0.5\n!perm\n!text late")
            await until(lambda: len(harness.log.prompts()) == 2)
            await conversation.send(say("!sleep 1.5"), run=True)
            await until(lambda: len(harness.log.prompts()) == 3)
            nursery.cancel_scope.cancel()
        await until(lambda: len(harness.log.records("turn_end")) >= 2)
        assert not conversation.waiting
        assert await settled(conversation) == "finished"
        assert all(event["kind"] != "ACPToolCallEvent" for event in await events(conversation))


COUNTS = ("numbered", "without=load,resume")
"""An agent that gives the id of a deleted side session to the conversation's next session."""


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
@pytest.mark.parametrize("text", ["hello", "!perm"])
async def test_a_later_process_may_give_the_conversation_the_id_of_a_side_session(
    tmp_path: Path, text: str
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(*COUNTS, confirmation_policy={"kind": "AlwaysConfirm"})
        await turn(conversation, "hello")
        await conversation.ask_agent("a question")
        (asked,) = harness.log.received("session/close")
        await conversation.stop_agent()
        await conversation.send(say(text), run=True)
        await until(lambda: len(harness.log.prompts()) == 3)
        assert conversation.record.now.session_id == asked["params"]["sessionId"]
        if text == "!perm":
            await until(lambda: conversation.waiting)
            await conversation.respond(True, "")
        assert await settled(conversation) == "finished"
        assert ("allowed" if text == "!perm" else text) in await conversation.final_response()


async def test_so_may_the_same_process_that_opens_its_session_again(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(*COUNTS, "cancel=ignore")
        await turn(conversation, "hello")
        await conversation.ask_agent("a question")
        asked = harness.log.received("session/close")[0]["params"]["sessionId"]
        await conversation.send(say("!slow 2000 20"), run=True)
        await speaking(conversation)
        await conversation.interrupt()
        await until(lambda: conversation.record.now.session_id == asked, "another session")
        assert len(harness.log.pids()) == 1
        assert "again" in answer(await turn(conversation, "again"))


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_changed_secrets_restart_the_agent_after_the_question(tmp_path: Path) -> None:
    async with open_harness(tmp_path, secrets={"TOKEN": "value-of-before"}) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        said: list[str] = []

        async def ask() -> None:
            said.append(await conversation.ask_agent("!sleep 1\n!text answered"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(lambda: len(harness.log.prompts()) == 2)
            harness.secrets["TOKEN"] = "value-of-afterwards"
            await turn(conversation, "meanwhile")
            assert len(harness.log.pids()) == 1
        assert "answered" in said[0]
        await turn(conversation, "afterwards")
        values = [each["environment"]["TOKEN"] for each in harness.log.records("start")]
        assert values == ["value-of-before", "value-of-afterwards"]
