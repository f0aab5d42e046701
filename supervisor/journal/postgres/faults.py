"""Errors of PostgreSQL, as the journal understands them. Pure."""

from __future__ import annotations

from typing import Final

import psycopg

from supervisor.database import faults
from supervisor.database.faults import first_line
from supervisor.journal.errors import DuplicateEvent, JournalError, TooLarge, Unstorable
from supervisor.journal.trouble import Nature

AWAY: Final = "the database is away; check that PostgreSQL runs and can be reached"

ADVICE: Final = {
    "25": "the database is a standby that takes no writes; promote it, or wait for the fail-over",
    "40": "another transaction came first",
    "53": "the database lacks memory or space; give it more",
    "55": "another program holds a lock in the database; end its transaction",
    "57": AWAY,
}
"""Failures that pass, by the class of their SQLSTATE. What has no code is a connection that is lost."""

EXACT: Final = {
    "53100": "the database's disk is full; free some space there",
    "53300": "the database has no connection left; raise its max_connections, or end other programs",
    "57014": "the database takes too long; look at its load and its disk",
}

DAMAGE: Final = frozenset({"XX001", "XX002"})
"""A page or an index of the database is damaged."""

DISK_FULL: Final = "53100"


class PostgresFaults:
    """The journal's port for errors (`port.Faults`)."""

    errors: type[Exception] = psycopg.Error

    def nature(self, error: BaseException) -> Nature:
        """Classify a failure."""
        return Nature(faults.nature(error).value)

    def reason(self, error: BaseException) -> str:
        """Say why nothing can be written now."""
        if isinstance(error, MemoryError):
            return "memory is exhausted; end other programs"
        code = _code(error) or ""
        advice = EXACT.get(code) or ADVICE.get(code[:2], AWAY)
        return f"{advice} (PostgreSQL: {first_line(error)})"

    def own_fault(self, error: Exception) -> JournalError:
        """The error for the conversation whose write was refused."""
        found: JournalError
        if isinstance(error, psycopg.errors.UniqueViolation):
            found = DuplicateEvent(f"an event id was appended twice: {first_line(error)}")
        elif isinstance(error, OverflowError) or (_code(error) or "").startswith("54"):
            found = TooLarge(f"an event is larger than the journal takes: {first_line(error)}")
        else:
            found = Unstorable(f"an event cannot be stored: {first_line(error)}")
        found.__cause__ = error
        return found

    def is_damage(self, error: BaseException) -> bool:
        """Whether the database is damaged."""
        return _code(error) in DAMAGE

    def is_full(self, error: BaseException) -> bool:
        """Whether the database's disk was full."""
        return _code(error) == DISK_FULL


def _code(error: BaseException) -> str | None:
    code = getattr(error, "sqlstate", None)
    return code if isinstance(code, str) else None


FAULTS: Final = PostgresFaults()
