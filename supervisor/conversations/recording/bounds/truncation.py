"""Bounds of what an event has: large values are cut in the middle, and the originals set aside. Pure.

A client could never receive an event that is larger than a socket frame, and one tool call can return
megabytes. So every payload has a byte budget. Strings keep their head and tail, where commands put what
matters. The original is stored under an id by which clients can fetch it, within the conversation's limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import orjson

from supervisor.conversations.recording.bounds.attachments import (
    BLOB_BYTES,
    DEPTH,
    JSON,
    TEXT,
    WALKED_MAX,
    Attachment,
    Lifted,
    Original,
    Originals,
)
from supervisor.tight import tight

PAYLOAD_BYTES: Final = 256 * 1024
"""Most JSON bytes of one tool payload (input, output or content) in an event: a page of 100 events stays
below 100 MiB at worst, and one event well below the 4 MiB frame limit of the session socket."""

STRING_BYTES: Final = 32 * 1024
"""Most UTF-8 bytes of one string inside a payload that is over its budget."""

TEXT_BYTES: Final = 1024 * 1024
"""Most UTF-8 bytes of one message's text: people read answers, so they are cut far later than tool output."""

THOUGHT_BYTES: Final = 512 * 1024
"""Most UTF-8 bytes of a message's thoughts."""


@attrs.define
class Clipped:
    """A value within its budget, and its attachments. Not to be changed (see `journal.rows.Row`)."""

    value: Any
    attachments: tuple[Attachment, ...] = ()


def clip_text(
    text: str,
    blob_id: str,
    limit: int = TEXT_BYTES,
    originals: Originals | None = None,
    *,
    masked: bool = False,
) -> Clipped:
    """Cut `text` to about `limit` UTF-8 bytes, head and tail kept."""
    if len(text) <= limit // 4:
        return Clipped(text)
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= limit:
        return Clipped(text)
    original = Original(blob_id, originals or Originals(), TEXT, masked)
    attachments = original.put(raw)
    return Clipped(shortened(raw, limit, original.where()), tuple(attachments))


def clip_payload(
    value: Any, blob_id: str, limit: int = PAYLOAD_BYTES, originals: Originals | None = None
) -> Clipped:
    """Cut a JSON value to about `limit` bytes: the bytes of its pictures and files become blobs of their own,
    then its long strings are cut, then, if need be, it as a whole.

    The shape (keys, list positions) is kept as long as cutting strings is enough, so that a client that
    knows the shape still finds its way.
    """
    whole = None
    if isinstance(value, Packed):
        whole, value = value.body, unpacked(value)
    if isinstance(value, str):
        return clip_text(value, blob_id, limit, originals)
    if value is None or isinstance(value, (bool, int, float)):
        return Clipped(value)
    if whole is None:
        whole = dump(value)
    if len(whole) <= limit:
        return Clipped(value)
    originals = originals or Originals()
    lifted = Lifted(blob_id, originals)
    value = lifted.value(value)
    if lifted.attachments:
        whole = dump(value)
        if len(whole) <= limit:
            return Clipped(value, tuple(lifted.attachments))
    original = Original(blob_id, originals, JSON)
    attachments = (*lifted.attachments, *original.put(whole))
    where = original.where()
    try:
        cut = _Walk(where, f"blob:{blob_id}" if original.blobs else "").value(value, DEPTH)
        if len(dump(cut)) <= limit:
            return Clipped(cut, attachments)
    except _TooManyError:
        pass
    # What is quoted in JSON again may become twice as long.
    return Clipped({"truncated": shortened(whole, limit // 2, where)}, attachments)


def write_payload(
    value: Any,
    blob_id: str,
    limit: int = PAYLOAD_BYTES,
    originals: Originals | None = None,
    body: bytes | None = None,
) -> Clipped:
    """The same for a value that is only written. What fits had to be encoded to know that, and is not encoded
    again. `body`: a list or an object that is encoded already."""
    kind = type(value)
    if kind is dict or kind is list:
        body = dump(value) if body is None else body
        if len(body) <= limit:
            return Clipped(orjson.Fragment(body))
    return clip_payload(value, blob_id, limit, originals)


@attrs.frozen
class Packed:
    """A large JSON value as the bytes that it takes: as objects it may take twenty times as many."""

    body: bytes


def unpacked(value: Any) -> Any:
    """A value that may be packed."""
    return orjson.loads(value.body) if isinstance(value, Packed) else value


def dump(value: Any) -> bytes:
    """A JSON value as bytes."""
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


class _TooManyError(Exception):
    """A value has too many parts."""


class _Walk:
    def __init__(self, where: str, uri: str) -> None:
        self._where = where
        self._uri = uri
        self._left = WALKED_MAX

    def value(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _TooManyError
        if isinstance(value, str):
            return self._string(value)
        if depth == 0:
            return f"[nested too deeply; {self._where}]"
        if isinstance(value, dict):
            if value.get("type") in ("image", "audio") and isinstance(value.get("data"), str):
                # Half of a base64 picture cannot be shown, so it is left out as a whole.
                return {**value, "data": "", "uri": self._uri} if len(value["data"]) > STRING_BYTES else value
            return {self._string(key): self.value(item, depth - 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item, depth - 1) for item in value]
        return value

    def _string(self, value: Any) -> Any:
        if not isinstance(value, str) or len(value) <= STRING_BYTES // 4:
            return value
        raw = value.encode("utf-8", "surrogatepass")
        return value if len(raw) <= STRING_BYTES else shortened(raw, STRING_BYTES, self._where)


def shortened(raw: bytes, limit: int, where: str) -> str:
    """Head and tail of a text, about `limit` bytes of it."""
    half = limit // 2
    return joined(raw[:half], raw[-half:], len(raw) - 2 * half, where)


def joined(head: bytes, tail: bytes, cut: int, where: str) -> str:
    """Join head and tail of a text, with a note on the cut bytes and their place."""
    first, last = head.decode("utf-8", "ignore"), tail.decode("utf-8", "ignore")
    return f"{first}\n[... {cut} bytes cut; {where} ...]\n{last}"


class Gathered:
    """A streamed text. `limit`: its bytes in an event. The rest is stored under `blob_id`.

    The pieces contain no secrets any more. Only the text's head, its tail and at most one blob of the rest
    are in memory. Each byte is moved a fixed number of times, for pieces of any size.
    """

    def __init__(self, blob_id: str, limit: int, originals: Originals) -> None:
        self._limit = limit
        self._originals = originals
        self._original = Original(blob_id, originals, TEXT, masked=True)
        self._head = b""
        self._tail = b""
        self._flushed = 0
        # Bytes, not a list of strings: a string of one character takes fifty.
        self._buffer = bytearray()

    def __bool__(self) -> bool:
        """Whether there is any text."""
        return bool(self._buffer or self._flushed)

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return len(self._head) + len(self._tail) + len(self._buffer)

    def so_far(self) -> str:
        """What of it is in memory: all of it, or its beginning and its newest part."""
        held = self._head + self._tail + bytes(self._buffer)
        return held.decode("utf-8", "replace")

    def add(self, piece: str) -> list[Attachment]:
        """Add the next piece. Returns what is to be written now."""
        self._buffer += piece.encode("utf-8", "surrogatepass")
        attachments: list[Attachment] = []
        while len(self._buffer) > BLOB_BYTES:
            attachments += self._flush(BLOB_BYTES)
        return attachments

    def fold(self, limit: int) -> list[Attachment]:
        """Keep no more than about `limit` bytes from now on, also in the event."""
        self._limit = min(self._limit, limit)
        attachments = self._flush(len(self._buffer)) if len(self._buffer) > self._limit else []
        half = self._limit // 2
        if self._flushed:
            self._head, self._tail = self._head[:half], self._tail[-half:]
        return attachments

    def close(self) -> Clipped:
        """End the text: returns it within its limit, and what is still to be written."""
        if not self._flushed:
            text = self._buffer.decode("utf-8", "surrogatepass")
            self._buffer = bytearray()
            return clip_text(text, self._original.blob_id, self._limit, self._originals, masked=True)
        attachments = self._flush(len(self._buffer))
        cut = self._flushed - len(self._head) - len(self._tail)
        return Clipped(joined(self._head, self._tail, cut, self._original.where()), tuple(attachments))

    def _flush(self, size: int) -> list[Attachment]:
        if not size:
            return []
        if size < len(self._buffer):
            while self._buffer[size] & 0xC0 == 0x80:  # between characters
                size -= 1
        raw = bytes(self._buffer[:size])
        del self._buffer[:size]
        half = self._limit // 2
        if not self._flushed:
            self._head = raw[:half]
        self._flushed += len(raw)
        self._tail = (self._tail + raw[-half:])[-half:]
        return self._original.put(raw)


EVENT_BYTES: Final = 3 * 1024 * 1024
"""Bytes of JSON of the largest event.

Clients of the wire accept frames of 4 MiB; a larger event would disconnect them each time that they catch up.
"""

_STEPS: Final = (64 * 1024, 8 * 1024, 2 * 1024)
"""Longest string in an event that is too large, in characters: tried one after the other.

None is shorter than an id or a name can be, so that references still find the event.
"""

_FREE: Final[Mapping[str, Callable[[str], Any]]] = {
    "raw_input": str,
    "raw_output": str,
    "value": str,
    "content": lambda note: [{"type": "text", "text": note}],
    "data": lambda note: {"truncated": note},
    "tools": lambda _: [],
    "thinking_blocks": lambda _: [],
}
"""Properties that are payloads, and what replaces them, with a note, if their strings are not what is
large."""


def fitting(body: bytes) -> bytes:
    """The last check of an event before it is stored: none is larger than a client can receive.

    Cuts its long strings and, if that is not enough, replaces its payloads by a note. Kind, ids and
    references stay. Values are cut where events are made, by the bytes of the text; written as JSON some text
    takes six times as much, and a bug of Ostler must not make a conversation unreadable either.
    """
    event = orjson.loads(body)
    for most in _STEPS:
        shorter = tight(orjson.dumps(_with_strings(event, most)))
        if len(shorter) <= EVENT_BYTES:
            return shorter
    note = f"[left out: the event had {len(body)} bytes, and at most {EVENT_BYTES} can be sent]"
    return tight(orjson.dumps(_with_strings(_without_payloads(event, note), _STEPS[-1])))


def _with_strings(value: Any, most: int) -> Any:
    if isinstance(value, str):
        if len(value) <= most:
            return value
        half = most // 2
        note = f"[... {len(value) - 2 * half} characters cut: too large for an event ...]"
        return f"{value[:half]}\n{note}\n{value[-half:]}"
    if isinstance(value, dict):
        return {_with_strings(key, most): _with_strings(item, most) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_strings(item, most) for item in value]
    return value


def _without_payloads(event: Any, note: str) -> Any:
    if isinstance(event, list):
        return [_without_payloads(item, note) for item in event[:1]]
    if not isinstance(event, dict):
        return event
    kept: dict[str, Any] = {}
    for key, item in event.items():
        if key not in _FREE:
            kept[key] = _without_payloads(item, note)
        elif isinstance(item, str) and len(item) <= _STEPS[-1]:
            kept[key] = item
        else:
            kept[key] = _FREE[key](note)
    return kept
