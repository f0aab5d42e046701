"""One prompt turn as a state machine, and the meaning of its end. No I/O.

A turn is one `session/prompt`. Its token is compared before anything is done to it, so that a late
cancel or a late answer never touches the next turn.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import attrs

from supervisor.conversations.state.status import ExecutionStatus

FileReader = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any] | None]]
"""Reads a file for the agent from the editor that sent the message, whose buffers may not be saved. Takes the
parameters of `fs/read_text_file` and returns its result; None if the disk is to be read. Never raises."""


class TurnPhase(enum.StrEnum):
    """The phase of a turn."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    SETTLED = "settled"


@attrs.frozen
class Outcome:
    """The consequences of the end of a turn.

    `status`: the execution status that follows. `finish`: whether the last segment is the agent's answer
    (FinishAction) or stays a message. `error`: code and detail of the ConversationErrorEvent, if it is one.
    `note`: a few words for the finish event when the answer was cut short.
    """

    status: ExecutionStatus
    finish: bool
    error: tuple[str, str] | None = None
    note: str | None = None


_BY_STOP_REASON: Final[dict[str, Outcome]] = {
    "end_turn": Outcome(ExecutionStatus.FINISHED, finish=True),
    "max_tokens": Outcome(
        ExecutionStatus.FINISHED, finish=True, note="Cut short: the model's output token limit was reached"
    ),
    "max_turn_requests": Outcome(
        ExecutionStatus.ERROR,
        finish=False,
        error=("MaxIterationsReached", "The agent reached its limit of model requests in one turn."),
    ),
    "refusal": Outcome(
        ExecutionStatus.ERROR,
        finish=False,
        error=("UsagePolicyRefusal", "The agent's model refused to continue this turn."),
    ),
    "cancelled": Outcome(ExecutionStatus.FINISHED, finish=True, note="Cancelled by the agent"),
}


CUT_SHORT: Final = "Ended after an interrupt; may be cut short"
"""The note of an answer that came after a cancel: some agents call every end `end_turn`."""


def outcome_of(stop_reason: str, *, cancel_requested: bool, answered: bool = True) -> Outcome:
    """The outcome of a prompt's answer. `answered`: whether the agent has said a word.

    An unknown stop reason ends the turn like `end_turn`, with its name as the note. An answer that comes
    while a cancel is pending is accepted as it is, with CUT_SHORT as the note: the agent may have finished
    already. Where it has said nothing it has not, with any stop reason. `cancelled` without a
    cancel from Ostler (agents say so after a rejected permission) ends the turn like `end_turn`: nothing more
    comes of it, and clients wait for a run to be finished.
    """
    known = _BY_STOP_REASON.get(stop_reason)
    if known is None:
        known = Outcome(ExecutionStatus.FINISHED, finish=True, note=f"Stop reason: {stop_reason[:80]}")
    if cancel_requested and (stop_reason == "cancelled" or (known.finish and not answered)):
        return Outcome(ExecutionStatus.PAUSED, finish=False)
    if cancel_requested:
        note = known.note if known.note or not known.finish else CUT_SHORT
        return attrs.evolve(known, status=ExecutionStatus.PAUSED, note=note)
    return known


@attrs.define
class Turn:
    """The running turn: `token` identifies it, `prompt_seq` and `message_id` are the prompted message.

    `begun` is when it began (Trio's clock), `usage` what the agent had used before.

    `silence_reported`: the longest silence, in seconds, that a message reported.

    `updates` counts what the agent has sent for it: a turn without updates had no effect and may be tried
    again.
    """

    token: int
    prompt_seq: int
    message_id: str = ""
    begun: float = 0.0
    usage: Mapping[str, Any] = attrs.field(factory=dict)
    phase: TurnPhase = TurnPhase.RUNNING
    updates: int = 0
    silence_reported: float = 0.0
    reads: FileReader | None = None

    def cancel(self) -> bool:
        """Note a cancel. Returns False if there is nothing (left) to cancel."""
        if self.phase is not TurnPhase.RUNNING:
            return False
        self.phase = TurnPhase.CANCELLING
        return True

    @property
    def cancelling(self) -> bool:
        """Whether a cancel has been sent and not yet answered."""
        return self.phase is TurnPhase.CANCELLING

    def settle(self, stop_reason: str, *, answered: bool = True) -> Outcome:
        """Settle the turn with the prompt's answer (see `outcome_of`). Raises RuntimeError for a second
        answer."""
        if self.phase is TurnPhase.SETTLED:
            raise RuntimeError("this turn is already settled")
        outcome = outcome_of(stop_reason, cancel_requested=self.cancelling, answered=answered)
        self.phase = TurnPhase.SETTLED
        return outcome
