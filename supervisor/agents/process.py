"""An agent's process: spawned, watched, and ended with every process that it started.

The spawner starts it (see spawning.py), but the kernel reparents it to this process before its program runs.
A pidfd reports its exit, never an end of file, since a grandchild may hold the pipes. The dead leader stays
unreaped until the block is left, so that its PID cannot be reused while its session is being reaped.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import attrs
import structlog
import trio

from supervisor.agents.containment import cgroup, tree
from supervisor.agents.containment.containment import can_fork, process_marking
from supervisor.agents.containment.levels import Level
from supervisor.agents.containment.marker import (
    SCANNING,
    ProcessMarker,
    Snapshot,
    owned_processes,
    take_snapshot,
)
from supervisor.agents.containment.tree import (
    ProcessEntry,
    ProcessId,
    ProcessTable,
    belonging,
    kill_tree,
    living,
    reap,
)
from supervisor.agents.endings import ExitStatus, StopPolicy, StopReport, StopStep, TreeUsage
from supervisor.agents.environment import MARKER
from supervisor.agents.errors import SpawnError
from supervisor.agents.limits.keeper import Keeper
from supervisor.agents.limits.starting import keep_limits
from supervisor.agents.limits.values import AgentLimits
from supervisor.agents.pipes import AgentPipe, LineTail
from supervisor.agents.spawning.confinement import Confinement
from supervisor.agents.spawning.spawning import (
    SPAWN_SECONDS,
    Child,
    Request,
    Starter,
    StartTimeout,
    start_child,
)
from supervisor.agents.walls.enclosure import Enclosure
from supervisor.fairness import share

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.02
"""Seconds between two checks of processes that are being ended: only the leader is a child of this process,
so only its exit is reported."""

OWN_PIPE = -1
"""In `streams`: a stream that this process reads or writes through a pipe."""

SHARED_SECONDS = 30.0
"""Seconds for which the measured shared memory of a forked process is cached: to measure it, the kernel walks
all its pages."""

NAMESPACE_SIGNALLED = 128
"""In a PID namespace, a process ended by signal n exits with this plus n (`levels.in_namespace`,
`walls.bubblewrap`)."""


Pipes = tuple[trio.lowlevel.FdStream, AgentPipe, AgentPipe]
"""Ends of the agent's pipes: to its standard input, and from its output and error."""


class AgentProcess:
    """A running agent; made by `spawn`, which owns it."""

    def __init__(
        self,
        child: Child,
        pipes: Pipes,
        process_marker: ProcessMarker,
        policy: StopPolicy,
        *,
        spawn_seconds: float,
        forked: bool,
        keeper: Keeper,
        enclosure: Enclosure | None = None,
    ) -> None:
        stdin, stdout, stderr = pipes
        self.limits = keeper
        self.enclosure = enclosure
        """The wall around it."""
        self.forked = forked
        """Whether it is a fork of another process, and shares memory with that one."""
        self._shared = (-math.inf, 0)
        self.pid = child.pid
        self.stdin: trio.abc.SendStream = stdin
        self.stdout: trio.abc.ReceiveStream = stdout
        """Ends at the agent's end of file, or shortly after its exit."""
        self.started_at = time.time()
        """Seconds since the epoch."""
        self.marker = process_marker.variable
        """Value of the marker variable in the environment of its processes."""
        self.containment = process_marker.level
        self.exited = trio.Event()
        self.stop_report: StopReport | None = None
        """Set once it has been stopped."""
        self._child = child
        self._pipes = (stdout, stderr)
        self._stderr = stderr
        self._unsplit = b""
        """Bytes of standard error that were read but not split into lines yet."""
        self._tail = LineTail()
        self._policy = policy
        self._spawn_seconds = spawn_seconds
        self._started = trio.current_time()
        self._status: ExitStatus | None = None
        self._leader = child.id
        self._process_marker = process_marker
        self._known: dict[ProcessId, ProcessEntry] = {}
        self._stopping = trio.Lock()
        self._nothing_left = False
        """Whether a look after the leader's end found no process of its tree, so that none can appear."""

    def stderr_tail(self) -> list[str]:
        """Return the last lines of its standard error, oldest first."""
        return [line for _, line in self.stderr_timed()]

    def stderr_timed(self) -> list[tuple[float, str]]:
        """Return the same lines, each with its arrival time (Trio's clock). Includes what is still in the
        pipe, so lines written before a message on standard output are there even if that was read first."""
        self._unsplit += self._stderr.receive_at_once()
        self._split_stderr()
        return self._tail.timed()

    def stderr_numbered(self) -> tuple[int, list[str]]:
        """Return the last lines that have ended, and the number of the first of them, counted from 0."""
        return self._tail.numbered()

    async def wait(self) -> ExitStatus:
        """Wait for its exit status. Cancellation only stops the wait."""
        await self.exited.wait()
        assert self._status is not None
        return self._status

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: int,
        env: Mapping[str, str],
        stdin: int,
        output: int,
        prefix: Sequence[str] = (),
    ) -> Child:
        """Start a process for the agent, which ends with the agent at the latest, and wait until it runs.

        `cwd`: the descriptor of a directory. `output`: a descriptor that becomes standard output and
        error. The caller keeps the descriptors and owns the child. `prefix`: a command that becomes the one
        after it.

        Raises OSError and ValueError. Cancellation ends a start in progress.
        """
        command, confinement = _enclosed([*prefix, *argv], self._process_marker, self.limits, self.enclosure)
        request = Request(
            argv=command,
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=output,
            stderr=output,
            needs=None if command == list(argv) else argv[0],
            confinement=confinement,
        )
        return await start_child(request, self._process_marker, self._spawn_seconds)

    async def usage(self, seen: Snapshot | None = None) -> TreeUsage:
        """Measure memory and CPU time of the tree; also remember its processes for the end.

        `seen`: a shared snapshot. Without it, this waits for the next one (milliseconds).
        """
        entries = (await self._look(seen)).values()
        shared = await self._shared_bytes() if self.forked else 0
        return TreeUsage(
            processes=len(entries),
            rss_bytes=max(0, sum(entry.rss_bytes for entry in entries) - shared),
            cpu_seconds=sum(entry.cpu_seconds for entry in entries),
            threads=sum(entry.threads for entry in entries),
        )

    async def _shared_bytes(self) -> int:
        """Return the bytes of its memory that it shares with other processes."""
        since, found = self._shared
        if trio.current_time() - since >= SHARED_SECONDS:
            found = await trio.to_thread.run_sync(tree.shared_bytes, self.pid, limiter=SCANNING)
            self._shared = (trio.current_time(), found)
        return found

    async def terminate(self) -> None:
        """Send SIGTERM to the process with its whole tree, and wait at most its grace: for an agent that is
        to be ended while it works, whose end of input alone would not hurry it. `stop` ends what is left.

        Shielded from cancellation, bounded by the policy.
        """
        with trio.CancelScope(shield=True):
            async with self._stopping:
                if self.stop_report is None:
                    await self._terminate(await self._look())

    async def stop(self) -> StopReport:
        """End the process with its whole tree: close its input, then SIGTERM, then SIGKILL, each after its
        grace.

        Returns the report; another call returns the first report.

        Shielded from cancellation, bounded by the policy.
        """
        with trio.CancelScope(shield=True):
            async with self._stopping:
                if self.stop_report is None:
                    self.stop_report = await self._stop()
        assert self.stop_report is not None
        return self.stop_report

    async def _stop(self) -> StopReport:
        began = trio.current_time()
        step = StopStep.EXITED
        # While the leader lives: after its end the kernel reparents its children.
        tree = {} if self._nothing_left else await self._look()
        if not self.exited.is_set():
            step = StopStep.STDIN
            await self.stdin.aclose()
            with trio.move_on_after(self._policy.stdin_grace):
                await self.exited.wait()
            tree = await self._look()
        outlived = len(tree)
        if tree or not self.exited.is_set():
            step = StopStep.TERM
            tree = await self._terminate(tree)
        if tree or not self.exited.is_set():
            step = StopStep.KILL
            tree = await self._kill(tree)
        return StopReport(
            step=step, outlived=outlived, survivors=tuple(tree), seconds=trio.current_time() - began
        )

    async def _terminate(self, tree: Mapping[int, ProcessEntry]) -> Mapping[int, ProcessEntry]:
        """Send SIGTERM and wait at most its grace. Return the processes that are left, new ones included."""
        asked = {entry.id for entry in tree.values()}
        if not self._walled:
            await self._signal(asked, signal.SIGTERM)
        else:
            # Bubblewrap would kill everything at once, and ends by itself after the agent.
            asked = {entry.id for entry in tree.values() if not self._of_wall(entry)}
            await self._signal(asked, signal.SIGTERM, group=False)
        with trio.move_on_after(self._policy.term_grace):
            while asked or not self.exited.is_set():
                began = trio.current_time()
                # In a thread: a tree may have thousands of processes, each with a read of /proc.
                asked = await trio.to_thread.run_sync(living, asked, limiter=SCANNING)
                if asked or not self.exited.is_set():
                    # Sleep as long as the reads took, so that a slow end takes at most half of a processor.
                    await trio.sleep(max(POLL_SECONDS, trio.current_time() - began))
        return await self._look()

    def _of_wall(self, entry: ProcessEntry) -> bool:
        """Whether a process is bubblewrap: the leader, or its child, the first process of the namespace."""
        return entry.id == self._leader or entry.parent == self.pid

    async def _kill(self, tree: Mapping[int, ProcessEntry]) -> Mapping[int, ProcessEntry]:
        """Send SIGKILL until nothing is left: one pass misses processes that are forked meanwhile."""
        with trio.move_on_after(self._policy.kill):
            while True:
                await self._signal({entry.id for entry in tree.values()}, signal.SIGKILL)
                await trio.sleep(POLL_SECONDS)
                tree = await self._look()
                if not tree and self.exited.is_set():
                    break
        return tree

    async def _look(self, seen: Snapshot | None = None) -> Mapping[int, ProcessEntry]:
        """Find the living processes of its tree, and remember them."""
        # Both before the snapshot: what comes or goes while it is taken must not count as seen.
        before, exited = (
            self._process_marker.bounds(),
            self.exited.is_set() and not self._process_marker.starting,
        )
        found = await take_snapshot() if seen is None else seen
        marked, table = self._process_marker.of(found), found.table
        if exited and seen is None and table and not marked and not self._traces(table):
            self._nothing_left = True
            return {}
        # Of both moments: an agent that started or ended meanwhile keeps its processes.
        known, bounds = tuple(self._known), before.joined(self._process_marker.bounds())

        def find() -> Mapping[int, ProcessEntry]:
            return belonging(self._leader, known, marked, table, bounds.rooted(table))

        tree = await trio.to_thread.run_sync(find, limiter=SCANNING)
        for entry in tree.values():
            self._known.setdefault(entry.id, entry)
        return tree

    def _traces(self, table: ProcessTable) -> bool:
        """Whether a living process may be part of its tree without carrying its marker."""
        pids = {*table.companions.get(self.pid, ()), *table.below.get(self.pid, ())}
        pids.update(process.pid for process in (*self._known, *self._process_marker.owned))
        return any(entry.alive for pid in pids if (entry := table.get(pid)) is not None)

    async def _signal(
        self, processes: Iterable[ProcessId], number: signal.Signals, *, group: bool = True
    ) -> None:
        """Send the signal to each process and, with `group`, to the leader's process group; SIGKILL also to
        the cgroup."""
        bounds, control_group = self._process_marker.bounds(), self._process_marker.group

        def send() -> None:
            rooted = bounds.rooted()
            if control_group is not None and number is signal.SIGKILL:
                cgroup.kill(control_group, rooted)
            kill_tree(self._leader if group else None, processes, number, rooted)

        await trio.to_thread.run_sync(send, limiter=SCANNING)

    @property
    def _walled(self) -> bool:
        """Whether its wall is a PID namespace."""
        return self.enclosure is not None and self.enclosure.namespaced

    @property
    def _in_namespace(self) -> bool:
        return self.containment is Level.PIDNS or self._walled

    async def _watch(self) -> None:
        """Wait for the exit without reaping."""
        await _wait_exit(self.pid)
        # WNOWAIT: the zombie keeps its PID, and so the session and group that are signalled next.
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it has ended
        assert result is not None
        code: int | None = result.si_status
        number: int | None = None
        if result.si_code != os.CLD_EXITED:
            code, number = None, result.si_status
        elif self._in_namespace and result.si_status > NAMESPACE_SIGNALLED:
            code, number = None, result.si_status - NAMESPACE_SIGNALLED
        self._status = ExitStatus(code=code, signal=number, uptime=trio.current_time() - self._started)
        self.limits.ended(self._status)
        for pipe in self._pipes:
            # A grandchild may hold the other end, and then no end of file comes.
            pipe.writer_exited()
        self.exited.set()

    def give_up(self) -> None:
        """Report a process that hangs in the kernel as killed, so that `wait` returns."""
        if not self.exited.is_set():
            log.error("a killed process does not end", pid=self.pid)
            uptime = trio.current_time() - self._started
            self._status = ExitStatus(code=None, signal=signal.SIGKILL, uptime=uptime)
            self.exited.set()

    async def _remember_stderr(self) -> None:
        relaying = share()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await self._stderr.receive_some():
                self._unsplit += data
                await relaying.turn()
                self._split_stderr()
                relaying.rest()

    def _split_stderr(self) -> None:
        data, self._unsplit = self._unsplit, b""
        if data:
            self._tail.feed(data, trio.current_time())

    async def _release(self) -> None:
        """Close the pipes and reap, after the stop."""
        await self.stdin.aclose()
        for pipe in self._pipes:
            await pipe.aclose()
        if not self._nothing_left or self._process_marker.group is not None:
            # For systems without /proc, where only the group is known, and for processes that hang.
            await self._signal((), signal.SIGKILL)
        # Last: from here on its PID may become another process's.
        self._child.reap()
        # If orphans are reparented to the server, reap this agent's. A process that was the server's child
        # when it was first seen, or is owned, is reaped by its starter.
        owned = owned_processes()
        orphans = [
            entry.id
            for entry in self._known.values()
            if entry.id not in owned and entry.parent != os.getpid()
        ]
        if orphans:
            await trio.to_thread.run_sync(reap, orphans, limiter=SCANNING)


@asynccontextmanager
async def spawn(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stop: StopPolicy | None = None,
    seconds: float = SPAWN_SECONDS,
    streams: tuple[int, int, int] | None = None,
    by: Starter | None = None,
    confinement: Confinement | None = None,
    limits: AgentLimits | None = None,
    enclosure: Enclosure | None = None,
) -> AsyncIterator[AgentProcess]:
    """Run `argv` in `cwd` with exactly `env` (plus a marker variable) while the block runs.

    `seconds`: the limit of the start. The program runs when the block is entered.

    `streams`: descriptors for its standard input, output and error, which stay the caller's. The process then
    has no streams here, except where one is `OWN_PIPE`.

    `by`: a running program that forks the process (`forker`). If it cannot, the spawner starts it.

    `confinement`: limits for the process and for all that it starts. `enclosure`: the wall around them, in
    place of the confinement.

    `limits`: those of an agent's whole tree, by what can hold them here.

    Raises SpawnError. The block's own exception comes out unwrapped.

    Owns the process: leaving the block, in any way, stops the whole tree (`AgentProcess.stop`), shielded and
    bounded.
    """
    if not argv:
        raise SpawnError("an empty command cannot be started")
    with ExitStack() as stack:
        try:
            process_marker = stack.enter_context(process_marking())
        except OSError as error:
            raise SpawnError(_explain(argv, cwd, error)) from error
        process_marker.variable = env.get(MARKER) or process_marker.variable
        namespaced = enclosure is not None and enclosure.namespaced
        user = None if enclosure is None else enclosure.user
        keeper = keep_limits(limits, process_marker, walled=namespaced, user=user)
        if namespaced:
            command, confinement = _enclosed(argv, process_marker, keeper, enclosure)
        else:
            confinement = keeper.confinement(confinement if enclosure is None else enclosure.confinement)
            inner, confinement = process_marker.confined([*keeper.prefix, *argv], confinement)
            command = process_marker.command(inner)
        stdin, stdout, stderr = streams or (OWN_PIPE,) * 3
        request = Request(
            argv=command,
            cwd=cwd,
            env={**env, MARKER: process_marker.variable},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            needs=None if command == list(argv) else argv[0],
            confinement=confinement,
        )
        try:
            child, pipes, forked = await _start(request, process_marker, seconds, by if can_fork() else None)
        except (OSError, ValueError) as error:
            raise SpawnError(_explain(argv, cwd, error)) from error
        process = AgentProcess(
            child,
            pipes,
            process_marker,
            stop or StopPolicy(),
            spawn_seconds=seconds,
            forked=forked,
            keeper=keeper,
            enclosure=enclosure,
        )
        async with _owned(process):
            yield process


def _enclosed(
    argv: Sequence[str], process_marker: ProcessMarker, keeper: Keeper, enclosure: Enclosure | None
) -> tuple[list[str], Confinement | None]:
    """The command that runs `argv` within an agent's limits and behind its wall, if it has one; and what the
    spawner has to confine it to."""
    if enclosure is None or not enclosure.namespaced:
        limits = keeper.confinement(None if enclosure is None else enclosure.confinement)
        if limits is None or process_marker.spawner is not None:
            return list(argv), limits
        return limits.command(argv), None
    # It has a PID namespace of its own.
    inner = enclosure.command([*keeper.prefix, *argv])
    command, confinement = process_marker.confined(inner, keeper.confinement(enclosure.confinement))
    return list(command), confinement


@asynccontextmanager
async def _owned(process: AgentProcess) -> AsyncIterator[None]:
    """Watch the process while the block runs, then stop it."""
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        # Shielded: a cancelled block must still see the exit and read standard error while it is left.
        watching, reading = trio.CancelScope(shield=True), trio.CancelScope(shield=True)
        read = trio.Event()

        async def watch() -> None:
            with watching:
                await process._watch()

        async def remember() -> None:
            with reading:
                await process._remember_stderr()
            read.set()

        nursery.start_soon(watch)
        nursery.start_soon(remember)
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - raised again below, outside of the nursery's group
            failure = error
        with trio.CancelScope(shield=True):
            await process.stop()
            # The pipe itself bounds this once the agent has exited; only a process stuck in the kernel has
            # not.
            if process.exited.is_set():
                await read.wait()
            watching.cancel()
            reading.cancel()
            process.give_up()
            await process._release()
    if failure is not None:
        raise failure


async def _start(
    request: Request, process_marker: ProcessMarker, seconds: float, by: Starter | None
) -> tuple[Child, Pipes, bool]:
    """Start the process, with a pipe for each stream that is `OWN_PIPE`. Return also whether it was forked.

    Raises OSError, ValueError.
    """
    streams = request.stdin, request.stdout, request.stderr
    ends: list[int] = []
    try:
        for _ in range(3):
            ends.extend(os.pipe())
        in_read, in_write, out_read, out_write, err_read, err_write = ends
        theirs = in_read, out_write, err_write
        stdin, stdout, stderr = (
            pipe if each == OWN_PIPE else each for pipe, each in zip(theirs, streams, strict=True)
        )
        request = attrs.evolve(request, stdin=stdin, stdout=stdout, stderr=stderr)
        child = None
        if by is not None:
            try:
                child = await start_child(request, process_marker, seconds, by)
            except OSError as error:
                log.warning("cannot fork a process; starting it", reason=str(error))
        forked = child is not None
        child = child or await start_child(request, process_marker, seconds)
    except BaseException:
        for end in ends:
            os.close(end)
        raise
    for end in theirs:
        os.close(end)
    pipes = trio.lowlevel.FdStream(in_write), AgentPipe(out_read), AgentPipe(err_read)
    ours: tuple[trio.lowlevel.FdStream | AgentPipe, ...] = pipes
    for each, pipe in zip(streams, ours, strict=True):
        if each != OWN_PIPE:
            pipe.close()
    return child, pipes, forked


def _explain(argv: Sequence[str], cwd: Path, error: Exception) -> str:
    if isinstance(error, StartTimeout):
        return f"{argv[0]} {error}"
    if isinstance(error, OSError) and str(error.filename) == str(cwd):
        return f"the working directory {cwd} cannot be used: {error.strerror}"
    return f"{argv[0]} cannot be started: {(isinstance(error, OSError) and error.strerror) or error}"


async def _wait_exit(pid: int) -> None:
    """Wait for the exit of this child, without reaping it."""
    if not hasattr(os, "pidfd_open"):
        wait = partial(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        await trio.to_thread.run_sync(wait, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))
        return
    descriptor = os.pidfd_open(pid)
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)
