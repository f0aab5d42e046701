"""The lines of updates that are kept with an event, and the places among them. Pure.

The first line is the name of the group. Each other one is an update as JSON, or the number of lines that are
left out there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from supervisor.conversations.recording.tool_calls.calls import OUTPUTS
from supervisor.events.payload import dumps

DELTA: Final = OUTPUTS[1]
"""The member of `_meta` with a piece of what a shell wrote."""

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
    rest = (update["_meta"][DELTA]["data"] if "_meta" in update else update["content"]["text"])[chars:]
    return dumps(with_text(update, rest)) if rest else None


def with_text(update: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The update with this text, or output of a shell, in place of its own."""
    if "_meta" in update:
        return {**update, "_meta": {DELTA: {**update["_meta"][DELTA], "data": text}}}
    return {**update, "content": {"type": "text", "text": text}}
