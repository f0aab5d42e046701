"""A message with an id that its sender chose: sent again, it is the same message."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
import trio

from supervisor.conversations.state.errors import NotPossible
from tests.conversations.harness import open_harness, say, settled

ID = "5f2b1c1e-0000-5000-8000-000000000000"


async def messages(conversation) -> list[str]:
    found = await conversation.log.search(kind="MessageEvent", source="user")
    return [each.id for each in found.items]


async def turns(conversation) -> int:
    return conversation.queue.turns


async def test_sent_twice_it_is_prompted_once(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        assert await conversation.send(say("hello"), run=True, event_id=ID) == ID
        await settled(conversation)
        assert await conversation.send(say("hello"), run=True, event_id=ID) == ID
        await settled(conversation)
        assert await messages(conversation) == [ID]
        assert await turns(conversation) == 1


async def test_at_the_same_time(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(lambda: conversation.send(say("hello"), run=False, event_id=ID))
        assert await messages(conversation) == [ID]
        assert len(conversation.queue.waiting) == 1


async def test_after_a_restart(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("hello"), run=True, event_id=ID)
        await settled(conversation)
    async with open_harness(tmp_path) as harness:
        conversation = await harness.supervisor.get(conversation.id)
        assert await conversation.send(say("hello"), run=True, event_id=ID) == ID
        await settled(conversation)
        assert await messages(conversation) == [ID]
        assert await turns(conversation) == 0


async def test_a_sender_that_left_before_it_was_stored(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        with trio.CancelScope() as scope:
            scope.cancel()
            await conversation._send(say("hello"), run=False, event_id=ID)
        assert await conversation.send(say("another text"), run=False, event_id=ID) == ID
        assert await messages(conversation) == [ID]


async def test_one_that_waits_is_run_when_that_is_asked_for(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("hello"), run=False, event_id=ID)
        await conversation.send(say("hello"), run=True, event_id=ID)
        await settled(conversation)
        assert await turns(conversation) == 1


async def test_the_id_of_another_event(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("hello"), run=True)
        await settled(conversation)
        found = await conversation.log.search(source="agent")
        with pytest.raises(NotPossible, match="the id of another event"):
            await conversation.send(say("hello"), run=True, event_id=found.items[0].id)


async def test_two_ids_are_two_messages(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        ids = [str(uuid.uuid4()) for _ in range(2)]
        for each in ids:
            await conversation.send(say("hello"), run=False, event_id=each)
        assert await messages(conversation) == ids
