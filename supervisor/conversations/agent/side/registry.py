"""The registry of an agent's side sessions, with the agent's output in each. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
import trio

from supervisor.acp import AgentMessageChunk, ToolCall, ToolCallUpdate, parse_update
from supervisor.conversations.recording.speech import continues

ANSWER_BYTES: Final = 256 * 1024
"""The most bytes of an answer; beyond it the turn is cancelled. A person reads a hundredth of that."""

PAST_MAX: Final = 64
"""How many ended side sessions are remembered, so that late requests in them are refused and not taken for
the conversation's."""

CUT: Final = "\n[... the answer was cut off here: it is longer than 256 KiB]"


@attrs.define(eq=False)
class SideSession:
    """One side session, and the agent's output in it."""

    session_id: str
    forked: bool
    _pieces: list[str] = attrs.field(factory=list)
    _size: int = 0
    _parted: bool = False
    """Whether a tool call came after the last piece."""
    full: trio.Event = attrs.field(factory=trio.Event)
    """Set when the answer has reached ANSWER_BYTES."""

    def take(self, params: Any) -> None:
        """Collect the text of an update, up to ANSWER_BYTES."""
        update = parse_update(params)[1]
        if isinstance(update, ToolCall | ToolCallUpdate):
            self._parted = bool(self._pieces)
        if not isinstance(update, AgentMessageChunk) or self.full.is_set():
            return
        text = update.content.get("text")
        if isinstance(text, str):
            if self._parted and text:
                self._parted = False
                text = text if continues(self._pieces[-1], text) else f"\n\n{text}"
            raw = text.encode("utf-8", "replace")[: ANSWER_BYTES - self._size]
            self._size += len(raw)
            self._pieces.append(raw.decode("utf-8", "ignore"))
            if self._size >= ANSWER_BYTES:
                self.full.set()

    def end(self) -> None:
        """Stop collecting, and drop the collected text."""
        self.full.set()
        self._pieces.clear()

    @property
    def answer(self) -> str:
        """The text so far."""
        return "".join(self._pieces) + (CUT if self.full.is_set() else "")


@attrs.define
class SideSessions:
    """The side sessions of one agent process by id: the open ones, and the last ended ones, in which late
    requests may arrive. Another process may reuse the ids."""

    _open: dict[str, SideSession] = attrs.field(factory=dict)
    _past: dict[str, SideSession] = attrs.field(factory=dict)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, session: SideSession) -> None:
        """Register a session; the agent's updates for it go there."""
        self._open[session.session_id] = session

    def remove(self, session: SideSession) -> None:
        """Move a session to the ended ones; its late updates are dropped."""
        self._open.pop(session.session_id, None)
        session.end()
        self._past[session.session_id] = session
        if len(self._past) > PAST_MAX:
            del self._past[next(iter(self._past))]

    def __contains__(self, session_id: str) -> bool:
        """Whether a side session with this id is open."""
        return session_id in self._open

    def of(self, params: Any) -> SideSession | None:
        """The side session that a message of the agent is about."""
        known = self._open or self._past
        session_id = params.get("sessionId") if known and isinstance(params, Mapping) else None
        if not isinstance(session_id, str):
            return None
        return self._open.get(session_id) or self._past.get(session_id)
