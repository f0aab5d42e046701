"""Streamed answers as clients read them: what begins, its pieces, and what never becomes an event. Pure.

A piece is encoded once, when it comes. Frames are put together from its bytes when a socket takes them, each
form only where there is a socket for it.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from supervisor.conversations.recording.effects import Call
from supervisor.events import new_event_id
from supervisor.events.payload import dumps
from supervisor.journal import Frame, Growing, Place, Shown, Stored
from supervisor.tight import tight

TEXT: Final = "text"
REASONING: Final = "reasoning"
ARGUMENTS: Final = "arguments"

PIECE_CHARS: Final = 16 * 1024
"""Characters in a piece of what is told once more from its event."""

_MEMBERS: Final = {TEXT: b"content", REASONING: b"reasoning_content"}
"""The member of a `StreamingDeltaEvent` for each channel; it has none for arguments."""


def inside(text: str) -> bytes:
    """A text as it stands between the quotes of JSON."""
    return dumps(text)[1:-1]


class _DeltaFrame:
    """A piece, or several that were merged: made when a socket of its kind takes it."""

    __slots__ = ("_attempt", "_call", "_channel", "_content", "_end", "_item_id", "_legacy", "_session")

    def __init__(
        self, item_id: str, channel: str, content: bytes, end: Place, attempt: int, call: bytes
    ) -> None:
        self._item_id = item_id
        self._channel = channel
        self._content = content
        self._end = end
        self._attempt = attempt
        self._call = call if channel == ARGUMENTS else b""
        self._legacy: bytes | None = None
        self._session: bytes | None = None

    @property
    def legacy(self) -> bytes | None:
        if self._legacy is None and self._channel in _MEMBERS:
            self._legacy = (
                b'{"id":"%b","timestamp":"%b","source":"agent","%b":"%b","kind":"StreamingDeltaEvent"}'
                % (
                    new_event_id().encode(),
                    self._end.time.encode(),
                    _MEMBERS[self._channel],
                    self._content,
                )
            )
        return self._legacy

    @property
    def session(self) -> bytes:
        if self._session is None:
            self._session = (
                b'{"type":"delta","item_id":"%b","attempt":%d,"order":%d,"kind":"%b",%b"content":"%b"}'
                % (
                    self._item_id.encode(),
                    self._attempt,
                    self._end.order,
                    self._channel.encode(),
                    self._call,
                    self._content,
                )
            )
        return self._session


class StreamedWire:
    """The two wire forms of a streamed item. The events socket has no items, only pieces.

    `call`: the tool call that it becomes, if any."""

    def __init__(self, call: Call | None = None) -> None:
        members = {} if call is None else {name: each for name, each in call._asdict().items() if each}
        self._call = orjson.dumps(members)[1:-1] + b"," if members else b""

    def begun(self, item: Growing, attempt: int) -> Shown:
        """The item begins; with a larger `attempt` than before it restarts."""
        frame = {
            "type": "item_started",
            "item_id": item.id,
            "attempt": attempt,
            "anchor_seq": item.anchor_seq,
        }
        return Frame(session=tight(orjson.dumps(frame)))

    def piece(self, item: Growing, channel: str, content: bytes, end: Place, attempt: int) -> Shown:
        """The next pieces of it, merged."""
        return _DeltaFrame(item.id, channel, content, end, attempt, self._call)

    def cut(self, size: int) -> bytes:
        """A note in place of what is kept no longer."""
        return inside(f"[... {size} bytes cut; the whole follows when it ends ...]\n")


WIRE: Final = StreamedWire()


def aborted(item: Growing, reason: str) -> Frame:
    """An item never becomes an event."""
    frame = {"type": "item_aborted", "item_id": item.id, "attempt": item.attempts, "reason": reason}
    return Frame(session=tight(orjson.dumps(frame)), ends=item.number)


def again(row: Stored) -> Growing | None:
    """What an event of the agent's was streamed as, all of it; None for one that is not streamed."""
    if row.source != "agent" or row.kind not in ("MessageEvent", "ActionEvent"):
        return None
    texts = _texts(orjson.loads(row.body))
    if not any(texts.values()):
        return None
    item = Growing(row.id, row.seq - 1, WIRE)
    order = 0
    for channel, text in texts.items():
        for start in range(0, len(text), PIECE_CHARS):
            item.add(channel, inside(text[start : start + PIECE_CHARS]), order, row.timestamp)
            order += 1
    return item


def _texts(event: dict[str, Any]) -> dict[str, str]:
    if event["kind"] == "MessageEvent":
        message = event["llm_message"]
        text = "".join(part.get("text") or "" for part in message["content"])
        return {REASONING: message.get("reasoning_content") or "", TEXT: text}
    action = event.get("action") or {}
    answer = action.get("message") if action.get("kind") == "FinishAction" else None
    return {REASONING: event.get("reasoning_content") or "", TEXT: answer or ""}
