"""Errors of the journal."""

from __future__ import annotations


class JournalError(Exception):
    """The journal cannot carry out a request.

    After a plain JournalError, writes that were not yet durable are lost; subclasses may differ.
    """


class JournalClosed(JournalError):
    """The journal has been closed."""


class JournalFailed(JournalError):
    """This journal will never be written again; reading may continue.

    Another process may succeed, or its error says why it cannot.
    """


class JournalUnavailable(JournalError):
    """The journal cannot be written or read now; that passes.

    The message gives the reason, and whether the request was refused or is still queued.
    """


class Unstorable(JournalError):
    """The database refuses an appended value.

    If that is known in time, it is raised before anything is queued. If only the database notices, it breaks
    that one log, as DuplicateEvent does.
    """


class TooLarge(Unstorable):
    """A value is larger than the journal accepts."""


class SearchTooLong(JournalError):
    """Counting took longer than its limit."""


class JournalInUse(JournalError):
    """Another process has this journal open. Two writers would assign the same sequence numbers."""


class NewerSchema(JournalError):
    """A newer Ostler wrote the file. It is unchanged."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"the journal has schema version {found}, this Ostler knows versions up to {known}; "
            "use the newer Ostler, or another state directory"
        )
        self.found = found
        self.known = known


class AlreadyExists(JournalError):
    """There is a conversation with this id already."""


class UnknownConversation(JournalError):
    """There is no conversation with this id."""


class LogDeleted(JournalError):
    """The conversation was deleted while its log was in use."""


class DuplicateEvent(JournalError):
    """An event id was appended twice to one conversation, by a mistake of the caller.

    Within one append it is noticed before anything is queued. If only the database notices, it breaks that
    one log: writes that were not yet durable are lost, and every use of the object raises this. A newly
    fetched log object continues after the last durable event, so that sequence numbers stay gapless.
    """


class NotOwner(JournalError):
    """Another server has the conversation, or none. `owner`: which one."""

    def __init__(self, conversation_id: str, owner: int | None) -> None:
        super().__init__(conversation_id, owner)
        self.owner = owner

    def __str__(self) -> str:
        has = "no server has" if self.owner is None else f"the server {self.owner} has"
        return f"{has} the conversation {self.args[0]}; this one must claim it first"


class LeaseLost(JournalError):
    """Another server has claimed the conversation: what this one had not yet written is refused."""


def again(error: JournalError) -> JournalError:
    """Return a new error for a lasting condition: one object raised twice would mix its tracebacks."""
    fresh = type(error)(*error.args)
    fresh.__cause__ = error
    return fresh
