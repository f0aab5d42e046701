"""The commands of clients to a conversation, as requests, and the states that a conversation can be in."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import attrs
import trio
import trio.testing

from gateway.api.app import create_app
from gateway.api.services import Services
from gateway.configuration.config import Config
from supervisor.agents.restart import RestartPolicy
from supervisor.conversations.conversation import Conversation
from supervisor.credentials.lookup import Lookups
from supervisor.settings.profiles.profiles import AgentProfileStore
from tests.conversations import telling
from tests.conversations.harness import (
    QUICK,
    Harness,
    open_harness,
    ready_pid,
    say,
    speaking,
    turn,
    until,
)
from tests.gateway.harness import Gateway

EXTERNAL: Final = "external"
BUILT_IN: Final = "built-in"

STATES: Final = {
    "new": "idle",
    "starting": "running",
    "finished": "finished",
    "running": "running",
    "goal": "running",
    "waiting": "waiting_for_confirmation",
    "gone": "waiting_for_confirmation",
    "cancelling": "paused",
    "paused": "paused",
    "error": "error",
    "restarting": "error",
    "parked": "error",
    "hibernated": "finished",
    "stopped": "finished",
    "closing": "finished",
    "hidden": "finished",
}
"""The states, and the status that clients see in each. `starting`: the agent does, for a first message.
`goal`: its turn runs. `gone`: a person was asked, and the agent was killed. `cancelling`: an interrupted turn
does not end. `restarting`: the agent crashed, and its next process starts. `hidden`: its deletion can be
undone."""

STARTS: Final = attrs.evolve(
    QUICK, initialize=600, interrupt_answer=0.1, end=0.5, stop_stdin=0.1, stop_term=0.1
)
CANCELS: Final = attrs.evolve(STARTS, cancel_grace=600)
"""What starts, or is cancelled, does so until the test ends it; and the end of it is quick."""

CUSHION_S: Final = 0.2
"""For so long nothing happens while a request waits for the start of an agent."""

CONFIRMING: Final = {"kind": "AlwaysConfirm"}
ANALYZER: Final = {"kind": "PatternSecurityAnalyzer"}
NEW: Final = "a new message"
MODEL: Final = {"model": "another"}


@attrs.frozen
class Command:
    """A request. `body` may depend on the conversation. `leaves`: it may leave the conversation in the state
    that it was in, so that others can follow."""

    route: str
    body: Any = None
    leaves: bool = False


@attrs.define
class World:
    """Conversations with agents of one kind, behind the routes of a server."""

    harness: Harness
    gateway: Gateway
    kind: str
    made: int = 0

    @property
    def native(self) -> bool:
        return self.kind == BUILT_IN

    @property
    def gate(self) -> Path:
        """An agent that starts waits for this file."""
        return self.harness.root / "gate"

    async def start(self, *modes: str, **fields: Any) -> Conversation:
        modes = (f"gate={self.gate}", *modes)
        fields["autotitle"] = False  # else a title may come at any moment
        if self.native:
            return await telling.start(self.harness, *modes, **fields)
        return await self.harness.start("models", *modes, **fields)

    async def hello(self, it: Conversation) -> None:
        self.made += 1
        await turn(it, f"!answer m{self.made} Hello" if self.native else "hello")

    async def in_state(self, state: str) -> Conversation:
        """A conversation in this state."""
        self.gate.touch()
        asks = state in ("waiting", "gone")
        modes = ("cancel=ignore",) if state == "cancelling" else ()
        it = await self.start(*modes, confirmation_policy=CONFIRMING if asks else {"kind": "NeverConfirm"})
        if state in ("finished", "restarting", "hibernated", "stopped", "closing", "hidden"):
            await self.hello(it)
        it = await getattr(self, f"_{state}", _nothing)(it) or it
        expected = STATES[state]
        if state == "gone" and not self.native:
            expected = "error"  # with an external agent's process its questions end
        assert it.record.now.execution_status == expected
        return it

    async def _starting(self, it: Conversation) -> None:
        self.gate.unlink()
        await it.send(say("hello"), run=True)
        await until(lambda: it.agent.phase == "starting")

    @property
    def _endless(self) -> str:
        """A message to which the agent says something, and then does not end."""
        self.made += 1
        return f"!status paused\n!answer m{self.made} I begin\n!hang" if self.native else "!slow 1000000 50"

    async def _begun(self, it: Conversation) -> None:
        if self.native:
            await until(lambda: it.runner.turns._voice.spoke)
        else:
            await speaking(it)

    async def _running(self, it: Conversation) -> None:
        await it.send(say(self._endless), run=True)
        await self._begun(it)

    async def _goal(self, it: Conversation) -> None:
        await it.start_goal(self._endless, 1)
        await self._begun(it)

    async def _waiting(self, it: Conversation) -> None:
        await it.send(say("!act a ls\n!confirm a\n!observe a It ran" if self.native else "!perm"), run=True)
        await until(lambda: it.waiting)

    async def _gone(self, it: Conversation) -> None:
        await self._waiting(it)
        pid = self.kill(it)
        await until(lambda: ready_pid(it) not in (None, pid))
        assert not it.busy

    async def _cancelling(self, it: Conversation) -> None:
        await self._running(it)
        await it.interrupt()
        assert it.cancelling

    async def _paused(self, it: Conversation) -> None:
        await self._running(it)
        await it.interrupt()
        await until(lambda: not it.busy)

    async def _error(self, it: Conversation) -> None:
        await turn(it, "!error -32000 It is wrong.")
        await until(lambda: not it.agent.live)  # an agent that needs credentials is ended

    async def _restarting(self, it: Conversation) -> None:
        self.gate.unlink()
        await turn(it, "!crash SIGKILL")
        await until(lambda: it.agent.restarts.active and it.agent.current is not None)

    async def _parked(self, it: Conversation) -> None:
        while it.agent.phase != "parked":
            await turn(it, "!crash SIGKILL")

    async def _hibernated(self, it: Conversation) -> None:
        await it.agent.hibernate("a test")

    async def _stopped(self, it: Conversation) -> None:
        await it.stop_agent()

    async def _closing(self, it: Conversation) -> None:
        it.runner.close()

    async def _hidden(self, it: Conversation) -> Conversation:
        await self.harness.supervisor.delete_later(it.id, 300)
        return await self.harness.supervisor.get(it.id)

    def kill(self, it: Conversation) -> int:
        """Kill the agent; its process id."""
        pid = ready_pid(it)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return pid

    async def ask(self, it: Conversation, command: Command, *, refused: bool) -> tuple[int, Any]:
        """Status and body of the answer. What waits for the agent's start gets it, unless it is `refused`."""
        body = command.body(it) if callable(command.body) else command.body
        method, _, path = command.route.partition(" ")
        path = path.replace("<conversation_id>", it.id)
        async with trio.open_nursery() as nursery:
            if not refused:
                nursery.start_soon(self._open)
            status, answer = await self.gateway.call(method, path, body)
            nursery.cancel_scope.cancel()
        if status < 300:
            self.gate.touch()
        return status, answer

    async def _open(self) -> None:
        if not self.gate.exists():
            await trio.testing.wait_all_tasks_blocked(CUSHION_S)
            self.gate.touch()


async def _nothing(_: Conversation) -> None:
    pass


@asynccontextmanager
async def open_world(root: Path, kind: str, *, cancels: bool = False) -> AsyncIterator[World]:
    """`cancels`: a turn that is cancelled may take its time."""
    restart = RestartPolicy(crashes=1, first_pause=0.0)
    deadlines = CANCELS if cancels else STARTS
    async with open_harness(root, restart=restart, deadlines=deadlines) as harness:
        launcher: Any = SimpleNamespace(lookups=Lookups())
        services = Services(
            config=Config(state=root),
            supervisor=harness.supervisor,
            launcher=launcher,
            settings=harness.settings,
            profiles=AgentProfileStore(harness.settings),
            secrets=launcher,  # no request names a stored one
        )
        gateway = Gateway(services, create_app(services), harness.supervisor)  # type: ignore[arg-type]
        await gateway.call("POST", "/api/profiles/example", {"llm": MODEL})
        yield World(harness, gateway, kind)
