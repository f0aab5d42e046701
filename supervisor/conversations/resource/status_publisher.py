"""The events that report a conversation's state: at the beginning, pause and end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import trio

from supervisor.acp.schema import WORDS_CHARS, cut
from supervisor.agents.endings import ExitStatus
from supervisor.agents.limits.hits import LimitHit
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.resource.resource import Described, full_state
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.state.failures import error_event
from supervisor.conversations.state.queue import TurnQueue
from supervisor.conversations.state.state import (
    LossReported,
    Paused,
    PersonAsked,
    RunClosed,
    TurnEnded,
    Update,
)
from supervisor.conversations.state.status import AgentPhase, ExecutionStatus, Memory
from supervisor.conversations.state.turn import Turn
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
from supervisor.journal.errors import JournalError


@attrs.frozen
class Refusal:
    """A setting that the agent refused: `option` is `model` or `mode`, `current` the value that it has
    instead, if known."""

    option: str
    value: str
    reason: str
    current: str | None

    def tell(self) -> str:
        """One or two sentences for a person."""
        kept = "" if self.current is None else f" It continues with {self.current!r}."
        value = cut(self.value, WORDS_CHARS)
        return f"The agent does not take the {self.option} {value!r}: {self.reason}.{kept}"


class StatusPublisher:
    """Changes the execution status of a conversation, and records it.

    Everything is synchronous, except that the state is sent again after a run has ended or waits for a
    person: by a task in `nursery`, after `echo` seconds each. `data` has a directory for each conversation's
    agent; `hooks`: whether any run. Methods that write raise JournalError.
    """

    def __init__(
        self,
        recorder: Recorder,
        agent: Described,
        queue: TurnQueue,
        nursery: trio.Nursery,
        echo: Sequence[float],
        data: Path,
        *,
        hooks: bool = True,
    ) -> None:
        self._hooks = hooks
        self._recorder = recorder
        self._record = recorder.record
        self._agent = agent
        self._logger = recorder.logger
        self._queue = queue
        self._nursery = nursery
        self._echo = echo
        self._data = data
        self._again = trio.CancelScope()

    def publish(self) -> None:
        """Publish the snapshot of the state, after all that was recorded before."""
        self._recorder.publish(full_state(self._agent, self._data, hooks=self._hooks))

    def waiting(self) -> None:
        """Record that a permission request waits for a person, and publish it at once."""
        self._recorder.apply(PersonAsked())
        self._publish_and_again()

    def interrupted(self) -> None:
        """Record that a run was interrupted; its turn may still be running."""
        if self._record.now.execution_status is ExecutionStatus.PAUSED:
            return
        # The core vocabulary has no interrupt event, only the pause event.
        mark: Event = (
            InterruptEvent(id=new_event_id()) if self._recorder.extended else PauseEvent(id=new_event_id())
        )
        shown = self._queue.interrupt_shown
        self._queue.show_interrupt()
        self._recorder.apply(Paused(() if shown else (mark,)))

    # -- ends of a run ----------------------------------------------------------------------------------

    # `ended`: the end of the turn that the run ends with, if any.

    def run_failed(self, failure: AgentFailure, ended: TurnEnded | None = None) -> None:
        """Record that the run failed: the status is `error`, and the queue waits."""
        self._queue.wanted = False
        self._record.reported.agent_state.pop("needs_credentials", None)
        if failure.choices is not None:
            self._record.reported.agent_state["needs_credentials"] = dict(failure.choices)
        self._logger.warning("turn failed", code=failure.code)
        self.run_closed(ExecutionStatus.ERROR, [error_event(failure)], ended)

    def run_paused(self, ended: TurnEnded | None = None) -> None:
        """Record that an interrupted run has ended."""
        self.interrupted()
        self.run_closed(ExecutionStatus.PAUSED, ended=ended)

    def run_closed(
        self, status: ExecutionStatus, events: Sequence[Event] = (), ended: TurnEnded | None = None
    ) -> None:
        """Record the end of a run: its events, the status, the usage; then the snapshot that unblocks
        clients."""
        record = self._record
        self._queue.close_run()
        stats = () if self._agent.sends_usage else (Update("stats", self._agent.usage()),)
        agent_state = Update("agent_state", dict(record.reported.agent_state))
        self._recorder.apply(RunClosed(status, events, ended, (*stats, agent_state)))
        self._publish_and_again()

    def _publish_and_again(self) -> None:
        """Publish a state that a client may wait for, and again a little later: slower clients start waiting
        only after the answer to their request."""
        self.publish()
        # One at a time: an agent may send and cancel any number of requests.
        self._again.cancel()
        self._again = trio.CancelScope()
        self._nursery.start_soon(
            self._send_again, self._again, self._queue.turns, self._record.now.execution_status
        )

    async def _send_again(self, scope: trio.CancelScope, turns: int, status: ExecutionStatus) -> None:
        """Send the state again, unless it has changed."""
        begin = trio.current_time()
        with scope:
            for after in self._echo:
                await trio.sleep_until(begin + after)
                if self._queue.turns != turns or self._record.now.execution_status != status:
                    return
                try:
                    self.publish()
                except JournalError:
                    return  # the conversation is deleted, or the server is at its end
                except Exception:
                    self._logger.exception("cannot send the state again")
                    return

    # -- the agent ---------------------------------------------------------------------------------------

    def session(self, memory: Memory, reason: str | None, system_prompt: str | None) -> None:
        """Record an open session. `reason` says why the agent's memory was lost, if it was. `system_prompt`:
        what clients see as that of a new one; None where the agent tells it."""
        self._recorder.write(
            [self._recorder.state("agent_state", dict(self._record.reported.agent_state))], quiet=True
        )
        if memory in (Memory.NEW, Memory.LOST) and system_prompt is not None:
            shown = TextContent(text=system_prompt)
            prompt = SystemPromptEvent(id=new_event_id(), system_prompt=shown, tools=())
            self._recorder.write([prompt], quiet=True)
        if memory is Memory.LOST and not self._record.now.loss_reported:
            self._recorder.apply(LossReported())
            text = (
                f"The agent's memory of this conversation could not be restored ({reason}). "
                "A new session continues from a transcript."
            )
            self.said(text)

    def said(self, text: str) -> None:
        """Record a notice of Ostler about the agent, as a message, since every client shows messages."""
        self._recorder.write([_message(text)])

    def refused(self, refusals: Sequence[Refusal]) -> None:
        """Record the settings that the agent refused, each once while it stays refused."""
        record = self._record
        known, record.reported.options_refused = (
            record.reported.options_refused,
            {each.option: each.value for each in refusals},
        )
        for each in refusals:
            if known.get(each.option) == each.value:
                continue
            value = attrs.asdict(each)
            self._recorder.write([self._recorder.state("agent_option_refused", value), _message(each.tell())])

    def exited(
        self, status: ExitStatus, stderr_tail: list[str], turn: Turn | None, hit: LimitHit | None = None
    ) -> None:
        """Record that the agent's process exited by itself, or for the limit that it `hit`; `stderr_tail` is
        masked, and `turn` the turn that this cut off."""
        value = {
            "code": status.code,
            "signal": status.signal,
            "from_outside": status.from_outside and hit is None,
            "uptime_seconds": round(status.uptime, 1),
            "turn_active": turn is not None,
            "message_id": None if turn is None else turn.message_id,
            "last_words": stderr_tail,
        }
        self._recorder.write([self._recorder.state("agent_exit", value)], quiet=True)
        if hit is not None:
            self.limit_hit(hit, in_turn=turn is not None)

    def limit_hit(self, hit: LimitHit, *, in_turn: bool) -> None:
        """Record that the agent hit a limit of its process tree. `in_turn`: the failure of its turn says
        so already."""
        state = self._recorder.state("agent_limit", hit.dump())
        self._recorder.write([state] if in_turn else [state, _message(hit.text)], quiet=in_turn)

    def network_refused(self, host: str, port: int, why: str) -> None:
        """Record that the door of the agent's network refused a host."""
        value = {"host": host, "port": port, "reason": why}
        self._recorder.write([self._recorder.state("agent_network_refused", value)], quiet=True)

    def phase(self, phase: AgentPhase) -> None:
        """Record the agent's phase."""
        self._record.reported.agent_state["phase"] = phase
        self._recorder.write([self._recorder.state("agent_phase", phase)], quiet=True)


def _message(text: str) -> MessageEvent:
    message = Message(role="assistant", content=(TextContent(text=text),))
    return MessageEvent(id=new_event_id(), source="environment", llm_message=message)
