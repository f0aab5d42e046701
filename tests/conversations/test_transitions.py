"""Single causes, where a sequence of `test_state_machine.py` has shown a fault."""

from __future__ import annotations

from supervisor.conversations.forking import handed_over
from supervisor.conversations.state.branch import active, leading_to, moved
from supervisor.conversations.state.state import State, TurnBegun, TurnTaken, Update
from supervisor.conversations.state.transitions import after


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
