"""Runs work on paths that others can make hang: in threads that can be abandoned.

An agent or a client can name a file on a file system that never answers. A thread that waits there cannot be
ended, but it can be abandoned: the caller continues, the thread counts against the limiter of its kind until
it ends, and the process exits without it. `ended_by` gives up what something else makes needless.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

import trio

T = TypeVar("T")

PATH_SECONDS: Final = 5.0
"""Seconds for work on a few small files or directories, which takes milliseconds on a disk that answers."""

MOST_LEFT_BEHIND: Final = 256
"""Abandoned threads that have not ended, in all. Beyond that no more work is begun: a thread costs memory."""


class PathTimeout(TimeoutError):
    """A file or directory did not answer in time. The message says so, and names the work."""


class _LeftBehind:
    """The number of abandoned threads that have not ended."""

    def __init__(self) -> None:
        self.number = 0
        self.lock = threading.Lock()

    def add(self, number: int) -> None:
        with self.lock:
            self.number += number


_left_behind = _LeftBehind()


class KeyedLimiters:
    """A limiter for each agent, conversation or kind: work that hangs delays only its own key."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        # An abandoned thread keeps its limiter alive.
        self._limiters: WeakValueDictionary[str, trio.CapacityLimiter] = WeakValueDictionary()

    def of(self, key: str) -> trio.CapacityLimiter:
        """Return the limiter of that key."""
        limiter = self._limiters.get(key)
        if limiter is None:
            limiter = self._limiters[key] = trio.CapacityLimiter(self._threads)
        return limiter


class _Task(Generic[T]):
    """Work in a thread, and the disposal of its result if it is abandoned."""

    def __init__(self, work: Callable[[], T], wasted: Callable[[T], object]) -> None:
        self._work = work
        self._wasted = wasted
        self._lock = threading.Lock()
        self._begun = self._ended = self._given_up = False
        self._results: list[T] = []

    def run(self) -> T:
        with self._lock:
            self._begun = True
        try:
            result = self._work()
            with self._lock:
                self._results.append(result)
                if self._given_up:
                    self._wasted(result)
            return result
        finally:
            with self._lock:
                self._ended = True
                if self._given_up:
                    _left_behind.add(-1)

    def give_up(self) -> None:
        with self._lock:
            if self._begun and not self._ended:
                self._given_up = True
                _left_behind.add(1)
            for result in self._results:
                self._wasted(result)


async def in_time(
    work: Callable[[], T],
    what: str,
    *,
    limiter: trio.CapacityLimiter,
    seconds: float = PATH_SECONDS,
    shield: bool = False,
    wasted: Callable[[T], object] = lambda result: None,
) -> T:
    """Run `work` in a thread, and return its result.

    `what`: the work in words for a message, as in "to read the login". `wasted`: called with the result of
    abandoned work.

    Raises PathTimeout after `seconds`, waiting for the limiter included.

    Cancellation abandons the thread as well. With `shield` it waits for the end of the work or of the time.
    """
    # A disk that hangs for all would cost a thread for each request.
    if _left_behind.number >= MOST_LEFT_BEHIND:
        raise PathTimeout(f"too many file operations hang; Ostler did not try {what}")
    task = _Task(work, wasted)
    if shield:
        await trio.lowlevel.checkpoint_if_cancelled()
    with trio.move_on_after(seconds, shield=shield):
        try:
            return await trio.to_thread.run_sync(task.run, limiter=limiter, abandon_on_cancel=True)
        except trio.Cancelled:
            task.give_up()
            raise
    raise PathTimeout(f"it took longer than {seconds:g} s {what}: the file system does not answer")


@asynccontextmanager
async def ended_by(wait: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Cancel the block when `wait`, which raises nothing, returns.

    An exception of the block comes out as it is, not in a group.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            await wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised below, not in a group
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def read_regular(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of a regular file. Blocks as long as the file system does, but not for a
    lease of another process.

    Raises OSError: BlockingIOError when another process holds a lease on it, others for what is not a regular
    file.
    """
    # O_NONBLOCK: a lease is an error at once instead of a wait of most of a minute, and a pipe opens without
    # its other end. O_NOCTTY: no terminal may become the server's.
    return read_opened(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), path, most)


def read_opened(descriptor: int, name: object, most: int) -> bytes:
    """The same of a file that the caller has opened so. Closes it. `name`: for the error."""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{name} is not a regular file")
        return file.read(most)
