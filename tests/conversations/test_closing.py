"""What is closed accepts nothing, and ends: requests that come beside a deletion, at any moment of it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gateway.api import contract
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.forking import ForkRequest
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import (
    AgentTimeout,
    ConversationClosing,
    ConversationError,
    NotAccepted,
    NotPossible,
    UnknownConversation,
)
from supervisor.conversations.state.stage import NEXT, Stage, Stages
from supervisor.journal.errors import LogDeleted
from tests.conversations.harness import Harness, open_harness, say, turn, until
from tests.support.processes import alive
from tests.support.thorough import everyday

END_SECONDS = 15.0
"""For a deletion: every step of it has a deadline, and together they are below that."""

MOMENTS = everyday(
    (("idle", 0.0), ("idle", 0.004), ("in a turn", 0.004), ("starting", 0.002), ("asleep", 0.001)),
    tuple(
        (state, seconds / 1000)
        for state in ("idle", "in a turn", "starting", "asleep")
        for seconds in (0, 1, 2, 3, 5, 8, 12, 20, 40, 100)
    ),
)
"""What the conversation does when its deletion begins, and the seconds from there to the request."""

Request = Callable[[Harness, Conversation], Awaitable[Any]]

REQUESTS: dict[str, Request] = {
    "send": lambda _, it: it.send(say("more"), run=True),
    "send without a run": lambda _, it: it.send(say("more"), run=False),
    "run": lambda _, it: it.run(),
    "start_goal": lambda _, it: it.start_goal("all is well", 2),
    "resume_goal": lambda _, it: it.resume_goal(),
    "stop_goal": lambda _, it: it.stop_goal(),
    "pause": lambda _, it: it.pause(),
    "interrupt": lambda _, it: it.interrupt(),
    "respond": lambda _, it: it.respond(True, ""),
    "withdraw": lambda _, it: it.withdraw(it.record.now.last_user_message_id or ""),
    "start_agent": lambda _, it: it.start_agent(),
    "fork": lambda harness, it: harness.supervisor.fork(it.id, ForkRequest()),
    "start_child": lambda harness, it: harness.supervisor.start_child(
        it.id, "a task", title=None, worktree=None
    ),
    "navigate": lambda _, it: it.navigate(None),
    "ask_agent": lambda _, it: it.ask_agent("what?"),
    "condense": lambda _, it: it.condense(),
    "load_plugin": lambda _, it: it.load_plugin("a plugin"),
    "switch_model": lambda _, it: it.changes.switch_model("large"),
    "switch_llm": lambda _, it: it.changes.switch_llm({"model": "large"}),
    "choose_mode": lambda _, it: it.changes.choose_mode("plan"),
    "choose_option": lambda _, it: it.changes.choose_option("thinking", True),
    "restart_agent": lambda harness, it: harness.supervisor.restart_agent(it.id),
    "restart_agent by force": lambda harness, it: harness.supervisor.restart_agent(it.id, force=True),
    "stop_agent": lambda harness, it: harness.supervisor.stop_agent(it.id),
    "set_title": lambda _, it: it.changes.set_title("another"),
    "set_tags": lambda _, it: it.changes.set_tags({"a": "b"}),
    "set_confirmation_policy": lambda _, it: it.changes.set_confirmation_policy({"kind": "AlwaysConfirm"}),
    "set_security_analyzer": lambda _, it: it.changes.set_security_analyzer(None),
    "set_secrets": lambda _, it: it.changes.set_secrets({"NAME": "value"}),
}
"""Begins with the name of the method that it calls."""

READ_ONLY = frozenset(
    {
        *("durable_info", "durable_state", "final_response", "agent"),
        *("stderr", "stderr_after", "trace", "trace_after"),
    }
)
"""What changes nothing, and starts nothing: allowed until the conversation is gone."""

OF_NONE = frozenset(
    {
        "agents",
        "count",
        "create",
        "get",
        "hand_over",
        "listing",
        "models",
        "prepare",
        "try_model",
        "view",
        "warm_processes",
    }
)
"""What is about no conversation, or finds one."""


OF_DELETION = frozenset({"delete", "delete_later", "restore"})
"""What begins or undoes a deletion (test_deletion.py)."""


async def conversation_that(state: str, harness: Harness) -> Conversation:
    conversation = await harness.start()
    if state == "starting":
        await conversation.send(say("hello"), run=True)
        return conversation
    if state != "asleep":
        await turn(conversation, "hello")
    if state == "in a turn":
        await conversation.send(say("!hang"), run=True)
        await until(lambda: "!hang" in harness.log.prompts())
    return conversation


def test_every_request_of_the_gateway_is_tried() -> None:
    methods = {
        name
        for kind in (contract.Changes, contract.View, contract.Conversation, contract.Supervisor)
        for name, method in vars(kind).items()
        if inspect.iscoroutinefunction(method)
    }
    tried = {name.split()[0] for name in REQUESTS}
    assert tried | OF_DELETION | READ_ONLY | OF_NONE == methods
    assert not tried & (READ_ONLY | OF_NONE)


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("name", REQUESTS)
async def test_what_is_being_deleted_accepts_nothing_and_ends(tmp_path: Path, name: str) -> None:
    async with open_harness(tmp_path) as harness:

        async def beside(seconds: float, conversation: Conversation, outcome: list[Any]) -> None:
            await trio.sleep(seconds)
            try:
                outcome.append(await REQUESTS[name](harness, conversation))
            except (ConversationError, LogDeleted) as error:
                outcome.append(error)

        for state, seconds in MOMENTS:
            conversation = await conversation_that(state, harness)
            outcome: list[Any] = []
            with trio.fail_after(END_SECONDS):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(beside, seconds, conversation, outcome)
                    await harness.supervisor.delete(conversation.id)
            with pytest.raises(UnknownConversation):
                await harness.supervisor.get(conversation.id)
            # At the same moment either may be first: then it succeeds, or this agent can do no such thing.
            if not seconds and not isinstance(outcome[0], ConversationError | LogDeleted):
                continue
            refusals = ConversationClosing | UnknownConversation | LogDeleted
            first = NotPossible | NotAccepted
            assert isinstance(outcome[0], refusals if seconds else refusals | first), (state, seconds)
        await until(lambda: not any(map(alive, harness.log.pids())), "the end of all agents")


@pytest.mark.guarantee(name="nothing-survives")
async def test_what_does_not_end_is_told_in_time_and_can_be_deleted_later(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    deadlines = Deadlines()
    async with open_harness(tmp_path, clock=mock_clock, deadlines=deadlines) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        stuck = trio.Event()

        async def hang() -> None:
            with trio.CancelScope(shield=True):
                await stuck.wait()

        assert conversation.runner._nursery is not None
        conversation.runner._nursery.start_soon(hang)
        agent = conversation.agent.pid
        assert agent is not None
        mock_clock.rate = 20.0
        begun = trio.current_time()
        with pytest.raises(AgentTimeout, match="did not end within 10 s"):
            await harness.supervisor.delete(conversation.id)
        assert trio.current_time() - begun < 2 * deadlines.end + 5
        assert not alive(agent)
        # It is there, accepts nothing, and no second agent comes to it.
        assert await harness.supervisor.get(conversation.id) is conversation
        with pytest.raises(ConversationClosing):
            await conversation.send(say("more"), run=True)
        stuck.set()
        await harness.supervisor.delete(conversation.id)
        with pytest.raises(UnknownConversation):
            await harness.supervisor.get(conversation.id)


async def test_a_supervisor_ends_in_time_though_something_of_a_conversation_hangs(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    stuck = trio.Event()
    async with open_harness(tmp_path, clock=mock_clock, deadlines=Deadlines()) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")

        async def hang() -> None:
            with trio.CancelScope(shield=True):
                await stuck.wait()

        assert conversation.runner._nursery is not None
        conversation.runner._nursery.start_soon(hang)
        mock_clock.rate = 20.0
        begun = trio.current_time()
        await harness.supervisor.close()
        assert trio.current_time() - begun < END_SECONDS
        stuck.set()


def test_stages_move_along_their_table_alone() -> None:
    for start in Stage:
        for to in Stage:
            stages = Stages()
            stages.now = start
            if to in NEXT[start]:
                stages.move(to)
                assert stages.now is to
            else:
                with pytest.raises(ValueError, match=f"{to.value} does not follow {start.value}"):
                    stages.move(to)
    # From every stage closing is possible, and nothing leads back from there.
    for start in Stage:
        stages = Stages()
        stages.now = start
        stages.close()
        assert stages.closing
        stages.close()
        assert NEXT[stages.now] <= {Stage.CLOSED}
