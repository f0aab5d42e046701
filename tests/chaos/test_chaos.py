"""Short seeded runs. The long ones are a command: scripts/chaos."""

from __future__ import annotations

import pytest

from tests.chaos.run import chaos, starts
from tests.support.thorough import everyday

pytestmark = pytest.mark.guarantee(name="nothing-survives")

SEED = 20261121
KILLS = everyday(2, 8)
SECONDS = everyday(4, 12)
STARTS, WARM_UP = everyday((24, 12), (100, 40))


async def test_everything_at_once(tmp_path):
    report = await chaos(tmp_path / "a", seed=SEED, conversations=4, seconds=SECONDS)
    assert report.problems == []
    assert len(report.faults) >= everyday(3, 5), report
    assert report.figures["messages_accepted"] > everyday(8, 20), report


async def test_a_server_killed_again_and_again_loses_nothing(tmp_path):
    report = await chaos(tmp_path / "a", seed=SEED, conversations=3, kills=KILLS)
    assert report.problems == []
    assert report.faults["server"] + report.faults["both"] == KILLS
    assert report.figures["messages_accepted"] > everyday(KILLS, 10), report


async def test_conversations_that_are_gone_leave_no_weight(tmp_path):
    report = await starts(tmp_path / "a", count=STARTS, warm_up=WARM_UP)
    assert report.problems == [], report
