"""Runs clients' commands, each in a separate process tree, contained and ended like an agent's."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import attrs
import orjson
import structlog
import trio

from supervisor.agents.endings import ExitStatus, StopPolicy
from supervisor.agents.environment import base_environment
from supervisor.agents.errors import SpawnError
from supervisor.agents.process import AgentProcess, spawn
from supervisor.credentials.masking import NOTHING, Masker
from supervisor.fairness import share
from supervisor.patience import ended_by
from supervisor.workspace.commands.log import FAILED, BashCommand, BashLog, BashOutput, Scope, encode
from supervisor.workspace.commands.output import Output

log = structlog.get_logger(__name__)

SHELL: Final = ("/bin/sh", "-c")
"""What runs a command: the shell that clients of the wire get from other servers."""

STOP: Final = StopPolicy(stdin_grace=0.0, term_grace=1.0)
"""How a command is ended: SIGTERM, and SIGKILL a second later, as clients of the wire expect."""

DRAIN_SECONDS: Final = 1.0
"""Seconds for which the output is read after all processes of a command are gone.

Only a process that SIGKILL does not end can keep it open for longer.
"""

LOOK_SECONDS: Final = 15.0
"""Seconds between two checks for processes that a finished command left behind: each reads all of /proc."""

STOP_SECONDS: Final = 10.0
"""Seconds that a client's stop waits for the end of the command. The ladder above takes at most 3."""

NOT_BEGUN: Final = "The command was stopped before it began."

_READ_BYTES: Final = 64 * 1024


@attrs.frozen(kw_only=True)
class BashLimits:
    """Bounds on all commands together, and on each."""

    commands: int = 32
    """Commands that run, or are being ended, at a time. A person, or an agent's client, has a few; each has a
    process tree."""

    background: int = 32
    """Finished commands that have left processes in the background; of more, the oldest are ended, and count
    as running until they are gone."""

    output_bytes: int = 16 * 1024 * 1024
    """Output of one command that is sent as it arrives; beyond it, only the end is kept."""

    kept_bytes: int = 64 * 1024 * 1024
    """JSON of all retained events."""

    kept_events: int = 10_000
    """Retained events: a search scans all of them, for some milliseconds."""

    seconds: float = 24 * 3600.0
    """Longest timeout. A larger one becomes this one."""


class TooManyCommands(Exception):
    """The limit of running commands is reached. The message says what to do."""


class Slots(Protocol):
    """A counter of something with a limit."""

    def take(self) -> bool:
        """Take a slot; the caller releases it. False if none is free."""

    def give(self) -> None:
        """Release a slot."""


@attrs.define(eq=False)
class Command:
    """One command, from its start until nothing is left of it."""

    event: BashCommand
    scope: Scope
    deadline: float
    """On Trio's clock: when all of its processes are ended."""
    asked: trio.Event = attrs.field(factory=trio.Event)
    """Set when it is to end."""
    finished: trio.Event = attrs.field(factory=trio.Event)
    """Set when its last output is in the log."""
    gone: trio.Event = attrs.field(factory=trio.Event)
    """Set when none of its processes is left."""
    order: int = 0
    """Of the next output."""
    last: bytes = b""
    """The last output, as JSON."""
    lingering: bool = False
    """Whether its shell has ended, and left processes in the background that may stay."""
    forgotten: bool = False
    """Whether its conversation, and with it its events, were deleted."""

    @property
    def id(self) -> str:
        """32 hexadecimal digits."""
        return self.event.id


class Bash:
    """The commands of one server. Made by `open_bash`."""

    def __init__(
        self,
        nursery: trio.Nursery,
        environment: Mapping[str, str],
        limits: BashLimits,
        secrets: Callable[[], Awaitable[tuple[str, ...]]] | None,
        slots: Slots | None,
    ) -> None:
        self._nursery = nursery
        self._environment = base_environment(environment, isolated=False)
        self._limits = limits
        self._secrets = secrets
        self._masked: tuple[str, ...] = ()
        self._mask = NOTHING
        self._slots = slots
        self._live: dict[str, Command] = {}
        """Those of which processes may be left, oldest first."""
        self.log = BashLog(limits.kept_bytes, limits.kept_events)

    @property
    def running(self) -> int:
        """How many commands run, or are being ended. A finished one with permitted background processes does
        not count."""
        return sum(not command.lingering or command.asked.is_set() for command in self._live.values())

    def start(self, command: str, *, cwd: str | None, seconds: int, scope: Scope = None) -> Command:
        """Start a command; its output goes into the log.

        `cwd`: an absolute path; None is this process's directory.

        `seconds`: the time after which the command, and all that it has started, is ended; cut to
        `BashLimits.seconds`.

        Raises TooManyCommands.
        """
        if self.running >= self._limits.commands:
            raise TooManyCommands(
                f"{self._limits.commands} commands are running, which is the limit. "
                "Wait for one, stop one, or raise OSTLER_BASH_COMMANDS."
            )
        if self._slots is not None and not self._slots.take():
            raise TooManyCommands("The server has no file descriptors left for a command. Try again later.")
        seconds = int(min(seconds, self._limits.seconds))
        id_, timestamp = self.log.stamp()
        event = BashCommand(command=command, cwd=cwd, timeout=seconds, id=id_, timestamp=timestamp)
        started = Command(event, scope, trio.current_time() + max(0, seconds))
        self.log.add(scope, event)
        self._live[started.id] = started
        self._nursery.start_soon(self._run, started, name=f"command {started.id}")
        return started

    async def stop(self, command_id: str, scope: Scope = None) -> bool:
        """End a command, and what it has left in the background. Returns False if it is unknown.

        Waits for its end, at most STOP_SECONDS. Cancellation only stops the wait.
        """
        command = self._live.get(command_id)
        # Commands of another conversation are as unknown as none.
        if command is None or command.scope != scope:
            return self.log.get(scope, command_id) is not None
        command.asked.set()
        with trio.move_on_after(STOP_SECONDS):
            await command.gone.wait()
        return True

    async def result(self, command: Command) -> bytes:
        """Wait for the end of a command, and return its output in one BashOutput, as JSON."""
        await command.finished.wait()
        bodies = [kept.body for kept in self.log.outputs(command.id)] or [command.last]
        if len(bodies) == 1 and command.order == 1:
            return bodies[0]
        return await trio.to_thread.run_sync(_join, bodies)

    async def forget(self, scope: Scope) -> None:
        """End all commands of a deleted conversation, and drop its events.

        Waits for their end, at most STOP_SECONDS. Cancellation only stops the wait.
        """
        commands = [command for command in self._live.values() if command.scope == scope]
        for command in commands:
            command.forgotten = True
            command.asked.set()
        self.log.clear(scope)
        with trio.move_on_after(STOP_SECONDS):
            for command in commands:
                await command.gone.wait()

    # -- one command ---------------------------------------------------------------------------------------

    async def _run(self, command: Command) -> None:
        try:
            await self._execute(command)
        except (SpawnError, OSError) as error:
            self._fail(command, str(error))
        except Exception:
            # This task lives in the server's nursery: a fault in one command ends no other.
            log.exception("command failed", command_id=command.id)
            self._fail(command, "the server's log has the reason")
        finally:
            if self._slots is not None:
                self._slots.give()
            del self._live[command.id]
            command.finished.set()
            command.gone.set()

    def _fail(self, command: Command, reason: str) -> None:
        if not command.finished.is_set():
            self._emit(command, None, f"Error executing command: {reason}", FAILED)

    async def _execute(self, command: Command) -> None:
        output = Output(
            await self._masker(), self._limits.output_bytes, lambda out, err: self._emit(command, out, err)
        )
        if command.asked.is_set():
            self._emit(command, None, NOT_BEGUN, FAILED)
            return
        with ExitStack() as ours, ExitStack() as theirs:
            # Standard input is empty, since no client can type into it.
            empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            theirs.callback(os.close, empty)
            (stdout, out), (stderr, err) = _pipe(ours, theirs), _pipe(ours, theirs)
            async with spawn(
                [*SHELL, command.event.command],
                cwd=Path(command.event.cwd or _here()),
                env=self._environment,
                stop=STOP,
                streams=(empty, out, err),
            ) as process:
                # Only processes of the command hold the writing ends now: end of file means that none does.
                theirs.close()
                await self._attend(command, process, output, stdout, stderr)
                ours.close()
                await self._linger(command, process)

    async def _masker(self) -> Masker:
        values = () if self._secrets is None else await self._secrets()
        if values != self._masked:
            # In a thread: some milliseconds for every ten secrets.
            self._mask = await trio.to_thread.run_sync(Masker, values)
            self._masked = values
        return self._mask

    async def _attend(
        self,
        command: Command,
        process: AgentProcess,
        output: Output,
        stdout: trio.lowlevel.FdStream,
        stderr: trio.lowlevel.FdStream,
    ) -> None:
        """Read the output until the shell has ended and the pipes are closed, then report the end."""
        ended = trio.Event()

        async def read_all() -> None:
            async with trio.open_nursery() as reading:
                reading.start_soon(_read, stdout, lambda data: output.add(data, error=False))
                reading.start_soon(_read, stderr, lambda data: output.add(data, error=True))
                await process.wait()
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all)
            with trio.move_on_at(command.deadline) as limit:
                async with ended_by(command.asked.wait):
                    await ended.wait()
            late = limit.cancelled_caught and not command.asked.is_set()
            if not ended.is_set():
                await process.stop()
                with trio.move_on_after(DRAIN_SECONDS):
                    await ended.wait()
            nursery.cancel_scope.cancel()
        ends = await trio.to_thread.run_sync(output.ends) if output.large else output.ends()
        out, err = output.finish(ends)
        code = FAILED
        if late:
            err = f"{err or ''}Command timed out after {command.event.timeout} seconds"
        elif process.exited.is_set():
            code = _code(await process.wait())
        self._emit(command, out, err, code)

    async def _linger(self, command: Command, process: AgentProcess) -> None:
        """Wait while the command has background processes. The caller ends those left afterwards."""
        left = (await process.usage()).processes
        if not left:
            return
        command.lingering = True
        self._make_room()
        with trio.move_on_at(command.deadline):
            while left and not command.asked.is_set():
                with trio.move_on_after(LOOK_SECONDS):
                    await command.asked.wait()
                left = (await process.usage()).processes
        command.lingering = False

    def _make_room(self) -> None:
        """End the oldest commands in the background if there are too many."""
        behind = [each for each in self._live.values() if each.lingering and not each.asked.is_set()]
        for command in behind[: max(0, len(behind) - self._limits.background)]:
            log.warning("ending what a command left in the background", command_id=command.id)
            command.asked.set()

    def _emit(
        self, command: Command, stdout: str | None, stderr: str | None, exit_code: int | None = None
    ) -> None:
        """Put a part of the output into the log; one with an exit code is the last."""
        id_, timestamp = self.log.stamp()
        event = BashOutput(
            id=id_,
            timestamp=timestamp,
            command_id=command.id,
            order=command.order,
            exit_code=exit_code,
            stdout=stdout,
            stderr=stderr,
        )
        command.order += 1
        body = encode(event) if command.forgotten else self.log.add(command.scope, event)
        if exit_code is not None:
            command.last = body
            command.finished.set()


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[trio.lowlevel.FdStream, int]:
    """A pipe, to read from here; its other end is for a child. Raises OSError."""
    read, write = os.pipe()
    theirs.callback(os.close, write)
    stream = trio.lowlevel.FdStream(read)
    ours.callback(stream.close)
    return stream, write


async def _read(stream: trio.lowlevel.FdStream, take: Callable[[bytes], None]) -> None:
    relaying = share()
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while data := await stream.receive_some(_READ_BYTES):
            await relaying.turn()
            take(bytes(data))
            relaying.rest()


def _code(status: ExitStatus) -> int:
    """As Python's subprocess has it: the end by a signal is its number, negative."""
    if status.signal is not None:
        return -status.signal
    return FAILED if status.code is None else status.code


def _here() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - no disk is read
    except OSError:
        return "/"  # it was removed


def _join(bodies: list[bytes]) -> bytes:
    """One output of several, in a thread: they may be some ten megabytes."""
    parts = [orjson.loads(body) for body in bodies]
    joined = {**parts[-1]}
    for name in ("stdout", "stderr"):
        joined[name] = "".join(part[name] for part in parts if part[name]) or None
    if parts[0]["order"]:
        joined["stdout"] = f"[Ostler dropped the beginning: OSTLER_BASH_KEPT_BYTES]\n{joined['stdout'] or ''}"
    return orjson.dumps(joined)


@asynccontextmanager
async def open_bash(
    environment: Mapping[str, str],
    *,
    limits: BashLimits | None = None,
    secrets: Callable[[], Awaitable[tuple[str, ...]]] | None = None,
    slots: Slots | None = None,
) -> AsyncIterator[Bash]:
    """Allow commands while the block runs.

    `environment`: the server's; commands get the part that any child may see.

    `secrets`: returns the values to mask in the commands' output.

    `slots`: a limit, of which each running command takes one slot for its file descriptors.

    Owns their processes: leaving the block, in any way, ends them with all that they have started.
    """
    async with trio.open_nursery() as nursery:
        yield Bash(nursery, environment, limits or BashLimits(), secrets, slots)
        nursery.cancel_scope.cancel()
