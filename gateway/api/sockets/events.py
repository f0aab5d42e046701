"""`/sockets/events/<id>`: a snapshot, the past events that the client asks for, then live events.

Every frame is one event as it is stored (nulls omitted), or a transient one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import attrs

from gateway.api.requests.reading import BOOLEANS, Handshake
from gateway.api.requests.timestamps import parse_timestamp
from supervisor.conversations.recording.streamed import again
from supervisor.events import ServerErrorEvent, dump_event
from supervisor.journal.cursor import Cursor
from supervisor.journal.rows import Stored, Transient

if TYPE_CHECKING:
    from gateway.api.contract import Conversation


RESEND_MODES = ("all", "since")


@attrs.frozen
class EventsDialect:
    """`everything` replays the whole log, `since` events from this timestamp on, neither of them nothing."""

    everything: bool
    since: str | None

    @classmethod
    def of(cls, query: Handshake) -> EventsDialect:
        """Read the handshake's query. Raises ValueError."""
        mode = query.text("resend_mode")
        if mode is not None and mode not in RESEND_MODES:
            raise ValueError(f"resend_mode {mode!r}")
        after = query.text("after_timestamp")
        since = parse_timestamp(after) if after else None
        if mode is None:
            return cls(everything=flag(query.text("resend_all")), since=None)
        # `since` without a time replays nothing: a client that has lost the time does not want the whole log.
        return cls(everything=mode == "all", since=since if mode == "since" else None)

    async def start(self, conversation: Conversation) -> tuple[Cursor, list[bytes]]:
        """The cursor of the replay, and a snapshot that is no older than the cursor."""
        after_seq: int | None = None
        if self.everything:
            after_seq = -1
        elif self.since is not None:
            # Events that become visible during the search come after `seen` and are sent as live ones.
            seen = conversation.log.high_water
            page = await conversation.log.search(since=self.since, order="asc", limit=1)
            while not page.items and page.next_page_id is not None:  # one page looks at so many events only
                page = await conversation.log.search(
                    since=self.since, order="asc", limit=1, page=page.next_page_id
                )
            after_seq = page.items[0].seq - 1 if page.items else seen
        cursor = conversation.log.subscribe(after_seq, again=again)
        return cursor, [await conversation.durable_state()]

    def frames(self, items: Iterable[object]) -> Iterator[bytes]:
        """Events as they are stored; of transient ones those that this socket carries."""
        for item in items:
            if isinstance(item, Stored):
                yield item.body
            elif isinstance(item, Transient) and item.frame.legacy is not None:
                yield item.frame.legacy

    def error(self, code: str, detail: str) -> bytes:
        """A ServerErrorEvent, which is not stored."""
        return dump_event(ServerErrorEvent(source="environment", code=code, detail=detail))


def flag(text: str | None) -> bool:
    """A boolean of a handshake's query, as the wire spells it. Raises ValueError."""
    if text is None:
        return False
    if text.lower() not in BOOLEANS:
        raise ValueError(f"{text!r} is not a boolean")
    return BOOLEANS[text.lower()]
