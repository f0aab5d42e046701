"""The results of translating an agent's updates: events for the journal, streamed pieces, figures. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol

import attrs
import orjson

from supervisor.conversations.recording.bounds.attachments import Attachment
from supervisor.events import ACPToolCallEvent, ConversationStateUpdateEvent, Event

ACP_CALL: Final = ACPToolCallEvent.__name__
STATE: Final = ConversationStateUpdateEvent.__name__

UNDATED: Final = ""
"""The time of an event that is yet to be written: the recorder dates it."""


_DRAFTED: Final[Mapping[str, type[Event]]] = {
    ACP_CALL: ACPToolCallEvent,
    STATE: ConversationStateUpdateEvent,
}


class Recorded:
    """An event for the journal and the originals that were cut out of it. Not to be changed.

    Calls of external agents are most of all events. So theirs, and the states that go with them, are
    a `draft`, from which an event is made on demand: the members of its JSON in their order, but for its
    time and its parent. Parts of it may be encoded already.
    """

    __slots__ = ("_event", "attachments", "draft")

    def __init__(
        self,
        event: Event | None,
        attachments: tuple[Attachment, ...] = (),
        draft: dict[str, Any] | None = None,
    ) -> None:
        self._event = event
        self.attachments = attachments
        self.draft = draft

    @property
    def event(self) -> Event:
        """The event."""
        if self._event is None:
            members = orjson.loads(orjson.dumps(self.draft))
            self._event = _DRAFTED[members.pop("kind")](**members)
        return self._event


Kind = Literal["text", "reasoning", "arguments"]


class Call(NamedTuple):
    """The call whose arguments are streamed."""

    tool_call_id: str | None
    tool_name: str | None


@attrs.frozen
class Delta:
    """A piece of a segment, streamed and not journalled."""

    item_id: str
    kind: Kind
    content: str
    order: int
    attempt: int = 0
    call: Call | None = None


@attrs.frozen
class Opened:
    """A segment began: `item_id` is the id of its future durable event.

    `alongside`: other segments stay open. Otherwise only one is open at a time."""

    item_id: str
    attempt: int = 0
    alongside: bool = False


@attrs.frozen
class Aborted:
    """The streamed item will not become an event."""

    item_id: str
    attempt: int
    reason: str


@attrs.frozen
class Usage:
    """The usage that the agent reports: context filled and its size, and the session's cost so far, in units
    of `currency` (ISO 4217)."""

    used: int | None
    size: int | None
    cost: float | None
    currency: str | None = None


@attrs.frozen
class Title:
    """The agent's title for the session."""

    text: str


@attrs.frozen
class ToolOutput:
    """A piece of what a call's shell writes, without secrets. Streamed; the call's last event has all."""

    tool_call_id: str
    text: str


Effect = Recorded | Attachment | Delta | Opened | Aborted | Usage | Title | ToolOutput
"""The result of an update. An `Attachment` is a piece of an original whose event is still to come."""


class Terminals(Protocol):
    """Ostler's own terminals, whose output becomes that of the calls that name them."""

    def named(self, terminal_id: str) -> str | None:
        """A call names a terminal: return its output so far; None for an unknown id. Later output goes to
        `Translator.terminal_output`."""

    def ended(self, terminal_id: str) -> str:
        """The call that names it has ended: return its output that was not passed on yet, or a part of
        that."""


class Close(enum.Enum):
    """What happens to the last segment at the end of a turn."""

    FINISH = "finish"
    MESSAGE = "message"
