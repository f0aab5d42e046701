"""A small simulation in an everyday run: what must hold with 1,000 servers holds, and what breaks it is seen.

`scripts/scale` plays the large ones.
"""

from __future__ import annotations

import pytest

from supervisor.machines import lease
from tests.machines.simulation.database import Database, Row
from tests.machines.simulation.run import Plan, Report, simulate

SERVERS, CONVERSATIONS, LOST = 50, 10_000, 5
TAKEOVER = 2.0
"""Seconds after the end of a lease within which another server has claimed the work."""

LEASES = "renewals", "scans"
ANSWERS_MAX = 2 / lease.SPREAD_PER_SERVER
"""Statements in a second, over a tenth of one, with which servers answer one occasion."""


def rack(**changed: object) -> Report:
    plan = {
        "servers": SERVERS,
        "conversations": CONVERSATIONS,
        "seconds": 45.0,
        "lost": LOST,
        "lost_at": 15.0,
    }
    return simulate(Plan(**{**plan, **changed}))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def lost() -> Report:
    return rack()


def test_no_conversation_has_two_owners_and_none_is_forgotten(lost: Report):
    assert lost.violations == []
    assert lost.deaths == LOST


@pytest.mark.parametrize("power", [False, True])
def test_the_work_of_a_lost_rack_is_claimed_in_time(lost: Report, power: bool):
    report = rack(power=True) if power else lost
    assert report.claimed_after is not None
    assert report.claimed_after <= report.plan.ttl + TAKEOVER
    assert report.unowned[-1] == 0
    assert report.violations == []


def test_leases_take_a_thousandth_of_the_database(lost: Report):
    used = sum(sum(lost.load(kind)) for kind in LEASES) / len(lost.bins())
    assert 0 < used < 0.001 * lost.plan.processors


def test_servers_do_not_answer_a_death_at_once(lost: Report):
    assert max(lost.rates("scans", "claims", "deaths")) < ANSWERS_MAX
    assert max(lost.waits()) < 0.01


def test_answers_at_once_would_be_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lease, "MOST_SPREAD", 0.0)
    assert max(rack().rates("scans", "claims", "deaths")) > ANSWERS_MAX


def test_a_death_that_is_declared_too_early_would_be_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lease, "AFTER_EXPIRY", -0.1)
    assert "was declared dead while it ran" in rack().violations[0]


def test_a_deploy_moves_everything_and_leaves_nothing_unowned():
    report = rack(servers=20, lost=0, deploy=5.0, seconds=60.0)
    assert report.violations == []
    assert report.deaths == 0
    assert set(report.database.rows) == set(range(20, 40))
    assert report.database.wanted == report.database.coming == report.unowned[-1] == 0


def test_a_short_outage_of_the_database_kills_no_server():
    report = rack(lost=0, outage=(15.0, 23.0))
    assert report.violations == []
    assert report.deaths == 0
    assert len(report.database.rows) == SERVERS
    after = [sum(report.load(kind)[180:]) for kind in LEASES]
    assert min(after) > 0


async def test_commits_that_wait_grow(autojump_clock: object):
    database = Database(processors=16, ttl=15.0, events=10.0, rows={1: Row(1, 15.0, 0.0, 0, live=10)})
    swift = database.journal()
    database.slowest[database.bin() - 1] = 1.0
    assert 0 < database.journal() < swift / 5
    database.reachable = False
    assert database.journal() == 0
