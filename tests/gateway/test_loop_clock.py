"""Trio's clock in a server, and pauses of the whole process."""

from __future__ import annotations

import time

import pytest
import trio

from gateway.serving.loop_clock import LOOK_SECONDS, MOST_COUNTED_SECONDS, LoopClock


class Hands:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 50.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.guarantee(name="nothing-hangs")
def test_what_passes_between_two_looks_counts_up_to_a_bound() -> None:
    hands = Hands()
    clock = LoopClock(hands)
    hands.seconds += 500  # until it is used
    clock.start_clock()
    begun = clock.current_time()
    assert begun > 10_000  # to those who compare with 0 that is long ago
    for passed, counted in ((1.5, 1.5), (0.0, 1.5), (25.0, 1.5 + MOST_COUNTED_SECONDS)):
        hands.seconds += passed
        assert clock.current_time() - begun == pytest.approx(counted)


def test_it_is_looked_at_often_whatever_the_deadline() -> None:
    hands = Hands()
    clock = LoopClock(hands)
    now = clock.current_time()
    assert clock.deadline_to_sleep_time(now + 0.25) == pytest.approx(0.25)
    for deadline in (now + 30, float("inf")):
        assert clock.deadline_to_sleep_time(deadline) == LOOK_SECONDS < MOST_COUNTED_SECONDS


def test_long_sleeps_take_as_long_as_they_say() -> None:
    begun = time.monotonic()
    trio.run(trio.sleep, LOOK_SECONDS * 2.5, clock=LoopClock())
    assert time.monotonic() - begun >= LOOK_SECONDS * 2.5


def test_a_deadline_outlives_a_pause_that_is_longer() -> None:
    hands = Hands()

    async def main() -> None:
        with trio.fail_after(MOST_COUNTED_SECONDS + 1):
            await trio.sleep(0.01)
            hands.seconds += 25
            await trio.sleep(0)
            await trio.lowlevel.checkpoint()

    async def tick() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(main)
            for _ in range(100):
                hands.seconds += 0.01
                await trio.lowlevel.checkpoint()

    trio.run(tick, clock=LoopClock(hands))
