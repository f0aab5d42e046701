from __future__ import annotations

import pytest

from supervisor.acp.repeats import FIRST_PAUSE, LONGEST_PAUSE, TOLD, RepeatLimiter, Repeats

pytestmark = pytest.mark.guarantee(name="no-agent-starves-the-others")


def test_a_few_are_told_and_the_others_counted() -> None:
    limiter = RepeatLimiter("noise")
    assert [limiter.note(2, 0.0) for _ in range(TOLD + 3)] == [True] * TOLD + [False] * 3
    assert limiter.due(FIRST_PAUSE / 2) is None
    assert limiter.due(FIRST_PAUSE) == Repeats("noise", 3, 6)
    assert limiter.due(FIRST_PAUSE * 9) is None
    assert limiter.rest() is None


def test_sums_come_at_growing_intervals() -> None:
    limiter = RepeatLimiter("noise")
    told = counted = 0
    for second in range(100_000):
        if not limiter.note(1, float(second)):
            counted += 1
            found = limiter.due(float(second))
            if found is not None:
                told += 1
                counted -= found.count
    # A day and more of noise: by doubling up to the longest pause, then one for each of those.
    assert told <= 12 + 100_000 / LONGEST_PAUSE
    rest = limiter.rest()
    assert (rest.count if rest else 0) == counted


def test_each_interval_is_twice_the_one_before() -> None:
    limiter = RepeatLimiter("noise")
    for _ in range(TOLD):
        limiter.note(1, 0.0)
    now, pause = 0.0, FIRST_PAUSE
    while pause < LONGEST_PAUSE:
        limiter.note(1, now)
        assert limiter.due(now + pause - 0.001) is None
        assert limiter.due(now + pause) == Repeats("noise", 1, 1)
        now, pause = now + pause, pause * 2
    limiter.note(1, now)
    assert limiter.due(now + LONGEST_PAUSE - 0.001) is None
    assert limiter.due(now + LONGEST_PAUSE) is not None
