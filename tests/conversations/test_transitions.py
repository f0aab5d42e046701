"""Single causes, where a sequence of `test_state_machine.py` has shown a fault."""

from __future__ import annotations

from supervisor.conversations.state.state import State, TurnBegun, TurnTaken, Update
from supervisor.conversations.state.transitions import after


def test_a_turn_that_ostler_answers_ends_the_one_whose_agent_was_lost() -> None:
    """An agent is lost while it asks, its successor does not start, and a client sends `/mcp`."""
    state, _ = after(State(), TurnBegun(0, "first", native=True))
    state, items = after(state, TurnTaken(3, "second"))
    told = [(item.value["status"], item.value["number"]) for item in items if isinstance(item, Update)]
    assert told == [("ended", 1), ("running", 2)]
    assert state.turn == {"number": 2, "message_id": "second"}
