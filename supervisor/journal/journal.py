"""The journal's interface: conversations, their records, and their logs."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Unpack

import trio

from supervisor.journal.errors import (
    AlreadyExists,
    JournalClosed,
    JournalError,
    JournalUnavailable,
    LogDeleted,
    NotOwner,
    UnknownConversation,
    again,
)
from supervisor.journal.log import Log, ReadingLog
from supervisor.journal.port import Store
from supervisor.journal.queries import Head
from supervisor.journal.readers import Readers
from supervisor.journal.rows import Columns, NewRecord, Record, RecordOrder, RecordPage, Row, Stored
from supervisor.journal.storage.copying import copy
from supervisor.journal.storage.faults import FAULTS
from supervisor.journal.storage.queries import SqliteQueries
from supervisor.journal.storage.store import BUSY_TIMEOUT
from supervisor.journal.storage.store import Store as SqliteStore
from supervisor.journal.storage.writer import Writer
from supervisor.journal.trouble import Trouble

CLOSE_TIMEOUT = 10.0
"""Seconds of real time that closing waits for the last commit.

The full queue takes about 0.2 s; a disk that needs longer than this is broken, and shutdown must continue.
"""

READ_CLOSE_TIMEOUT = 2.0
"""Seconds that closing waits for interrupted reads to come back."""


class Journal:
    """An open journal. Made by `open_journal` or `open_shared_journal`; belongs to the Trio run that opened
    it.

    Ids of conversations are opaque here; pass one form only (Ostler: the dashed one).
    """

    def __init__(self, store: Store, readers: Readers) -> None:
        self.epoch = store.epoch
        """The number of this opening of the journal: it rises with every start of a server."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called once, when the first conversation is found lost to another server (LeaseLost)."""
        self._owner = store.owner
        self._readers = readers
        self._writer = Writer(store, self._failed, self._look_again, lambda: self.on_lost())
        readers.on_damage = self._writer.fail
        # A log lives as long as it is in use: by its conversation, a cursor, or rows on their way to disk.
        self._logs: weakref.WeakValueDictionary[str, Log] = weakref.WeakValueDictionary()
        # Loading, creating and deleting one conversation exclude each other: two objects for one log would
        # give out the same sequence numbers.
        self._locks: weakref.WeakValueDictionary[str, trio.Lock] = weakref.WeakValueDictionary()

    @property
    def trouble(self) -> Trouble | None:
        """Why nothing can be written at the moment; None if it can.

        Writing is retried, queued writes are kept, and reading continues.
        """
        return self._writer.trouble

    @property
    def failure(self) -> JournalError | None:
        """Why nothing will ever be written again; None if the journal works."""
        return self._writer.failure

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are queued and not yet durable."""
        return self._writer.pending_bytes

    def accept(self) -> None:
        """Check that the journal accepts work. Raises JournalUnavailable while it is not writable,
        JournalError if it failed."""
        self._writer.check()

    async def writable(self) -> None:
        """Wait while there is trouble. Raises JournalError when the journal fails."""
        await trio.lowlevel.checkpoint()
        while self._writer.trouble is not None:
            await self._writer.changed()
        if self._writer.failure is not None:
            raise again(self._writer.failure)

    async def changed(self) -> None:
        """Wait until trouble begins, another attempt fails, trouble ends, or the journal fails."""
        await self._writer.changed()

    async def create(self, conversation_id: str, record: bytes, **columns: Unpack[Columns]) -> Log:
        """Add a conversation; durable on return.

        Raises AlreadyExists, JournalUnavailable (nothing was created), JournalError.

        Cancellation during the write is held back: it shows at the caller's next checkpoint.
        """
        first = NewRecord(id=conversation_id, record=record, **columns)
        async with self._lock(conversation_id):
            log = self._log(conversation_id, None, -1)

            def insert(store: Store) -> bool:
                made = store.create(first)
                if made is not None:
                    # In the writer thread, so that appends queued behind this find it.
                    log.key, log.generation = made
                return made is not None

            if not await self._writer.call(log, insert):
                raise AlreadyExists(f"conversation {conversation_id} exists")
            self._logs[conversation_id] = log
            return log

    async def fork(
        self,
        source_id: str,
        conversation_id: str,
        record: bytes,
        *,
        parts: Sequence[tuple[int, int]],
        rows: Sequence[Row] = (),
        **columns: Unpack[Columns],
    ) -> Log:
        """Add a conversation that begins with a copy of another one's events; durable on return.

        `parts`: first and last sequence number of each part, all of them durable. In the copy they are
        renumbered from 0; ids, times and bodies stay. `rows` follow them. All blobs are copied, too.

        The copy appears whole or not at all, even if the process is killed. It is made in steps of
        milliseconds, so that other conversations are written meanwhile.

        Raises UnknownConversation, NotOwner, AlreadyExists, JournalUnavailable, JournalError; then there is
        no copy.

        Cancellation before the last step leaves no copy.
        """
        async with AsyncExitStack() as stack:
            # Hold both, so that neither is created, loaded or deleted meanwhile. Sorted: crossing forks must
            # not deadlock.
            for each in sorted({source_id, conversation_id}):
                await stack.enter_async_context(self._lock(each))
            source = await self._own(source_id)
            last_seq = sum(last - first + 1 for first, last in parts) - 1
            stored = [
                Stored(row.id, row.kind, row.source, row.timestamp, row.body, seq)
                for seq, row in enumerate(rows, start=last_seq + 1)
            ]
            log = self._log(conversation_id, None, last_seq + len(stored))
            first = NewRecord(id=conversation_id, record=record, **columns)
            if not await copy(self._writer, source.key, log, first, parts=parts, rows=stored):
                raise AlreadyExists(f"conversation {conversation_id} exists")
            self._logs[conversation_id] = log
            return log

    async def log(self, conversation_id: str) -> Log:
        """Return the log of a conversation: the same object while any reference to it exists.

        Raises UnknownConversation, NotOwner, JournalError.
        """
        async with self._lock(conversation_id):
            log = self._logs.get(conversation_id)
            if log is not None and log.broken is None:
                return log
            # Without a log object no write of the conversation is queued either: the database is complete.
            found = await self._own(conversation_id)
            log = self._log(conversation_id, found.key, found.last_seq, found.generation)
            if self._writer.failure is not None:
                raise again(self._writer.failure)
            self._logs[conversation_id] = log
            return log

    async def reading(self, conversation_id: str) -> Log:
        """Return a log of a conversation for reading alone, also of one that another server has. It ends
        where the log ends now.

        Raises UnknownConversation, JournalError.
        """
        log = self._logs.get(conversation_id)
        if self._owner is None or (log is not None and log.broken is None):
            return await self.log(conversation_id)
        found = await self._head(conversation_id)
        return ReadingLog(
            conversation_id,
            key=found.key,
            last_seq=found.last_seq,
            writer=self._writer,
            readers=self._readers,
        )

    async def give_up(self, conversation_id: str) -> None:
        """Write what is queued for a conversation, and refuse more: another server is to have it. A log
        object still in use raises NotOwner from now on.

        Raises JournalError if it could not be written. Cancellation leaves the log as it was.
        """
        async with self._lock(conversation_id):
            log = self._logs.get(conversation_id)
            if log is None:
                return
            await log.flushed()
            del self._logs[conversation_id]
            log.fail(NotOwner(conversation_id, None))

    async def delete(self, conversation_id: str) -> bool:
        """Delete a conversation with everything in it; durable on return. Return whether there was one.

        Its id is free at once. Its events are removed in small steps afterwards, by the next start if need
        be. A log object still in use raises LogDeleted from now on. While the journal is not writable, the
        deletion is tried on the reserved disk space.

        Raises JournalUnavailable if that does not help (the conversation still exists), NotOwner,
        JournalError.

        Cancellation as with `create`.
        """
        async with self._lock(conversation_id):
            log = self._logs.pop(conversation_id, None)
            if log is not None:
                log.fail(LogDeleted(f"conversation {conversation_id} has been deleted"))
            try:
                buried = await self._writer.call(log, lambda store: store.bury(conversation_id), deletes=True)
                if isinstance(buried, NotOwner):
                    raise buried
            except (JournalUnavailable, NotOwner):
                if log is not None:
                    log.revive()
                    self._logs[conversation_id] = log
                raise
            return buried

    async def get_records(self, ids: Sequence[str]) -> list[Record | None]:
        """Return the records of these conversations in the given order, None for an unknown one."""
        return await self._readers.run(lambda queries: queries.get_records(ids))

    async def search_records(
        self,
        *,
        status: str | None = None,
        parent_id: str | None = None,
        order: str = RecordOrder.CREATED_AT_DESC,
        page: str | None = None,
        limit: int = 100,
        without: Collection[str] = (),
    ) -> RecordPage:
        """Return a page of conversations in one of `RecordOrder`'s orders (ValueError for another).

        `page` is the id of the first conversation of the page; an unknown one starts from the beginning.
        Those `without` are left out.
        """
        by, left_out = RecordOrder(order), tuple(without)
        return await self._readers.run(
            lambda queries: queries.search_records(status, parent_id, by, page, limit, left_out)
        )

    async def count_records(
        self, status: str | None = None, *, parent_id: str | None = None, without: Collection[str] = ()
    ) -> int:
        """Return the number of conversations, without those of these ids."""
        left_out = tuple(without)
        return await self._readers.run(lambda queries: queries.count_records(status, parent_id, left_out))

    async def _head(self, conversation_id: str) -> Head:
        found = await self._readers.run(lambda queries: queries.load(conversation_id))
        if found is None:
            raise UnknownConversation(f"there is no conversation {conversation_id}")
        return found

    async def _own(self, conversation_id: str) -> Head:
        found = await self._head(conversation_id)
        if found.owner != self._owner:
            raise NotOwner(conversation_id, found.owner)
        return found

    def _log(self, conversation_id: str, key: int | None, last_seq: int, generation: int = 0) -> Log:
        return Log(
            conversation_id,
            key=key,
            last_seq=last_seq,
            generation=generation,
            writer=self._writer,
            readers=self._readers,
        )

    def _lock(self, conversation_id: str) -> trio.Lock:
        return self._locks.setdefault(conversation_id, trio.Lock())

    def _look_again(self) -> None:
        for log in list(self._logs.values()):
            log.look_again()

    def _failed(self, error: JournalError) -> None:
        for log in list(self._logs.values()):
            log.fail(error)

    async def _close(self) -> None:
        self._writer.refuse()
        self._readers.refuse()
        # Readers first: the last connection to close folds the write-ahead log into the file.
        await trio.to_thread.run_sync(self._readers.close, READ_CLOSE_TIMEOUT)
        ended = await trio.to_thread.run_sync(self._writer.stop, CLOSE_TIMEOUT)
        self._failed(JournalClosed("the journal is closed"))
        if not ended:
            raise JournalError(
                f"the journal was still writing after {CLOSE_TIMEOUT:g} s; its last events may be lost"
            )


@asynccontextmanager
async def open_journal(
    path: Path, *, busy_timeout: float = BUSY_TIMEOUT, keep_updates: bool = True
) -> AsyncIterator[Journal]:
    """Open the journal in this file, creating it when there is none.

    `busy_timeout`: seconds that another process may hold the database before that is trouble.

    `keep_updates`: whether the updates of new events are stored.

    The block owns the writer thread and the reading connections. Leaving it, also when cancelled, writes
    what is queued, stops the thread and closes the file, within `CLOSE_TIMEOUT` + `READ_CLOSE_TIMEOUT`.

    Raises JournalInUse, NewerSchema, or JournalError when the file cannot be used; and JournalError on
    leaving when anything could not be written and the block itself did not raise.
    """
    async with opened(partial(_open, path, busy_timeout), keep_updates=keep_updates) as journal:
        yield journal


@asynccontextmanager
async def opened(
    connect: Callable[[], tuple[Store, Readers]], *, keep_updates: bool
) -> AsyncIterator[Journal]:
    """Run a journal over what `connect` opens, in a thread; closed as `open_journal` says."""
    store, readers = await trio.to_thread.run_sync(connect)
    store.keeps_updates = keep_updates
    journal = Journal(store, readers)
    journal._writer.start()
    try:
        yield journal
    finally:
        with trio.CancelScope(shield=True):
            await journal._close()
    failure = journal._writer.failure
    if not isinstance(failure, JournalClosed):
        assert failure is not None
        raise again(failure)


def _open(path: Path, busy_timeout: float) -> tuple[Store, Readers]:
    store = SqliteStore.open(path, busy_timeout=busy_timeout)
    try:
        return store, Readers(partial(SqliteQueries.open, path, busy_timeout), FAULTS)
    except BaseException:
        store.close()
        raise
