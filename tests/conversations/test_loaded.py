"""Which conversations stay loaded: never is one loaded twice while it works."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from supervisor.conversations import supervisor as room
from tests.conversations.harness import Harness, open_harness, say, settled, until
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
        assert [each.record.execution_status for each in again] == ["paused", "error", "paused"]
    assert mentioning(tmp_path) == []
