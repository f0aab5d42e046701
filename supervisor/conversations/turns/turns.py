"""The turns of a conversation, one after another: how each begins, and what is recorded at its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Final

import trio

from supervisor.acp.schema.prompt import PromptResult
from supervisor.conversations.agent.kind import Ending
from supervisor.conversations.agent.lifecycle.lifecycle import AgentLifecycle
from supervisor.conversations.agent.session_setup import add_choices
from supervisor.conversations.agent.shared import Shared
from supervisor.conversations.history.memory import FLOOD_BYTES, return_memory
from supervisor.conversations.hooks.hooks import Hooks
from supervisor.conversations.recording import usage
from supervisor.conversations.recording.effects import Close, Effect, Recorded
from supervisor.conversations.state.counters import FAILED
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.state.queue import Queued
from supervisor.conversations.state.state import (
    BLOCKED,
    INTERRUPTED,
    CallsCutOff,
    MessageJoined,
    TurnEnded,
    TurnTaken,
)
from supervisor.conversations.state.status import CutOff, ExecutionStatus
from supervisor.conversations.state.turn import Turn
from supervisor.conversations.turns.permissions import Permissions
from supervisor.events import ActionEvent, FinishAction
from supervisor.journal.errors import JournalError

STOP_REASON_CHARS: Final = 80
"""Longest stop reason in a state, in characters: agents can invent them."""

WITHOUT_ANSWER: Final = "The agent ended its turn without an answer."

AFTER_REJECTION: Final = (
    "A tool call was rejected, and the agent ended its turn without a word. Send a message to continue."
)

STOPPED: Final = (
    ExecutionStatus.ERROR,
    ExecutionStatus.IDLE,
    ExecutionStatus.PAUSED,
    ExecutionStatus.STUCK,
)
"""What an agent that tells its events may say that it has stopped with, besides that it has finished."""

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
        shared: Shared,
        lifecycle: AgentLifecycle,
        permissions: Permissions,
        hooks: Hooks | None = None,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._clock = clock
        self._hooks = hooks
        self.held: ExecutionStatus | None = None
        """The status of a run that has ended as far as the agent goes; the runner asks the hooks first, since
        clients stop listening at `finished`."""
        self._context = shared.context
        self._queue = shared.queue
        self._lifecycle = lifecycle
        self._recorder = shared.recorder
        self._record = shared.record
        self._translator = shared.translator
        self._publisher = shared.publisher
        self._permissions = permissions
        self._voice = shared.voice
        self._logger = shared.recorder.logger

    def begin(self, item: Queued) -> Turn:
        """Begin a turn: the message leaves the queue, and is about to be handed to the agent.

        Once the record is on disk the message counts as handed over: if the server dies then, it is reported.
        """
        self.held = None
        self.release()  # late output of the previous turn does not belong to this one
        self._translator.new_turn()
        self._permissions.new_turn()
        self._voice.new_turn(item)
        turn = self._queue.hand_over(item)
        turn.begun, turn.usage = self._clock(), self._record.reported.usage
        self._recorder.apply(self._voice.begun(item))
        return turn

    def prompted(self) -> None:
        """The agent is about to get the message."""
        self._recorder.updates.flush()
        self._recorder.emit(self._translator.begin_answer())

    def hand_over_again(self, turn: Turn) -> None:
        """The turn ends before its message reached the agent: the next `run` begins with it."""
        change = self._voice.not_handed_over(turn)
        if change is not None:
            self._recorder.apply(change)

    def join(self, message_id: str) -> None:
        """The agent has a message that waits, and reads it in the turn that runs: it leaves the queue.

        The record says so before anything that comes of the message: if the server dies, the message belongs
        to the turn that was cut off. One that is not the first to wait, or comes when no turn runs, waits on:
        the agent skips a message that it has.
        """
        item, turn = self._queue.join(message_id), self._queue.turn
        if item is None or turn is None:
            return
        turn.updates += 1
        self._voice.joined(message_id)
        self._recorder.apply(MessageJoined(item.seq, message_id))

    def release(self) -> None:
        """Write the events that were held back. Between turns, open text becomes a message as well."""
        self._recorder.emit(self._translator.release(everything=self._queue.turn is None))
        if self._queue.turn is None:
            self._recorder.updates.flush()
            self._recorder.emit(self._translator.close_text())

    # -- ends of a turn ---------------------------------------------------------------------------------

    def finish(self, turn: Turn, stop_reason: str, answer: PromptResult | None = None) -> None:
        """End the turn with a stop reason of ACP; `cancelled` also if the agent did not answer.

        `answer`: the agent's, whose reason it is.
        """
        if self._queue.turn is not turn:
            return
        if self._queue.interrupted:
            turn.cancel()  # it may have had no session to cancel yet
        ending = self._voice.ending(None if answer is None else answer.raw)
        if ending is not None:
            self._finish_native(turn, stop_reason, ending)
            return
        answered = self._translator.spoke
        outcome = turn.settle(stop_reason, answered=answered)
        record = self._record
        tokens = (answer and answer.usage) or self._translator.tokens
        if tokens is not None:
            record.reported.usage = usage.with_tokens(record.reported.usage, tokens)
        # A turn that did not end well may leave calls open, which some agents run when their session is
        # restored.
        well = outcome.status is ExecutionStatus.FINISHED and stop_reason != "cancelled"
        cancelled = answer is not None and stop_reason == "cancelled"
        if not well:
            self._note_open_calls(CutOff.CANCELLED if cancelled else CutOff.UNKNOWN)
        unsaid = self._unsaid(turn, outcome.note) if outcome.finish and not answered else None
        effects = self._translator.end_turn(
            Close.FINISH if outcome.finish else Close.MESSAGE, outcome.note, unsaid
        )
        self._recorder.emit(effects)
        if outcome.finish:
            self._permissions.unasked.turn_finished()
        used = usage.of_turn(turn.usage, record.reported.usage, tokens)
        ended = self._ended(
            turn,
            stop_reason,
            answer_id=_answer_id(effects),
            answered=answered,
            usage=used,
            finished=outcome.finish,
            all_calls_ended=well,
        )
        if outcome.error is not None:
            code, detail = outcome.error
            self._publisher.run_failed(AgentFailure(code, detail, kind="agent_action"), ended)
        elif (
            self._hooks is not None
            and outcome.finish
            and not self._queue.interrupted
            and record.now.execution_status is not ExecutionStatus.PAUSED
            and self._hooks.holds()
        ):
            # `finished` waits for the hooks: clients stop listening there, and a hook may send the agent
            # back.
            self.held = outcome.status
            self._recorder.apply(ended)
        else:
            self._close_run(outcome.status, ended)

    def _finish_native(self, turn: Turn, stop_reason: str, ending: Ending) -> None:
        """End the turn of an agent that has sent its answer as an event."""
        turn.settle(stop_reason)
        status = ending.status
        self._end_calls()
        answer_id = ending.answer_id
        ended = self._ended(
            turn,
            stop_reason,
            answer_id=answer_id,
            answered=answer_id is not None,
            finished=status == ExecutionStatus.FINISHED,
            taken=stop_reason != "cancelled",
        )
        if status == ExecutionStatus.PAUSED and self._queue.more and self._queue.waiting[0].resumes:
            self._recorder.apply(ended)  # a client resumed it before its step had ended
            return
        self._queue.drop_resumptions()
        if self._queue.interrupted:
            self._publisher.run_paused(ended)
        elif status == ExecutionStatus.FINISHED:
            self._close_run(ExecutionStatus.FINISHED, ended)
        elif status in STOPPED and (status != ExecutionStatus.ERROR or ending.failed):
            self._queue.wanted = False
            self._publisher.run_closed(ExecutionStatus(status), ended=ended)
        else:
            detail = f"The agent stopped without a reason; its status is {str(status)[:STOP_REASON_CHARS]}."
            self._publisher.run_failed(AgentFailure("ACPPromptError", detail, kind="agent_action"), ended)

    def fail(self, turn: Turn, failure: AgentFailure) -> None:
        """End the turn with a failure. An agent that requires credentials is ended with it."""
        if self._queue.turn is not turn:
            return
        self._note_open_calls(CutOff.UNKNOWN)
        self._end_calls()
        tokens = self._translator.tokens
        if tokens is not None:
            self._record.reported.usage = usage.with_tokens(self._record.reported.usage, tokens)
        used = usage.of_turn(turn.usage, self._record.reported.usage, tokens)
        spoke = self._translator.spoke or self._voice.spoke
        ended = self._ended(turn, FAILED, error=failure.code, answered=spoke, usage=used)
        self._queue.drop_resumptions()
        if failure.code == "ACPAuthRequired":
            # Nothing of the message happened: after the login a run hands it over once more.
            if not turn.updates:
                self.hand_over_again(turn)
            run = self._lifecycle.ready
            if run is not None:
                if run.initialized is not None:
                    add_choices(failure, run.plan.login, run.initialized)
                self._lifecycle.drop(run)  # it comes back with what credentials there are then
        self._publisher.run_failed(failure, ended)

    def fail_before(self, failure: AgentFailure) -> None:
        """The run fails before its message is handed over. A turn whose lost agent was to get a person's
        answers from it ends, too."""
        ended = None
        if self._record.now.turn is not None:
            self._close_asked()
            ended = TurnEnded(FAILED, error=failure.code)
        self._publisher.run_failed(failure, ended)

    def outlive(self, turn: Turn) -> bool:
        """The agent is gone while a person is asked: wait on for the answer, with no turn under way. Returns
        False where the next agent would not ask again."""
        if self._queue.turn is not turn or not self._permissions.outlive():
            return False
        self._queue.turn, self._queue.wanted = None, False
        self._recorder.emit(self._voice.close_items())
        return True

    def blocked(self, item: Queued) -> None:
        """Record that a hook blocked a message: it leaves the queue, and the agent never gets it."""
        self._queue.waiting.remove(item)
        self._recorder.apply(TurnTaken(item.seq, item.event_id))
        self._close_run(ExecutionStatus.FINISHED, TurnEnded(BLOCKED))

    def answered(self, item: Queued, text: str) -> None:
        """Record that Ostler answered a message: it leaves the queue, and the agent never gets it.

        An unfinished earlier turn stays unfinished.
        """
        self._queue.waiting.remove(item)
        self.release()
        if self._permissions.keeps:
            self._close_asked()  # the turn that they belong to ends
        self._recorder.apply(TurnTaken(item.seq, item.event_id))
        effects = self._translator.answer(text)
        self._recorder.emit(effects)
        answer_id = _answer_id(effects)
        ended = TurnEnded("end_turn", answer_id=answer_id, answered=answer_id is not None)
        self._close_run(ExecutionStatus.FINISHED, ended)

    def end_held(self) -> None:
        """Close the run that was held, unless there is more to do."""
        status, self.held = self.held, None
        if status is not None:
            self._close_run(status)

    def _close_run(self, status: ExecutionStatus, ended: TurnEnded | None = None) -> None:
        """Close the run with this status, unless it continues; `ended` is the end of its turn."""
        again = self._queue.interrupt_shown and self._queue.more  # run again before its turn ended
        if self._queue.interrupted and not (again and ended is not None):
            self._publisher.run_paused(ended)
        elif self._record.now.execution_status is ExecutionStatus.PAUSED:
            self._publisher.run_closed(ExecutionStatus.PAUSED, ended=ended)
        elif not self._queue.more:
            self._publisher.run_closed(status, ended=ended)
        elif ended is not None:
            self._recorder.apply(ended)
        else:
            self._recorder.save()

    def _note_open_calls(self, how: CutOff) -> None:
        """Note how the turn leaves calls open. On disk before their ends: after a death of the server between
        these and the end of the turn, nothing else tells of it."""
        if self._translator.calling:
            self._recorder.apply(CallsCutOff(how))
            self._recorder.save()

    def _unsaid(self, turn: Turn, note: str | None) -> str:
        """What stands in place of an answer that the agent did not give: what else it wrote."""
        if self._translator.rejected:
            return AFTER_REJECTION  # it obeyed: its last words explain nothing
        text = WITHOUT_ANSWER if note is None else f"{WITHOUT_ANSWER} {note}."
        tail = [line for _, line in self._lifecycle.output.tail(turn.begun)]
        if tail:
            return "\n".join([f"{text} Its last words:", *tail])
        before = [line for _, line in self._lifecycle.output.tail()]
        if before:
            return "\n".join([f"{text} It wrote nothing else in this turn. Its last words before:", *before])
        return f"{text} It wrote nothing else, either."

    def break_down(self, error: Exception) -> None:
        """Record that an internal error ended the run. Raises nothing."""
        what = (
            f"A bug of Ostler's ended the run; the server's log says where. {type(error).__name__}: {error}"
        )
        failure = AgentFailure("InternalError", what[:DETAIL_CHARS])
        self._queue.wanted = False
        try:
            if self._queue.turn is not None:
                self.fail(self._queue.turn, failure)
            else:
                self.fail_before(failure)
        except Exception:
            # Contain this second fault, too: an exception would end the server's nursery.
            self._logger.exception("cannot record the failure")
            with suppress(JournalError):
                self._recorder.abort_items("failed")

    def leave(self) -> None:
        """The conversation's task ends: what was said and not written yet is written. Raises nothing."""
        try:
            self._recorder.updates.flush()
            self._recorder.emit(self._translator.release() + self._translator.close_text())
            self._recorder.release_states()
        except JournalError:
            pass  # it is deleted, or nothing can be stored any more
        except Exception:
            self._logger.exception("cannot record the last text")

    def give_up(self) -> None:
        """End the open actions of a lost agent, and the run, as interrupted; no answer is accepted any
        more."""
        self._close_asked()
        self._publisher.run_paused(TurnEnded(INTERRUPTED))

    def _close_asked(self) -> None:
        effects = self._voice.close(self._not_begun)
        self._permissions.cancel()
        self._recorder.emit(effects)

    def _end_calls(self) -> None:
        effects = self._translator.end_turn(Close.MESSAGE)
        self._recorder.emit([*effects, *self._voice.close(self._not_begun)])

    @property
    def _not_begun(self) -> Collection[str]:
        """The actions that a person is asked about."""
        return self._record.now.asked if self._record.now.waits else ()

    def _ended(self, turn: Turn, stop_reason: str, **known: Any) -> TurnEnded:
        """The agent works on the turn no more. Returns the cause that ends it."""
        self._queue.turn = None
        self._recorder.updates.flush()
        # The allocator would keep what a flood took.
        if self._translator.gathered > FLOOD_BYTES:
            self._context.nursery.start_soon(return_memory, self._recorder.log)
        self._permissions.cancel()
        self._recorder.emit(self._permissions.unasked.unlooked())
        self._context.counters.count_turn(stop_reason)
        self._record.reported.agent_state["stop_reason"] = stop_reason
        seconds = self._clock() - turn.begun
        return TurnEnded(stop_reason[:STOP_REASON_CHARS], seconds=seconds, **known)


def _answer_id(effects: Sequence[Effect]) -> str | None:
    """The id of the finish event among the results of a turn's end."""
    for out in effects:
        event = out.event if isinstance(out, Recorded) else None
        if isinstance(event, ActionEvent) and isinstance(event.action, FinishAction):
            return event.id
    return None
