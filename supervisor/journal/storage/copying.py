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
from supervisor.journal.rows import RecordUpdate, Stored
from supervisor.journal.storage.batch import LogHandle
from supervisor.journal.storage.eraser import FIRST_ROWS, MOST_ROWS, SLICE_SECONDS
from supervisor.journal.storage.store import Store
from supervisor.journal.storage.writer import Writer

BLOBS_AT_ONCE: Final = 4
"""Blobs copied by one transaction: 16 MiB of the largest, some 20 ms."""


async def copy(
    writer: Writer,
    source: LogHandle,
    target: LogHandle,
    conversation_id: str,
    first: RecordUpdate,
    *,
    parts: Sequence[tuple[int, int]],
    rows: Sequence[Stored],
    created_at: str,
    parent_id: str | None,
) -> bool:
    """Copy these parts (first and last sequence number) of a log, in this order, and all blobs.

    `rows` follow the copied events. `target.key` is set. Returns False when the id is taken.

    Raises JournalUnavailable, JournalError; then there is no copy. Cancellation leaves none either.
    """
    old = source.key
    assert old is not None
    key = await writer.call(None, lambda store: store.begin_copy())
    try:
        copied, step = 0, FIRST_ROWS
        for begin, end in parts:
            down = begin - copied
            at = begin
            while at <= end:
                last = min(end, at + step - 1)
                took = await writer.call(
                    None,
                    partial(_copy_events, source=old, key=key, first=at, last=last, down=down),
                )
                if took > SLICE_SECONDS:
                    step = max(1, step // 2)
                elif took < SLICE_SECONDS / 2:
                    step = min(MOST_ROWS, step * 2)
                at = last + 1
                await trio.lowlevel.checkpoint()
            copied += end - begin + 1
        blob: str | None = ""
        while blob is not None:
            some = partial(Store.copy_blobs, source=old, key=key, after=blob, most=BLOBS_AT_ONCE)
            blob = await writer.call(None, some)
            await trio.lowlevel.checkpoint()

        def end_copy(store: Store) -> bool:
            done = store.end_copy(
                key, conversation_id, first, rows, created_at=created_at, parent_id=parent_id
            )
            if done:
                target.key = key  # in the writer thread, so that appends queued behind this find it
            return done

        return await writer.call(target, end_copy)
    finally:
        with trio.CancelScope(shield=True), suppress(JournalError):  # on an error the next start removes it
            await writer.call(None, lambda store: store.forget_copy(key), deletes=True)


def _copy_events(store: Store, source: int, key: int, first: int, last: int, down: int) -> float:
    """Copy events, and return the seconds that it took."""
    begin = time.monotonic()
    store.copy_events(source, key, first, last, down)
    return time.monotonic() - begin
