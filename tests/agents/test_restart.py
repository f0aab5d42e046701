"""When a crashed agent is started again, as a table."""

from __future__ import annotations

import pytest

from supervisor.agents.restart import Parked, RestartBudget, RestartPolicy, Retry

pytestmark = pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")


def test_pauses_grow_up_to_the_longest() -> None:
    budget = RestartBudget(RestartPolicy(crashes=10, first_pause=1.0, longest_pause=5.0))
    pauses = []
    for now in range(5):
        decision = budget.crashed(float(now), chance=0.0)
        assert isinstance(decision, Retry)
        pauses.append((decision.attempt, decision.pause))
    assert pauses == [(1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (5, 5.0)]


@pytest.mark.parametrize(("chance", "pause"), [(0.0, 0.5), (0.5, 0.5625), (0.999, 0.624875)])
def test_chance_makes_a_pause_longer_by_a_quarter_at_most(chance: float, pause: float) -> None:
    decision = RestartBudget().crashed(0.0, chance)
    assert isinstance(decision, Retry)
    assert decision.pause == pytest.approx(pause)


def test_the_budget_is_five_in_a_minute() -> None:
    budget = RestartBudget()
    for now in range(5):
        assert isinstance(budget.crashed(float(now), 0.0), Retry)
        assert not budget.parked(float(now))
    assert budget.crashed(5.0, 0.0) == Parked(6, 60.0)
    assert budget.parked(5.0)
    assert budget.parked(1e9)


def test_old_crashes_do_not_count() -> None:
    budget = RestartBudget()
    for now in range(0, 600, 61):
        decision = budget.crashed(float(now), 0.0)
        assert isinstance(decision, Retry)
        assert decision.attempt == 1


def test_an_operator_makes_the_budget_whole() -> None:
    budget = RestartBudget(RestartPolicy(crashes=0))
    assert isinstance(budget.crashed(0.0, 0.0), Parked)
    budget.forgive()
    assert not budget.parked(1.0)
    assert isinstance(budget.crashed(2.0, 0.0), Parked)


def test_a_setting_lets_a_parked_agent_be_tried_later() -> None:
    budget = RestartBudget(RestartPolicy(crashes=0, parked_seconds=300.0))
    budget.crashed(1000.0, 0.0)
    assert budget.parked(1000.0)
    assert budget.parked(1299.0)
    assert not budget.parked(1300.0)
