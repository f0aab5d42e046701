"""Every command in every state of a conversation: what it answers, and that an answer of success is true."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from gateway.api.errors import problem_of
from gateway.api.routes import agents
from gateway.api.routes.conversations import conversations, operations
from gateway.api.routes.conversations import events as event_routes
from supervisor.agents.restart import RestartPolicy
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.forking import ForkRequest
from supervisor.conversations.state.errors import ConversationError
from tests.conversations.harness import (
    Harness,
    events,
    kinds,
    open_harness,
    ready_pid,
    say,
    settled,
    turn,
    until,
)
from tests.support.thorough import everyday

STATES = (
    "new",
    "finished",
    "running",
    "waiting",
    "paused",
    "error",
    "parked",
    "hibernated",
    "stopped",
    "closing",
)

EXTERNAL = dict.fromkeys(STATES, 409)
"""What only the built-in agent does."""

OK = 200


def answers(usual: int = OK, **others: int) -> dict[str, int]:
    """The statuses of a command, by state. What closes accepts nothing."""
    return {**dict.fromkeys(STATES, usual), "closing": 409, **others}


@attrs.frozen
class Command:
    """A command, the status of its answer in each state, and what must be true after a success."""

    call: Callable[[Harness, Conversation], Awaitable[Any]]
    statuses: dict[str, int]
    done: Callable[[Harness, Conversation, str, Any], Awaitable[Any]]


async def never(_: Harness, __: Conversation, state: str, ___: Any) -> None:
    raise AssertionError(f"an external agent did what it cannot do, while {state}")


async def message(_: Harness, it: Conversation, state: str, __: Any) -> None:
    said = [e for e in await events(it) if e["kind"] == "MessageEvent" and "a new message" in str(e)]
    assert said
    if state in ("running", "waiting"):
        assert [each.content[0].text for each in it.queued] == ["a new message"]  # type: ignore[union-attr]
    else:
        assert await settled(it) == ("error" if state == "parked" else "finished")


async def kept(_: Harness, it: Conversation, state: str, __: Any) -> None:
    assert it.queued[-1].content[0].text == "a new message"  # type: ignore[union-attr]
    assert it.busy == (state in ("running", "waiting"))


async def ran(_: Harness, it: Conversation, state: str, __: Any) -> None:
    """It goes on, or there is nothing to do, and the state says so."""
    ends = {"new": "idle", "parked": "error"}
    if state == "error":
        assert await settled(it) in ("error", "finished")
        assert it.record.now.turns == 2  # it went on with what had failed
    else:
        assert await settled(it) == ends.get(state, "finished")


async def paused(_: Harness, it: Conversation, state: str, __: Any) -> None:
    if state == "waiting":
        # A person is still asked; what comes after the turn waits.
        assert it.record.now.execution_status == "waiting_for_confirmation"
        await it.send(say("later"), run=False)
        await it.respond(False, "no")
        await until(lambda: not it.busy)
        assert [each.content[0].text for each in it.queued] == ["later"]  # type: ignore[union-attr]
    elif state in ("new", "running"):
        assert it.record.now.execution_status == "paused"
        assert "PauseEvent" in kinds(await events(it))
    else:
        assert not it.busy


async def interrupted(_: Harness, it: Conversation, state: str, __: Any) -> None:
    await until(lambda: not it.busy)
    assert not it.waiting
    if state in ("new", "running", "waiting", "paused"):
        assert it.record.now.execution_status == "paused"


async def rejected(_: Harness, it: Conversation, state: str, __: Any) -> None:
    found = kinds(await events(it))
    assert ("UserRejectObservation" in found) == (state == "waiting")
    assert not it.waiting


async def accepted(_: Harness, it: Conversation, __: str, ___: Any) -> None:
    assert await settled(it) == "finished"
    assert "allowed" in str((await events(it))[-8:])


async def forked(harness: Harness, it: Conversation, _: str, made: Any) -> None:
    assert made.id != it.id
    assert (await harness.supervisor.get(made.id)).record.now.execution_status == "idle"


async def moved(_: Harness, it: Conversation, __: str, ___: Any) -> None:
    assert it.record.leaf_event_id is None


async def told(_: Harness, __: Conversation, ___: str, answer: Any) -> None:
    assert "what is it" in answer


async def restarted(_: Harness, it: Conversation, __: str, ___: Any) -> None:
    assert ready_pid(it) is not None
    assert not it.busy


async def stopped(_: Harness, it: Conversation, __: str, ___: Any) -> None:
    assert not it.agent.live
    assert not it.busy


async def pursued(_: Harness, it: Conversation, __: str, ___: Any) -> None:
    await until(lambda: not it._goal.running)
    assert it.record.goal is not None
    assert it.record.goal["objective"] == "all is well"


async def unpursued(_: Harness, it: Conversation, __: str, ___: Any) -> None:
    assert not it._goal.running


async def secret(_: Harness, it: Conversation, __: str, ___: Any) -> None:
    assert list(it.record.secrets) == ["NAME"]


async def in_mode(_: Harness, it: Conversation, __: str, ___: Any) -> None:
    assert it.info()["agent"]["acp_session_mode"] == "plan"


async def brave(_: Harness, it: Conversation, __: str, ___: Any) -> None:
    assert it.record.reported.agent_state["acp_options"] == {"brave": True}


def holds(name: str, value: Any) -> Callable[[Harness, Conversation, str, Any], Awaitable[None]]:
    async def check(_: Harness, it: Conversation, __: str, ___: Any) -> None:
        assert attrgetter(name)(it.record) == value

    return check


BUSY = {"running": 409, "waiting": 409}
CONFIRMING = {"kind": "AlwaysConfirm"}

COMMANDS: dict[str, Command] = {
    "message": Command(lambda _, it: it.send(say("a new message"), run=True), answers(), message),
    "message without run": Command(lambda _, it: it.send(say("a new message"), run=False), answers(), kept),
    "run": Command(lambda _, it: it.run(), answers(running=409), ran),
    "pause": Command(lambda _, it: it.pause(), answers(), paused),
    "interrupt": Command(lambda _, it: it.interrupt(), answers(), interrupted),
    "accept": Command(lambda _, it: it.respond(True, ""), answers(409, waiting=OK), accepted),
    "reject": Command(lambda _, it: it.respond(False, "no"), answers(), rejected),
    "accept by an id": Command(
        lambda _, it: it.respond(
            True, "", (it.record.reported.agent_state.get("permissions") or [{"id": "x"}])[-1]["id"]
        ),
        answers(409, waiting=OK),
        accepted,
    ),
    "goal": Command(lambda _, it: it.start_goal("all is well", 1), answers(**BUSY), pursued),
    "goal/stop": Command(lambda _, it: it.stop_goal(), answers(), unpursued),
    "goal/resume": Command(lambda _, it: it.resume_goal(), answers(400, **BUSY), unpursued),
    "fork": Command(lambda h, it: h.supervisor.fork(it.id, ForkRequest()), answers(), forked),
    "navigate": Command(lambda _, it: it.navigate(None), answers(**BUSY), moved),
    "ask_agent": Command(lambda _, it: it.ask_agent("what is it"), answers(parked=502), told),
    "restart": Command(lambda h, it: h.supervisor.restart_agent(it.id), answers(), restarted),
    "forced restart": Command(
        lambda h, it: h.supervisor.restart_agent(it.id, force=True), answers(), restarted
    ),
    "stop": Command(lambda h, it: h.supervisor.stop_agent(it.id), answers(), stopped),
    "condense": Command(lambda _, it: it.condense(), EXTERNAL, never),
    "switch_llm": Command(lambda _, it: it.changes.switch_llm({"model": "m"}), answers(400), never),
    "load_plugin": Command(lambda _, it: it.load_plugin("p"), answers(400), never),
    "switch_acp_model": Command(
        lambda _, it: it.changes.switch_model("large"), answers(), holds("reported.current_model", "large")
    ),
    "switch_acp_mode": Command(lambda _, it: it.changes.choose_mode("plan"), answers(parked=502), in_mode),
    "set_acp_option": Command(
        lambda _, it: it.changes.choose_option("brave", True), answers(parked=502), brave
    ),
    "title": Command(lambda _, it: it.changes.set_title("another"), answers(), holds("title", "another")),
    "tags": Command(lambda _, it: it.changes.set_tags({"a": "b"}), answers(), holds("tags", {"a": "b"})),
    "confirmation_policy": Command(
        lambda _, it: it.changes.set_confirmation_policy(CONFIRMING),
        answers(),
        holds("confirmation_policy", CONFIRMING),
    ),
    "security_analyzer": Command(
        lambda _, it: it.changes.set_security_analyzer({"kind": "PatternSecurityAnalyzer"}),
        answers(),
        holds("security_analyzer", {"kind": "PatternSecurityAnalyzer"}),
    ),
    "secrets": Command(lambda _, it: it.changes.set_secrets({"NAME": "value"}), answers(), secret),
}


async def conversation_in(state: str, harness: Harness) -> Conversation:
    policy = CONFIRMING if state == "waiting" else {"kind": "NeverConfirm"}
    it = await harness.start("models", confirmation_policy=policy)
    if state in ("finished", "hibernated", "stopped", "closing"):
        await turn(it, "hello")
    match state:
        case "running" | "paused":
            # Until the agent has it: else a run would prompt with it, and that never ends.
            before = harness.log.prompts().count("!hang")
            await it.send(say("!hang"), run=True)
            await until(lambda: it.agent.ready and it.queue.turn)
            await until(lambda: harness.log.prompts().count("!hang") > before)
            if state == "paused":
                await it.interrupt()
                await until(lambda: not it.busy)
        case "waiting":
            await it.send(say("!perm"), run=True)
            await until(lambda: it.waiting)
        case "error":
            await turn(it, "!error -32000 It is wrong.")
        case "parked":
            while it.agent.phase != "parked":
                await turn(it, "!crash SIGKILL")
        case "hibernated":
            await it.agent.hibernate("a test")
        case "stopped":
            await it.stop_agent()
        case "closing":
            it.runner.close()
    expected = {"new": "idle", "waiting": "waiting_for_confirmation", "parked": "error"}
    expected |= dict.fromkeys(("hibernated", "stopped", "closing"), "finished")
    assert it.record.now.execution_status == expected.get(state, state)
    return it


MANY = ("new", "running", "waiting", "paused", "parked", "closing")
"""The states that differ most; it takes a while."""


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("state", everyday(MANY, STATES))
async def test_a_success_is_true_in_each_state(tmp_path: Path, state: str) -> None:
    async with open_harness(tmp_path, restart=RestartPolicy(crashes=1, first_pause=0.0)) as harness:
        for name, command in COMMANDS.items():
            it = await conversation_in(state, harness)
            status, result = OK, None
            try:
                result = await command.call(harness, it)
            except ConversationError as error:
                found = problem_of(error)
                assert found is not None
                status = found[0]
            assert status == command.statuses[state], (name, state)
            if status == OK:
                try:
                    await command.done(harness, it, state, result)
                except AssertionError as error:
                    error.add_note(f"{name} while {state}")
                    raise
            await harness.supervisor.delete(it.id)


ROUTES = {
    "PATCH": ("title", "tags"),
    "DELETE": (),  # test_closing.py
    "POST events": ("message", "message without run"),
    "POST events/respond_to_confirmation": ("accept", "reject", "accept by an id"),
    "POST restart": ("restart", "forced restart"),
    "POST switch_profile": ("switch_llm",),  # the same, with the model of a profile
    "POST children": (),  # makes another one of any
    "POST runtime/reprovision": (),  # does nothing, and says so
}
"""The commands of the routes that have another name, or none."""


def test_every_route_that_changes_a_conversation_is_in_the_table() -> None:
    services: Any = SimpleNamespace(config=SimpleNamespace(max_page=1, max_event_ids=1))
    found = set()
    for group in (*agents.GROUPS, *operations.GROUPS, *conversations.GROUPS, *event_routes.GROUPS):
        for route in group.routes(services):
            _, marker, rest = route.path.partition("<conversation_id>")
            if marker and route.method != "GET":
                found.add(f"{route.method} {rest.strip('/')}".strip())
    assert len(found) > 20
    named = {each for name in found for each in ROUTES.get(name, (name.partition(" ")[2],))}
    assert named == COMMANDS.keys()
