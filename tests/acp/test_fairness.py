"""The gate through which all relaying goes, with a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from supervisor.fairness import (
    HELD_PART,
    LONE_SLICE_SECONDS,
    MOST_CHARGED_SECONDS,
    MOST_HELD_SECONDS,
    MOST_PASSES,
    SLICE_MESSAGES,
    SLICE_SECONDS,
    Gate,
    Share,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    return Clock()  # type: ignore[return-value]


async def test_a_turn_ends_by_time(clock: Clock) -> None:
    share = Share(Gate(clock))
    assert share.spent()  # there is none yet
    await share.turn()
    assert not share.spent()
    clock.now += LONE_SLICE_SECONDS * 0.9
    assert not share.spent()
    clock.now += LONE_SLICE_SECONDS * 0.2
    assert share.spent()


@pytest.mark.guarantee(name="no-agent-starves-the-others")
async def test_a_turn_ends_by_messages_although_the_clock_stands_still(clock: Clock) -> None:
    share = Share(Gate(clock))
    await share.turn()
    spent = [share.spent() for _ in range(2 * SLICE_MESSAGES)]
    assert spent == [False] * SLICE_MESSAGES + [True] * SLICE_MESSAGES


async def relay(share: Share, clock: Clock, messages: int, each: float, seen: list[str], name: str) -> None:
    for _ in range(messages):
        if share.spent():
            await share.turn()
        clock.now += each
        seen.append(name)
    share.rest()


def runs(seen: list[str]) -> list[int]:
    """The lengths of the stretches without another name."""
    lengths = [0]
    for before, name in zip(seen, [*seen[1:], ""], strict=True):
        lengths[-1] += 1
        if name != before:
            lengths.append(0)
    return lengths[:-1]


@pytest.mark.guarantee(name="no-agent-starves-the-others")
async def test_those_that_flood_take_turns(clock: Clock) -> None:
    gate, seen = Gate(clock), list[str]()
    each = SLICE_SECONDS / 10
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(relay, Share(gate), clock, 200, each, seen, str(number))
    assert len(seen) == 20 * 200
    assert max(runs(seen)) <= 2 * LONE_SLICE_SECONDS / each
    # Until the first is done, all come forward alike.
    first = min(seen[::-1].index(str(number)) for number in range(20))
    counts = [seen[: len(seen) - first - 1].count(str(number)) for number in range(20)]
    assert min(counts) >= 150


@pytest.mark.guarantee(name="no-agent-starves-the-others")
async def test_between_two_slices_everything_else_has_its_turns(clock: Clock) -> None:
    gate, seen = Gate(clock), list[str]()
    slices_of_request = []

    async def request() -> None:
        begun = clock.now
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        slices_of_request.append((clock.now - begun) / SLICE_SECONDS)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(relay, Share(gate), clock, 50, SLICE_SECONDS, seen, str(number))
        for _ in range(100):
            await request()
    # Ten passes of a request would meet ten slices if one of them ran in each, and 200 without a gate.
    assert sorted(slices_of_request)[50] <= 4
    assert max(slices_of_request) <= 10


@pytest.mark.guarantee(name="no-agent-starves-the-others")
async def test_a_crowd_does_not_keep_the_relaying_from_going_on(clock: Clock) -> None:
    share, passes = Share(Gate(clock)), 0

    async def crowd() -> None:
        nonlocal passes
        while True:
            passes += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(crowd)
        for _ in range(10):
            await share.turn()
            clock.now += 1.0
        nursery.cancel_scope.cancel()
    assert passes <= 10 * (MOST_PASSES + 1)


@pytest.mark.guarantee(name="no-agent-starves-the-others")
async def test_who_was_silent_goes_before_those_that_flood(clock: Clock) -> None:
    gate, seen = Gate(clock), list[str]()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(relay, Share(gate), clock, 30, SLICE_SECONDS, seen, "flood")
        quiet = Share(gate)
        for _ in range(5):
            while len(seen) % 60 < 50:
                await trio.lowlevel.checkpoint()
            before = len(seen)
            await quiet.turn()
            # Whoever was about to go through goes first, and those that have used as little.
            assert len(seen) - before <= 3
            clock.now += SLICE_SECONDS / 10
            seen.append("quiet")
            quiet.rest()


async def test_waiting_for_a_socket_is_not_held_against_a_writer(clock: Clock) -> None:
    gate = Gate(clock)
    share = Share(gate)
    await share.turn()
    clock.now += 20.0
    share.rest()
    assert share._used <= MOST_CHARGED_SECONDS


async def test_short_turns_share_a_slice(clock: Clock) -> None:
    gate = Gate(clock)
    first, second = Share(gate), Share(gate)
    await first.turn()
    clock.now += SLICE_SECONDS / 10
    first.rest()
    # What is left of the slice takes no pass of the scheduler.
    with trio.CancelScope() as scope:
        scope.cancel()
        await second.turn()
    assert not scope.cancelled_caught


async def test_relays_are_held_back_while_something_is_urgent_and_no_longer(mock_clock: MockClock) -> None:
    gate, seen = Gate(trio.current_time), list[float]()
    mock_clock.autojump_threshold = 0
    each = LONE_SLICE_SECONDS

    async def flood() -> None:
        share = Share(gate)
        while True:
            await share.turn()
            seen.append(trio.current_time())
            await trio.sleep(each)  # what a slice takes
            share.rest()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flood)
        await trio.sleep(10.9 * each)
        relayed = len(seen)
        assert relayed == 11  # the last slice is nearly over
        with gate.urgent():
            await trio.sleep(0.1 * each + MOST_HELD_SECONDS / 2)
        await trio.sleep(each / 10)
        assert seen[relayed:] == [pytest.approx(11 * each + MOST_HELD_SECONDS / 2)]
        # Who is urgent all the time holds them up for a part of the time, and the rest is theirs.
        await trio.sleep(50 * each)
        relayed = len(seen)
        with gate.urgent():
            await trio.sleep(100 * each)
        assert len(seen) - relayed == pytest.approx(100 / (1 + HELD_PART), abs=2)
        relayed = len(seen)
        await trio.sleep(100 * each)
        assert len(seen) - relayed == pytest.approx(100, abs=2)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("later", [False, True], ids=["nested", "overlapping"])
@pytest.mark.parametrize("ended_first", [0, 1])
async def test_relays_are_held_back_until_nothing_is_urgent_any_more(
    mock_clock: MockClock, *, later: bool, ended_first: int
) -> None:
    """On a clock that stands still: the bound of it is tested above."""
    gate, relayed = Gate(trio.current_time), list[bool]()
    ends = [trio.Event(), trio.Event()]

    async def wait(end: trio.Event) -> None:
        with gate.urgent():
            await end.wait()

    async def relay() -> None:
        await Share(gate).turn()
        relayed.append(True)

    async with trio.open_nursery() as nursery:
        for task in (
            [(wait, ends[0]), (relay,), (wait, ends[1])]
            if later
            else [(wait, ends[0]), (wait, ends[1]), (relay,)]
        ):
            nursery.start_soon(*task)
            await wait_all_tasks_blocked()
        assert relayed == []
        ends[ended_first].set()
        await wait_all_tasks_blocked()
        assert relayed == []
        ends[1 - ended_first].set()
    assert relayed == [True]


async def test_those_that_are_cancelled_while_held_back_spend_the_patience_too(mock_clock: MockClock) -> None:
    gate = Gate(trio.current_time)
    mock_clock.autojump_threshold = 0
    with gate.urgent():
        began = trio.current_time()
        for _ in range(3):
            with trio.move_on_after(MOST_HELD_SECONDS / 2):
                await Share(gate).turn()
        await Share(gate).turn()
        assert trio.current_time() - began == pytest.approx(MOST_HELD_SECONDS)


@pytest.mark.parametrize("passes", range(12))
async def test_whoever_is_cancelled_holds_up_nobody(clock: Clock, passes: int) -> None:
    gate, done = Gate(clock), set[str]()

    async def go(name: str, scope: trio.CancelScope) -> None:
        with scope:
            for _ in range(3):
                share = Share(gate)
                await share.turn()
                clock.now += 1.0
                share.rest()
            done.add(name)

    scopes = {name: trio.CancelScope() for name in "abcd"}
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for name, scope in scopes.items():
                nursery.start_soon(go, name, scope)
            for _ in range(passes):
                await trio.lowlevel.checkpoint()
            scopes["a"].cancel()
            scopes["b"].cancel()
    assert done >= {"c", "d"}
    await go("later", trio.CancelScope())
    assert "later" in done
