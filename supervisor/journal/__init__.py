"""The durable log and its cursors. Knows only bytes, ids and sequence numbers.

One SQLite file holds every conversation: a record (opaque bytes plus the columns that lists are ordered and
filtered by), its events and its blobs. Events carry a gapless sequence number per conversation, are committed
in batches by one thread, and become visible to cursors only once they are committed.
"""

from __future__ import annotations

from supervisor.journal.cursor import Cursor
from supervisor.journal.errors import (
    AlreadyExists,
    DuplicateEvent,
    JournalClosed,
    JournalError,
    JournalFailed,
    JournalInUse,
    JournalUnavailable,
    LogDeleted,
    NewerSchema,
    SearchTooLong,
    TooLarge,
    UnknownConversation,
    Unstorable,
)
from supervisor.journal.growing import Growing, Place, Wire
from supervisor.journal.journal import Journal, open_journal
from supervisor.journal.log import Log
from supervisor.journal.queries import Wanted
from supervisor.journal.rows import (
    Blob,
    Brief,
    Frame,
    Item,
    Listing,
    Page,
    Record,
    RecordOrder,
    RecordPage,
    RecordUpdate,
    Row,
    Shown,
    Stored,
    Transient,
)
from supervisor.journal.trouble import Trouble

__all__ = [
    "AlreadyExists",
    "Blob",
    "Brief",
    "Cursor",
    "DuplicateEvent",
    "Frame",
    "Growing",
    "Item",
    "Journal",
    "JournalClosed",
    "JournalError",
    "JournalFailed",
    "JournalInUse",
    "JournalUnavailable",
    "Listing",
    "Log",
    "LogDeleted",
    "NewerSchema",
    "Page",
    "Place",
    "Record",
    "RecordOrder",
    "RecordPage",
    "RecordUpdate",
    "Row",
    "SearchTooLong",
    "Shown",
    "Stored",
    "TooLarge",
    "Transient",
    "Trouble",
    "UnknownConversation",
    "Unstorable",
    "Wanted",
    "Wire",
    "open_journal",
]
