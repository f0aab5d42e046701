"""What open tool calls hold: what their agent says of them, and the output of terminals that they name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from supervisor.conversations.recording.effects import Effect, Terminals
from supervisor.conversations.recording.tool_calls.blocks import terminals_of
from supervisor.conversations.recording.tool_calls.calls import ToolCallState

OPEN_CALLS_BYTES: Final = 16 * 1024 * 1024
"""Bytes of memory for the payloads of all open tool calls together: the largest frame.

Beyond it the oldest calls keep the beginnings and ends of theirs, and the rest is stored as attachments.
"""


@attrs.define
class OpenPayloads:
    """The payloads of the open calls, within the limits of all of them together.

    `calls`: the open ones, by the agent's ids. `effects` gets what comes of it.
    """

    _calls: Mapping[str, ToolCallState]
    _effects: list[Effect]
    terminals: Terminals | None = None
    gathered: int = 0
    """The approximate bytes of output and payloads in the turn."""
    _by_terminal: dict[str, ToolCallState] = attrs.field(factory=dict, init=False)
    """The open calls that name terminals, by these."""
    _weight: int = attrs.field(default=0, init=False)
    _latest: ToolCallState | None = attrs.field(default=None, init=False)

    def merge(self, call: ToolCallState, raw: Mapping[str, Any], *, asking: bool = False) -> None:
        """Merge an update into a call."""
        latest = self._latest
        if latest is not None and latest is not call and not latest.closed:
            before = latest.weight
            latest.pack()
            if latest.weight != before:
                self._weigh(latest, before)
        self._latest = call
        before = call.weight
        self._effects += call.merge(raw, asking=asking)
        for terminal_id in call.terminals:
            if self.terminals is not None and terminal_id not in self._by_terminal:
                output = self.terminals.named(terminal_id)
                if output is not None:
                    call.works = True
                    self._by_terminal[terminal_id] = call
                    self._effects.extend(call.append(output))
        if call.weight != before:
            self._weigh(call, before)

    def in_terminal(self, raw: Mapping[str, Any]) -> bool:
        """Whether an update about no open call names a terminal of Ostler's, in which something ran."""
        for terminal_id in terminals_of(raw.get("content")):
            if terminal_id in self._by_terminal:
                return True
            if self.terminals is not None and self.terminals.named(terminal_id) is not None:
                self.terminals.ended(terminal_id)
                return True
        return False

    def terminal_output(self, terminal_id: str, text: str) -> None:
        """Add output of a terminal to the call that names it, if one does."""
        call = self._by_terminal.get(terminal_id)
        if call is not None and text:
            before = call.weight
            self._effects.extend(call.append(text))
            self._weigh(call, before)

    def end(self, call: ToolCallState) -> None:
        """A call ends: add the rest of its terminals' output, and count it no more."""
        for terminal_id in call.terminals:
            if self.terminals is not None and self._by_terminal.get(terminal_id) is call:
                del self._by_terminal[terminal_id]
                rest = self.terminals.ended(terminal_id)
                if rest:
                    self._effects.extend(call.append(rest))
        self._weight -= call.weight
        if self._latest is call:
            self._latest = None

    def _weigh(self, call: ToolCallState, before: int) -> None:
        self._weight += call.weight - before
        self.gathered += max(0, call.weight - before)
        if self._weight <= OPEN_CALLS_BYTES:
            return
        for each in self._calls.values():
            # Much at once, so that it is not to be done again with the next update.
            if self._weight <= OPEN_CALLS_BYTES // 2:
                return
            if each is not call:
                before = each.weight
                self._effects.extend(each.fold())
                self._weight += each.weight - before
