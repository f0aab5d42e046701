"""Classifies errors of PostgreSQL: what is wrong, and whether it passes. Pure.

A lost connection, a restart, a fail-over, a full disk pass. A value that PostgreSQL refuses, an id that
exists already, are the fault of one write. What is left lasts: the schema is not ours, or a right is missing.
"""

from __future__ import annotations

import enum
from typing import Final

import psycopg

from supervisor.documents.port import DocumentsUnavailable


class Nature(enum.Enum):
    """The consequence of a failure."""

    PASSES = "passes"
    OWN = "own"
    LASTS = "lasts"


PASSING: Final = frozenset({
    "08",  # the connection
    "40",  # a deadlock, or a conflict with another transaction
    "53",  # the disk is full, memory is exhausted, there are too many connections
    "55",  # a lock was not to be had in time
    "57",  # it shuts down, it starts, a statement took too long
    "58",  # an error of its system
})  # fmt: skip
"""Classes of SQLSTATE, the first two characters, that pass."""

READ_ONLY: Final = "25006"
"""The server is a standby: during a fail-over, an address leads to it for a while."""

OWN: Final = frozenset({"22", "23", "54"})
"""Classes of a value: it cannot be stored, it breaks a constraint, it exceeds a limit."""

REFUSALS: Final = {
    "28P01": "the password is wrong",
    "28000": "the database refuses this user",
    "3D000": "there is no such database",
    "42501": "a right is missing",
}
"""What no waiting mends, at the start, and what is wrong."""


def nature(error: BaseException) -> Nature:
    """Classify a failure of a statement."""
    if isinstance(error, MemoryError):
        return Nature.PASSES
    if not isinstance(error, psycopg.Error):
        return Nature.OWN if isinstance(error, OverflowError | UnicodeError) else Nature.LASTS
    code = error.sqlstate
    if code is None:
        # Without a code the server did not answer: the connection is lost, or could not be made.
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return Nature.PASSES
        return Nature.OWN if isinstance(error, psycopg.DataError) else Nature.LASTS
    if code[:2] in PASSING or code == READ_ONLY:
        return Nature.PASSES
    return Nature.OWN if code[:2] in OWN else Nature.LASTS


def first_line(error: BaseException) -> str:
    """What an error says, without the details on further lines."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def refusal(error: BaseException) -> str | None:
    """Why a connection will not be made however long one waits; None if it may be made later."""
    code = getattr(error, "sqlstate", None)
    if code in REFUSALS:
        return REFUSALS[code]
    # libpq reports what the server says during the authentication without its code.
    text = str(error)
    if "password authentication failed" in text or "no password supplied" in text:
        return REFUSALS["28P01"]
    if "no pg_hba.conf entry" in text or ("role" in text and "does not exist" in text):
        return REFUSALS["28000"]
    if "database" in text and "does not exist" in text:
        return REFUSALS["3D000"]
    return None


def is_away(error: BaseException) -> bool:
    """Whether a start failed because the database is away, and not for what no waiting mends. Pure."""
    reason: BaseException | None = error
    away = False
    while reason is not None:
        if isinstance(reason, psycopg.Error):
            return refusal(reason) is None and nature(reason) is Nature.PASSES
        away = away or isinstance(reason, DocumentsUnavailable)  # as of a moment ago
        reason = reason.__cause__ or reason.__context__
    return away
