"""Errors of the journal."""

from __future__ import annotations


class JournalError(Exception):
    """The journal cannot do what was asked; what was not yet durable is lost and this says so."""


class JournalClosed(JournalError):
    """The journal has been closed."""


class JournalFailed(JournalError):
    """Nothing will ever be written to this journal again; reading may still go on. Another process may do
    better, or say why it cannot."""


class JournalUnavailable(JournalError):
    """The journal cannot be written, or read, at the moment; that passes. The message tells the reason, and
    whether what was asked for was refused or is still queued."""


class Unstorable(JournalError):
    """SQLite does not take a value of what was appended. Told before anything is queued where that is known
    by then; noticed only by the database, it breaks that one log, as DuplicateEvent does."""


class TooLarge(Unstorable):
    """Something is larger than one value of the journal may be."""


class SearchTooLong(JournalError):
    """Counting went on for longer than it may."""


class JournalInUse(JournalError):
    """Another process has this journal open: two writers would give out the same sequence numbers."""


class NewerSchema(JournalError):
    """The file was written by a newer Ostler. It has not been touched."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"the journal has schema version {found}, this Ostler knows versions up to {known}; "
            "use the newer Ostler, or another state directory"
        )
        self.found = found
        self.known = known


class AlreadyExists(JournalError):
    """A conversation with this id exists."""


class UnknownConversation(JournalError):
    """No conversation has this id."""


class LogDeleted(JournalError):
    """The conversation was deleted while its log was in use."""


class DuplicateEvent(JournalError):
    """An event id was appended twice to one conversation, which is a mistake of the caller.

    Noticed within one append before anything is enqueued. Noticed only by the database, it breaks that one
    log: what it had not yet made durable is lost, and every use of the object raises this. A log object
    fetched anew goes on after the last durable event, so that sequence numbers stay gapless.
    """


def again(error: JournalError) -> JournalError:
    """Return a new error for a condition that lasts: one object raised twice would mix its tracebacks."""
    fresh = type(error)(*error.args)
    fresh.__cause__ = error
    return fresh
