"""One command run for the agent: its process, its output, its end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import trio

from supervisor.acp.errors import INTERNAL_ERROR, RpcError
from supervisor.acp.output import OutputRing
from supervisor.acp.serving import work
from supervisor.fairness import share
from supervisor.reading.weight import LARGE_BYTES

DRAIN_SECONDS: Final = 0.25
"""Seconds that the output may continue after the exit before the exit is reported.

The process's output is in the pipe by then; a descendant that holds the pipe open must not delay the answer.
"""

REAP_SECONDS: Final = 2.0
"""Seconds to wait for a killed process. Only one blocked in the kernel takes longer."""

KILLED_SECONDS: Final = 0.1
"""Seconds to wait for a killed process for which no pidfd could be opened."""

_LOOK_SECONDS: Final = 0.01

_READ_BYTES: Final = 64 * 1024


class Started(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int:
        """Its PID, which is also its process group and session."""

    def reap(self) -> None:
        """Reap it if it has ended; its PID may be reused afterwards."""


class StartProcess(Protocol):
    """Starts a process of the agent in a new session, and waits until its program runs."""

    def __call__(
        self, argv: Sequence[str], *, cwd: int, env: Mapping[str, str], stdin: int, output: int
    ) -> Awaitable[Started]:
        """Start a process. `cwd` is the descriptor of a directory.

        The caller keeps its descriptors, and owns the process. Raises OSError, ValueError.

        Cancellation ends a start in progress.
        """


class OutputWatch(Protocol):
    """Receives the output of one terminal as it arrives."""

    def add(self, data: bytes) -> None:
        """Take the next piece. Must not block."""

    async def room(self) -> None:
        """Wait until it can take more (backpressure). Nothing is read meanwhile."""


class Terminal:
    """A command in a new session and process group, started by `start`.

    `run` then owns the process: when it ends for any reason, the process group is dead and the process
    reaped.
    """

    def __init__(
        self,
        process: Started,
        output: int,
        ring: OutputRing,
        watch: OutputWatch | None,
    ) -> None:
        self.ring = ring
        """What is kept of its output."""
        self._watch = watch
        self._release = trio.Event()
        self.exited = trio.Event()
        """Set when the process has ended and its output has been read."""
        self.finished = trio.Event()
        """Set when `run` is over."""
        self._exit: tuple[int | None, str | None] = (None, None)
        self._process = process
        # Until `run` reaps the process its PID cannot be reused, so that no signal hits another process.
        self._pidfd = os.pidfd_open(process.pid)
        self._stream = trio.lowlevel.FdStream(output)

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        cwd: int,
        env: Mapping[str, str],
        ring: OutputRing,
        start: StartProcess,
        watch: OutputWatch | None,
    ) -> Terminal:
        """Start the command in the directory with the descriptor `cwd`, which the caller still owns.

        The caller must start `run` before its next checkpoint. Raises RpcError: -32602 if the command cannot
        be started, -32603 if no descriptors are left.

        Cancellation leaves no process.
        """
        try:
            read_end, write_end = os.pipe()
        except OSError as error:
            raise _not_now(error) from None
        try:
            # Standard input is empty, since the command has no one to answer it.
            empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            os.close(read_end)
            os.close(write_end)
            raise _not_now(error) from None
        try:
            process = await start(argv, cwd=cwd, env=env, stdin=empty, output=write_end)
        except BaseException as error:
            os.close(read_end)
            if isinstance(error, (OSError, ValueError)):
                raise RpcError.invalid_params(f"The command cannot be started: {_why(error)}") from None
            raise
        finally:
            os.close(write_end)
            os.close(empty)
        try:
            return cls(process, read_end, ring, watch)
        except OSError as error:  # no descriptor is left for its pidfd
            os.close(read_end)
            await _end_unwatched(process)
            raise _not_now(error) from None

    @property
    def pid(self) -> int:
        """The PID of the process, which is also its process group."""
        return self._process.pid

    async def output(self) -> dict[str, Any]:
        """The answer to `terminal/output`. Cancellation abandons the decoding thread, which ends soon."""
        status = self.exit_status() if self.exited.is_set() else None
        seen, final = self.ring.seen(), status is not None
        if self.ring.held > LARGE_BYTES:
            read = partial(seen.text, final=final)
            text = await trio.to_thread.run_sync(read, abandon_on_cancel=True, limiter=work().threads)
        else:
            text = seen.text(final=final)
        answer: dict[str, Any] = {"output": text, "truncated": seen.truncated}
        if status is not None:
            answer["exitStatus"] = status
        return answer

    def exit_status(self) -> dict[str, Any]:
        """The answer to `terminal/wait_for_exit`, once `exited` is set: exit code, or name of the signal."""
        code, signal_name = self._exit
        return {"exitCode": code, "signal": signal_name}

    def kill(self) -> None:
        """Send SIGKILL to the process group. Does nothing after `run`."""
        if self.finished.is_set():
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # all of the group has gone
            os.killpg(self.pid, signal.SIGKILL)

    def release(self) -> None:
        """Release the terminal: `run` kills the remaining processes, and ends."""
        self._release.set()

    async def run(self) -> None:
        """Read the output and wait for the end, until released. Cancellation kills at once.

        Afterwards the process group is dead and the process reaped, except for a process that is blocked in
        the kernel for more than REAP_SECONDS.
        """
        drained = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_output, drained)
                await trio.lowlevel.wait_readable(self._pidfd)
                self._exit = self._status()
                with trio.move_on_after(DRAIN_SECONDS):
                    await drained.wait()
                self.exited.set()
                await self._release.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.kill()
            with trio.CancelScope(shield=True):
                with trio.move_on_after(REAP_SECONDS):
                    await trio.lowlevel.wait_readable(self._pidfd)
                await trio.aclose_forcefully(self._stream)
            self._reap()
            os.close(self._pidfd)
            self.exited.set()
            self.finished.set()

    async def _read_output(self, drained: trio.Event) -> None:
        relaying = share()
        try:
            while data := await self._stream.receive_some(_READ_BYTES):
                await relaying.turn()
                self.ring.add(bytes(data))
                if self._watch is not None:
                    self._watch.add(bytes(data))
                relaying.rest()
                if self._watch is not None:
                    await self._watch.room()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        drained.set()

    def _status(self) -> tuple[int | None, str | None]:
        try:
            ended = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            ended = None
        if ended is None:
            return None, None  # reaped elsewhere, or blocked in the kernel
        if ended.si_code == os.CLD_EXITED:
            return ended.si_status, None
        return None, _signal_name(ended.si_status)

    def _reap(self) -> None:
        if not self.exited.is_set():
            self._exit = self._status()
        self._process.reap()


def _not_now(error: OSError) -> RpcError:
    return RpcError(INTERNAL_ERROR, f"The command cannot be started now: {_why(error)}")


def _why(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


async def _end_unwatched(process: Started) -> None:
    """Kill a process that was just started, and reap it if it ends within KILLED_SECONDS."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with trio.CancelScope(shield=True):
        for _ in range(round(KILLED_SECONDS / _LOOK_SECONDS)):
            await trio.sleep(_LOOK_SECONDS)
            process.reap()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
