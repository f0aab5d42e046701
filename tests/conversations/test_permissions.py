"""An agent's requests for permission: which answer each gets, and when."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from supervisor.acp import RpcError
from supervisor.acp.permission_answers import CANCELLED
from supervisor.conversations.recording.permission_log import INPUT_BYTES, shown_input
from supervisor.conversations.state.status import ExecutionStatus
from supervisor.conversations.turns.permissions import WAITING_MAX
from tests.conversations.world import World

ALWAYS, ONCE, NEVER = (
    {"optionId": "a", "name": "Always", "kind": "allow_always"},
    {"optionId": "o", "name": "Once", "kind": "allow_once"},
    {"optionId": "n", "name": "No", "kind": "reject_once"},
)


def request(*options: dict[str, str], call: str = "call") -> dict[str, Any]:
    return {"sessionId": "s", "toolCall": {"toolCallId": call, "title": "run"}, "options": list(options)}


def selected(option: dict[str, str]) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ((ALWAYS, ONCE, NEVER), selected(ONCE)),
        ((ALWAYS, NEVER), selected(NEVER)),  # nobody is there to allow it for good
        ((ALWAYS,), CANCELLED),
    ],
)
async def test_without_a_person_it_is_answered_at_once(
    options: tuple[dict[str, str], ...], answer: dict[str, Any]
) -> None:
    world = World(core=False, confirming=False)
    assert await world.permissions.ask(request(*options)) == answer
    assert not world.permissions.waiting


async def test_outside_of_a_turn_and_of_one_that_is_cancelled_nothing_is_allowed() -> None:
    world = World(core=False, confirming=False)
    world.turn.cancel()
    assert await world.permissions.ask(request(ONCE)) == CANCELLED
    world.end()
    assert await world.permissions.ask(request(ONCE)) == CANCELLED


@pytest.mark.parametrize(
    ("accept", "options", "answer"),
    [
        (True, (ALWAYS, ONCE, NEVER), selected(ONCE)),
        (True, (ALWAYS, NEVER), selected(ALWAYS)),
        (True, (NEVER,), CANCELLED),
        (False, (ALWAYS, ONCE, NEVER), selected(NEVER)),
        (False, (ALWAYS, ONCE), CANCELLED),
    ],
)
async def test_a_persons_word_goes_for_all_that_waits(
    accept: bool, options: tuple[dict[str, str], ...], answer: dict[str, Any]
) -> None:
    world = World(core=False, confirming=True)
    answers = []

    async def ask(call: str) -> None:
        answers.append(await world.permissions.ask(request(*options, call=call)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "one")
        nursery.start_soon(ask, "two")
        await wait_all_tasks_blocked()
        assert world.permissions.waiting
        assert world.record.now.execution_status is ExecutionStatus.WAITING_FOR_CONFIRMATION
        assert answers == []
        assert world.permissions.decide(accept, "because")
    assert answers == [answer, answer]
    assert not world.permissions.waiting
    assert world.record.now.execution_status is ExecutionStatus.RUNNING
    assert not world.permissions.decide(accept, "nothing waits")


async def test_what_is_cancelled_is_answered_so() -> None:
    world = World(core=False, confirming=True)
    waiting = world.permissions.ask(request(ONCE))
    world.permissions.cancel()
    world.permissions.decide(accept=True, reason="")
    assert await waiting == CANCELLED  # the first decision stays


def test_more_than_a_person_answers_are_refused() -> None:
    world = World(core=False, confirming=True)
    for number in range(WAITING_MAX):
        world.kept.append(world.permissions.ask(request(ONCE, call=f"call-{number}")))
    with pytest.raises(RpcError, match=str(WAITING_MAX)) as caught:
        world.permissions.ask(request(ONCE, call="one more"))
    assert caught.value.code == -32603
    world.end()


async def test_a_request_that_the_agent_takes_back_waits_for_nobody() -> None:
    world = World(core=False, confirming=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.permissions.ask, request(ONCE))
        await wait_all_tasks_blocked()
        assert world.record.now.execution_status is ExecutionStatus.WAITING_FOR_CONFIRMATION
        nursery.cancel_scope.cancel()
    assert not world.permissions.waiting
    assert world.record.now.execution_status is ExecutionStatus.RUNNING


def test_what_is_asked_is_shown_within_bounds() -> None:
    given = {"command": "rm -r /", "many": ["x"] * 10_000, "words": "y" * 100_000 + " && rm"}
    shown = shown_input(given)
    assert shown["command"] == given["command"]
    assert shown["words"].endswith("&& rm")
    assert len(str(shown)) < 2 * INPUT_BYTES
    assert shown_input({"command": "ls"}) == {"command": "ls"}
    assert len(str(shown_input({str(n): "z" * 9000 for n in range(1000)}))) < 2 * INPUT_BYTES
