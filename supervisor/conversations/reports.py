"""How a conversation's state is told: the events of its runs' beginnings, pauses and ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import structlog
import trio

from supervisor.agents import ExitStatus
from supervisor.events import (
    Event,
    InterruptEvent,
    Message,
    MessageEvent,
    PauseEvent,
    SystemPromptEvent,
    TextContent,
    new_event_id,
)
from supervisor.journal import JournalError

from . import usage
from .record import ConversationRecord
from .recorder import Recorder
from .session import Memory
from .starting import Started

log = structlog.get_logger(__name__)

SYSTEM_PROMPT: Final = "The external agent manages its own system prompt, model and tools."
"""Stands where the built-in agent of the wire's servers has its prompt."""


class Reports:
    """Changes the execution status of a running conversation, and writes down that it did."""

    def __init__(self, recorder: Recorder, record: ConversationRecord, publish: Callable[[], None]) -> None:
        self._recorder = recorder
        self._record = record
        self._publish = publish

    def status(self, status: str) -> None:
        """The status is another one now."""
        if self._record.execution_status != status:
            self._record.execution_status = status
            self._recorder.write([self._recorder.state("execution_status", status)])

    def waiting(self) -> None:
        """A person is waited for. Whoever looks on learns it at once."""
        self.status("waiting_for_confirmation")
        self._publish()

    def interrupted(self) -> None:
        """A run was interrupted, and may not have settled yet."""
        if self._record.execution_status == "paused":
            return
        # The core vocabulary has no word for an interrupt but that of a pause.
        mark: Event = (
            InterruptEvent(id=new_event_id()) if self._recorder.extended else PauseEvent(id=new_event_id())
        )
        self._record.execution_status = "paused"
        self._recorder.write([mark, self._recorder.state("execution_status", "paused")])

    def closed(self, status: str, events: Sequence[Event] = ()) -> None:
        """The events of a run's end, the new status, the figures; then the snapshot that unblocks clients."""
        record = self._record
        closing: list[Event] = list(events)
        if record.execution_status != status:
            record.execution_status = status
            closing.append(self._recorder.state("execution_status", status))
        closing.append(self._recorder.state("stats", usage.stats(record.usage)))
        closing.append(self._recorder.state("agent_state", dict(record.agent_state)))
        self._recorder.write(closing)
        self._publish()

    async def echo(self, pauses: Sequence[float], over: Callable[[], bool]) -> None:
        """Send the state after a run again, a little later, unless that run is long over."""
        begin = trio.current_time()
        for after in pauses:
            await trio.sleep_until(begin + after)
            if over():
                return
            try:
                self._publish()
            except JournalError:
                return  # the conversation is deleted, or the server is at its end
            except Exception:
                log.exception("the state could not be sent again", conversation=self._record.id)
                return

    def session(self, started: Started) -> None:
        """A session is open."""
        self._recorder.write([self._recorder.state("agent_state", dict(self._record.agent_state))])
        memory = started.session.memory
        if memory in (Memory.NEW, Memory.LOST):
            # Clients expect a system prompt first; an external agent keeps its own to itself.
            prompt = SystemPromptEvent(
                id=new_event_id(), system_prompt=TextContent(text=SYSTEM_PROMPT), tools=()
            )
            self._recorder.write([prompt])
        if memory is Memory.LOST:
            text = (
                f"The agent's memory of this conversation could not be restored ({started.session.reason}). "
                "A new session goes on from a transcript of what was said."
            )
            message = Message(role="assistant", content=(TextContent(text=text),))
            self._recorder.write([MessageEvent(id=new_event_id(), source="environment", llm_message=message)])

    def exited(self, status: ExitStatus, in_turn: bool, words: list[str]) -> None:
        """The agent's process ended by itself."""
        value = {
            "code": status.code,
            "signal": status.signal,
            "uptime_seconds": round(status.uptime, 1),
            "turn_active": in_turn,
            "last_words": words,
        }
        self._recorder.write([self._recorder.state("agent_exit", value)])

    def phase(self, phase: str) -> None:
        """Where the agent is."""
        self._record.agent_state["phase"] = phase
        self._recorder.write([self._recorder.state("agent_phase", phase)])
