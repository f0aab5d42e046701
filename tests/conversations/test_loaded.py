"""Which conversations stay loaded: never is one loaded twice while it works."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from supervisor.conversations import supervisor as room
from tests.conversations.harness import Harness, open_harness, say, settled, until


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
