"""One incarnation of an agent: its process, the connection to it, and the session it holds."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
import structlog
import trio

from supervisor.acp import (
    Connection,
    Handler,
    InitializeResult,
    OutputWatch,
    Services,
    TerminalSlots,
    method_offered,
    open_connection,
)
from supervisor.agents.endings import StopPolicy
from supervisor.agents.environment import base_environment
from supervisor.agents.errors import SpawnError
from supervisor.agents.process import AgentProcess, spawn
from supervisor.agents.spawning.spawning import Starter
from supervisor.conversations.agent.launch.plan import Plan
from supervisor.conversations.agent.session_setup import Session
from supervisor.conversations.agent.side.registry import SideSession, SideSessions
from supervisor.conversations.agent.stderr_tail import StderrTail, account, with_tail
from supervisor.conversations.mcp.mounting import Mounted
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.state.status import AgentPhase
from supervisor.conversations.state.turn import Turn

if TYPE_CHECKING:
    from supervisor.acp.terminal import Started, StartProcess
    from supervisor.agents.walls.door.door import Door
    from supervisor.agents.walls.door.proxies import Refused

log = structlog.get_logger(__name__)

NO_PROGRAM: Final = (errno.ENOENT, errno.EACCES, errno.ENOEXEC)
CORRECT: Final = "Correct the agent's command: a program that is executable, on the server's PATH"


@attrs.define(eq=False)
class Incarnation:
    """A running agent.

    `initialized` and `session` are set after the handshake, `mounted` together with the session.

    `nursery`: for tasks that serve the agent and end with it.

    `scope`: cancelling it stops the process tree by the stop ladder.

    `gone`: set when the whole tree has ended.

    `asked`: the phase after a requested end; if None, the end is a crash.
    """

    plan: Plan
    process: AgentProcess
    connection: Connection
    services: Services
    nursery: trio.Nursery
    stderr_tail: StderrTail
    initialized: InitializeResult | None = None
    session: Session | None = None
    mounted: Mounted = attrs.field(factory=Mounted)
    servers: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    """The MCP servers in the form that the agent gets, once they are known."""
    asked: AgentPhase | None = None
    turn: Turn | None = None
    """The turn that its end cut off, if any."""
    gone: trio.Event = attrs.field(factory=trio.Event)
    replaying: bool = False
    """Whether its current updates are a replay of what the journal already holds."""
    sides: SideSessions = attrs.field(factory=SideSessions)
    """Its sessions besides the conversation's."""
    untried: bool = False
    """Whether its process was warm, and has opened no session yet."""
    door: Door | None = None
    """The door of its network."""

    @property
    def scope(self) -> trio.CancelScope:
        """The cancel scope that ends it."""
        return self.nursery.cancel_scope

    @property
    def pid(self) -> int:
        """Process id of the agent's program."""
        return self.process.pid

    @property
    def closes_sessions(self) -> bool:
        """Whether it offers `session/close`."""
        return self.initialized is not None and method_offered(self.initialized, "session/close")

    @property
    def serves_terminals(self) -> bool:
        """Whether commands that it started in client terminals still run."""
        return bool(self.services.terminals)

    def knows(self, session_id: str) -> bool:
        """Whether one of its open sessions has this id."""
        own = self.session is not None and session_id == self.session.session_id
        return own or session_id in self.sides

    def side_of(self, params: Any) -> SideSession | None:
        """The side session that a message is about; None for the conversation's session, even if an earlier
        side session had the same id."""
        side = self.sides.of(params)
        if side is None or (self.session is not None and side.session_id == self.session.session_id):
            return None
        return side

    def note_replay(self, replaying: bool) -> None:
        """Mark the updates that follow as a replay, or as new."""
        self.replaying = replaying

    @property
    def usable(self) -> bool:
        """Whether it can take a prompt: it is connected, and not being stopped."""
        return not (
            self.process.exited.is_set() or self.connection.closed.is_set() or self.scope.cancel_called
        )


async def explain_end(process: AgentProcess, stderr_tail: StderrTail) -> str:
    """Wait for the agent's exit and describe it: the limit that it hit, or its exit status or signal, uptime,
    last output."""
    status = await process.wait()
    log.info("agent exited", pid=process.pid, code=status.code, signal=status.signal)
    lines = stderr_tail.lines()
    hit = process.limits.explain(status, lines)
    if hit is not None:
        return with_tail(hit.text, lines)
    return account(status, lines, process.limits.suspicion(status))


@asynccontextmanager
async def reporting_end(plan: Plan) -> AsyncIterator[None]:
    """Call `Plan.ended` when the block is left: no process of the agent is alive by then."""
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await plan.ended()  # short: it reads a file or two


def serve(
    plan: Plan,
    process: AgentProcess,
    nursery: trio.Nursery,
    slots: TerminalSlots | None,
    watch: Callable[[str], OutputWatch] | None,
    door: Door | None = None,
) -> Services:
    """The services for an agent. The caller closes them. `door`: of the network of its terminals."""
    environment = base_environment(plan.environment, isolated=False)
    if door is not None:
        from supervisor.agents.walls.door.rewiring import NODE_PROXY

        # Of the door's variables the only one that is not passed on anyway.
        environment |= {name: value for name, value in plan.environment.items() if name == NODE_PROXY}
    return Services(
        plan.jail,
        nursery,
        environment=environment,
        fs=plan.descriptor.fs,
        terminal=plan.descriptor.terminal,
        start=process.start if door is None else _behind(door, process),
        slots=slots,
        watch=watch,
    )


def _behind(door: Door, process: AgentProcess) -> StartProcess:
    """Starts what the agent has run behind the agent's door."""

    async def start(
        argv: Sequence[str], *, cwd: int, env: Mapping[str, str], stdin: int, output: int
    ) -> Started:
        def begin(prefix: Sequence[str]) -> Awaitable[Started]:
            return process.start(argv, cwd=cwd, env=env, stdin=stdin, output=output, prefix=prefix)

        return await door.behind(begin)

    return start


def unheard(host: str, port: int, why: str) -> None:
    """For an agent without a conversation: what its door refuses is logged."""
    log.info("an agent's door refused a host", host=host, port=port, reason=why)


@asynccontextmanager
async def _behind_its_door(plan: Plan, refused: Refused) -> AsyncIterator[tuple[Plan, Door | None]]:
    """Open the door of the agent's network, if it has one, while the block runs; the plan of a start behind
    it. Raises SpawnError."""
    if plan.door is None or plan.enclosure is None:
        yield plan, None
        return
    from supervisor.agents.walls.door.door import open_door

    wiring = plan.door.wiring
    async with AsyncExitStack() as stack:
        try:
            door = await stack.enter_async_context(
                open_door(
                    upstreams=wiring.upstreams,
                    allowed=plan.door.hosts.joined(wiring.hosts),
                    refused=refused,
                    parent=plan.door.parent,
                    connections=plan.door.connections,
                    way_out=wiring.way_out,
                )
            )
        except OSError as error:
            raise SpawnError(f"the door of the agent's network cannot be opened: {error}") from error
        argv = door.command(plan.argv, inside=str(door.directory))
        wall = plan.enclosure.showing(door.directory)
        yield attrs.evolve(plan, argv=tuple(argv), enclosure=wall), door


@asynccontextmanager
async def run_agent(
    plan: Plan,
    handler: Handler,
    stop: StopPolicy,
    spawn_seconds: float,
    slots: TerminalSlots | None = None,
    watch: Callable[[str], OutputWatch] | None = None,
    by: Starter | None = None,
    refused: Refused = unheard,
) -> AsyncIterator[Incarnation]:
    """Start the agent's process within a deadline, and connect to it.

    `stop` bounds the steps of ending it; `slots` is the limit on terminals that all agents share;
    `watch` returns the watch of a terminal's output; `by` is a running program that forks the process.
    `refused` is called with a host, its port and the reason that the door of its network refuses it.

    When the process exits by itself, pending requests fail with its last output, and the block continues.

    Raises AgentFailure (ACPSpawnError).

    Owns process and connection: leaving the block, also by cancellation, stops the process tree and fails
    pending requests.
    """
    try:
        async with (
            reporting_end(plan),
            _behind_its_door(plan, refused) as (placed, door),
            spawn(
                placed.argv,
                cwd=plan.cwd,
                env=plan.start_environment,
                stop=stop,
                seconds=spawn_seconds,
                by=by,
                limits=plan.limits,
                enclosure=placed.enclosure,
            ) as process,
            trio.open_nursery() as nursery,
            open_connection(
                process.stdout,
                process.stdin,
                handler,
                max_frame=plan.max_frame,
                explain=lambda: explain_end(process, stderr_tail),
                mask=plan.mask,
            ) as connection,
        ):
            stderr_tail = StderrTail(process, connection, plan.mask)
            services = serve(plan, process, nursery, slots, watch, door)
            try:
                yield Incarnation(plan, process, connection, services, nursery, stderr_tail, door=door)
            finally:
                with trio.CancelScope(shield=True):
                    await services.close()
    except SpawnError as error:
        detail = _unstarted(error, plan)
        raise AgentFailure("ACPSpawnError", detail, kind="config", user_action="settings") from error


def _unstarted(error: SpawnError, plan: Plan) -> str:
    cause = error.__cause__
    wrong = isinstance(cause, OSError) and str(cause.filename) != str(plan.cwd) and cause.errno in NO_PROGRAM
    return f"{error}. {CORRECT}" if wrong else str(error)
