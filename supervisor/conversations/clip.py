"""Keeping events small: large values are cut in the middle, and the original is set aside. Pure.

An event that is larger than a socket frame could never be caught up with by a client, and one tool call
can return megabytes. So every payload has a byte budget. Strings keep their head and tail, which is
where commands put what matters; the whole original is spilled under an id by which it can be fetched.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
import orjson

PAYLOAD_BYTES: Final = 256 * 1024
"""Most JSON bytes of one tool payload (input, output or content) in an event: a page of 100 events stays
below 100 MiB at worst, and one event well below the 4 MiB frame limit of the session socket."""

STRING_BYTES: Final = 32 * 1024
"""Most UTF-8 bytes of one string inside a payload that is over its budget."""

TEXT_BYTES: Final = 1024 * 1024
"""Most UTF-8 bytes of one message's text: people read answers, so they are cut far later than tool output."""

_DEPTH: Final = 40
"""Deepest nesting that is walked; what lies deeper in an over-budget payload is dropped with a note."""


@attrs.frozen
class Spill:
    """An original that was set aside: fetch it by `blob_id` from its conversation."""

    blob_id: str
    body: bytes
    media_type: str


@attrs.frozen
class Clipped:
    """A value within its budget, and what was set aside for it (None where nothing was cut)."""

    value: Any
    spill: Spill | None = None


def clip_text(text: str, blob_id: str, limit: int = TEXT_BYTES) -> Clipped:
    """Cut `text` to about `limit` UTF-8 bytes, head and tail kept."""
    if len(text) <= limit // 4:
        return Clipped(text)
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= limit:
        return Clipped(text)
    return Clipped(_cut(raw, limit, blob_id), Spill(blob_id, raw, "text/plain; charset=utf-8"))


def clip_payload(value: Any, blob_id: str, limit: int = PAYLOAD_BYTES) -> Clipped:
    """Cut a JSON value to about `limit` bytes: its long strings first, then, if need be, as a whole.

    The shape (keys, list positions) is kept as long as cutting strings is enough, so that a client that
    knows the shape still finds its way.
    """
    if isinstance(value, str):
        return clip_text(value, blob_id, limit)
    if value is None or isinstance(value, (bool, int, float)):
        return Clipped(value)
    whole = _dump(value)
    if len(whole) <= limit:
        return Clipped(value)
    spill = Spill(blob_id, whole, "application/json")
    cut = _walk(value, blob_id, _DEPTH)
    if len(_dump(cut)) > limit:
        return Clipped({"truncated": _cut(whole, limit // 2, blob_id)}, spill)
    return Clipped(cut, spill)


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


def _walk(value: Any, blob_id: str, depth: int) -> Any:
    if isinstance(value, str):
        if len(value) <= STRING_BYTES // 4:
            return value
        raw = value.encode("utf-8", "surrogatepass")
        return value if len(raw) <= STRING_BYTES else _cut(raw, STRING_BYTES, blob_id)
    if depth == 0:
        return f"[nested too deeply; the whole is blob {blob_id}]"
    if isinstance(value, dict):
        if value.get("type") in ("image", "audio") and isinstance(value.get("data"), str):
            # Half of a base64 picture is no picture: it is left out as a whole.
            return (
                {**value, "data": "", "uri": f"blob:{blob_id}"}
                if len(value["data"]) > STRING_BYTES
                else value
            )
        return {key: _walk(item, blob_id, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_walk(item, blob_id, depth - 1) for item in value]
    return value


def _cut(raw: bytes, limit: int, blob_id: str) -> str:
    head = raw[: limit // 2].decode("utf-8", "ignore")
    tail = raw[len(raw) - limit // 2 :].decode("utf-8", "ignore")
    return f"{head}\n[... {len(raw) - limit} bytes cut; the whole is blob {blob_id} ...]\n{tail}"
