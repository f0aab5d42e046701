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
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

import attrs
import orjson
import structlog

from supervisor.acp import shorten_session_id
from supervisor.conversations.recording.bounds.truncation import EVENT_BYTES, fitting
from supervisor.conversations.recording.tool_calls.calls import OUTPUTS
from supervisor.credentials.masking import NOTHING, Masker, StreamMask
from supervisor.events.payload import dumps
from supervisor.journal.log import Log
from supervisor.journal.rows import Frame, Piece

log = structlog.get_logger(__name__)

PERMISSION: Final = "_ostler/permission"
"""The kind of a line that is no update: a permission request that waits for a person."""

TEXTS: Final = frozenset({"agent_message_chunk", "agent_thought_chunk", "user_message_chunk"})

CHUNK: Final = frozenset({"sessionUpdate", "messageId", "content"})
"""Members of a piece of a text that may be joined to another one."""

DELTA: Final = OUTPUTS[1]
"""The member of `_meta` with a piece of what a shell wrote."""

ENDED: Final = frozenset({"completed", "failed"})

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

Place = tuple[int, int]
"""A number of whole lines, and characters of the next one, which is a text."""

START: Final[Place] = (0, 0)


def lines_of(updates: bytes) -> tuple[str, list[tuple[int, bytes]]]:
    """The name of the group and its lines, each with its number."""
    head, *lines = updates.split(b"\n")
    found: list[tuple[int, bytes]] = []
    index = 0
    for line in lines:
        if line.startswith(b"{"):
            found.append((index, line))
            index += 1
        else:
            index += int(line)
    return head.decode(), found


def unshown(line: bytes, index: int, place: Place) -> bytes | None:
    """What of a line comes after a place: all, the rest of its text, or nothing."""
    whole, chars = place
    if index != whole or not chars:
        return line if index >= whole else None
    update = orjson.loads(line)
    rest = update["content"]["text"][chars:]
    return dumps({**update, "content": {"type": "text", "text": rest}}) if rest else None


@attrs.define(eq=False)
class _Text:
    """The last line, which is a text that may grow."""

    index: int
    members: dict[str, Any]
    parts: list[str] = attrs.field(factory=list)
    chars: int = 0

    def line(self, text: str | None = None) -> bytes:
        text = "".join(self.parts) if text is None else text
        return dumps({**self.members, "content": {"type": "text", "text": text}})


@attrs.define(eq=False)
class _Stream:
    """Masks one kind of text, of one message."""

    members: dict[str, Any]
    masker: Masker
    stream: StreamMask


@attrs.frozen
class Snapshot:
    """The lines that wait, and the place after them."""

    group: str
    place: Place
    lines: list[tuple[int, bytes]]


class AgentUpdates:
    """The updates of one conversation's agent that wait for the next event.

    `mask` returns what keeps secrets out. Updates come masked already, but a text, and the output of a shell,
    may have a secret in two pieces. `session_id` returns the id that is cut short where it stands.
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
        self._next = 0
        self._text: _Text | None = None
        self._place = START
        self._streams: dict[str, _Stream] = {}
        self._outputs: OrderedDict[str, StreamMask] = OrderedDict()
        self._latest: dict[str, tuple[int, frozenset[str]]] = {}
        """For each call its last line, and the members that replace it; none if none can."""
        self._dropped = 0

    # -- what the agent sends ---------------------------------------------------------------------------

    def add(self, update: Mapping[str, Any]) -> None:
        """Add an update, in order of arrival. Raises JournalError."""
        kind = update.get("sessionUpdate")
        if kind in TEXTS:
            content = update.get("content")
            if (
                type(content) is dict
                and len(content) == 2
                and content.get("type") == "text"
                and type(content.get("text")) is str
                and CHUNK.issuperset(update)
            ):
                self._say(update, content["text"])
                return
        mask = self._mask()
        if mask:
            if kind == "tool_call":
                self._flush_texts()  # as their events do
            if "_meta" in update or self._outputs:
                update = self._masked_output(update, mask)
        line = dumps(update)
        if len(line) > EVENT_BYTES:
            line = fitting(line)
        self._put(line, update)

    def _say(self, update: Mapping[str, Any], text: str) -> None:
        members = {name: each for name, each in update.items() if name != "content"}
        mask = self._mask()
        if mask:
            kind = update["sessionUpdate"]
            stream = self._streams.get(kind)
            if stream is None or stream.masker is not mask or stream.members != members:
                self._flush_text(kind)
                stream = self._streams[kind] = _Stream(members, mask, mask.stream())
            text = stream.stream.feed(text)
        if text:
            self._extend(members, text)

    def _extend(self, members: dict[str, Any], piece: str) -> None:
        piece = shorten_session_id(piece, self._session_id())
        text = self._text
        if text is None or text.members != members or text.chars + len(piece) > LINE_CHARS:
            self._close_text()
            text = self._text = _Text(self._next, members)
            self._next += 1
        text.parts.append(piece)
        text.chars += len(piece)
        before, self._place = self._place, (text.index, text.chars)
        if self._log.shows_updates:
            self._show(before, text.line(piece))

    def _put(self, line: bytes, update: Mapping[str, Any]) -> None:
        session_id = self._session_id()
        if session_id is not None and session_id.encode() in line:
            line = shorten_session_id(line.decode(), session_id).encode()
        self._close_text()
        index = self._next
        self._next += 1
        self._store(index, line)
        call_id = update.get("toolCallId")
        if type(call_id) is str:
            self._replace(call_id, index, update, len(line))
        before, self._place = self._place, (index + 1, 0)
        if self._log.shows_updates:
            self._show(before, line)

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
        text = "" if stream is None else stream.stream.flush()
        if stream is not None and text:
            self._extend(stream.members, text)

    def _flush_output(self, call_id: str, stream: StreamMask) -> None:
        text = stream.flush()
        if text:
            meta = {DELTA: {"data": text}}
            update = {"sessionUpdate": "tool_call_update", "toolCallId": call_id, "_meta": meta}
            self._put(dumps(update), update)

    # -- the lines that wait ----------------------------------------------------------------------------

    def _close_text(self) -> None:
        if self._text is not None:
            text, self._text = self._text, None
            self._store(text.index, text.line())

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

    def _replace(self, call_id: str, index: int, update: Mapping[str, Any], size: int) -> None:
        last = self._latest.get(call_id)
        changes = update.get("sessionUpdate") == "tool_call_update"
        large = size >= REPLACED_BYTES and changes and "_meta" not in update
        self._latest[call_id] = (index, frozenset(update) if large else frozenset())
        if last is None or not last[1] or not changes or any(update.get(name) is None for name in last[1]):
            return
        at = last[0]
        self._bytes -= len(self._tail.pop(at, b""))
        line = self._head.pop(at, b"")
        self._bytes -= len(line)
        self._head_bytes -= len(line)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        return chain(self._head.items(), self._tail.items())

    def pending(self) -> bytes:
        """All that waits, as the `updates` of an event; empty if nothing does."""
        self._close_text()
        if not self._next:
            return b""
        parts = [self.group.encode()]
        at = 0
        for index, line in self._lines():
            if index > at:
                parts.append(b"%d" % (index - at))
            parts.append(line)
            at = index + 1
        return b"\n".join(parts)

    def clear(self) -> None:
        """What waited belongs to an event now."""
        if self._dropped:
            log.warning(
                "updates of an agent were not kept",
                conversation_id=self._conversation_id,
                lines=self._dropped,
            )
            self._dropped = 0
        self._head.clear()
        self._tail.clear()
        self._latest.clear()
        self._bytes = self._head_bytes = self._next = 0
        self._place = START

    def snapshot(self) -> Snapshot:
        """What waits at present."""
        lines = list(self._lines())
        if self._text is not None:
            lines.append((self._text.index, self._text.line()))
        return Snapshot(self.group, self._place, lines)
