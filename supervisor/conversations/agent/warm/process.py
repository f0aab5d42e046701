"""A warm process: an agent process that is started and initialized, and waits for a conversation."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import attrs
import structlog
import trio

from supervisor.acp import Connection, Handler, InitializeResult, OutputWatch, TerminalSlots, open_connection
from supervisor.agents.containment.marker import Snapshot
from supervisor.agents.containment.tree import read_file
from supervisor.agents.endings import StopPolicy
from supervisor.agents.process import AgentProcess, spawn
from supervisor.agents.spawning.spawning import Starter
from supervisor.conversations.agent.admission import Admission
from supervisor.conversations.agent.incarnation import Incarnation, explain_end, reporting_end, serve
from supervisor.conversations.agent.launch.plan import Plan
from supervisor.conversations.agent.session_setup import handshake
from supervisor.conversations.agent.side.discarding import Mute
from supervisor.conversations.agent.stderr_tail import StderrTail
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.version import __version__

log = structlog.get_logger(__name__)

STOPPED_STATES = (b"T", b"t")
"""States in /proc of a suspended process: stopped by a signal or by a debugger (proc(5))."""


def key_of(plan: Plan) -> bytes:
    """A digest of everything that a process of this plan gets at its start. Plans with the same key start
    interchangeable processes. It reveals no value."""
    facts = (
        plan.descriptor.key,
        (plan.descriptor.fs, plan.descriptor.terminal),
        plan.version,
        plan.argv,
        sorted(plan.start_environment.items()),
        str(plan.cwd) if plan.descriptor.warm == "directory" else None,
        plan.max_frame,
        plan.private,
        sorted(plan.checked_out),
        tuple(plan.limits),
    )
    return hashlib.sha256(repr(facts).encode("utf-8", "backslashreplace")).digest()


@attrs.define(eq=False)
class WarmProcess:
    """One warm process, from before its start to its end. Its task (`wait`) belongs to the pool, and owns the
    process even while a conversation uses it; leaving `take_over` ends the process.

    `scope`: cancelling it ends the process by the stop ladder. `gone`: set when its process tree has ended.
    """

    name: str
    """The name of the directory that it is started in."""
    agent: str
    """The key of its descriptor."""
    fingerprint: bytes
    """A digest of its settings and secrets (`WarmPool`)."""
    born: float = attrs.field(factory=trio.current_time)
    """The time when it was made (Trio's clock)."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    gone: trio.Event = attrs.field(factory=trio.Event)
    plan: Plan | None = None
    key: bytes = b""
    process: AgentProcess | None = None
    connection: Connection | None = None
    initialized: InitializeResult | None = None
    """Set when it is ready."""
    taken: bool = False
    forked: bool = False
    """Whether a parent forked it, so that they share memory."""
    rss_bytes: int = 0
    cpu_seconds: float = 0.0
    processes: int = 0
    stderr_tail: StderrTail | None = None
    _taker: trio.CancelScope | None = None
    _failure: Exception | None = None

    @property
    def idle_since(self) -> float | None:
        """The time since which it waits, for admission; None once a conversation uses it."""
        return None if self.taken or self.scope.cancel_called else self.born

    @property
    def usable(self) -> bool:
        """Whether a conversation can use it."""
        return (
            self.initialized is not None
            and self.process is not None
            and self.connection is not None
            and not self.process.exited.is_set()
            and not self.connection.closed.is_set()
            and not self.scope.cancel_called
        )

    async def measure(self, seen: Snapshot | None = None) -> None:
        """Measure memory and CPU time of its tree."""
        if self.process is not None and not self.process.exited.is_set():
            usage = await self.process.usage(seen)
            self.rss_bytes, self.cpu_seconds, self.processes = (
                usage.rss_bytes,
                usage.cpu_seconds,
                usage.processes,
            )

    async def hibernate(self, reason: str) -> None:
        """End it for good; a conversation that needs one starts a new process."""
        log.info("ending a warm process", agent=self.agent, reason=reason)
        self.scope.cancel()
        await self.gone.wait()

    async def runs(self) -> bool:
        """Whether its process exists and is not suspended. Reads /proc in a thread."""
        assert self.process is not None
        stat = await trio.to_thread.run_sync(read_file, self.process.pid, "stat")
        state = stat[stat.rfind(b")") + 2 :][:1]
        return self.usable and bool(state) and state not in (*STOPPED_STATES, b"Z", b"X")

    async def wait(
        self,
        plan: Plan,
        stop: StopPolicy,
        deadlines: Deadlines,
        admission: Admission,
        ready: Callable[[], None],
        by: Starter | None = None,
    ) -> None:
        """Start the process, initialize it, call `ready`, and keep it until it ends or is cancelled.

        `by`: the parent that forks it, if there is one.

        Returns when an unused process has ended by itself.

        Raises AgentFailure, SpawnError, ConnectionLost if it does not become ready.

        Owns the process: its process tree has ended when this returns or raises.
        """
        async with (
            reporting_end(plan),
            spawn(
                plan.argv,
                cwd=plan.cwd,
                env=plan.start_environment,
                stop=stop,
                seconds=deadlines.spawn,
                by=by,
                limits=plan.limits,
            ) as process,
            open_connection(
                process.stdout,
                process.stdin,
                Mute(),
                max_frame=plan.max_frame,
                explain=partial(self._explain, process),
                mask=plan.mask,
            ) as connection,
        ):
            self.plan, self.process, self.connection = plan, process, connection
            self.stderr_tail = StderrTail(process, connection, plan.mask)
            offered = plan.descriptor
            async with admission.start():
                self.initialized = await handshake(
                    connection, __version__, deadlines, fs=offered.fs, terminal=offered.terminal
                )
            ready()
            await process.exited.wait()
            if self.taken:
                await trio.sleep_forever()  # the conversation sees the exit, and cancels this task

    async def _explain(self, process: AgentProcess) -> str:
        assert self.stderr_tail is not None
        return await explain_end(process, self.stderr_tail)

    def fail(self, error: Exception) -> bool:
        """Pass an exception of its tasks to the conversation that uses it. False if there is none."""
        self._failure = error
        if self._taker is not None:
            self._taker.cancel()
        return self._taker is not None

    @asynccontextmanager
    async def take_over(
        self,
        plan: Plan,
        handler: Handler,
        slots: TerminalSlots | None = None,
        watch: Callable[[str], OutputWatch] | None = None,
    ) -> AsyncIterator[Incarnation]:
        """Give it to a conversation while the block runs, in place of `run_agent`.

        `plan` is the conversation's, and has the same key.

        Leaving the block, also by cancellation, stops the process tree. That is shielded, and bounded.
        """
        process, connection = self.process, self.connection
        assert process is not None
        assert connection is not None
        try:
            async with reporting_end(plan), self._ended_with_it(), trio.open_nursery() as nursery:
                self._taker = nursery.cancel_scope
                if self._failure is not None or self.scope.cancel_called:
                    nursery.cancel_scope.cancel()
                connection.hand_over(handler, plan.mask)
                self.stderr_tail = stderr_tail = StderrTail(process, connection, plan.mask)
                services = serve(plan, process, nursery, slots, watch)
                run = Incarnation(plan, process, connection, services, nursery, stderr_tail, untried=True)
                run.initialized = self.initialized
                try:
                    yield run
                finally:
                    with trio.CancelScope(shield=True):
                        await services.close()
        except Exception:
            if self._failure is not None:
                raise self._failure from None
            raise
        # Not reached after a cancellation from outside: Cancelled takes precedence over this failure.
        if self._failure is not None:
            raise self._failure

    @asynccontextmanager
    async def _ended_with_it(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self.scope.cancel()
            with trio.CancelScope(shield=True):
                await self.gone.wait()
