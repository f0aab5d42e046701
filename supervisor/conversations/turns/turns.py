"""The turns of a conversation, one after another: how each begins, and what is recorded at its end."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import structlog

from supervisor.acp.schema import Usage as TokenUsage
from supervisor.conversations.agent.context import Context
from supervisor.conversations.agent.lifecycle import AgentLifecycle
from supervisor.conversations.agent.session import add_choices
from supervisor.conversations.hooks.hooks import Hooks
from supervisor.conversations.recording import usage
from supervisor.conversations.recording.memory import FLOOD_BYTES, give_back
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.recording.reports import Reports
from supervisor.conversations.recording.translate import Close, Translator
from supervisor.conversations.state.counters import FAILED
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.state.queue import Queued, TurnQueue
from supervisor.conversations.state.status import ExecutionStatus
from supervisor.conversations.state.turn import Turn
from supervisor.conversations.turns.permissions import Permissions
from supervisor.journal import JournalError

log = structlog.get_logger(__name__)

DETAIL_CHARS: Final = 500
"""Longest detail of an unforeseen error, in characters."""


class Turns:
    """Begins and ends the current turn (`TurnQueue.turn`). An end for any other turn is too late, and does
    nothing.

    Everything is synchronous: nothing that the agent sends comes between the parts of an end. Methods that
    write raise JournalError.
    """

    def __init__(
        self,
        context: Context,
        queue: TurnQueue,
        lifecycle: AgentLifecycle,
        recorder: Recorder,
        translator: Translator,
        reports: Reports,
        permissions: Permissions,
        hooks: Hooks | None = None,
    ) -> None:
        self._hooks = hooks
        self.held: ExecutionStatus | None = None
        """The status of a run that has ended as far as the agent goes; the runner asks the hooks first."""
        self._context = context
        self._queue = queue
        self._lifecycle = lifecycle
        self._recorder = recorder
        self._record = recorder.record
        self._translator = translator
        self._reports = reports
        self._permissions = permissions
        self._logger = log.bind(conversation_id=recorder.record.id)

    def begin(self, item: Queued) -> Turn:
        """Begin a turn: the message leaves the queue, and is about to be handed to the agent.

        Once the record is on disk the message counts as handed over: if the server dies then, it is reported.
        """
        self._record.prompted_seq = max(self._record.prompted_seq, item.seq)
        self._record.turn_open = self._record.unfinished = True
        self._record.retry_seq = None
        self.held = None
        self.release()  # late words of the turn before are not the beginning of this one's
        self._translator.new_turn()
        turn = self._queue.hand_over(item)
        self._recorder.save()
        return turn

    def release(self) -> None:
        """Write the events that were held back. Between turns, open text becomes a message as well."""
        self._recorder.emit(self._translator.release(everything=self._queue.turn is None))
        if self._queue.turn is None:
            self._recorder.emit(self._translator.close_text())

    # -- ends of a turn ---------------------------------------------------------------------------------

    def finish(self, turn: Turn, stop_reason: str, tokens: TokenUsage | None = None) -> None:
        """End the turn with a stop reason of ACP; `cancelled` also if the agent did not answer.

        `tokens`: the tokens that the turn used, if the agent reports them.
        """
        if self._queue.turn is not turn:
            return
        if self._queue.interrupted:
            turn.cancel()  # it may have had no session to cancel yet
        outcome = turn.settle(stop_reason)
        record = self._record
        if tokens is not None:
            record.usage = usage.with_tokens(record.usage, tokens)
        self._recorder.emit(
            self._translator.end_turn(Close.FINISH if outcome.finish else Close.MESSAGE, outcome.note)
        )
        self._clear()
        self._context.counters.count_turn(stop_reason)
        record.unfinished = not outcome.finish
        record.agent_state["stop_reason"] = stop_reason
        if outcome.error is not None:
            code, detail = outcome.error
            self._reports.run_failed(AgentFailure(code, detail, kind="agent_action"))
        elif self._queue.interrupted:
            self._reports.run_paused()
        elif record.execution_status is ExecutionStatus.PAUSED:
            self._reports.run_closed(ExecutionStatus.PAUSED)
        elif self._hooks is not None and outcome.finish and self._hooks.holds():
            self.held = outcome.status
            self._recorder.save()
        elif not self._queue.more:
            self._reports.run_closed(outcome.status)
        else:
            self._recorder.save()

    def fail(self, turn: Turn, failure: AgentFailure) -> None:
        """End the turn with a failure. An agent that requires credentials is ended with it."""
        if self._queue.turn is not turn:
            return
        self._recorder.emit(self._translator.end_turn(Close.MESSAGE))
        self._clear()
        self._record.agent_state["stop_reason"] = FAILED
        self._context.counters.count_turn(FAILED)
        if failure.code == "ACPAuthRequired":
            if not turn.updates:
                self._record.retry_seq = turn.prompt_seq
            run = self._lifecycle.ready
            if run is not None:
                if run.initialized is not None:
                    add_choices(failure, run.plan.login, run.initialized)
                self._lifecycle.drop(run)  # it comes back with what credentials there are then
        self._reports.run_failed(failure)

    def blocked(self, item: Queued) -> None:
        """Record that a hook blocked a message: it leaves the queue, and the agent never gets it."""
        self._queue.waiting.remove(item)
        self._record.prompted_seq = max(self._record.prompted_seq, item.seq)
        self._go_on(ExecutionStatus.FINISHED)

    def answered(self, item: Queued, text: str) -> None:
        """Record that Ostler answered a message: it leaves the queue, and the agent never gets it.

        An unfinished earlier turn stays unfinished.
        """
        self._queue.waiting.remove(item)
        self._record.prompted_seq = max(self._record.prompted_seq, item.seq)
        self.release()
        self._recorder.emit(self._translator.answer(text))
        self._go_on(ExecutionStatus.FINISHED)

    def end_held(self) -> None:
        """Close the run that was held, unless there is more to do."""
        status, self.held = self.held, None
        if status is not None:
            self._go_on(status)

    def _go_on(self, status: ExecutionStatus) -> None:
        """Close the run with this status, unless it goes on."""
        if self._queue.interrupted:
            self._reports.run_paused()
        elif self._record.execution_status is ExecutionStatus.PAUSED:
            self._reports.run_closed(ExecutionStatus.PAUSED)
        elif not self._queue.more:
            self._reports.run_closed(status)
        else:
            self._recorder.save()

    def break_down(self, error: Exception) -> None:
        """Record that an internal error ended the run. Raises nothing."""
        failure = AgentFailure("InternalError", f"{type(error).__name__}: {error}"[:DETAIL_CHARS])
        self._queue.wanted = False
        try:
            if self._queue.turn is not None:
                self.fail(self._queue.turn, failure)
            else:
                self._reports.run_failed(failure)
        except Exception:
            # A fault over a fault stays in its conversation, too: the task above it is the whole server's.
            self._logger.exception("cannot record the failure")
            with suppress(JournalError):
                self._recorder.abort_item("failed")

    def leave(self) -> None:
        """The conversation's task ends: what was said and not written yet is written. Raises nothing."""
        try:
            self._recorder.emit(self._translator.release() + self._translator.close_text())
        except JournalError:
            pass  # it is deleted, or nothing can be stored any more
        except Exception:
            self._logger.exception("cannot record the last text")

    def _clear(self) -> None:
        self._queue.turn = None
        if self._translator.gathered > FLOOD_BYTES:
            self._context.nursery.start_soon(give_back, self._recorder.log)
        self._record.turn_open = False
        self._permissions.cancel()
