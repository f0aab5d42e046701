"""What each cause makes of a conversation's state, and what the journal gets for it. Pure.

`tests/conversations/test_state_machine.py` holds the promises of docs/guarantees.md over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from supervisor.conversations.state.state import (
    INTERRUPTED,
    JOINED,
    RUNNING,
    TURN,
    WITHDRAWN,
    ActionAnswered,
    ActionAsked,
    AnswersDelivered,
    CallsCutOff,
    CutOffByServer,
    Forked,
    Item,
    LossReported,
    MemoryLost,
    MessageJoined,
    MessagesTaken,
    Navigated,
    NotHandedOver,
    Paused,
    PersonAnswered,
    PersonAsked,
    RestoreFailed,
    RunBegun,
    RunClosed,
    Sent,
    SessionOpened,
    State,
    TurnBegun,
    TurnEnded,
    TurnTaken,
    Update,
    Withdrawn,
    Worked,
)
from supervisor.conversations.state.status import ExecutionStatus, Memory

Step = tuple[State, Sequence[Item]]
"""The next state, and the items for the journal, in order."""

STATUS: Final = "execution_status"


def _becomes(status: ExecutionStatus) -> Callable[[State, Any], Step]:
    return lambda state, _: _with_status(state, status)


def _with_status(state: State, status: ExecutionStatus) -> Step:
    if state.execution_status == status:
        return state, ()
    return attrs.evolve(state, execution_status=status), (Update(STATUS, status),)


def _sent(state: State, cause: Sent) -> Step:
    reopened: Sequence[Item] = ()
    if state.execution_status in (ExecutionStatus.FINISHED, ExecutionStatus.STUCK):
        state, reopened = _with_status(state, ExecutionStatus.IDLE)
    running: Sequence[Item] = ()
    if cause.runs:
        # In the transaction of the message, so that a poll cannot see a stale status.
        state, running = _with_status(state, ExecutionStatus.RUNNING)
    state = attrs.evolve(state, last_user_message_id=cause.message_id)
    return state, (*reopened, cause.event, Update("last_user_message_id", cause.message_id), *running)


def _withdrawn(state: State, cause: Withdrawn) -> Step:
    if state.retry_seq == cause.seq:  # an explicit run must not take it up again
        state = attrs.evolve(state, retry_seq=None, unfinished=False)
    state = attrs.evolve(state, withdrawn={**state.withdrawn, cause.message_id: cause.seq})
    return state, (Update(WITHDRAWN, {"message_id": cause.message_id}),)


def _next_turn(state: State, cause: TurnBegun | TurnTaken, **changes: Any) -> Step:
    """The message leaves the queue, and the next number is its turn's. A turn that is still open ends: its
    agent was lost while it asked."""
    ends = () if state.turn is None else (TurnEnded(INTERRUPTED).update(state.turn),)
    turn = {"number": state.turns + 1, "message_id": cause.message_id}
    prompted = max(state.prompted_seq, cause.seq)
    changes["withdrawn"] = state.withdrawn and {
        each: seq for each, seq in state.withdrawn.items() if seq > prompted
    }
    state = attrs.evolve(state, prompted_seq=prompted, turns=state.turns + 1, turn=turn, **changes)
    return state, (*ends, Update(TURN, {"status": RUNNING, **turn}))


def _turn_begun(state: State, cause: TurnBegun) -> Step:
    handed = cause.native and not cause.resumes
    joins = handed and cause.message_id not in state.joined
    return _next_turn(
        state,
        cause,
        retry_seq=cause.seq if handed else None,
        joined=(*state.joined, cause.message_id) if joins else state.joined,
        turn_open=True,
        unfinished=True,
    )


def _message_joined(state: State, cause: MessageJoined) -> Step:
    value = {"status": JOINED, **(state.turn or {}), "joined": cause.message_id}
    state = attrs.evolve(
        state,
        prompted_seq=max(state.prompted_seq, cause.seq),
        joined=(*state.joined, cause.message_id),
        retry_seq=None,  # the message of the turn is before it in the agent's memory
    )
    return state, (Update(TURN, value),)


def _worked(state: State, _: Worked) -> Step:
    # The agent has its transcript, if it got one.
    lost = state.memory_lost if state.session_used else None
    return attrs.evolve(state, retry_seq=None, session_used=True, memory_lost=lost), ()


def _turn_ended(state: State, cause: TurnEnded) -> Step:
    items = () if state.turn is None else (cause.update(state.turn),)
    state = attrs.evolve(
        state,
        turn=None,
        turn_open=False,
        unfinished=state.unfinished if cause.finished is None else not cause.finished,
        retry_seq=None if cause.taken else state.retry_seq,
        cut_off=None if cause.all_calls_ended else state.cut_off,
    )
    return state, items


def _paused(state: State, cause: Paused) -> Step:
    if state.execution_status is ExecutionStatus.PAUSED:
        return state, ()
    state, items = _with_status(state, ExecutionStatus.PAUSED)
    return state, (*cause.events, *items)


def _run_closed(state: State, cause: RunClosed) -> Step:
    state, ended = (state, ()) if cause.ended is None else _turn_ended(state, cause.ended)
    state, status = _with_status(state, cause.status)
    return state, (*cause.events, *ended, *status, *cause.updates)


def _cut_off_by_server(state: State, cause: CutOffByServer) -> Step:
    state, ended = _turn_ended(state, TurnEnded(INTERRUPTED))
    state = attrs.evolve(state, asked={}, execution_status=ExecutionStatus.ERROR)
    return state, (*cause.events, *ended, Update(STATUS, ExecutionStatus.ERROR))


def _action_answered(state: State, cause: ActionAnswered) -> Step:
    return attrs.evolve(state, asked={**state.asked, cause.action_id: cause.answer}), ()


def _session_opened(state: State, cause: SessionOpened) -> Step:
    if cause.memory in (Memory.NEW, Memory.LOST):
        state = attrs.evolve(
            state, sessions=state.sessions + 1, session_opened=cause.at, session_used=False, cut_off=None
        )
        if cause.memory is Memory.LOST and cause.reason != state.memory_lost:
            state = attrs.evolve(state, memory_lost=cause.reason, loss_reported=False)
    state = attrs.evolve(
        state,
        session_id=cause.session_id,
        session_cwd=cause.cwd,
        session_disk=cause.disk,
        failed_restores=0,
    )
    return state, ()


def _memory_lost(state: State, cause: MemoryLost) -> Step:
    if not state.remembers:
        return state, ()
    return attrs.evolve(state, memory_lost=cause.why, loss_reported=False), ()


def _navigated(state: State, cause: Navigated) -> Step:
    if cause.why is not None:
        lost = None if cause.seq is None else cause.why
        state = attrs.evolve(state, session_used=False, memory_lost=lost, loss_reported=False)
    if cause.seq is None:
        prompted = max(state.prompted_seq, cause.last_seq)
    elif cause.asks:
        # A person's message that is moved to waits again.
        prompted = cause.seq - 1
    else:
        prompted = max(state.prompted_seq, cause.seq)
    return attrs.evolve(state, unfinished=False, retry_seq=None, prompted_seq=prompted, withdrawn={}), ()


def _forked(state: State, cause: Forked) -> Step:
    if cause.session_id is not None:
        lost = None
    else:
        lost = cause.why if cause.prompted_seq >= 0 else state.memory_lost
    state = State(
        last_user_message_id=cause.last_user_message_id,
        prompted_seq=cause.prompted_seq,
        turns=state.turns,
        joined=state.joined,
        withdrawn={} if cause.asks else state.withdrawn,
        session_id=cause.session_id,
        session_cwd=state.session_cwd,
        session_disk=state.session_disk,
        session_opened=state.session_opened,
        session_used=cause.session_id is not None,
        sessions=0 if cause.session_id is None else 1,
        memory_lost=lost,
    )
    return state, ()


TRANSITIONS: Final[Mapping[type, Callable[[State, Any], Step]]] = {
    Sent: _sent,
    Withdrawn: _withdrawn,
    TurnBegun: _turn_begun,
    TurnTaken: _next_turn,
    MessageJoined: _message_joined,
    MessagesTaken: lambda state, _: (attrs.evolve(state, joined=()), ()),
    NotHandedOver: lambda state, cause: (attrs.evolve(state, retry_seq=cause.seq), ()),
    Worked: _worked,
    TurnEnded: _turn_ended,
    CallsCutOff: lambda state, cause: (attrs.evolve(state, cut_off=cause.how), ()),
    RunBegun: _becomes(ExecutionStatus.RUNNING),
    PersonAsked: _becomes(ExecutionStatus.WAITING_FOR_CONFIRMATION),
    PersonAnswered: _becomes(ExecutionStatus.RUNNING),
    Paused: _paused,
    RunClosed: _run_closed,
    CutOffByServer: _cut_off_by_server,
    ActionAsked: lambda state, cause: (attrs.evolve(state, asked={**state.asked, cause.action_id: None}), ()),
    ActionAnswered: _action_answered,
    AnswersDelivered: lambda state, _: (attrs.evolve(state, asked={}) if state.asked else state, ()),
    SessionOpened: _session_opened,
    RestoreFailed: lambda state, _: (attrs.evolve(state, failed_restores=state.failed_restores + 1), ()),
    MemoryLost: _memory_lost,
    LossReported: lambda state, _: (attrs.evolve(state, loss_reported=True), ()),
    Navigated: _navigated,
    Forked: _forked,
}
"""What each cause makes of a state. A cause that is not here does not change it."""


def after(state: State, cause: object) -> Step:
    """The state after a cause, and the items for the journal, in order. Raises KeyError for an object that is
    no cause."""
    return TRANSITIONS[type(cause)](state, cause)
