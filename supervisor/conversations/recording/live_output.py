"""Publishes running tool calls: their shells' output in pieces, at most ten a second, and their progress
between their two events, at most twice a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import orjson
import trio

from supervisor.acp import shorten_session_id
from supervisor.acp.schema import bounded
from supervisor.conversations.recording.bounds.truncation import Packed
from supervisor.conversations.recording.tool_calls.blocks import snake_blocks
from supervisor.conversations.recording.tool_calls.calls import ToolCallState, ToolOutput
from supervisor.conversations.state.record import ConversationRecord
from supervisor.credentials.masking import Masker
from supervisor.events import ConversationStateUpdateEvent, dump_event, new_event_id
from supervisor.journal import Frame, JournalError, Log
from supervisor.tight import tight

GAP_SECONDS: Final = 0.1
"""Between two pieces of one call: as often as a person can see."""

PIECE_CHARS: Final = 16 * 1024
"""Longest piece. What is more than that within the gap is left out, and counted: the newest is shown. The
event at the call's end has the output."""

PROGRESS: Final = "tool_call_progress"
"""The key of the state with what a call that runs is by now. Never stored: the events of the call are."""

PROGRESS_SECONDS: Final = 0.5
"""Between two of them: agents repeat all that a call has given back so far with each update."""

PROGRESS_BYTES: Final = 16 * 1024
"""About the most bytes of one: what a person sees of it at once."""

PROGRESS_CALLS: Final = 20
"""The most calls in one update; the others come with the next one."""


@attrs.define
class _Call:
    text: str = ""
    skipped: int = 0


@attrs.define(eq=False)
class LiveOutput:
    """Publishes the output of one conversation's calls to subscribers, as `tool_output` frames of the
    session socket, and their progress as transient states there. Nothing of it is stored.

    The first piece of output goes out at once, the rest by a task in `nursery`, which ends when there is no
    more. `mask` gives what keeps secrets out: output has none, as it comes.
    """

    log: Log
    record: ConversationRecord
    nursery: trio.Nursery
    mask: Callable[[], Masker]
    _changed: dict[str, ToolCallState] = attrs.field(factory=dict)
    _progress_at: float = 0.0
    _calls: dict[str, _Call] = attrs.field(factory=dict)
    _order: int = 0
    _running: bool = False

    def take(self, output: ToolOutput) -> None:
        """The next output of a call."""
        call = self._calls.setdefault(output.tool_call_id, _Call())
        text = call.text + output.text
        call.skipped += max(0, len(text) - PIECE_CHARS)
        call.text = text[-PIECE_CHARS:]
        if not self._running:
            self._running = True
            self._publish()
            self.nursery.start_soon(self._go_on)

    def progress(self, call: ToolCallState) -> None:
        """A running call was updated."""
        self._changed[call.call_id] = call
        if not self._running:
            self._running = True
            self.nursery.start_soon(self._go_on)

    async def _go_on(self) -> None:
        try:
            while True:
                await trio.sleep(GAP_SECONDS)
                if not (self._calls or self._changed):
                    return
                self._publish()
                if self._changed and trio.current_time() >= self._progress_at:
                    self._progress_at = trio.current_time() + PROGRESS_SECONDS
                    self._publish_progress()
        except JournalError:
            pass  # the conversation is deleted, or the server is at its end
        finally:
            self._running = False

    def _publish(self) -> None:
        calls, self._calls = self._calls, {}
        for call_id, call in calls.items():
            frame = {
                "type": "tool_output",
                "tool_call_id": call_id,
                "order": self._order,
                "content": shorten_session_id(call.text, self.record.now.session_id),
                "skipped": call.skipped,
            }
            self._order += 1
            self.log.publish(Frame(legacy=None, session=tight(orjson.dumps(frame))))

    def _publish_progress(self) -> None:
        self._changed = {call_id: call for call_id, call in self._changed.items() if not call.closed}
        for call_id in list(self._changed)[:PROGRESS_CALLS]:
            call = self._changed.pop(call_id)
            event = ConversationStateUpdateEvent(
                id=new_event_id(), key=PROGRESS, value=bounded(_progress(call), PROGRESS_BYTES)
            )
            body = self.mask().document(dump_event(event))
            shown = shorten_session_id(body.decode(), self.record.now.session_id).encode()
            frame = b'{"type":"transient","event":' + shown + b"}"
            self.log.publish(Frame(legacy=None, session=frame))

    @property
    def shows(self) -> bool:
        """Whether anything of a call waits to be shown."""
        return bool(self._calls or self._changed)

    def ended(self, tool_call_id: str) -> None:
        """A call has ended: publish and keep nothing more of it."""
        self._calls.pop(tool_call_id, None)
        changed = self._changed.get(tool_call_id)
        if changed is not None and changed.closed:
            del self._changed[tool_call_id]  # it is not its first event


def _progress(call: ToolCallState) -> dict[str, Any]:
    """The present state of a call, without members that are too large to encode repeatedly; its last event
    has them."""
    told: dict[str, Any] = {
        "tool_call_id": call.call_id,
        "title": call.title,
        "tool_kind": call.kind,
        "status": call.status,
    }
    if call.places:
        told["locations"] = list(call.places)
    if call.raw_input is not None and not isinstance(call.raw_input, Packed):
        told["raw_input"] = call.raw_input
    if isinstance(call.content, list):
        told["content"] = snake_blocks(call.blocks()[0])
    return {**call.rest, **told}  # an agent has no say in what Ostler tells
