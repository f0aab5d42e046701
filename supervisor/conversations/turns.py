"""The turns of a conversation, one after another: how each begins, and what is written down at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import structlog

from supervisor.acp.schema import Usage as TokenUsage
from supervisor.events import Event

from . import usage
from .confirmations import Confirmations
from .errors import AgentFailure
from .failures import error_event
from .keeper import Keeper
from .memory import FLOOD_BYTES, give_back
from .operators import FAILED
from .recorder import Recorder
from .reports import Reports
from .session import add_choices
from .translate import Close, Translator
from .turn import Turn
from .work import Queued, Work

if TYPE_CHECKING:
    from .conversation import Context

log = structlog.get_logger(__name__)

DETAIL_CHARS: Final = 500
"""Longest detail of an error that we did not foresee."""


class Turns:
    """Knows the turn under way, and ends it. An end that comes for another turn than that is too late, and
    does nothing.

    All of it is synchronous: nothing that the agent says comes between the parts of an end. Whatever
    writes raises JournalError when the journal cannot be written to.
    """

    def __init__(
        self,
        context: Context,
        work: Work,
        keeper: Keeper,
        recorder: Recorder,
        translator: Translator,
        reports: Reports,
        confirmations: Confirmations,
    ) -> None:
        self._context = context
        self._work = work
        self._keeper = keeper
        self._recorder = recorder
        self._record = recorder.record
        self._translator = translator
        self._reports = reports
        self._confirmations = confirmations
        self._begun = 0
        self.current: Turn | None = None
        """The turn under way."""

    @property
    def cancelling(self) -> bool:
        """Whether a cancelled turn has not settled yet."""
        return self.current is not None and self.current.cancelling

    def begin(self, item: Queued) -> Turn:
        """The message is about to be handed to the agent: it leaves the queue.

        Once the record is on disk it counts as handed over: should the server die then, it is reported.
        """
        self._work.inbox.remove(item)
        self._record.prompted_seq = max(self._record.prompted_seq, item.seq)
        self._record.turn_open = self._record.unfinished = True
        self._record.retry_seq = None
        self.release()  # late words of the turn before are not the beginning of this one's
        self._begun += 1
        self._translator.originals.new_turn()
        self._translator.gathered = 0
        self.current = turn = Turn(self._begun, item.seq)
        self._recorder.save()
        return turn

    def release(self) -> None:
        """Write what was held back for more of it. Between turns, open text becomes a message as well."""
        self._recorder.emit(self._translator.release())
        if self.current is None:
            self._recorder.emit(self._translator.close_text())

    # -- ends of a turn ---------------------------------------------------------------------------------

    def finish(self, turn: Turn, stop_reason: str, tokens: TokenUsage | None = None) -> None:
        """The agent ended it, with a stop reason of the protocol; `cancelled` also where it had no say.

        `tokens` is what the turn took, if the agent tells.
        """
        if self.current is not turn:
            return
        outcome = turn.settle(stop_reason)
        record = self._record
        if tokens is not None:
            record.usage = usage.with_tokens(record.usage, tokens)
        self._recorder.emit(
            self._translator.end_turn(Close.FINISH if outcome.finish else Close.MESSAGE, outcome.note)
        )
        self._clear()
        self._context.tally.count_turn(stop_reason)
        record.unfinished = not outcome.finish
        record.agent_state["stop_reason"] = stop_reason
        if outcome.error is not None:
            code, detail = outcome.error
            self.run_failed(AgentFailure(code, detail, kind="agent_action"))
        elif self._work.interrupted:
            self.run_paused()
        elif record.execution_status == "paused":
            self._close_run("paused")
        elif not self._work.more:
            self._close_run(outcome.status)
        else:
            self._recorder.save()

    def fail(self, turn: Turn, failure: AgentFailure) -> None:
        """It came to nothing, or to no end. An agent that wants credentials is ended with it."""
        if self.current is not turn:
            return
        self._recorder.emit(self._translator.end_turn(Close.MESSAGE))
        self._clear()
        self._record.agent_state["stop_reason"] = FAILED
        self._context.tally.count_turn(FAILED)
        if failure.code == "ACPAuthRequired":
            if not turn.updates:
                self._record.retry_seq = turn.prompt_seq
            run = self._keeper.run
            if run is not None:
                if run.initialized is not None:
                    add_choices(failure, run.plan.login, run.initialized)
                self._keeper.drop(run)  # it comes back with what credentials there are then
        self.run_failed(failure)

    def answered(self, item: Queued, text: str) -> None:
        """A message was answered by Ostler itself: it leaves the queue, and the agent never hears of it.

        What an earlier turn left unfinished stays so.
        """
        self._work.inbox.remove(item)
        self._record.prompted_seq = max(self._record.prompted_seq, item.seq)
        self.release()
        self._recorder.emit(self._translator.answer(text))
        if self._work.interrupted:
            self.run_paused()
        elif self._record.execution_status == "paused":
            self._close_run("paused")
        elif not self._work.more:
            self._close_run("finished")
        else:
            self._recorder.save()

    def break_down(self, error: Exception) -> None:
        """A fault of ours ended what was going on. Raises nothing: it is the last that can be said."""
        failure = AgentFailure("InternalError", f"{type(error).__name__}: {error}"[:DETAIL_CHARS])
        self._work.wanted = False
        try:
            if self.current is not None:
                self.fail(self.current, failure)
            else:
                self.run_failed(failure)
        except Exception:
            # A fault over a fault stays in its conversation, too: the task above it is the whole server's.
            log.exception("the failure could not be recorded", conversation=self._record.id)

    def _clear(self) -> None:
        self.current = None
        if self._translator.gathered > FLOOD_BYTES:
            self._context.nursery.start_soon(give_back, self._recorder.log)
        self._record.turn_open = False
        self._confirmations.cancel()

    # -- ends of a run ----------------------------------------------------------------------------------

    def run_failed(self, failure: AgentFailure) -> None:
        """Nothing more is taken up; the state is `error`."""
        self._work.wanted = False
        self._record.agent_state.pop("needs_credentials", None)
        if failure.choices is not None:
            self._record.agent_state["needs_credentials"] = dict(failure.choices)
        log.warning("turn failed", conversation=self._record.id, code=failure.code)
        self._close_run("error", [error_event(failure)])

    def run_paused(self) -> None:
        """It was interrupted, and that is through."""
        self._reports.interrupted()
        self._close_run("paused")

    def _close_run(self, status: str, events: Sequence[Event] = ()) -> None:
        self._reports.closed(status, events)
        begun = self._begun
        self._context.nursery.start_soon(
            self._reports.echo,
            self._context.deadlines.echo,
            lambda: self._begun != begun or self._work.busy,
        )
