"""One batch of writes: appends and calls of many conversations, turned into few statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import attrs
import trio

from supervisor.journal.errors import JournalError
from supervisor.journal.rows import Blob, RecordUpdate, Stored
from supervisor.journal.storage.store import Step, Store

T = TypeVar("T")


class LogHandle(Protocol):
    """The part of a conversation's log that the writer needs."""

    key: int | None
    """Set by the writer when the conversation is created; None before."""
    broken: JournalError | None
    """Set by the writer thread: why queued writes of this handle are dropped."""

    def settle(self, last_seq: int, ticket: int) -> None:
        """On the Trio side: note that everything up to here is durable."""

    def fail(self, error: JournalError) -> None:
        """On the Trio side: note that everything not durable is lost."""


@attrs.define(eq=False, kw_only=True)
class Append:
    """Rows, a record and blobs of one conversation; one transaction. `size` in bytes."""

    handle: LogHandle
    rows: Sequence[Stored]
    record: RecordUpdate | None
    blobs: Sequence[Blob]
    size: int
    last_seq: int
    ticket: int


@attrs.define(eq=False, kw_only=True)
class Call(Generic[T]):
    """An action with an answer. Once it is durable, `answer` and `settled` are set.

    `deletes` marks an action that frees space: it is tried even while nothing else can be written.
    """

    action: Callable[[Store], T]
    handle: LogHandle | None
    deletes: bool = False
    settled: trio.Event = attrs.field(factory=trio.Event)
    answer: T | None = None
    error: JournalError | None = None
    size: int = 0
    done: bool = False
    """Set by the writer thread."""


Op = Append | Call[Any]


def write(store: Store, ops: Iterable[Op]) -> None:
    """Write a batch in one transaction. Raises what SQLite raises; then nothing of it is written."""
    steps = _steps(store, ops)
    # One statement is a transaction by itself; see the measurement in `store`.
    with store.transaction() if len(steps) > 1 else nullcontext():
        for step in steps:
            step()


def _steps(store: Store, ops: Iterable[Op]) -> list[Step]:
    """Turn a batch into statements: rows together, and only the last record of each conversation."""
    steps: list[Step] = []
    appends: list[Append] = []
    for op in ops:
        if isinstance(op, Call):
            steps.append(partial(_append, store, appends))
            appends = []
            steps.append(partial(_answer, store, op))
        elif op.handle.broken is None:
            appends.append(op)
    # An append after a call may need the key that the call sets on its handle, so build it only then.
    return [*steps, partial(_append, store, appends)] if steps else _append_steps(store, appends)


def _append(store: Store, appends: Sequence[Append]) -> None:
    for step in _append_steps(store, appends):
        step()


def _append_steps(store: Store, appends: Sequence[Append]) -> list[Step]:
    rows: list[tuple[int, Stored]] = []
    records: dict[int, RecordUpdate] = {}
    steps: list[Step] = []
    for append in appends:
        key = append.handle.key
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
