"""Which conversations stay loaded: never is one loaded twice while it works."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import trio

from supervisor.conversations import registry as room
from supervisor.journal.errors import JournalError
from supervisor.journal.journal import Journal
from tests.conversations.harness import Harness, answer, open_harness, say, settled, turn, until
from tests.support.processes import mentioning


async def visit(harness: Harness, number: int) -> list[str]:
    """Make so many others, and let them go."""
    return [(await harness.start()).id for _ in range(number)]


async def test_one_that_works_is_not_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "RECENT_MAX", 1)
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        name, identity = conversation.id, id(conversation)
        await conversation.send(say("!hang"), run=True)
        await until(lambda: harness.log.prompts())
        del conversation
        others = await visit(harness, 3)
        gc.collect()
        again = await harness.supervisor.get(name)
        assert id(again) == identity
        assert again.busy
        await again.interrupt()
        await settled(again)
        # The others have nothing to do, and went.
        gc.collect()
        assert set(harness.supervisor._loaded) & set(others) <= {others[-1]}


async def test_one_that_cannot_be_closed_keeps_no_other_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails() -> None:
        raise RuntimeError("a fault")

    async with open_harness(tmp_path) as harness:
        several = [await harness.start() for _ in range(3)]
        for conversation in several:
            await conversation.send(say("!hang"), run=True)
        await until(lambda: len(harness.log.prompts()) == 3)
        monkeypatch.setattr(several[1], "close", fails)
    async with open_harness(tmp_path) as harness:
        again = [await harness.supervisor.get(each.id) for each in several]
        # The others were interrupted in order; this one was cut off.
        assert [each.record.now.execution_status for each in again] == ["paused", "error", "paused"]
    assert mentioning(tmp_path) == []


@pytest.mark.guarantee(name="what-is-deleted-is-gone")
async def test_a_deletion_that_is_given_up_leaves_a_conversation_that_works(tmp_path: Path) -> None:
    """The client goes away when the agent has ended, and before anything is deleted."""
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "the word is tulip")
        async with trio.open_nursery() as nursery:

            async def and_go_away() -> None:
                nursery.cancel_scope.cancel()
                await trio.lowlevel.checkpoint()

            nursery.start_soon(harness.supervisor.delete, conversation.id, and_go_away)
        again = await harness.supervisor.get(conversation.id)
        assert "tulip" in await again.ask_agent("!remember")
        assert "tulip" in answer(await turn(again, "!remember"))


@pytest.mark.guarantee(name="what-is-deleted-is-gone")
async def test_the_agent_ends_whatever_goes_wrong_before_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails() -> None:
        raise JournalError("nothing can be stored")

    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        monkeypatch.setattr(conversation.runner.hooks, "end_session", fails)
        with pytest.raises(JournalError):
            await harness.supervisor.delete(conversation.id)
        assert not conversation.agent.live
        assert (await harness.supervisor.get(conversation.id)) is not conversation


@pytest.mark.guarantee(name="what-is-deleted-is-gone")
async def test_a_client_that_goes_away_leaves_no_data_of_what_it_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        data = tmp_path / "data" / conversation.id
        data.mkdir(parents=True)
        (data / "login.json").write_text("a credential")
        delete = Journal.delete
        async with trio.open_nursery() as nursery:

            async def and_go_away(journal: Journal, conversation_id: str) -> bool:
                done = await delete(journal, conversation_id)
                nursery.cancel_scope.cancel()
                return done

            monkeypatch.setattr(Journal, "delete", and_go_away)
            nursery.start_soon(harness.supervisor.delete, conversation.id)
        assert not data.exists()
