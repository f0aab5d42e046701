"""Fair scheduling of relays: agents' output and sockets' frames go in slices, one at a time, after all else.

Trio has no priorities: in each pass it runs every task that is ready, in any order. Twenty flooding agents
would each have their slice in every pass, and a request, which needs some ten passes, would wait for two
hundred slices. So all relays take turns at one gate. The gate lets one slice through, then waits until
nothing else is ready, within bounds, before it lets the next one through. Of the waiting relays, the one that
has used the least time goes first: an agent that answers after a long silence overtakes those that flood.

The gate is not a lock. A relay that was let through may wait for a socket, or end, without notice; it blocks
no other relay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Final

import trio

SLICE_SECONDS: Final = 0.002
"""Seconds of one slice.

A request waits for one or two slices, plus one message. A yield costs some 30 microseconds, little compared
to a slice.
"""

LONE_SLICE_SECONDS: Final = 0.005
"""Seconds of a slice when no other task is ready or waits for a turn: fewer, larger writes for the same
work."""

HELD_PART: Final = 0.25
"""Time that relays may be held back for urgent work, as a part of the time that they used. This bounds the
delay that constant writes to the journal cause."""

MOST_HELD_SECONDS: Final = 0.004
"""The most seconds of it that accumulate. Measured next to twenty floods, urgent work is written within 3 ms
when no other thread holds the GIL, and within 7 between slices (medians)."""

SLICE_MESSAGES: Final = 500
"""The most messages of one slice, regardless of the time."""

MOST_PASSES: Final = 12
"""Passes of the scheduler that the gate waits while other tasks are ready.

A request is answered within about as many; with more, a crowd of clients could keep agents from being read.
"""

QUIET_PASSES: Final = 2
"""Passes without another ready task after which the gate opens.

A single pass proves little: it does not see a task that runs later in the pass.
"""

MOST_CHARGED_SECONDS: Final = 0.05
"""The most seconds that one turn is charged: a task that waited for a socket in it did not relay all that
time."""

Clock = Callable[[], float]


class Gate:
    """Lets relays through, one slice at a time, the least used first. `clock` is in seconds.

    A slice may be one long turn or many short ones: until it is used up, the next relay passes at once.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.clock = clock
        self.seconds_left = 0.0
        self.messages_left = 0
        self._floor = 0.0
        self._leading = False  # a task is about to go through
        self._urgent = 0
        self._calm = trio.Event()
        self._patience = MOST_HELD_SECONDS
        self._waiting: list[tuple[float, int, trio.Event]] = []
        self._numbers = count()

    async def admit(self, used: float) -> float:
        """Wait for a turn.

        Takes the seconds that the caller has used so far, and returns its new count: an idle relay saves up
        at most one slice.

        Cancellation gives the turn to the next one.
        """
        # Idle time saves up one slice at most, or a relay that returns would keep the others out.
        used = max(used, self._floor - SLICE_SECONDS)
        if self._leading:
            called = trio.Event()
            heappush(self._waiting, (used, next(self._numbers), called))
            try:
                await called.wait()
            except BaseException:
                if called.is_set():
                    self._call_next()
                else:
                    called.set()  # `_call_next` skips it
                raise
        self._leading = True
        try:
            if self.seconds_left <= 0 or self.messages_left <= 0:
                # The slice is used up: what has become ready meanwhile, requests above all, runs first.
                alone = await _let_others_go_first() and not self._waiting
                if self._urgent and self._patience > 0:
                    await self._hold()
                    await _let_others_go_first()
                self.seconds_left = LONE_SLICE_SECONDS if alone else SLICE_SECONDS
                self.messages_left = SLICE_MESSAGES
        finally:
            # A new relay begins here, not at zero.
            self._floor = max(self._floor, used)
            self._call_next()
        return used

    @contextmanager
    def urgent(self) -> Iterator[None]:
        """Hold relays back, within bounds, while this block waits for a thread: the thread then gets the GIL
        sooner."""
        self._urgent += 1
        try:
            yield
        finally:
            self._urgent -= 1
            if not self._urgent:
                self._calm.set()

    async def _hold(self) -> None:
        """Wait until nothing is urgent, or the allowance for holding is used up."""
        self._calm = trio.Event()
        began = self.clock()
        try:
            with trio.move_on_after(self._patience):
                await self._calm.wait()
        finally:
            self._patience -= self.clock() - began

    def relayed(self, seconds: float) -> None:
        """Count the seconds that a slice took."""
        self.seconds_left -= seconds
        self._patience = min(self._patience + seconds * HELD_PART, MOST_HELD_SECONDS)

    def _call_next(self) -> None:
        while self._waiting:
            *_, called = heappop(self._waiting)
            if not called.is_set():
                called.set()
                return
        self._leading = False


async def _let_others_go_first() -> bool:
    """Let other tasks run first. Return whether there were none."""
    quiet = 0
    for number in range(MOST_PASSES):
        await trio.lowlevel.checkpoint()
        if trio.lowlevel.current_statistics().tasks_runnable:
            quiet = 0
            continue
        quiet += 1
        if quiet == QUIET_PASSES:
            return number < QUIET_PASSES
    return False


class Share:
    """The share of one reader or writer in the relaying. For one task.

    Before each message: `if share.spent(): await share.turn()`. Before waiting for more of them: `rest()`.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._used = 0.0
        self._began: float | None = None

    def spent(self, messages: int = 1) -> bool:
        """Count messages, and return whether the turn is over, or there is none."""
        gate = self._gate
        gate.messages_left -= messages
        return (
            self._began is None or gate.messages_left < 0 or gate.clock() - self._began >= gate.seconds_left
        )

    async def turn(self) -> None:
        """Wait for a turn. A checkpoint, unless the current slice has room for it."""
        self.rest()
        self._used = await self._gate.admit(self._used)
        self._began = self._gate.clock()

    def charge(self, seconds: float) -> None:
        """Charge work that was done elsewhere, as in a thread: the current slice becomes shorter."""
        self._used += min(seconds, MOST_CHARGED_SECONDS)
        self._gate.seconds_left -= seconds

    def rest(self) -> None:
        """End the turn, and count the time it used."""
        if self._began is not None:
            took = min(self._gate.clock() - self._began, MOST_CHARGED_SECONDS)
            self._used += took
            self._gate.relayed(took)
            self._began = None


_gate: trio.lowlevel.RunVar[Gate] = trio.lowlevel.RunVar("gate")


def share() -> Share:
    """Return a new share in the relaying of this Trio run."""
    return Share(_of_this_run())


def urgent() -> AbstractContextManager[None]:
    """`Gate.urgent` of this Trio run."""
    return _of_this_run().urgent()


def _of_this_run() -> Gate:
    try:
        return _gate.get()
    except LookupError:
        gate = Gate()
        _gate.set(gate)
        return gate
