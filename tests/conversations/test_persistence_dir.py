"""The directory that clients read as `persistence_dir`: the conversation's own, below the server's state."""

from __future__ import annotations

import uuid
from pathlib import Path

import orjson

from tests.conversations.harness import open_harness, turn


async def test_it_is_a_conversations_own_from_its_first_turn_to_its_end(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        one, two = await harness.start(), await harness.start(conversation_id=str(uuid.uuid4()))
        places = [Path((await each.durable_info())["persistence_dir"]) for each in (one, two)]
        assert len(set(places)) == 2
        for each, place in zip((one, two), places, strict=True):
            assert place.name == each.id
            assert tmp_path in place.parents
            told = orjson.loads(each.full_state())["value"]["persistence_dir"]
            assert told == str(place)
        await turn(one, "hello")
        assert places[0].is_dir()
        assert places[0].stat().st_mode & 0o077 == 0
        await harness.supervisor.delete(one.id)
        assert not places[0].exists()
