"""Every command of a client in every state of a conversation: what its route answers, that a success is true,
and that a refusal has a reason and changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import attrs
import pytest

from gateway.api.routes.conversations.operations import RUNTIME
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.errors import UnknownConversation
from tests.conversations.commands import (
    ANALYZER,
    BUILT_IN,
    CONFIRMING,
    EXTERNAL,
    MODEL,
    NEW,
    STATES,
    Command,
    World,
    open_world,
)
from tests.conversations.harness import events, kinds, ready_pid, say, settled, states, turn, until

OK = 200
"""Or another success."""


@attrs.frozen
class Cell:
    """What a command has done in a state: `before` is the last event before it, `pid` the agent's process."""

    world: World
    it: Conversation
    state: str
    answer: Any
    before: int
    pid: int | None

    @property
    def busy(self) -> bool:
        """Whether a turn of before runs on."""
        return self.state in ("running", "goal", "waiting", "cancelling") and self.it.busy

    @property
    def asked(self) -> bool:
        """Whether a person was asked."""
        return self.state == "waiting" or (self.state == "gone" and self.world.native)

    async def events(self) -> list[dict[str, Any]]:
        return (await events(self.it))[self.before + 1 :]


Done = Callable[[Cell], Awaitable[Any]]


async def never(cell: Cell) -> None:
    raise AssertionError("This did what it cannot do.")


async def message(cell: Cell) -> None:
    said = [e for e in await cell.events() if e["kind"] == "MessageEvent" and NEW in str(e)]
    assert len(said) == 1
    if cell.busy or cell.it.waiting:
        assert [each.content[0].text for each in cell.it.queued] == [NEW]  # type: ignore[union-attr]
    else:
        assert await settled(cell.it) == ("error" if cell.state == "parked" else "finished")


async def kept(cell: Cell) -> None:
    if cell.state == "starting":  # the run that has begun takes it, too
        assert await settled(cell.it) == "finished"
        assert cell.world.harness.log.prompts()[-1] == NEW
        return
    assert cell.it.queued[-1].content[0].text == NEW  # type: ignore[union-attr]


async def ran(cell: Cell) -> None:
    """It continues, or there is nothing to do, and the state says so."""
    ends = {"new": "idle", "parked": "error"}
    if cell.state == "cancelling":
        # It continues when the turn has ended: here, with the agent.
        assert cell.it.record.now.execution_status == "running"
        cell.world.kill(cell.it)
    status = await settled(cell.it)
    if cell.asked:
        await accepted(cell)
    elif cell.state in ("error", "gone", "restarting"):
        assert cell.it.record.now.turns == 2 + (cell.state == "restarting")  # with what had failed
    else:
        assert status == ends.get(cell.state, "finished")


async def paused(cell: Cell) -> None:
    it = cell.it
    if it.waiting:
        # A person is still asked; what comes after the turn waits.
        assert it.record.now.execution_status == "waiting_for_confirmation"
        await it.send(say("later"), run=False)
        await it.respond(False, "no")
        await until(lambda: not it.busy)
        assert [each.content[0].text for each in it.queued] == ["later"]  # type: ignore[union-attr]
    elif cell.state in ("new", "starting", "running", "goal"):
        assert it.record.now.execution_status == "paused"
        assert "PauseEvent" in kinds(await cell.events())
    elif cell.state != "cancelling":
        assert not it.busy


async def interrupted(cell: Cell) -> None:
    it = cell.it
    if cell.state != "cancelling":
        await until(lambda: not it.busy)
    assert not it.waiting
    assert not it._goal.running
    if cell.state in ("new", "starting", "running", "goal", "waiting", "cancelling", "paused"):
        assert it.record.now.execution_status == "paused"


async def rejected(cell: Cell) -> None:
    assert not cell.it.waiting
    asked = cell.asked
    if asked:
        await settled(cell.it)
    found = kinds(await cell.events())
    assert ("UserRejectObservation" in found) == asked


async def accepted(cell: Cell) -> None:
    assert await settled(cell.it) == "finished"
    found = await events(cell.it)
    if cell.world.native:
        assert [e["action_id"] for e in found if e["kind"] == "ObservationEvent"] == ["a"]
    else:
        assert "allowed" in str(found[-8:])


async def forked(cell: Cell) -> None:
    made = await cell.world.harness.supervisor.get(cell.answer["id"])
    assert made.id != cell.it.id
    assert made.record.now.execution_status == "idle"


async def moved(cell: Cell) -> None:
    assert cell.it.record.leaf_event_id is None


async def answered(cell: Cell) -> None:
    assert "what is it" in cell.answer["response"]


async def restarted(cell: Cell) -> None:
    # Not the last of the log: a process that waits to be needed may have begun to start before it.
    pid = ready_pid(cell.it)
    assert pid in cell.world.harness.log.pids()
    assert pid != cell.pid
    await until(lambda: not cell.it.busy)  # a message that nothing had taken yet runs after a forced one


async def stopped(cell: Cell) -> None:
    assert not cell.it.agent.live
    assert not cell.it.busy


async def pursued(cell: Cell) -> None:
    await until(lambda: not cell.it._goal.running)
    assert cell.it.record.goal is not None
    assert cell.it.record.goal["objective"] == "all is well"
    assert states(await cell.events(), "goal")


async def unpursued(cell: Cell) -> None:
    assert not cell.it._goal.running
    if cell.state == "goal":
        assert cell.it.record.goal is not None
        assert cell.it.record.goal["status"] == "interrupted"
        assert cell.it.busy  # its turn runs


async def secret(cell: Cell) -> None:
    assert list(cell.it.record.secrets) == ["NAME"]


async def in_mode(cell: Cell) -> None:
    assert cell.it.info()["agent"]["acp_session_mode"] == "plan"


async def brave(cell: Cell) -> None:
    assert cell.it.record.reported.agent_state["acp_options"] == {"brave": True}


async def condensed(cell: Cell) -> None:
    assert "Condensation" in kinds(await cell.events())


async def model(cell: Cell) -> None:
    assert cell.it.info()["agent"]["llm"]["model"] == MODEL["model"]
    await informed(cell, "_ostler/configure", "llm")


async def loaded(cell: Cell) -> None:
    await informed(cell, "_ostler/load_plugin", "plugin_ref")


async def informed(cell: Cell, method: str, name: str) -> None:
    """The agent that lives has heard of it."""
    if ready_pid(cell.it) is not None:
        assert name in cell.world.harness.log.received(method)[-1]["params"]


async def child(cell: Cell) -> None:
    found = await cell.world.harness.supervisor.get(cell.answer["conversation_id"])
    assert found.id in cell.it.record.children
    await until(lambda: found.record.now.turns == 1)


async def available(cell: Cell) -> None:
    assert cell.answer == RUNTIME


async def deleted(cell: Cell) -> None:
    with pytest.raises(UnknownConversation):
        await cell.world.harness.supervisor.get(cell.it.id)


async def deleted_later(cell: Cell) -> None:
    supervisor = cell.world.harness.supervisor
    assert cell.it.id in supervisor.deletions.until
    assert not (await supervisor.get(cell.it.id)).active


async def restored(cell: Cell) -> None:
    assert not cell.world.harness.supervisor.deletions.until
    await turn(await cell.world.harness.supervisor.get(cell.it.id), "hello")


def holds(name: str, value: Any) -> Done:
    async def check(cell: Cell) -> None:
        assert attrgetter(name)(cell.it.record) == value

    return check


def asked_for(it: Conversation) -> dict[str, Any]:
    permissions = it.record.reported.agent_state.get("permissions") or [{"id": "x"}]
    return {"accept": True, "request_id": permissions[-1]["id"]}


ONE = "/api/conversations/<conversation_id>"
RESPOND = f"POST {ONE}/events/respond_to_confirmation"
AGENT = "/api/agents/<conversation_id>"


def say_it(*, run: bool) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": NEW}], "run": run}


@attrs.frozen
class Row:
    """A command, what is true after a success, and the status of its answer by the kind of the agent and the
    state."""

    command: Command
    done: Done
    external: Mapping[str, int]
    built_in: Mapping[str, int]


def answers(usual: int = OK, **others: int) -> dict[str, int]:
    """What closes, or will be deleted, accepts nothing."""
    nothing = others.get("closing", 409)
    return {**dict.fromkeys(STATES, usual), "closing": nothing, "hidden": nothing, **others}


def row(
    asked: str,
    body: Any,
    done: Done,
    external: Mapping[str, int],
    built_in: Mapping[str, int] | None = None,
    *,
    leaves: bool = False,
) -> Row:
    return Row(Command(asked, body, leaves), done, external, external if built_in is None else built_in)


BUSY = dict.fromkeys(("starting", "running", "goal", "waiting", "cancelling"), 409)
PARKED = {"parked": 502}  # an agent has to start, and may not

COMMANDS: Mapping[str, Row] = {
    "title": row(f"PATCH {ONE}", {"title": "another"}, holds("title", "another"), answers(), leaves=True),
    "tags": row(f"PATCH {ONE}", {"tags": {"a": "b"}}, holds("tags", {"a": "b"}), answers(), leaves=True),
    "reprovision": row(f"POST {ONE}/runtime/reprovision", None, available, answers(closing=OK), leaves=True),
    "security_analyzer": row(
        f"POST {ONE}/security_analyzer",
        {"security_analyzer": ANALYZER},
        holds("security_analyzer", ANALYZER),
        answers(),
        leaves=True,
    ),
    "condense": row(f"POST {ONE}/condense", None, condensed, answers(409), answers(**PARKED), leaves=True),
    "load_plugin": row(
        f"POST {ONE}/load_plugin", {"plugin_ref": "p@m"}, loaded, answers(400), answers(**PARKED), leaves=True
    ),
    "switch_llm": row(f"POST {ONE}/switch_llm", {"llm": MODEL}, model, answers(400), answers(), leaves=True),
    "switch_profile": row(
        f"POST {ONE}/switch_profile",
        {"profile_name": "example"},
        model,
        answers(400),
        answers(),
        leaves=True,
    ),
    "switch_acp_model": row(
        f"POST {ONE}/switch_acp_model",
        {"model": "large"},
        holds("reported.current_model", "large"),
        answers(),
        answers(400, closing=400),
        leaves=True,
    ),
    "switch_acp_mode": row(
        f"POST {ONE}/switch_acp_mode",
        {"mode": "plan"},
        in_mode,
        answers(**PARKED),
        answers(400, closing=400),
        leaves=True,
    ),
    "set_acp_option": row(
        f"POST {ONE}/set_acp_option",
        {"option_id": "brave", "value": True},
        brave,
        answers(**PARKED),
        answers(400, closing=400),
        leaves=True,
    ),
    "accept": row(
        RESPOND, {"accept": True}, accepted, answers(409, waiting=OK), answers(409, waiting=OK, gone=OK)
    ),
    "accept by an id": row(
        RESPOND, asked_for, accepted, answers(409, waiting=OK), answers(409, waiting=OK, gone=OK)
    ),
    "reject": row(RESPOND, {"accept": False, "reason": "no"}, rejected, answers()),
    "goal/stop": row(f"POST {ONE}/goal/stop", None, unpursued, answers()),
    "goal/resume": row(
        f"POST {ONE}/goal/resume", None, never, answers(400, **BUSY), answers(400, **BUSY, gone=409)
    ),
    "goal": row(
        f"POST {ONE}/goal",
        {"objective": "all is well", "max_iterations": 1},
        pursued,
        answers(**BUSY),
        answers(**BUSY, gone=409),
    ),
    "ask_agent": row(
        f"POST {ONE}/ask_agent", {"question": "what is it"}, answered, answers(**PARKED), leaves=True
    ),
    "run": row(
        f"POST {ONE}/run",
        None,
        ran,
        answers(**{**BUSY, "waiting": OK}),
        answers(**{**BUSY, "waiting": OK, "cancelling": OK}),
    ),
    "pause": row(f"POST {ONE}/pause", None, paused, answers()),
    "interrupt": row(f"POST {ONE}/interrupt", None, interrupted, answers()),
    "navigate": row(
        f"POST {ONE}/navigate", {"event_id": None}, moved, answers(**BUSY), answers(**BUSY, gone=409)
    ),
    "fork": row(f"POST {ONE}/fork", {}, forked, answers(), leaves=True),
    "child": row(
        f"POST {ONE}/children", {"task": "hello", "isolation": "shared"}, child, answers(), leaves=True
    ),
    "secrets": row(f"POST {ONE}/secrets", {"secrets": {"NAME": "a value"}}, secret, answers()),
    "confirmation_policy": row(
        f"POST {ONE}/confirmation_policy",
        {"policy": CONFIRMING},
        holds("confirmation_policy", CONFIRMING),
        answers(),
    ),
    "message without run": row(f"POST {ONE}/events", say_it(run=False), kept, answers()),
    "message": row(f"POST {ONE}/events", say_it(run=True), message, answers()),
    "stop": row(f"POST {AGENT}/stop", None, stopped, answers()),
    "restart": row(f"POST {AGENT}/restart", {}, restarted, answers()),
    "forced restart": row(f"POST {AGENT}/restart", {"force": True}, restarted, answers()),
    "delete": row(f"DELETE {ONE}", None, deleted, answers(closing=OK)),
    "delete later": row(f"DELETE {ONE}?undo_seconds=300", None, deleted_later, answers(closing=OK)),
    "restore": row(f"POST {ONE}/restore", None, restored, answers(409, hidden=OK)),
}


def now(it: Conversation) -> tuple[Any, ...]:
    """What a refusal must not change."""
    return (
        it.record.now.execution_status,
        it.agent.phase,
        it.busy,
        it.waiting,
        it.cancelling,
        it._goal.running,
        it.queued,
        it.record.title,
        it.record.tags,
        it.record.confirmation_policy,
    )


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", [EXTERNAL, BUILT_IN])
async def test_a_route_answers_success_for_what_it_did(tmp_path: Path, kind: str, state: str) -> None:
    """And else a refusal with a reason, which changes nothing."""
    async with open_world(tmp_path, kind, cancels=state == "cancelling") as world:
        it = None
        for name, each in COMMANDS.items():
            if it is None:
                it = await world.in_state(state)
            before, last, pid = now(it), it.log.last_seq, it.agent.pid
            wanted = (each.built_in if world.native else each.external)[state]
            status, answer = await world.ask(it, each.command, refused=wanted != OK)
            try:
                assert (status if status >= 300 else OK) == wanted, answer
                if wanted != OK:
                    assert answer["detail"]
                    assert now(it) == before
                else:
                    await each.done(Cell(world, it, state, answer, last, pid))
            except AssertionError as error:
                error.add_note(f"{name} while {state}, {kind}")
                raise
            started = state in ("starting", "restarting")  # it is, or will be in a moment
            left = each.command.leaves and not started and now(it)[:7] == before[:7]
            if wanted == OK and not left:
                if not it.log.deleted:
                    await world.harness.supervisor.delete(it.id)
                it = None


NO_COMMANDS = ("bash", "file", "git")
"""What is done in the workspace, whatever the conversation is in: tests/workspace and tests/gateway."""


async def test_every_route_that_changes_a_conversation_is_in_the_table(tmp_path: Path) -> None:
    async with open_world(tmp_path, EXTERNAL) as world:
        found = set()
        for rule in world.gateway.app.url_map.iter_rules():
            _, marker, rest = rule.rule.partition("<conversation_id>")
            if marker and rest.strip("/").partition("/")[0] not in NO_COMMANDS:
                methods = (rule.methods or set()) - {"GET", "HEAD", "OPTIONS"}
                found |= {f"{method} {rule.rule}" for method in methods}
    assert found == {each.command.route.partition("?")[0] for each in COMMANDS.values()}
