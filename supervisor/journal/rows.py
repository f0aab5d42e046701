"""The values that the journal stores and returns."""

from __future__ import annotations

import enum
from typing import NamedTuple, NotRequired, Protocol, TypedDict

import attrs


@attrs.define(unsafe_hash=True)
class Row:
    """An event on its way in. `timestamp` is UTC ISO 8601 of fixed width; `body` is the JSON as sent.

    `updates`: what led to it, in lines of its own, kept with the event; readers get it only if they ask
    for it. It does not make two events different.

    Treat it as immutable; a frozen attrs class would take three times as long to create.
    """

    id: str
    kind: str
    source: str
    timestamp: str
    body: bytes
    updates: bytes = attrs.field(default=b"", kw_only=True, eq=False, repr=False)


@attrs.define(unsafe_hash=True)
class Stored(Row):
    """An event in the log. `seq` counts from 0 in its conversation, without gaps."""

    seq: int


@attrs.frozen
class Brief:
    """The id and the timestamp of an event."""

    id: str
    timestamp: str


class Piece(NamedTuple):
    """A piece of what will be the `updates` of the next event that has any, before that event.

    `group` names these updates. `before` and `after`: how much of them is shown without and with the piece,
    as the number of whole lines, and the characters of the next one.
    """

    group: str
    before: tuple[int, int]
    after: tuple[int, int]
    body: bytes


@attrs.frozen(kw_only=True)
class Frame:
    """A transient message: shown, never stored. A `None` form is not sent on that kind of socket."""

    legacy: bytes | None = None
    session: bytes | None = None
    piece: Piece | None = None
    """For readers of updates alone."""
    ends: int = -1
    """The number of the growing item that this frame ends without an event."""

    @property
    def size(self) -> int:
        """Bytes of its forms."""
        return (
            len(self.legacy or b"") + len(self.session or b"") + (len(self.piece.body) if self.piece else 0)
        )


class Shown(Protocol):
    """A `Frame`, or an object that encodes its frame on demand."""

    @property
    def legacy(self) -> bytes | None:
        """Its form on the events socket."""

    @property
    def session(self) -> bytes | None:
        """Its form on the session socket."""


@attrs.frozen
class Transient:
    """A frame in its place among the events. A slow cursor may miss a `Frame`; none comes twice."""

    frame: Shown


Item = Stored | Transient


@attrs.frozen
class Blob:
    """Bytes stored next to a conversation's events, such as the uncut form of a large content."""

    id: str
    media_type: str
    data: bytes


@attrs.frozen(kw_only=True)
class RecordUpdate:
    """A new state of a conversation's record. `title=None` leaves the title as it is."""

    record: bytes
    status: str
    updated_at: str
    title: str | None = None


class Columns(TypedDict):
    """What the journal keeps of a new conversation besides its record."""

    status: str
    created_at: str
    updated_at: str
    title: NotRequired[str | None]
    parent_id: NotRequired[str | None]


@attrs.frozen(kw_only=True)
class NewRecord(RecordUpdate):
    """The first state of a conversation's record, and what never changes in it."""

    id: str
    created_at: str
    parent_id: str | None = None


@attrs.frozen(kw_only=True)
class Record:
    """A conversation as it stands in the journal.

    `record` is opaque. `epoch` is that of the server start which wrote it last.
    """

    id: str
    record: bytes
    status: str
    title: str | None
    created_at: str
    updated_at: str
    parent_id: str | None
    epoch: int


class RecordOrder(enum.StrEnum):
    """The orders in which conversations are listed."""

    CREATED_AT = "created_at"
    CREATED_AT_DESC = "created_at_desc"
    UPDATED_AT = "updated_at"
    UPDATED_AT_DESC = "updated_at_desc"

    @property
    def column(self) -> str:
        """What is compared, a column of both stores."""
        return self.removesuffix("_desc")

    @property
    def direction(self) -> str:
        """The word of SQL."""
        return "DESC" if self.endswith("_desc") else "ASC"


@attrs.frozen(kw_only=True)
class Page:
    """Events of a search. `next_page_id` is the id of the first event of the next page."""

    items: tuple[Stored, ...]
    next_page_id: str | None


@attrs.frozen(kw_only=True)
class Listing:
    """The bodies of such a page in one piece, joined by commas as in a JSON array."""

    bodies: bytes
    next_page_id: str | None


@attrs.frozen(kw_only=True)
class RecordPage:
    """Conversations of a search. `next_page_id` is the id of the first one of the next page."""

    items: tuple[Record, ...]
    next_page_id: str | None
