"""What is streamed and not journalled: answers under way, and the output and progress of running tool calls.

A piece of an answer is encoded once, when it comes. Frames are put together from its bytes when a socket
takes them, each form only where there is a socket for it. What a shell writes is published in pieces, at most
ten a second, the progress of a call between its two events at most twice a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import orjson
import trio

from supervisor.acp import shorten_session_id
from supervisor.acp.schema import bounded
from supervisor.conversations.recording.bounds.truncation import Packed
from supervisor.conversations.recording.effects import Call, ToolOutput
from supervisor.conversations.recording.tool_calls.blocks import snake_blocks
from supervisor.conversations.recording.tool_calls.calls import ToolCallState
from supervisor.conversations.state.record import ConversationRecord
from supervisor.credentials.masking import Masker
from supervisor.events import ConversationStateUpdateEvent, dump_event, new_event_id
from supervisor.events.payload import dumps
from supervisor.journal.errors import JournalError
from supervisor.journal.growing import Growing, Place
from supervisor.journal.log import Log
from supervisor.journal.rows import Frame, Shown, Stored
from supervisor.tight import tight

TEXT: Final = "text"
REASONING: Final = "reasoning"
ARGUMENTS: Final = "arguments"

AGAIN_CHARS: Final = 16 * 1024
"""Characters in a piece of a text that is streamed again from its event."""

_MEMBERS: Final = {TEXT: b"content", REASONING: b"reasoning_content"}
"""The member of a `StreamingDeltaEvent` for each channel; it has none for arguments."""


def inside(text: str) -> bytes:
    """A text as it stands between the quotes of JSON."""
    return dumps(text)[1:-1]


@attrs.define(eq=False)
class _DeltaFrame:
    """A piece, or several that were merged: made when a socket of its kind takes it."""

    _item_id: str
    _channel: str
    _content: bytes
    _end: Place
    _attempt: int
    _call: bytes
    _legacy: bytes | None = None
    _session: bytes | None = None

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
                    self._call if self._channel == ARGUMENTS else b"",
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
        for start in range(0, len(text), AGAIN_CHARS):
            item.add(channel, inside(text[start : start + AGAIN_CHARS]), order, row.timestamp)
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


GAP_SECONDS: Final = 0.1
"""Between two pieces of one call: as often as a person can see."""

PIECE_CHARS: Final = 16 * 1024
"""Longest piece. What is more than that within the gap is left out, and counted: the newest is shown. The
event at the call's end has the output."""

PROGRESS: Final = "tool_call_progress"
"""The key of the state with what a call that runs is by now. Never stored: the events of the call are."""

PROGRESS_SECONDS: Final = 0.5
"""Between two of them: agents repeat all of a call's output so far with each update."""

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
            self.nursery.start_soon(self._keep_publishing)

    def progress(self, call: ToolCallState) -> None:
        """A running call was updated."""
        self._changed[call.call_id] = call
        if not self._running:
            self._running = True
            self.nursery.start_soon(self._keep_publishing)

    async def _keep_publishing(self) -> None:
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
    state: dict[str, Any] = {
        "tool_call_id": call.call_id,
        "title": call.title,
        "tool_kind": call.kind,
        "status": call.status,
    }
    if call.locations:
        state["locations"] = list(call.locations)
    if call.raw_input is not None and not isinstance(call.raw_input, Packed):
        state["raw_input"] = call.raw_input
    if isinstance(call.content, list):
        state["content"] = snake_blocks(call.blocks()[0])
    return {**call.rest, **state}  # an agent has no say in what Ostler tells
