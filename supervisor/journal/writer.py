"""The one thread that writes, and group commit.

Everything that gathered while the last transaction ran is the next transaction. For each one the Trio side is
woken once, with what it needs to move the high-water marks.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import attrs
import trio

from .errors import DuplicateEvent, JournalClosed, JournalError, again
from .rows import Blob, RecordUpdate, Stored
from .store import Step, Store

T = TypeVar("T")

MAX_PENDING_BYTES = 4 * 1024 * 1024
"""Undurable bytes above which `room` holds producers back. At 50 MB/s and more this is less than 0.1 s of
writing, so that a flooding conversation delays the others by no more than that."""


class Lane(Protocol):
    """One conversation as the writer sees it."""

    key: int | None
    """Set by the writer when the conversation is created; None before."""
    broken: JournalError | None
    """Set by the writer thread: why what is still queued for this lane is dropped."""

    def settle(self, last_seq: int, ticket: int) -> None:
        """On the Trio side: everything up to here is durable."""

    def fail(self, error: JournalError) -> None:
        """On the Trio side: what was not durable is lost."""


@attrs.define(eq=False, kw_only=True)
class Append:
    """Rows, a record and blobs of one conversation; one transaction. `size` in bytes."""

    lane: Lane
    rows: Sequence[Stored]
    record: RecordUpdate | None
    blobs: Sequence[Blob]
    size: int
    last_seq: int
    ticket: int


@attrs.define(eq=False, kw_only=True)
class Call(Generic[T]):
    """Something that answers. The answer is there, and `settled` set, once it is durable."""

    action: Callable[[Store], T]
    lane: Lane | None
    settled: trio.Event = attrs.field(factory=trio.Event)
    answer: T | None = None
    error: JournalError | None = None
    size: int = 0


Op = Append | Call[Any]


class Writer:
    """The thread, its queue, and what is not durable yet.

    All methods belong to the Trio thread. `start` once, then `stop` once, which joins the thread.
    """

    def __init__(self, store: Store, on_failure: Callable[[JournalError], None]) -> None:
        self.failure: JournalError | None = None
        self._store = store
        self._on_failure = on_failure
        self._queue: queue.SimpleQueue[Op | None] = queue.SimpleQueue()
        self._calls: set[Call[Any]] = set()
        self._pending_bytes = 0
        self._room = trio.lowlevel.ParkingLot()
        self._token = trio.lowlevel.current_trio_token()
        # A daemon only so that a disk that never answers cannot keep a finished process alive: `stop` joins.
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def refuse(self) -> None:
        """Accept nothing more."""
        if self.failure is None:
            self.failure = JournalClosed("the journal is closed")
        self._room.unpark_all()

    def stop(self, timeout: float) -> bool:
        """Write what is queued, close the store and join the thread within `timeout` seconds of real time.

        Blocks: run it in a thread. Returns whether the thread has ended.
        """
        self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def enqueue(self, append: Append) -> None:
        """Queue an append. Raises the journal's failure."""
        if self.failure is not None:
            raise again(self.failure)
        self._pending_bytes += append.size
        self._queue.put(append)

    async def call(self, lane: Lane | None, action: Callable[[Store], T]) -> T:
        """Run an action in the next transaction and return its answer when that is durable.

        Cancellation is held back until then, so that the caller always knows what happened.
        Raises JournalError when the transaction failed.
        """
        if self.failure is not None:
            raise again(self.failure)
        call = Call(action=action, lane=lane)
        self._calls.add(call)
        self._queue.put(call)
        with trio.CancelScope(shield=True):
            await call.settled.wait()
        if call.error is not None:
            raise again(call.error)
        return call.answer  # type: ignore[return-value]

    async def room(self) -> None:
        """Wait while more than `MAX_PENDING_BYTES` of all conversations are undurable. Raises the failure."""
        await trio.lowlevel.checkpoint()
        while self.failure is None and self._pending_bytes > MAX_PENDING_BYTES:
            await self._room.park()
        if self.failure is not None:
            raise again(self.failure)

    # The Trio side, called by the thread through the token.

    def _settled(self, ops: Sequence[Op], errors: dict[int, JournalError]) -> None:
        last: dict[int, Append] = {}
        for op in ops:
            self._pending_bytes -= op.size
            if isinstance(op, Append):
                last[id(op.lane)] = op
            else:
                self._calls.discard(op)
                op.error = errors.get(id(op))
                op.settled.set()
        for lane_id, op in last.items():
            if lane_id in errors:
                op.lane.fail(errors[lane_id])
            else:
                op.lane.settle(op.last_seq, op.ticket)
        if self._pending_bytes <= MAX_PENDING_BYTES:
            self._room.unpark_all()

    def _failed(self, error: JournalError) -> None:
        self.failure = error
        for call in self._calls:
            call.error = error
            call.settled.set()
        self._calls.clear()
        self._room.unpark_all()
        self._on_failure(error)

    # The thread.

    def _post(self, function: Callable[..., object], *arguments: object) -> None:
        # After the end of the Trio run nobody is left to tell.
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(partial(function, *arguments))

    def _run(self) -> None:
        alive = True
        open_ = True
        while open_:
            ops: list[Op] = []
            op = self._queue.get()
            with suppress(queue.Empty):
                while op is not None:
                    ops.append(op)
                    op = self._queue.get_nowait()
                open_ = False
            if ops and alive:
                alive = self._commit(ops)
        try:
            self._store.close()
        except sqlite3.Error as error:
            self._post(self._failed, JournalError(f"cannot close the journal: {error}"))

    def _commit(self, ops: list[Op]) -> bool:
        """Make a batch durable and tell the Trio side. Return False when nothing can be written any more."""
        errors = {
            id(op.lane): op.lane.broken for op in ops if op.lane is not None and op.lane.broken is not None
        }
        try:
            try:
                _write(self._store, ops)
            except sqlite3.IntegrityError:
                errors.update(self._commit_one_by_one(ops))
        except Exception as error:  # noqa: BLE001  # whatever it was, waiting for this thread must end
            failure = JournalError(f"cannot write the journal: {error}")
            failure.__cause__ = error
            self._post(self._failed, failure)
            return False
        self._post(self._settled, ops, errors)
        return True

    def _commit_one_by_one(self, ops: list[Op]) -> dict[int, JournalError]:
        """Make a batch durable with one transaction for each lane, so that only the culprit loses its part.

        Lanes are different conversations and need no order among them.
        """
        lanes: dict[int, list[Op]] = {}
        for op in ops:
            lanes.setdefault(id(op.lane or op), []).append(op)
        errors: dict[int, JournalError] = {}
        for lane_id, part in lanes.items():
            try:
                _write(self._store, part)
            except sqlite3.IntegrityError as error:
                failure = DuplicateEvent(f"an event id was appended twice: {error}")
                failure.__cause__ = error
                errors[lane_id] = failure
                errors.update((id(op), failure) for op in part)
                if part[0].lane is not None:
                    part[0].lane.broken = failure
        return errors


def _write(store: Store, ops: Iterable[Op]) -> None:
    steps = _steps(store, ops)
    # One statement is a transaction by itself; see the measurement in `store`.
    with store.transaction() if len(steps) > 1 else nullcontext():
        for step in steps:
            step()


def _steps(store: Store, ops: Iterable[Op]) -> list[Step]:
    """Turn a batch into statements: rows together, and of each conversation's records only the last."""
    steps: list[Step] = []
    appends: list[Append] = []
    for op in ops:
        if isinstance(op, Call):
            steps.append(partial(_append, store, appends))
            appends = []
            steps.append(partial(_answer, store, op))
        elif op.lane.broken is None:
            appends.append(op)
    # What follows a call may need the key that the call gives to its lane, hence the delay above.
    return [*steps, partial(_append, store, appends)] if steps else _append_steps(store, appends)


def _append(store: Store, appends: Sequence[Append]) -> None:
    for step in _append_steps(store, appends):
        step()


def _append_steps(store: Store, appends: Sequence[Append]) -> list[Step]:
    rows: list[tuple[int, Stored]] = []
    records: dict[int, RecordUpdate] = {}
    steps: list[Step] = []
    for append in appends:
        key = append.lane.key
        assert key is not None
        rows += [(key, row) for row in append.rows]
        if append.record is not None:
            records[key] = _merged(records.get(key), append.record)
        if append.blobs:
            steps.append(partial(store.put_blobs, key, append.blobs))
    steps += store.insert_steps(rows)
    steps += (partial(store.update_record, key, update) for key, update in records.items())
    return steps


def _merged(earlier: RecordUpdate | None, later: RecordUpdate) -> RecordUpdate:
    if earlier is None or later.title is not None:
        return later
    return attrs.evolve(later, title=earlier.title)


def _answer(store: Store, call: Call[Any]) -> None:
    call.answer = call.action(store)
