"""One prompt turn as a state machine, and what its end means. No I/O.

A turn is one `session/prompt`. Its token is compared before anything is done to it, so that a late
cancel or a late answer never touches the next turn.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs

from supervisor.conversations.state.status import ExecutionStatus


class TurnPhase(enum.StrEnum):
    """Where a turn is."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    SETTLED = "settled"


@attrs.frozen
class Outcome:
    """What the end of a turn means for its conversation.

    `status` is the execution status that follows; `finish` whether the last segment is the agent's answer
    (FinishAction) or stays a message; `error` the ConversationErrorEvent code and detail, if it is one;
    `note` a few words for the finish event when the answer was cut short.
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
    "cancelled": Outcome(ExecutionStatus.IDLE, finish=False),
}


def outcome_of(stop_reason: str, *, cancel_requested: bool) -> Outcome:
    """The meaning of a prompt's answer.

    A stop reason that the protocol does not know ends the turn like `end_turn`, with its name as the note.
    An answer that came although a cancel was under way is taken as it is: an agent may have been done
    already. `cancelled` without a cancel of ours (agents say so after a rejected permission) leaves the
    conversation idle.
    """
    known = _BY_STOP_REASON.get(stop_reason)
    if known is None:
        known = Outcome(ExecutionStatus.FINISHED, finish=True, note=f"Stop reason: {stop_reason[:80]}")
    if cancel_requested:
        return attrs.evolve(known, status=ExecutionStatus.PAUSED)
    return known


@attrs.define
class Turn:
    """The running turn: `token` names it, `prompt_seq` is the sequence number of the message prompted.

    `updates` counts what the agent has sent for it: a turn with none did nothing and may be tried again.
    """

    token: int
    prompt_seq: int
    phase: TurnPhase = TurnPhase.RUNNING
    updates: int = 0

    def cancel(self) -> bool:
        """Take note of a cancel; False when there is nothing (left) to cancel."""
        if self.phase is not TurnPhase.RUNNING:
            return False
        self.phase = TurnPhase.CANCELLING
        return True

    @property
    def cancelling(self) -> bool:
        """Whether a cancel has been sent and not answered."""
        return self.phase is TurnPhase.CANCELLING

    def settle(self, stop_reason: str) -> Outcome:
        """The agent answered the prompt. Raises RuntimeError for a second answer."""
        if self.phase is TurnPhase.SETTLED:
            raise RuntimeError("this turn has settled already")
        outcome = outcome_of(stop_reason, cancel_requested=self.cancelling)
        self.phase = TurnPhase.SETTLED
        return outcome
