"""Cuts large values in the middle, and sets the original aside, so that events stay small. Pure.

A client could never receive an event that is larger than a socket frame, and one tool call can return
megabytes. So every payload has a byte budget. Strings keep their head and tail, where commands put what
matters. The original is stored under an id by which clients can fetch it, within the conversation's limit.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
import orjson

from supervisor.conversations.recording.bounds.attachments import JSON, TEXT, Attachment, Original, Originals
from supervisor.conversations.recording.bounds.media import Lifted

PAYLOAD_BYTES: Final = 256 * 1024
"""Most JSON bytes of one tool payload (input, output or content) in an event: a page of 100 events stays
below 100 MiB at worst, and one event well below the 4 MiB frame limit of the session socket."""

STRING_BYTES: Final = 32 * 1024
"""Most UTF-8 bytes of one string inside a payload that is over its budget."""

TEXT_BYTES: Final = 1024 * 1024
"""Most UTF-8 bytes of one message's text: people read answers, so they are cut far later than tool output."""

THOUGHT_BYTES: Final = 512 * 1024
"""Most UTF-8 bytes of a message's thoughts."""

WALKED_MAX: Final = 20_000
"""The most values of a payload over its budget that are cut one by one; a payload with more is cut as a
whole."""

_DEPTH: Final = 40
"""Deepest nesting that is walked; what lies deeper in an over-budget payload is dropped with a note."""


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
    half = limit // 2
    return Clipped(joined(raw[:half], raw[-half:], len(raw) - 2 * half, original.where()), tuple(attachments))


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
        whole, value = value.body, value.value()
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
        cut = _Walk(where, f"blob:{blob_id}" if original.blobs else "").value(value, _DEPTH)
        if len(dump(cut)) <= limit:
            return Clipped(cut, attachments)
    except _TooManyError:
        pass
    quarter = limit // 4  # what is quoted in JSON again may become twice as long
    words = joined(whole[:quarter], whole[-quarter:], len(whole) - 2 * quarter, where)
    return Clipped({"truncated": words}, attachments)


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

    def value(self) -> Any:
        """The value."""
        return orjson.loads(self.body)


def unpacked(value: Any) -> Any:
    """A value that may be packed."""
    return value.value() if isinstance(value, Packed) else value


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
        half = STRING_BYTES // 2
        return (
            value
            if len(raw) <= STRING_BYTES
            else joined(raw[:half], raw[-half:], len(raw) - 2 * half, self._where)
        )


def joined(head: bytes, tail: bytes, cut: int, where: str) -> str:
    """Join head and tail of a text, with a note on the cut bytes and their place."""
    first, last = head.decode("utf-8", "ignore"), tail.decode("utf-8", "ignore")
    return f"{first}\n[... {cut} bytes cut; {where} ...]\n{last}"
