"""A batch for SQLite: appends and calls of many conversations, turned into few statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Protocol

from supervisor.journal.port import Append, Call, Op, Store, merged
from supervisor.journal.rows import Blob, RecordUpdate, Stored

Step = Callable[[], object]


class Statements(Store, Protocol):
    """A store whose transactions are made of several statements."""

    def transaction(self) -> AbstractContextManager[None]:
        """Commit at the end; on an error roll back."""

    def insert_steps(self, rows: Sequence[tuple[int, Stored]]) -> list[Step]:
        """Return the statements that store these (conversation key, event) pairs."""

    def update_record(self, key: int, update: RecordUpdate) -> None:
        """Replace a record and its columns."""

    def put_blobs(self, key: int, blobs: Iterable[Blob]) -> None:
        """Store blobs, each replacing one of the same id."""


def write(store: Statements, ops: Iterable[Op]) -> None:
    """Write a batch in one transaction. Raises what SQLite raises; then nothing of it is written."""
    steps = _steps(store, ops)
    # One statement is a transaction by itself; see the measurement in `store`.
    with store.transaction() if len(steps) > 1 else nullcontext():
        for step in steps:
            step()


def _steps(store: Statements, ops: Iterable[Op]) -> list[Step]:
    """Turn a batch into statements: rows together, and only the last record of each conversation."""
    steps: list[Step] = []
    appends: list[Append] = []
    for op in ops:
        if isinstance(op, Call):
            steps.append(partial(_append, store, appends))
            appends = []
            steps.append(partial(op.run, store))
        elif op.handle.broken is None:
            appends.append(op)
    # An append after a call may need the key that the call sets on its handle, so build it only then.
    return [*steps, partial(_append, store, appends)] if steps else _append_steps(store, appends)


def _append(store: Statements, appends: Sequence[Append]) -> None:
    for step in _append_steps(store, appends):
        step()


def _append_steps(store: Statements, appends: Sequence[Append]) -> list[Step]:
    rows: list[tuple[int, Stored]] = []
    records: dict[int, RecordUpdate] = {}
    steps: list[Step] = []
    for append in appends:
        key = append.handle.key
        assert key is not None
        rows += [(key, row) for row in append.rows]
        if append.record is not None:
            records[key] = merged(records.get(key), append.record)
        if append.blobs:
            steps.append(partial(store.put_blobs, key, append.blobs))
    steps += store.insert_steps(rows)
    steps += (partial(store.update_record, key, update) for key, update in records.items())
    return steps
