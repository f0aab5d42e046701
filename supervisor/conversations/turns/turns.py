"""The turns of a conversation, one after another: how each begins, and what is written down at its end."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import structlog

from supervisor.acp.schema import Usage as TokenUsage
from supervisor.conversations.agent.context import Context
from supervisor.conversations.agent.lifecycle import AgentLifecycle
from supervisor.conversations.agent.session import add_choices
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
"""Longest detail of an error that we did not foresee."""


class Turns:
    """Begins and ends the turn under way (`TurnQueue.turn`). An end that comes for another turn than that is
    too late, and does nothing.

    All of it is synchronous: nothing that the agent says comes between the parts of an end. Whatever
    writes raises JournalError when the journal cannot be written to.
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
    ) -> None:
        self._context = context
        self._queue = queue
        self._lifecycle = lifecycle
        self._recorder = recorder
        self._record = recorder.record
        self._translator = translator
        self._reports = reports
        self._permissions = permissions
        self._logger = log.bind(conversation=recorder.record.id)

    def begin(self, item: Queued) -> Turn:
        """The message is about to be handed to the agent: it leaves the queue.

        Once the record is on disk it counts as handed over: should the server die then, it is reported.
        """
        self._record.prompted_seq = max(self._record.prompted_seq, item.seq)
        self._record.turn_open = self._record.unfinished = True
        self._record.retry_seq = None
        self.release()  # late words of the turn before are not the beginning of this one's
        self._translator.new_turn()
        turn = self._queue.hand_over(item)
        self._recorder.save()
        return turn

    def release(self) -> None:
        """Write what was held back for more of it. Between turns, open text becomes a message as well."""
        self._recorder.emit(self._translator.release())
        if self._queue.turn is None:
            self._recorder.emit(self._translator.close_text())

    # -- ends of a turn ---------------------------------------------------------------------------------

    def finish(self, turn: Turn, stop_reason: str, tokens: TokenUsage | None = None) -> None:
        """The agent ended it, with a stop reason of the protocol; `cancelled` also where it had no say.

        `tokens` is what the turn took, if the agent tells.
        """
        if self._queue.turn is not turn:
            return
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
        elif not self._queue.more:
            self._reports.run_closed(outcome.status)
        else:
            self._recorder.save()

    def fail(self, turn: Turn, failure: AgentFailure) -> None:
        """It came to nothing, or to no end. An agent that wants credentials is ended with it."""
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

    def answered(self, item: Queued, text: str) -> None:
        """A message was answered by Ostler itself: it leaves the queue, and the agent never hears of it.

        What an earlier turn left unfinished stays so.
        """
        self._queue.waiting.remove(item)
        self._record.prompted_seq = max(self._record.prompted_seq, item.seq)
        self.release()
        self._recorder.emit(self._translator.answer(text))
        if self._queue.interrupted:
            self._reports.run_paused()
        elif self._record.execution_status is ExecutionStatus.PAUSED:
            self._reports.run_closed(ExecutionStatus.PAUSED)
        elif not self._queue.more:
            self._reports.run_closed(ExecutionStatus.FINISHED)
        else:
            self._recorder.save()

    def break_down(self, error: Exception) -> None:
        """A fault of ours ended what was going on. Raises nothing: it is the last that can be said."""
        failure = AgentFailure("InternalError", f"{type(error).__name__}: {error}"[:DETAIL_CHARS])
        self._queue.wanted = False
        try:
            if self._queue.turn is not None:
                self.fail(self._queue.turn, failure)
            else:
                self._reports.run_failed(failure)
        except Exception:
            # A fault over a fault stays in its conversation, too: the task above it is the whole server's.
            self._logger.exception("the failure could not be recorded")
            with suppress(JournalError):
                self._recorder.abort_item("failed")

    def leave(self) -> None:
        """The conversation's task ends: what was said and not written yet is written. Raises nothing."""
        try:
            self._recorder.emit(self._translator.release() + self._translator.close_text())
        except JournalError:
            pass  # it is deleted, or nothing can be stored any more
        except Exception:
            self._logger.exception("what was said last could not be recorded")

    def _clear(self) -> None:
        self._queue.turn = None
        if self._translator.gathered > FLOOD_BYTES:
            self._context.nursery.start_soon(give_back, self._recorder.log)
        self._record.turn_open = False
        self._permissions.cancel()
