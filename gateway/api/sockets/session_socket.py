"""`/sockets/session/<id>`: the log by sequence number, with separate frames for transient events.

Frames: `sync` once, `durable` with its number, `transient`, and what the streaming of an answer needs
(`item_started`, `delta`, and `item_aborted` for what never becomes an event). A client that has seen number N
comes back with `after_seq=N`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import attrs
import orjson

from gateway.api.requests.reading import Handshake
from supervisor.conversations.recording.streamed import again
from supervisor.journal.cursor import Cursor
from supervisor.journal.rows import Stored, Transient

if TYPE_CHECKING:
    from gateway.api.contract import Conversation


SEQ = re.compile(r"-1|[0-9]{1,18}")


@attrs.frozen
class SessionDialect:
    """`after_seq`: -1 for the whole log, None for new events alone."""

    after_seq: int | None

    @classmethod
    def of(cls, query: Handshake) -> SessionDialect:
        """Read the handshake's query. Raises ValueError."""
        text = query.text("after_seq")
        if text is None:
            return cls(None)
        if not SEQ.fullmatch(text):
            raise ValueError(f"after_seq {text!r}")
        return cls(int(text))

    async def start(self, conversation: Conversation) -> tuple[Cursor, list[bytes]]:
        """The cursor, the sync frame with its position, and a snapshot that is no older than the cursor.

        A client whose `after_seq` is beyond the last event (it came from another server) gets an error frame
        and continues from the present.
        """
        last = conversation.log.high_water
        opening: list[bytes] = []
        after_seq = last if self.after_seq is None else self.after_seq
        if after_seq > last:
            opening.append(self.error("seq_ahead", f"after_seq {after_seq} is beyond the last event, {last}"))
            after_seq = last
        sync: dict[str, object] = {"type": "sync", "from_seq": after_seq + 1}
        if after_seq < last:
            sync["through_seq"] = last
        opening.insert(0, orjson.dumps(sync))
        cursor = conversation.log.subscribe(after_seq, again=again)
        opening.append(b'{"type":"transient","event":' + await conversation.durable_state() + b"}")
        return cursor, opening

    def frames(self, items: Iterable[object]) -> Iterator[bytes]:
        """Durable events in their envelope; of transient ones those that this socket carries."""
        for item in items:
            if isinstance(item, Stored):
                yield b'{"type":"durable","seq":%d,"event":%b}' % (item.seq, item.body)
            elif isinstance(item, Transient) and item.frame.session is not None:
                yield item.frame.session

    def error(self, code: str, detail: str) -> bytes:
        """An error frame."""
        return orjson.dumps({"type": "error", "code": code, "detail": detail})
