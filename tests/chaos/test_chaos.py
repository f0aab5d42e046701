"""Short seeded runs. The long ones are a command: scripts/chaos."""

from __future__ import annotations

from tests.chaos.run import chaos, starts
from tests.support.thorough import everyday

SEED = 20261121
KILLS = everyday(4, 8)


async def test_everything_at_once(tmp_path):
    report = await chaos(tmp_path / "a", seed=SEED, conversations=4, seconds=12)
    assert report.problems == []
    assert len(report.faults) >= 5, report
    assert report.figures["messages_accepted"] > 20, report


async def test_a_server_killed_again_and_again_loses_nothing(tmp_path):
    report = await chaos(tmp_path / "a", seed=SEED, conversations=3, kills=KILLS)
    assert report.problems == []
    assert report.faults["server"] + report.faults["both"] == KILLS
    assert report.figures["messages_accepted"] > KILLS, report


async def test_a_hundred_conversations_leave_no_weight(tmp_path):
    report = await starts(tmp_path / "a", count=100, warm_up=40)
    assert report.problems == [], report
