"""What is known of an agent's side sessions: which there are, and what the agent has said in them. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
import trio

from supervisor.acp import AgentMessageChunk, ToolCall, ToolCallUpdate, parse_update
from supervisor.conversations.recording.sentences import continues

ANSWER_BYTES: Final = 256 * 1024
"""The most bytes of an answer; the rest is cut off, and its turn cancelled. A person reads a hundredth of
it."""

PAST_MAX: Final = 64
"""Ended side sessions that are known: what an agent asks for there is refused, and is not the
conversation's."""

CUT: Final = "\n[... the answer was cut off here: it is longer than 256 KiB]"


@attrs.define(eq=False)
class SideSession:
    """One side session, and what the agent has said in it."""

    session_id: str
    forked: bool
    _pieces: list[str] = attrs.field(factory=list)
    _size: int = 0
    _parted: bool = False
    """Whether a tool call came after the last piece."""
    full: trio.Event = attrs.field(factory=trio.Event)
    """Set when the answer is as long as an answer may be."""

    def take(self, params: Any) -> None:
        """Collect what an update says. The first bytes count."""
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
        """Collect nothing any more, and forget what was said."""
        self.full.set()
        self._pieces.clear()

    @property
    def answer(self) -> str:
        """What was said so far."""
        return "".join(self._pieces) + (CUT if self.full.is_set() else "")


@attrs.define
class SideSessions:
    """The side sessions of one process of an agent by their ids: the open ones, and the last ones of before,
    since an agent may still ask for something there. Another process may give the same ids anew."""

    _open: dict[str, SideSession] = attrs.field(factory=dict)
    _past: dict[str, SideSession] = attrs.field(factory=dict)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, session: SideSession) -> None:
        """From now on, what the agent says in it goes there."""
        self._open[session.session_id] = session

    def remove(self, session: SideSession) -> None:
        """Forget a session; what comes late is nobody's."""
        self._open.pop(session.session_id, None)
        session.end()
        self._past[session.session_id] = session
        if len(self._past) > PAST_MAX:
            del self._past[next(iter(self._past))]

    def __contains__(self, session_id: str) -> bool:
        """Whether one with this id is open."""
        return session_id in self._open

    def of(self, params: Any) -> SideSession | None:
        """The side session that a message of the agent is about."""
        known = self._open or self._past
        session_id = params.get("sessionId") if known and isinstance(params, Mapping) else None
        if not isinstance(session_id, str):
            return None
        return self._open.get(session_id) or self._past.get(session_id)
