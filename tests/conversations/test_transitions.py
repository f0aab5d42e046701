"""Single causes and short sequences, where one of `test_state_machine.py` has shown a fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from supervisor.conversations.forking import handed_over
from supervisor.conversations.state.branch import active, leading_to, moved
from supervisor.conversations.state.record import ConversationRecord, Start
from supervisor.conversations.state.state import SessionOpened, State, TurnBegun, TurnTaken, Update
from supervisor.conversations.state.status import CutOff, Memory
from supervisor.conversations.state.transitions import after
from supervisor.events import Vocabulary
from supervisor.settings.agent import AgentSettings
from tests.conversations.life import Journal, Life, Mind, drive


def test_a_turn_that_ostler_answers_ends_the_one_whose_agent_was_lost() -> None:
    """An agent is lost while it asks, its successor does not start, and a client sends `/mcp`."""
    state, _ = after(State(), TurnBegun(0, "first", native=True))
    state, items = after(state, TurnTaken(3, "second"))
    told = [(item.value["status"], item.value["number"]) for item in items if isinstance(item, Update)]
    assert told == [("ended", 1), ("running", 2)]
    assert state.turn == {"number": 2, "message_id": "second"}


def test_a_fork_from_a_branch_that_was_left_prompts_none_of_its_messages_again() -> None:
    """A client moves back to a message with number 4, and forks from event 30, which is not on its way."""
    moves = moved([], 30, 4)
    state, present = State(prompted_seq=3), active(moves, 30)
    assert handed_over(state, leading_to(moves, 30), present, asks=False) == 30
    assert handed_over(state, leading_to(moves, 2), present, asks=False) == 3
    assert handed_over(state, leading_to(moves, 20), present, asks=True) == 19


def test_a_restore_does_not_change_when_a_session_began() -> None:
    """Only the minute in which its file was made counts for agents that name it by the minute."""
    state, _ = after(State(), SessionOpened(Memory.NEW, "s", cwd="/w", at=60.0))
    state, _ = after(state, SessionOpened(Memory.LOADED, "s", cwd="/w", at=180.0))
    assert (state.session_id, state.session_opened, state.sessions) == ("s", 60.0, 1)
    state, _ = after(state, SessionOpened(Memory.LOST, "t", cwd="/w", at=240.0, reason="gone"))
    assert (state.session_id, state.session_opened, state.sessions) == ("t", 240.0, 2)


def prompted(*, native: bool) -> Life:
    """A conversation whose agent has a message, and a call of it open."""
    record = ConversationRecord(
        id="00000000-0000-0000-0000-000000000001",
        start=Start(working_dir="/w", created_at="", vocabulary=Vocabulary.EXTENDED),
        updated_at="",
        agent=AgentSettings(acp_server="custom", acp_command=("agent",)),
        confirmation_policy={"kind": "AlwaysConfirm"},
    )
    life = Life(native, record, Journal(Mind()))
    life.send("Hello", run=True)
    life.task_begins()
    life.open_session(restores=True, restorable=True)
    life.agent_there(blocked=False)
    life.hand_over()
    life.works(calls=True)
    return life


@pytest.mark.guarantee(name="no-blind-retry")
@pytest.mark.parametrize("end", [lambda life: life.ends("refusal"), lambda life: life.turn_fails("x")])
def test_a_call_that_was_cut_off_is_known_when_the_server_dies_before_the_turn_has_ended(
    end: Callable[[Life], None],
) -> None:
    life = prompted(native=False)
    (call,) = life.calls
    end(life)
    writes = life.journal.writes
    ends_at = max(at for at, write in enumerate(writes) if any(call.encode() in e.body for e in write.events))
    journal = Journal(Mind(), writes[: ends_at + 1])
    record, journal.mind = journal.stored
    again = Life(False, ConversationRecord.load(record), journal)
    again.recover()
    assert again.now.turn is None
    assert again.now.cut_off is CutOff.UNKNOWN


def paused_with_an_answer() -> Life:
    """A person has answered what an agent asked that is gone, and paused before the next one is there."""
    life = prompted(native=True)
    life.asks(life.calls[0])
    life.agent = None
    life.agent_gone()
    life.settles()
    life.answer(accept=True)
    life.look()
    life.pause()
    life.agent_there(blocked=False)
    life.settles()
    assert life.permissions.keeps
    assert life.now.turn is not None
    return life


def test_answers_for_an_agent_that_is_gone_end_with_their_turn_when_ostler_answers_a_message() -> None:
    life = paused_with_an_answer()
    life.send("/mcp", run=True)
    life.look()
    life.answers_itself()
    assert (life.now.turn, life.now.asked, life.permissions.keeps) == (None, {}, False)


def test_answers_for_an_agent_that_is_gone_end_with_their_turn_when_a_client_moves() -> None:
    life = paused_with_an_answer()
    life.navigate(drive(life.journal.newest(besides="ConversationStateUpdateEvent")), remembers=False)
    assert (life.now.turn, life.now.asked, life.permissions.keeps) == (None, {}, False)
