"""Classifies errors of SQLite. Pure."""

from __future__ import annotations

import sqlite3
from typing import Final

from supervisor.journal.errors import DuplicateEvent, JournalError, TooLarge, Unstorable
from supervisor.journal.trouble import Nature

_PRIMARY = 0xFF  # the low byte of an error code is the primary code, the rest gives details

_ADVICE = {
    sqlite3.SQLITE_FULL: "the disk is full; free some space, or delete conversations",
    sqlite3.SQLITE_BUSY: "another process holds the database; wait for it, or end it",
    sqlite3.SQLITE_LOCKED: "another process holds the database; wait for it, or end it",
    sqlite3.SQLITE_IOERR: "the disk reports an error; read the system's log",
    sqlite3.SQLITE_CANTOPEN: "its files cannot be opened; check their mode and the limit of open files",
    sqlite3.SQLITE_NOMEM: "memory is exhausted; end other programs",
    sqlite3.SQLITE_PROTOCOL: "another process holds the database; wait for it, or end it",
    sqlite3.SQLITE_INTERRUPT: "it was interrupted",
}
"""Failures that pass, by SQLite's primary code, and the advice for each."""

_LASTING = frozenset({
    sqlite3.SQLITE_IOERR_CORRUPTFS,
    sqlite3.SQLITE_IOERR_DATA,
    sqlite3.SQLITE_IOERR_SHORT_READ,
})  # fmt: skip
"""Kinds of I/O errors that do not pass: the file system, or the page, is damaged, or a file was cut."""

_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_OWN_CODES = frozenset({
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_RANGE,
    sqlite3.SQLITE_TOOBIG,
})  # fmt: skip


def _code(error: BaseException) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return code if isinstance(code, int) else None


def nature(error: BaseException) -> Nature:
    """Classify a failure of a write: it passes, is the write's own fault, or lasts."""
    if isinstance(error, MemoryError):
        return Nature.PASSES
    if isinstance(error, OverflowError | UnicodeError | sqlite3.IntegrityError | sqlite3.DataError):
        return Nature.OWN
    if isinstance(error, sqlite3.InterfaceError) and _code(error) is None:
        return Nature.OWN  # a value that cannot be bound
    code = _code(error)
    if code is None:
        return Nature.LASTS
    if code & _PRIMARY in _OWN_CODES:
        return Nature.OWN
    return Nature.PASSES if code & _PRIMARY in _ADVICE and code not in _LASTING else Nature.LASTS


def is_damage(error: BaseException) -> bool:
    """Whether the files are damaged, for reads and writes alike: the next start may recover the rest."""
    code = _code(error)
    return code is not None and (code in _LASTING or code & _PRIMARY in _DAMAGE)


def is_full(error: BaseException) -> bool:
    """Whether the disk was full."""
    code = _code(error)
    return code is not None and code & _PRIMARY == sqlite3.SQLITE_FULL


def may_be_waited_for(error: BaseException) -> bool:
    """Whether the cause is a full disk or a lock, which may end at any moment."""
    code = _code(error)
    return code is not None and code & _PRIMARY in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)


def own_fault(error: Exception) -> JournalError:
    """The error for the conversation whose write SQLite refused."""
    code = _code(error)
    found: JournalError
    if isinstance(error, sqlite3.IntegrityError):
        found = DuplicateEvent(f"an event id was appended twice: {error}")
    elif isinstance(error, OverflowError) or (code is not None and code & _PRIMARY == sqlite3.SQLITE_TOOBIG):
        found = TooLarge(f"an event is larger than the journal takes: {error}")
    else:
        found = Unstorable(f"an event cannot be stored: {error}")
    found.__cause__ = error
    return found


def reason(error: BaseException) -> str:
    """Say why nothing can be written now, and what to do: for a failure that passes."""
    code = _code(error)
    advice = "memory is exhausted; end other programs" if code is None else _ADVICE[code & _PRIMARY]
    return f"{advice} (SQLite: {error})"


class SqliteFaults:
    """These functions, as the port of the journal (`port.Faults`)."""

    errors = sqlite3.Error
    nature = staticmethod(nature)
    reason = staticmethod(reason)
    own_fault = staticmethod(own_fault)
    is_damage = staticmethod(is_damage)
    is_full = staticmethod(is_full)


FAULTS: Final = SqliteFaults()
