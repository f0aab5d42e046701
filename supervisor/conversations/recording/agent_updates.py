"""What an agent sends, kept as it sent it with the events that come of it.

Events do not have all of a `session/update`. So the updates themselves are kept, too, one JSON object a
line, masked and within bounds: those that came since an event was written are the `updates` of the next one.
Consecutive pieces of one text are one line. Where lines are left out their count stands, so that the others
keep their places.

While a client follows them, each update is also shown at once, before its event is written.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import chain, islice
from typing import Any, Final

import attrs
import orjson
import structlog

from supervisor.acp import shorten_session_id
from supervisor.acp.schema import NAME_CHARS
from supervisor.conversations.recording.bounds.truncation import EVENT_BYTES
from supervisor.conversations.recording.update_lines import DELTA, Place, with_text
from supervisor.credentials.masking import NOTHING, Masker, StreamMask
from supervisor.events.payload import dumps
from supervisor.journal.log import Log
from supervisor.journal.rows import Frame, Piece

log = structlog.get_logger(__name__)

PERMISSION: Final = "_ostler/permission"
"""The kind of a line that is no update: a permission request that waits for a person."""

TEXTS: Final = frozenset({"agent_message_chunk", "agent_thought_chunk", "user_message_chunk"})

PLAIN: Final = 2
"""Members of a block that is a text and nothing else."""

OUTPUT_MEMBERS: Final = 3
"""Members of an update that is a piece of output and nothing else: its kind, its call, `_meta`."""

ENDED: Final = frozenset({"completed", "failed"})

MEMBERS_MAX: Final = 100
"""Members of an update that are looked at where it is too large."""

PARTS_MAX: Final = 1000
"""Pieces of a text that are kept apart: a string of one character takes fifty bytes."""

LINE_CHARS: Final = 64 * 1024
"""Characters of a text in one line: as many as in one frame, and clients get it as one message."""

PENDING_BYTES: Final = 4 * 1024 * 1024
"""The most bytes of lines that wait for an event: more than one event may have. Beyond it, the first half and
the newest stay."""

PENDING_LINES: Final = 8192
"""The most lines that wait: an agent may send small updates of one running call for hours."""

REPLACED_BYTES: Final = 1024
"""From this size on, what an agent says of a running call is not kept once a later update replaces all of it
before an event was written: some repeat all of the output so far with each line of it."""

OUTPUTS_MAX: Final = 64
"""Calls whose output comes in pieces, and may end with a part of a secret."""

_ABSENT: Final = object()


class _Text:
    """A text, or the output of a shell, that may grow: one line. What has the same kind and id joins it."""

    __slots__ = ("chars", "first", "kind", "message_id", "parts")

    def __init__(self, kind: str, message_id: object, first: Mapping[str, Any] | None = None) -> None:
        self.kind = kind
        self.message_id = message_id
        self.first = first
        """The first update, of an output."""
        self.parts: list[str] = []
        self.chars = 0

    def update(self, piece: str | None = None) -> dict[str, Any]:
        """As an update; of a piece alone if there is one."""
        text = "".join(self.parts) if piece is None else piece
        if self.first is not None:
            return with_text(self.first, text)
        named = {} if self.message_id is _ABSENT else {"messageId": self.message_id}
        return {"sessionUpdate": self.kind, **named, "content": {"type": "text", "text": text}}


@attrs.define(eq=False)
class _Stream:
    """Masks one kind of text, of one message."""

    message_id: object
    masker: Masker
    mask: StreamMask


@attrs.frozen
class Snapshot:
    """The lines that wait, and the place after them."""

    group: str
    place: Place
    lines: list[tuple[int, bytes]]


def _small(update: Mapping[str, Any]) -> dict[str, Any]:
    """Of what is too large, the members that are small. Large ones are cut before (`bounds/large.py`)."""
    most = EVENT_BYTES // MEMBERS_MAX
    some = islice(update.items(), MEMBERS_MAX)
    return {name: each for name, each in some if len(name) <= NAME_CHARS and len(dumps(each)) < most // 2}


class AgentUpdates:
    """The updates of one conversation's agent that wait for the next event.

    `mask` returns what keeps secrets out. Updates come masked already, but a text, and the output of a shell,
    may have a secret in two pieces. `session_id` returns the id that is cut short where it stands.

    An update is encoded only when an event is written, or when its flush brings none (`settle`).
    """

    def __init__(
        self,
        journal_log: Log,
        conversation_id: str = "",
        mask: Callable[[], Masker] = lambda: NOTHING,
        session_id: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._log = journal_log
        self._conversation_id = conversation_id
        self._mask = mask
        self._session_id = session_id
        self.group = f"{time.monotonic_ns():016x}"
        """Names the groups that this object makes: after an event there is one at most with this name. Of two
        objects of one server the later one has the greater name."""
        self._head: dict[int, bytes] = {}
        self._tail: OrderedDict[int, bytes] = OrderedDict()
        self._bytes = self._head_bytes = 0
        self._settled = 0
        """How many lines are encoded, or left out."""
        self._fresh: list[Mapping[str, Any] | _Text] = []
        """Those after them."""
        self._text: _Text | None = None
        """The last of these, if it may grow."""
        self._live: bool | None = None
        """Whether they are followed; None: to be looked up, with the next one."""
        self._quick = False
        """Whether there is neither a reader nor a secret: a text only gathers."""
        self._streams: dict[str, _Stream] = {}
        self._outputs: OrderedDict[str, StreamMask] = OrderedDict()
        self._latest: dict[str, tuple[int, frozenset[str]]] = {}
        """For each call its last line, and the members that replace it; none if none can."""
        self._dropped = 0

    # -- what the agent sends ---------------------------------------------------------------------------

    def add(self, update: Mapping[str, Any]) -> None:
        """Add an update, in order of arrival; it must not be changed. Raises JournalError."""
        kind = update.get("sessionUpdate")
        if type(kind) is not str:
            return  # none of the protocol
        if kind in TEXTS:
            content = update.get("content")
            if type(content) is dict and len(content) == PLAIN and content.get("type") == "text":
                piece, message_id = content.get("text"), update.get("messageId", _ABSENT)
                if type(piece) is str and len(update) == (2 if message_id is _ABSENT else 3):
                    text = self._text
                    if (  # as mostly
                        self._quick
                        and text is not None
                        and text.kind == kind
                        and text.message_id == message_id
                        and text.chars < LINE_CHARS
                    ):
                        text.parts.append(piece)
                        text.chars += len(piece)
                    else:
                        self._say(kind, message_id, piece)
                    return
        mask = self._mask()
        if mask:
            if kind == "tool_call":
                self._flush_texts()  # as their events do
            if "_meta" in update or self._outputs:
                update = self._masked_output(update, mask)
        if len(update) == OUTPUT_MEMBERS and "_meta" in update and self._joined_output(update):
            return
        self._put(update)

    def _look(self) -> bool:
        """Whether they are followed."""
        self._live = self._log.shows_updates
        self._quick = not (self._live or self._mask())
        return self._live

    @property
    def _place(self) -> Place:
        """How far it is with what waits."""
        index = self._settled + len(self._fresh)
        return (index, 0) if self._text is None else (index - 1, self._text.chars)

    def _say(self, kind: str, message_id: object, text: str) -> None:
        mask = self._mask()
        if mask:
            stream = self._streams.get(kind)
            if stream is None or stream.masker is not mask or stream.message_id != message_id:
                self._flush_text(kind)
                stream = self._streams[kind] = _Stream(message_id, mask, mask.stream())
            text = stream.mask.feed(text)
        if text:
            self._extend(kind, message_id, text)

    def _joined_output(self, update: Mapping[str, Any]) -> bool:
        """Take a piece of a shell's output that is nothing else."""
        meta = update["_meta"]
        if type(meta) is not dict or len(meta) != 1 or "toolCallId" not in update:
            return False
        part = meta.get(DELTA)
        if type(part) is not dict or type(data := part.get("data")) is not str:
            return False
        if data:
            others = {name: each for name, each in part.items() if name != "data"}
            self._extend(DELTA, (update["toolCallId"], update["sessionUpdate"], others), data, update)
        return True

    def _extend(
        self, kind: str, message_id: object, piece: str, first: Mapping[str, Any] | None = None
    ) -> None:
        live = self._look() if self._live is None else self._live
        before = self._place
        if live:
            piece = shorten_session_id(piece, self._session_id())
        text = self._text
        if (
            text is None
            or text.kind != kind
            or text.message_id != message_id
            or text.chars + len(piece) > LINE_CHARS
        ):
            text = self._text = _Text(kind, message_id, first)
            self._fresh.append(text)
        text.parts.append(piece)
        text.chars += len(piece)
        if live:
            self._show(before, dumps(text.update(piece)))

    def _put(self, update: Mapping[str, Any]) -> None:
        before = self._place
        self._text = None
        self._fresh.append(update)
        if self._look() if self._live is None else self._live:
            self._show(before, self._line(update))

    def _show(self, before: Place, body: bytes) -> None:
        self._log.publish(Frame(piece=Piece(self.group, before, self._place, body)))

    def _masked_output(self, update: Mapping[str, Any], mask: Masker) -> Mapping[str, Any]:
        """Keep back what may be the first part of a secret in a piece of a shell's output."""
        call_id = str(update.get("toolCallId"))
        meta = update.get("_meta")
        part = meta.get(DELTA) if type(meta) is dict else None
        ended = update.get("status") in ENDED
        if type(part) is dict and type(part.get("data")) is str:
            stream = self._outputs.pop(call_id, None) or mask.stream()
            data = stream.feed(part["data"])
            if ended:
                data += stream.flush()
            else:
                self._outputs[call_id] = stream
                if len(self._outputs) > OUTPUTS_MAX:
                    self._flush_output(*self._outputs.popitem(last=False))
            if data != part["data"]:
                assert type(meta) is dict
                return {**update, "_meta": {**meta, DELTA: {**part, "data": data}}}
        elif ended and call_id in self._outputs:
            self._flush_output(call_id, self._outputs.pop(call_id))
        return update

    # -- what was held back by masks --------------------------------------------------------------------

    def flush(self) -> None:
        """What was said is over: nothing completes a secret any more. Raises JournalError."""
        if self._streams:
            self._flush_texts()
        while self._outputs:
            self._flush_output(*self._outputs.popitem(last=False))

    def _flush_texts(self) -> None:
        for kind in list(self._streams):
            self._flush_text(kind)

    def _flush_text(self, kind: str) -> None:
        stream = self._streams.pop(kind, None)
        text = "" if stream is None else stream.mask.flush()
        if stream is not None and text:
            self._extend(kind, stream.message_id, text)

    def _flush_output(self, call_id: str, stream: StreamMask) -> None:
        text = stream.flush()
        if text:
            meta = {DELTA: {"data": text}}
            self._joined_output({"sessionUpdate": "tool_call_update", "toolCallId": call_id, "_meta": meta})

    # -- the lines that wait ----------------------------------------------------------------------------

    def settle(self) -> None:
        """Nothing more comes at present: encode what waits, and keep what the bounds allow."""
        self._live, self._quick = None, False
        text = self._text
        if text is not None and len(text.parts) > PARTS_MAX:
            text.parts = ["".join(text.parts)]
        if len(self._fresh) > (text is not None):
            self._encode(but=text)

    def _encode(self, but: _Text | None = None) -> None:
        fresh, self._fresh = self._fresh, []
        for each in fresh:
            if each is but:
                self._fresh = [each]
                return
            update = each.update() if type(each) is _Text else each
            line = self._line(update)  # type: ignore[arg-type]
            self._store(self._settled, line)
            self._replace(self._settled, update, len(line))  # type: ignore[arg-type]
            self._settled += 1

    def _line(self, update: Mapping[str, Any]) -> bytes:
        line = dumps(update)
        if len(line) > EVENT_BYTES:
            line = dumps(_small(update))
        session_id = self._session_id()
        if session_id is not None and session_id.encode() in line:
            line = shorten_session_id(line.decode(), session_id).encode()
        return line

    def _store(self, index: int, line: bytes) -> None:
        self._bytes += len(line)
        head = self._head_bytes + len(line) <= PENDING_BYTES // 2 and len(self._head) < PENDING_LINES // 2
        if head and not self._tail:
            self._head[index] = line
            self._head_bytes += len(line)
            return
        self._tail[index] = line
        while (self._bytes > PENDING_BYTES or len(self._tail) > PENDING_LINES // 2) and len(self._tail) > 1:
            _, oldest = self._tail.popitem(last=False)
            self._bytes -= len(oldest)
            self._dropped += 1

    def _replace(self, index: int, update: Mapping[str, Any], size: int) -> None:
        """Leave out the line that an update of the same call replaces."""
        call_id = update.get("toolCallId")
        if type(call_id) is not str:
            return
        last = self._latest.get(call_id)
        changes = update.get("sessionUpdate") == "tool_call_update"
        large = size >= REPLACED_BYTES and changes and "_meta" not in update
        self._latest[call_id] = (index, frozenset(update) if large else frozenset())
        if last is None or not last[1] or not changes or any(update.get(name) is None for name in last[1]):
            return
        self._bytes -= len(self._tail.pop(last[0], b""))
        line = self._head.pop(last[0], b"")
        self._bytes -= len(line)
        self._head_bytes -= len(line)

    def pending(self) -> bytes:
        """All that waits, as the `updates` of an event; empty if nothing does."""
        if not self._settled:
            if not self._fresh:
                return b""
            quick = self._quickly()
            if quick is not None:
                return quick
        self._text = None
        self._encode()
        parts = [self.group.encode()]
        at = 0
        for index, line in chain(self._head.items(), self._tail.items()):
            if index > at:
                parts.append(b"%d" % (index - at))
            parts.append(line)
            at = index + 1
        return b"\n".join(parts)

    def _quickly(self) -> bytes | None:
        """The same where nothing is left out or shortened, as mostly."""
        encode = orjson.dumps
        try:
            lines = [encode(each.update() if type(each) is _Text else each) for each in self._fresh]
        except orjson.JSONEncodeError:
            return None
        body = b"\n".join((self.group.encode(), *lines))
        session_id = self._session_id()
        if len(body) > EVENT_BYTES or (session_id is not None and session_id.encode() in body):
            return None
        return body

    def clear(self) -> None:
        """What waited belongs to an event now."""
        if self._dropped:
            log.warning(
                "updates of an agent were not kept",
                conversation_id=self._conversation_id,
                lines=self._dropped,
            )
            self._dropped = 0
        if self._settled:
            self._head.clear()
            self._tail.clear()
            self._latest.clear()
            self._bytes = self._head_bytes = self._settled = 0
        self._fresh = []
        self._text = None

    def snapshot(self) -> Snapshot:
        """What waits at present, for a reader that begins."""
        self.settle()
        text = self._text
        if text is not None:  # its places are those of what is shown
            text.parts = [shorten_session_id("".join(text.parts), self._session_id())]
            text.chars = len(text.parts[0])
        lines = list(chain(self._head.items(), self._tail.items()))
        if text is not None:
            lines.append((self._settled, dumps(text.update())))
        return Snapshot(self.group, self._place, lines)
