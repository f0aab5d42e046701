"""The writer: one thread, with group commit.

Everything queued during the last transaction becomes the next transaction. After each one the Trio side is
woken once, with what it needs to move the high-water marks.

An error that passes (see `trouble`) stops nothing: the thread keeps what it could not write and retries, and
new writes queue behind it. The queue is bounded: producers wait in `room`, and new work is refused (`check`).
Calls are not kept: they fail at once, with nothing stored, so that a caller's retry does nothing twice.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import structlog
import trio

from supervisor.journal.errors import (
    JournalClosed,
    JournalError,
    JournalFailed,
    JournalUnavailable,
    LeaseLost,
    LogDeleted,
    again,
)
from supervisor.journal.port import Append, Call, LogHandle, Op, Store
from supervisor.journal.storage.eraser import Eraser
from supervisor.journal.trouble import FIRST_PAUSE, LOG_SECONDS, LONGEST_PAUSE, Nature, Trouble

log = structlog.get_logger(__name__)

T = TypeVar("T")

MAX_PENDING_BYTES = 4 * 1024 * 1024
"""Undurable bytes above which `room` holds producers back. At 50 MB/s and more this is less than 0.1 s of
writing, which bounds the delay that a flooding conversation causes for the others."""

REFUSE_PENDING_BYTES = 64 * 1024 * 1024
"""Undurable bytes above which `check` refuses new work.

A hanging disk reports nothing for a while, and only a few large requests may gather meanwhile.
"""

CROWD = 8
"""Events and calls in one transaction from which on more are probably coming."""

CROWD_SECONDS = 0.008
"""Seconds to let more of them gather after such a transaction, unless a task waits (`hurry`).

Each transaction has a fixed cost: it rewrites pages of three indexes, takes the GIL from the Trio thread
several times, and wakes it. Measured, an event of a flood takes 9.7 microseconds of this thread with 3 ms,
8.1 with 6 and 7.1 with 10. A single event never waits.
"""

ERASE_AT_ONCE_SECONDS = 1.0
"""Seconds of removing events on a full disk before other writes are retried, which need the freed space."""

ERASE_PAUSE = 1.0
"""Seconds after a failed removal before the next attempt: no task waits for it."""


class Writer:
    """The thread, its queue, and what is not durable yet.

    All methods belong to the Trio thread. Call `start` once, then `stop` once, which joins the thread.
    `on_failure` receives the error after which nothing is written any more; `on_trouble` is called when
    trouble begins; `on_lost` when the first conversation is lost to another server.
    """

    def __init__(
        self,
        store: Store,
        on_failure: Callable[[JournalError], None],
        on_trouble: Callable[[], None] = lambda: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.failure: JournalError | None = None
        self.trouble: Trouble | None = None
        """Why nothing can be written at the moment, although writing is retried; None if it can."""
        self.keeps_updates = store.keeps_updates
        """Whether the updates of events are stored."""
        self._store = store
        self._faults = store.faults
        self._on_failure = on_failure
        self._on_trouble = on_trouble
        self._on_lost = on_lost
        self._lost = False
        self._queue: queue.SimpleQueue[Op | None] = queue.SimpleQueue()
        self._urgent: queue.SimpleQueue[Call[Any]] = queue.SimpleQueue()
        self._calls: set[Call[Any]] = set()
        self._pending_bytes = 0
        self._room = trio.lowlevel.ParkingLot()
        self._changes = trio.lowlevel.ParkingLot()
        self._logged_at = -math.inf
        self._logged = False
        self._troubled_at = 0.0
        self._token = trio.lowlevel.current_trio_token()
        self._nudge = threading.Event()
        self._hurry = threading.Event()
        self._stopping = False
        # Used by the thread alone:
        self._batch: list[Op] = []
        self._since: float | None = None
        self._attempts = 0
        self._patient = True
        self._open = True
        self._eraser = Eraser(store)
        # A daemon only so that a disk that never answers cannot keep a finished process alive: `stop` joins.
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)

    @property
    def pending_bytes(self) -> int:
        """Bytes that are not durable yet."""
        return self._pending_bytes

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def refuse(self) -> None:
        """Refuse all further writes."""
        if self.failure is None:
            self.failure = JournalClosed("the journal is closed")
        self._wake_all()

    def stop(self, timeout: float) -> bool:
        """Write what is queued, close the store and join the thread within `timeout` seconds of real time.

        During trouble the writing is tried once more. Blocks: run it in a thread. Returns whether the thread
        has ended.
        """
        self._stopping = True
        self._queue.put(None)
        self._nudge.set()
        self._hurry.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def check(self) -> None:
        """Check that new work is accepted.

        Raises the failure, or JournalUnavailable during trouble or with more than `REFUSE_PENDING_BYTES`
        undurable.
        """
        if self.failure is not None:
            raise again(self.failure)
        if self.trouble is not None:
            raise JournalUnavailable(_refusal(self.trouble))
        if self._pending_bytes > REFUSE_PENDING_BYTES:
            raise JournalUnavailable(
                f"The journal is behind, with {self._pending_bytes} bytes to write, and nothing was stored. "
                "Try again later."
            )

    def enqueue(self, append: Append) -> None:
        """Queue an append, also during trouble. Raises the journal's failure."""
        if self.failure is not None:
            raise again(self.failure)
        self._pending_bytes += append.size
        self._queue.put(append)

    def hurry(self) -> None:
        """Write soon: a task waits for what is queued."""
        self._hurry.set()

    async def call(
        self, handle: LogHandle | None, action: Callable[[Store], T], *, deletes: bool = False
    ) -> T:
        """Run an action in the next transaction and return its answer when that is durable.

        Cancellation is held back until then, so that the caller always knows what happened. Raises
        JournalUnavailable when it cannot be written now (nothing of it is stored), and JournalError when the
        journal failed.
        """
        if deletes:
            if self.failure is not None:
                raise again(self.failure)
        else:
            self.check()
        call = Call(action=action, handle=handle, deletes=deletes)
        self._calls.add(call)
        self._queue.put(call)
        self._hurry.set()
        if self.trouble is not None:
            # Between two attempts the thread looks here, not at its queue.
            self._urgent.put(call)
            self._nudge.set()
        with trio.CancelScope(shield=True):
            await call.settled.wait()
        if call.error is not None:
            raise again(call.error)
        return call.answer  # type: ignore[return-value]

    @property
    def roomy(self) -> bool:
        """Whether `room` returns at once and there is no trouble."""
        return self.failure is None and self.trouble is None and self._pending_bytes <= MAX_PENDING_BYTES

    async def room(self) -> None:
        """Wait while more than `MAX_PENDING_BYTES` of all conversations are undurable. Raises the failure."""
        # With room, too: a loop of a producer must not starve the other tasks.
        await trio.lowlevel.checkpoint()
        while self.failure is None and self._pending_bytes > MAX_PENDING_BYTES:
            await self._room.park()
        if self.failure is not None:
            raise again(self.failure)

    async def changed(self) -> None:
        """Wait until trouble begins, changes or ends, or the journal fails."""
        await self._changes.park()

    # The Trio side, called by the thread through the token.

    def _settled(self, ops: Sequence[Op], errors: dict[int, JournalError]) -> None:
        last: dict[int, Append] = {}
        for op in ops:
            self._pending_bytes -= op.size
            if isinstance(op, Append):
                # One update for each log: its last append says how far it is durable.
                last[id(op.handle)] = op
            else:
                self._calls.discard(op)
                op.error = errors.get(id(op))
                op.settled.set()
        for handle_id, op in last.items():
            if handle_id in errors:
                op.handle.fail(errors[handle_id])
                self._note_loss(errors[handle_id])
            else:
                op.handle.settle(op.last_seq, op.ticket)
        if self._pending_bytes <= MAX_PENDING_BYTES:
            self._room.unpark_all()

    def _note_loss(self, error: JournalError) -> None:
        if isinstance(error, LeaseLost) and not self._lost:
            self._lost = True
            self._on_lost()

    def _troubled(self, trouble: Trouble) -> None:
        began = self.trouble is None
        self.trouble = trouble
        now = time.monotonic()
        if began:
            self._troubled_at = now
        # Attempts are many; lines in the log are few.
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at, self._logged = now, True
            log.error(
                "journal is not writable; trying again",
                reason=trouble.reason,
                seconds=round(now - self._troubled_at, 1),
                attempts=trouble.attempts,
                waiting_bytes=self._pending_bytes,
            )
        if began:
            self._on_trouble()
        self._changes.unpark_all()

    def _recovered(self) -> None:
        trouble, self.trouble = self.trouble, None
        if trouble is not None and self._logged:
            self._logged = False
            seconds = round(time.monotonic() - self._troubled_at, 1)
            log.warning("journal is writable again", seconds=seconds, attempts=trouble.attempts)
        self._changes.unpark_all()

    def fail(self, error: JournalError) -> None:
        """Fail for a reason found elsewhere: nothing is written any more. Does nothing after a failure."""
        if self.failure is None:
            self._failed(error)

    def _failed(self, error: JournalError) -> None:
        self.failure = error
        self.trouble = None
        for call in self._calls:
            call.error = error
            call.settled.set()
        self._calls.clear()
        self._wake_all()
        self._on_failure(error)

    def _wake_all(self) -> None:
        self._room.unpark_all()
        self._changes.unpark_all()

    # The thread.

    def _post(self, function: Callable[..., object], *arguments: object) -> None:
        # After the end of the Trio run there is no task to notify.
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(partial(function, *arguments))

    def _run(self) -> None:
        alive = True
        while self._open:
            self._gather(self._eraser.wait() if alive else None)
            # Before the commit, which empties the batch.
            crowded = _weight(self._batch) >= CROWD
            if self._batch and alive:
                alive = self._commit()
            if alive:
                alive = self._erase_some()
            self._batch = []
            if crowded and alive and self._open:
                # In a flood, fewer and larger transactions; a task that waits for its write ends the pause.
                self._hurry.wait(CROWD_SECONDS)
                self._hurry.clear()
        try:
            self._store.close()
        except Exception as error:  # noqa: BLE001  # the last thing that can be reported
            self._post(self._failed, JournalError(f"cannot close the journal: {error}"))

    def _gather(self, seconds: float | None) -> None:
        """Take everything that is queued into the batch; wait up to `seconds` for the first item, None:
        without a limit."""
        with suppress(queue.Empty):
            op = self._queue.get(timeout=seconds) if seconds != 0 else self._queue.get_nowait()
            while op is not None:
                # A deletion may have run out of order, during trouble (`_make_room`).
                if not (isinstance(op, Call) and op.done):
                    self._batch.append(op)
                op = self._queue.get_nowait()
            # Only `stop` queues a None, which ends the loop above.
            self._open = False

    def _commit(self) -> bool:
        """Make the batch durable and notify the Trio side, however long that takes.

        Returns False if it is not durable, because writing has failed for good or the journal is closing.
        """
        pause = FIRST_PAUSE
        while True:
            try:
                self._attempt()
            except Exception as error:  # noqa: BLE001  # of any kind: tasks must not wait for this thread forever
                if not self._retries(error):
                    return False
            else:
                self._calm()
                return True
            # A deletion ends the pause: it can free what the batch needs.
            self._nudge.wait(pause)
            self._nudge.clear()
            pause = min(pause * 2, LONGEST_PAUSE)
            self._make_room()

    def _attempt(self) -> None:
        """Write the batch. What is written leaves it."""
        self._store.check_place()
        if not self._batch:
            # Everything was refused: only a write shows whether the trouble is over.
            self._store.probe()
            return
        for part in self._store.parts(self._batch):
            try:
                _write(self._store, part)
            except Exception as error:
                if self._faults.nature(error) is not Nature.OWN:
                    raise
                self._attempt_one_by_one(part)
            else:
                self._wrote(part)

    def _attempt_one_by_one(self, part: Sequence[Op]) -> None:
        """Write these with one transaction for each handle, so that only the culprit loses its part.

        Handles are different conversations, so the order among them does not matter.
        """
        handles: dict[int, list[Op]] = {}
        for op in part:
            handles.setdefault(id(op.handle or op), []).append(op)
        for ops in handles.values():
            failure: JournalError | None = None
            try:
                _write(self._store, ops)
            except Exception as error:
                if self._faults.nature(error) is not Nature.OWN:
                    raise
                failure = self._faults.own_fault(error)
                handle = ops[0].handle
                if handle is not None:
                    handle.broken = failure
            # Each at once: its readers must not wait for the culprit's.
            self._wrote(ops, failure)

    def _wrote(self, ops: Sequence[Op], failure: JournalError | None = None) -> None:
        """Take what is written, or failed, out of the batch, and report it."""
        if len(ops) == len(self._batch):
            self._batch = []
        else:
            gone = {id(op) for op in ops}
            self._batch = [op for op in self._batch if id(op) not in gone]
        errors = {
            id(op.handle): op.handle.broken
            for op in ops
            if op.handle is not None and op.handle.broken is not None
        }
        if failure is not None:
            errors.update((id(op), failure) for op in ops)
        self._report(ops, errors)

    def _report(self, ops: Sequence[Op], errors: dict[int, JournalError]) -> None:
        size = 0
        conversations: set[int] = set()
        for op in ops:
            size += op.size
            conversations.add(id(op.handle))
            if isinstance(op, Call):
                op.done = True
                if op.deletes:
                    self._eraser.look()
        self._post(self._settled, ops, errors)
        self._store.committed(size, len(conversations))

    # The thread, when a write has failed.

    def _retries(self, error: Exception) -> bool:
        """Whether to retry: not after a lasting failure, nor at the end."""
        if self._faults.nature(error) is not Nature.PASSES:
            failure = JournalFailed(f"cannot write the journal: {error}")
            failure.__cause__ = error
            self._post(self._failed, failure)
            return False
        self._attempts += 1
        self._since = self._since or time.time()
        trouble = Trouble(self._faults.reason(error), self._since, self._attempts)
        self._be_patient(False)
        self._post(self._troubled, trouble)
        calls = [op for op in self._batch if isinstance(op, Call)]
        if calls:
            self._batch = [op for op in self._batch if not isinstance(op, Call)]
            refusal = JournalUnavailable(_refusal(trouble))
            deletes = [call for call in calls if call.deletes]
            # Refused at once with nothing stored, so that a client can repeat its request.
            self._refuse([call for call in calls if not call.deletes], refusal)
            for call in deletes:
                self._delete(call)
        if self._stopping:
            self._end_in_trouble(trouble)
            return False
        return True

    def _calm(self) -> None:
        if self._since is None:
            return
        self._since, self._attempts = None, 0
        self._be_patient(True)
        self._store.reserve.fill()
        # Deletions that came too late to be urgent are also in the queue.
        with suppress(queue.Empty):
            while True:
                self._urgent.get_nowait()
        self._post(self._recovered)

    def _be_patient(self, patient: bool) -> None:
        if patient is not self._patient:
            self._patient = patient
            with suppress(Exception):
                self._store.be_patient(patient)

    def _refuse(self, calls: Sequence[Call[Any]], error: JournalError) -> None:
        for call in calls:
            call.done = True
        if calls:
            self._post(self._settled, calls, {id(call): error for call in calls})

    def _make_room(self) -> None:
        """Run what frees space before retrying what needs it."""
        with suppress(queue.Empty):
            while True:
                call = self._urgent.get_nowait()
                if not call.done:
                    self._delete(call)
        if self._eraser.pending:
            self._erase_at_once()

    def _delete(self, call: Call[Any]) -> None:
        """Run a deletion during trouble, on the reserved space."""
        try:
            self._with_reserve(lambda: _write(self._store, [call]))
        except Exception as error:  # noqa: BLE001  # the next attempt meets a lasting failure, too
            refusal = JournalUnavailable(f"Cannot delete the conversation now; it still exists: {error}")
            refusal.__cause__ = error
            self._refuse([call], refusal)
            return
        if call.handle is not None and call.answer is True:
            # Drop the conversation's queued writes.
            call.handle.broken = LogDeleted("the conversation has been deleted")
        self._report([call], {})
        self._erase_at_once()

    def _erase_at_once(self) -> None:
        until = time.monotonic() + ERASE_AT_ONCE_SECONDS
        erased = False
        with suppress(Exception):  # as in `_delete`; the rest is removed later
            while self._eraser.pending and time.monotonic() < until:
                self._with_reserve(self._eraser.slice)
                erased = True
        if erased:
            self._store.checkpoint()  # which frees the space of the write-ahead log

    def _with_reserve(self, write: Callable[[], None]) -> None:
        """Write what frees space, on the reserved space if there is no other."""
        try:
            write()
        except Exception as error:
            if not self._faults.is_full(error) or not self._store.reserve.release():
                raise
            self._store.checkpoint()
            write()

    def _end_in_trouble(self, trouble: Trouble) -> None:
        """Make a last attempt, with everything queued and the reserved space; then report losses."""
        self._gather(0)
        self._refuse(
            [op for op in self._batch if isinstance(op, Call)], JournalUnavailable(_refusal(trouble))
        )
        self._batch = [op for op in self._batch if isinstance(op, Append)]
        self._store.reserve.release()
        try:
            self._attempt()
        except Exception:  # noqa: BLE001  # the trouble's reason is reported
            lost = [op for op in self._batch if isinstance(op, Append) and op.handle.broken is None]
            events = sum(len(op.rows) for op in lost)
            conversations = len({id(op.handle) for op in lost})
            self._post(
                self._failed,
                JournalError(
                    f"cannot write the journal before the server stops: {events} events of {conversations} "
                    f"conversations are lost: {trouble.reason}"
                ),
            )

    # The thread, when there is time: conversations that were deleted.

    def _erase_some(self) -> bool:
        """Erase in one transaction, if anything is due. Return False if writing has failed for good."""
        if not self._open or self._eraser.wait() != 0:
            return True
        try:
            self._with_reserve(self._eraser.slice)
        except Exception as error:  # noqa: BLE001  # as in _commit
            if self._faults.nature(error) is Nature.LASTS:
                return self._retries(error)
            self._eraser.rest(ERASE_PAUSE)
        else:
            if not self._eraser.pending:
                self._store.reserve.fill()
        return True


def _write(store: Store, ops: Sequence[Op]) -> None:
    store.write(ops)


def _weight(ops: Sequence[Op]) -> int:
    """Return the number of events and calls. An append without events counts as one."""
    return sum(max(1, len(op.rows)) if isinstance(op, Append) else 1 for op in ops)


def _refusal(trouble: Trouble) -> str:
    return f"The journal cannot be written now, and nothing was stored: {trouble.reason}. Try again later."
