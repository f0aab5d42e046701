"""What the shells of tool calls write, shown while they run: in pieces, at most ten a second."""

from __future__ import annotations

from typing import Final

import attrs
import orjson
import trio

from supervisor.acp import shorten_session_id
from supervisor.conversations.recording.tool_calls import ToolOutput
from supervisor.conversations.state.record import ConversationRecord
from supervisor.journal import Frame, JournalError, Log
from supervisor.tight import tight

GAP_SECONDS: Final = 0.1
"""Between two pieces of one call: as often as a person can see."""

PIECE_CHARS: Final = 16 * 1024
"""Longest piece. What is more than that within the gap is left out, and counted: the newest is shown. The
event at the call's end has the output."""


@attrs.define
class _Call:
    text: str = ""
    skipped: int = 0


@attrs.define(eq=False)
class LiveOutput:
    """Publishes the output of one conversation's calls to whoever listens, as `tool_output` frames of the
    session socket. Nothing of it is stored.

    The first piece goes out at once, later ones by a task in `nursery`, which ends when there is no more.
    """

    log: Log
    record: ConversationRecord
    nursery: trio.Nursery
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

    async def _go_on(self) -> None:
        try:
            while True:
                await trio.sleep(GAP_SECONDS)
                if not self._calls:
                    return
                self._publish()
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
                "content": shorten_session_id(call.text, self.record.session_id),
                "skipped": call.skipped,
            }
            self._order += 1
            self.log.publish(Frame(legacy=None, session=tight(orjson.dumps(frame))))

    @property
    def shows(self) -> bool:
        """Whether anything of a call waits to be shown."""
        return bool(self._calls)

    def ended(self, tool_call_id: str) -> None:
        """A call is over: nothing more comes of it."""
        self._calls.pop(tool_call_id, None)
