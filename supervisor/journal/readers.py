"""Reading connections and the threads that use them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar, cast

import attrs
import trio

from supervisor.journal.errors import JournalClosed, JournalError, JournalFailed, JournalUnavailable
from supervisor.journal.port import Faults
from supervisor.journal.queries import Queries
from supervisor.journal.trouble import Nature

T = TypeVar("T")

READERS = 4
"""Reads at once, each with a thread and a connection. More would only queue for the GIL."""

SCANS = 2
"""How many of them may scan events: the others stay free for short reads."""


class Slots:
    """A limiter for threads that acquires a free slot without a checkpoint. Trio's own limiter makes one,
    which takes as long as a small read; the caller yields anyway when it waits for its thread."""

    def __init__(self, count: int) -> None:
        self._limiter = trio.CapacityLimiter(count)

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        """Acquire a slot, or wait in FIFO order for one."""
        try:
            self._limiter.acquire_on_behalf_of_nowait(borrower)
        except trio.WouldBlock:
            await self._limiter.acquire_on_behalf_of(borrower)

    def release_on_behalf_of(self, borrower: object) -> None:
        """Release the slot."""
        self._limiter.release_on_behalf_of(borrower)


@attrs.define(eq=False)
class _Call:
    """One read in progress; the lock keeps an interrupt from hitting the connection's next user."""

    lock: threading.Lock = attrs.field(factory=threading.Lock)
    queries: Queries | None = None
    cancelled: bool = False

    def interrupt(self) -> None:
        with self.lock:
            self.cancelled = True
            if self.queries is not None:
                self.queries.interrupt()


class GivenUp(Exception):
    """The read was given up before it had a connection."""


class Readers:
    """A pool of read-only connections. Its creator closes it."""

    def __init__(self, connect: Callable[[], Queries], faults: Faults) -> None:
        """Open the connections. Synchronous: run it in a thread."""
        self.on_damage: Callable[[JournalError], object] = lambda _error: None
        """Called when a read shows that the data are damaged."""
        self._faults = faults
        self._slots = Slots(READERS)
        self._scans = trio.CapacityLimiter(SCANS)
        # The one that was used last is used next: it has its statements planned and their pages at hand.
        self._idle: queue.LifoQueue[Queries] = queue.LifoQueue()
        self._calls: set[_Call] = set()
        self._closed = False
        with ExitStack() as opened:
            for _ in range(READERS):
                connection = connect()
                opened.callback(connection.close)
                self._idle.put(connection)
            opened.pop_all()

    async def run(self, query: Callable[[Queries], T], *, scans: bool = False) -> T:
        """Run a query in a thread, with at most `SCANS` long ones at the same time.

        Raises JournalClosed, JournalUnavailable if it fails in a way that passes, or else JournalError.

        Cancellation returns at once and interrupts the query; its thread then returns the connection.
        """
        if not scans:
            return await self._run(query)
        async with self._scans:
            return await self._run(query)

    async def _run(self, query: Callable[[Queries], T]) -> T:
        if self._closed:
            raise JournalClosed("the journal is closed")
        call = _Call()
        self._calls.add(call)
        try:
            return await trio.to_thread.run_sync(
                self._work,
                call,
                query,
                abandon_on_cancel=True,
                limiter=cast(trio.CapacityLimiter, self._slots),
            )
        except GivenUp:
            raise JournalClosed("the journal is closed") from None
        except self._faults.errors as error:
            if self._faults.nature(error) is Nature.PASSES:
                raise JournalUnavailable(
                    f"The journal cannot be read now: {error}. Try again later."
                ) from error
            found = JournalError(f"cannot read the journal: {error}")
            # Damaged data must not be written any further.
            if self._faults.is_damage(error):
                self.on_damage(JournalFailed(str(found)))
            raise found from error
        except trio.Cancelled:
            call.interrupt()
            raise
        finally:
            self._calls.discard(call)

    def _work(self, call: _Call, query: Callable[[Queries], T]) -> T:
        queries = self._idle.get()
        try:
            with call.lock:
                if call.cancelled:
                    raise GivenUp
                call.queries = queries
            return queries.answer(query)
        finally:
            with call.lock:
                call.queries = None
            self._idle.put(queries)

    def refuse(self) -> None:
        """Accept no more reads and interrupt those under way."""
        self._closed = True
        for call in self._calls:
            call.interrupt()

    def close(self, timeout: float) -> None:
        """Close the connections as they are returned, within `timeout` seconds. Synchronous, after `refuse`.

        One that is not returned in time is stuck in the kernel and stays open until the process ends.
        """
        deadline = time.monotonic() + timeout
        for _ in range(READERS):
            try:
                connection = self._idle.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            connection.close()
