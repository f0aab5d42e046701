from __future__ import annotations

from supervisor.acp.repeats import FIRST_PAUSE, LONGEST_PAUSE, TOLD, RepeatLimiter, Repeats


def test_a_few_are_told_and_the_others_counted() -> None:
    tally = RepeatLimiter("noise")
    assert [tally.note(2, 0.0) for _ in range(TOLD + 3)] == [True] * TOLD + [False] * 3
    assert tally.due(FIRST_PAUSE / 2) is None
    assert tally.due(FIRST_PAUSE) == Repeats("noise", 3, 6)
    assert tally.due(FIRST_PAUSE * 9) is None
    assert tally.rest() is None


def test_sums_come_at_growing_intervals() -> None:
    tally = RepeatLimiter("noise")
    told = counted = 0
    for second in range(100_000):
        if not tally.note(1, float(second)):
            counted += 1
            found = tally.due(float(second))
            if found is not None:
                told += 1
                counted -= found.count
    # A day and more of noise: by doubling up to the longest pause, then one for each of those.
    assert told <= 12 + 100_000 / LONGEST_PAUSE
    rest = tally.rest()
    assert (rest.count if rest else 0) == counted


def test_each_interval_is_twice_the_one_before() -> None:
    tally = RepeatLimiter("noise")
    for _ in range(TOLD):
        tally.note(1, 0.0)
    now, pause = 0.0, FIRST_PAUSE
    while pause < LONGEST_PAUSE:
        tally.note(1, now)
        assert tally.due(now + pause - 0.001) is None
        assert tally.due(now + pause) == Repeats("noise", 1, 1)
        now, pause = now + pause, pause * 2
    tally.note(1, now)
    assert tally.due(now + LONGEST_PAUSE - 0.001) is None
    assert tally.due(now + LONGEST_PAUSE) is not None
