"""The output of Ostler's own terminals (`terminal/create`), for the tool calls that name them.

An agent pulls the output of a terminal, and names the terminal in place of it. So what a terminal writes is
taken from its reader, from the moment on that a call names it.
"""

from __future__ import annotations

import codecs
from contextlib import suppress
from typing import Final

import attrs

from supervisor.conversations.agent.lifecycle.lifecycle import AgentLifecycle
from supervisor.conversations.agent.shared import Shared
from supervisor.journal.errors import JournalError

AT_ONCE_BYTES: Final = 256 * 1024
"""Most of a terminal's output before it is named that is taken: as much as an event has of it."""

FED_BYTES: Final = 8 * 1024 * 1024
"""Output of one terminal that is taken as it comes. Beyond that only the end is: a flood costs no more than a
copy."""


@attrs.define
class _Named:
    decoder: codecs.IncrementalDecoder = attrs.field(
        factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )
    fed: int = 0
    skipped: int = 0


class TerminalOutputs:
    """Feeds the translator of one conversation. It is the translator's `Terminals`."""

    def __init__(self, shared: Shared, lifecycle: AgentLifecycle) -> None:
        self._recorder = shared.recorder
        self._translator = shared.translator
        self._lifecycle = lifecycle
        self._named: dict[str, _Named] = {}
        shared.translator.payloads.terminals = self
        lifecycle.watch_terminal = lambda terminal_id: _Watch(self, terminal_id)

    def named(self, terminal_id: str) -> str | None:
        """A call names a terminal: its output so far."""
        run = self._lifecycle.current
        seen = None if run is None else run.services.output(terminal_id)
        if seen is None:
            return None
        last = seen.last(AT_ONCE_BYTES)
        named = self._named[terminal_id] = _Named()
        text = "".join(named.decoder.decode(bytes(piece)) for piece in last.pieces)
        return f"[... earlier output is missing ...]\n{text}" if last.truncated else text

    def add(self, terminal_id: str, data: bytes) -> None:
        """A terminal wrote something. Raises JournalError."""
        named = self._named.get(terminal_id)
        if named is None:
            return
        if named.fed > FED_BYTES:
            named.skipped += len(data)
            return
        named.fed += len(data)
        self._recorder.emit(self._translator.terminal_output(terminal_id, named.decoder.decode(data)))

    def ended(self, terminal_id: str) -> str:
        """The call that names it is over: the end of its output, where that was not taken."""
        named = self._named.pop(terminal_id, None)
        run = self._lifecycle.current
        seen = None if run is None else run.services.output(terminal_id)
        if named is None:
            return ""
        rest = named.decoder.decode(b"", True)
        if not named.skipped or seen is None:
            return rest
        last = seen.last(min(AT_ONCE_BYTES, named.skipped))
        missing = max(0, named.skipped - sum(map(len, last.pieces)))
        return f"{rest}\n[... {missing} bytes cut ...]\n{last.text(final=True)}"

    async def room(self) -> None:
        """Wait while the journal is behind."""
        if self._named:
            await self._recorder.log.room()


@attrs.frozen
class _Watch:
    outputs: TerminalOutputs
    terminal_id: str

    def add(self, data: bytes) -> None:
        with suppress(JournalError):  # what the agent says next meets it, too
            self.outputs.add(self.terminal_id, data)

    async def room(self) -> None:
        with suppress(JournalError):
            await self.outputs.room()
