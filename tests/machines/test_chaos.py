"""A short day of three servers on machines of their own; `scripts/chaos --machines` makes it longer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.machines.chaos import day
from tests.support.thorough import everyday

CONVERSATIONS = everyday(6, 60)
SECONDS = everyday(15, 60)


@pytest.mark.guarantee(name="another-takes-over")
async def test_nothing_is_lost_or_doubled_whatever_happens_to_one_of_three(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    report = await day(tmp_path, seed=seed, conversations=CONVERSATIONS, seconds=SECONDS)
    assert not report.problems, f"seed {seed}: " + "\n".join(report.problems)
    assert report.figures["messages_accepted"] > 0
