"""The last check of an event before it is stored: none is larger than a client can receive. Pure.

Large values are cut where events are made (`clip`, `gather`), by the bytes of the text. Written as JSON some
text takes six times as much, and a bug of Ostler must not make a conversation unreadable either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from supervisor.tight import tight

EVENT_BYTES: Final = 3 * 1024 * 1024
"""Bytes of JSON of the largest event.

Clients of the wire accept frames of 4 MiB; a larger event would disconnect them each time that they catch up.
"""

_STEPS: Final = (64 * 1024, 8 * 1024, 2 * 1024)
"""Longest string in an event that is too large, in characters: tried one after the other.

None is shorter than an id or a name can be, so that references still find the event.
"""

_FREE: Final[Mapping[str, Any]] = {
    "raw_input": None,
    "raw_output": None,
    "content": None,
    "value": None,
    "data": {},
    "tools": [],
    "thinking_blocks": [],
}
"""Properties that are payloads, and what replaces them if their strings are not what is large."""


def fitting(body: bytes) -> bytes:
    """Cut an event's long strings and, if that is not enough, replace its payloads by a note.

    Kind, ids and references stay.
    """
    event = orjson.loads(body)
    size = len(body)
    for most in _STEPS:
        shorter = tight(orjson.dumps(_with_strings(event, most)))
        if len(shorter) <= EVENT_BYTES:
            return shorter
    return tight(orjson.dumps(_with_strings(_without_payloads(event, size), _STEPS[-1])))


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


def _without_payloads(event: Any, size: int) -> Any:
    if isinstance(event, list):
        return [_without_payloads(item, size) for item in event[:1]]
    if not isinstance(event, dict):
        return event
    kept: dict[str, Any] = {}
    for key, item in event.items():
        if key not in _FREE:
            kept[key] = _without_payloads(item, size)
        elif isinstance(item, str) and len(item) <= _STEPS[-1]:
            kept[key] = item
        else:
            kept[key] = _instead(key, size)
    return kept


def _instead(key: str, size: int) -> Any:
    note = f"[left out: the event had {size} bytes, and at most {EVENT_BYTES} can be sent]"
    if key in ("value", "raw_input", "raw_output"):
        return note
    if key == "data":
        return {"truncated": note}
    return [] if key != "content" else [{"type": "text", "text": note}]
