from __future__ import annotations

import pytest

from supervisor.acp.repeats import FIRST_PAUSE, LONGEST_PAUSE, REPORTED_MAX, RepeatLimiter, Repeats

pytestmark = pytest.mark.guarantee(name="no-agent-starves-the-others")


def test_a_few_are_told_and_the_others_counted() -> None:
    sums: list[Repeats] = []
    limiter = RepeatLimiter("noise", sums.append)
    assert [limiter.should_report(2, 0.0) for _ in range(REPORTED_MAX + 3)] == [True] * REPORTED_MAX + [
        False
    ] * 3
    assert not limiter.should_report(2, FIRST_PAUSE / 2)
    assert sums == []
    assert not limiter.should_report(2, FIRST_PAUSE)
    assert sums == [Repeats("noise", 5, 10)]
    limiter.flush()
    assert len(sums) == 1


def test_sums_come_at_growing_intervals() -> None:
    sums: list[Repeats] = []
    limiter = RepeatLimiter("noise", sums.append)
    counted = sum(not limiter.should_report(1, float(second)) for second in range(100_000))
    # A day and more of noise: by doubling up to the longest pause, then one for each of those.
    assert len(sums) <= 12 + 100_000 / LONGEST_PAUSE
    limiter.flush()
    assert sum(found.count for found in sums) == counted


def test_each_interval_is_twice_the_one_before() -> None:
    sums: list[Repeats] = []
    limiter = RepeatLimiter("noise", sums.append)
    for _ in range(REPORTED_MAX):
        limiter.should_report(1, 0.0)
    now, pause = 0.0, FIRST_PAUSE
    while pause <= LONGEST_PAUSE:
        sums.clear()
        limiter.should_report(1, now)
        limiter.should_report(1, now + pause - 0.001)
        assert sums == []
        limiter.should_report(1, now + pause)
        assert sums == [Repeats("noise", 3, 3)]
        now, pause = now + pause, pause * 2
    limiter.should_report(1, now)
    limiter.should_report(1, now + LONGEST_PAUSE - 0.001)
    assert len(sums) == 1
    limiter.should_report(1, now + LONGEST_PAUSE)
    assert len(sums) == 2
