"""Copies a conversation in small steps, between other writes, and shows the copy when it is whole.

As one transaction, ten thousand large events take seconds and block all other writes. Until the last step the
copy is listed among the deleted conversations: if the process dies in between, nothing of the copy is
visible, and the next process removes it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from supervisor.journal.errors import JournalError
from supervisor.journal.port import LogHandle, Store
from supervisor.journal.rows import NewRecord, Stored
from supervisor.journal.storage.eraser import FIRST_ROWS, next_rows
from supervisor.journal.storage.writer import Writer

BLOBS_AT_ONCE: Final = 4
"""Blobs copied by one transaction: 16 MiB of the largest, some 20 ms."""


async def copy(
    writer: Writer,
    source: int,
    target: LogHandle,
    first: NewRecord,
    *,
    parts: Sequence[tuple[int, int]],
    rows: Sequence[Stored],
) -> bool:
    """Copy these parts (first and last sequence number) of the log with the key `source`, in this order, and
    all blobs.

    `rows` follow the copied events. `target.key` is set. Returns False when the id is taken.

    Raises JournalUnavailable, JournalError; then there is no copy. Cancellation leaves none either.
    """
    key = await writer.call(None, lambda store: store.begin_copy())
    try:
        copied, step = 0, FIRST_ROWS
        for begin, end in parts:
            down = begin - copied
            at = begin
            while at <= end:
                last = min(end, at + step - 1)
                some = partial(_copy_events, source=source, key=key, first=at, last=last, down=down)
                step = await writer.call(None, partial(some, rows=step))
                at = last + 1
                # Calls are shielded; here a client that has left cancels the copy.
                await trio.lowlevel.checkpoint()
            copied += end - begin + 1
        blob: str | None = ""
        while blob is not None:
            next_blobs = partial(_copy_blobs, source=source, key=key, after=blob)
            blob = await writer.call(None, next_blobs)
            await trio.lowlevel.checkpoint()

        def end_copy(store: Store) -> bool:
            made = store.end_copy(key, first, rows)
            if made is not None:
                # In the writer thread, so that appends queued behind this find it.
                target.key, target.generation = made
            return made is not None

        return await writer.call(target, end_copy)
    finally:
        with trio.CancelScope(shield=True), suppress(JournalError):  # on an error the next start removes it
            await writer.call(None, lambda store: store.forget_copy(key), deletes=True)


def _copy_events(store: Store, source: int, key: int, first: int, last: int, down: int, rows: int) -> int:
    """Copy events, and return how many to copy next, after `rows` at most."""
    begin = time.monotonic()
    store.copy_events(source, key, first, last, down)
    return next_rows(rows, time.monotonic() - begin, store.slice_seconds)


def _copy_blobs(store: Store, source: int, key: int, after: str) -> str | None:
    return store.copy_blobs(source, key, after, BLOBS_AT_ONCE)
