"""One command run for the agent: its process, its output, its end."""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import trio

from supervisor.fairness import share

from .errors import RpcError

DEFAULT_OUTPUT_BYTES: Final = 1024 * 1024
"""How much output is kept when the agent does not say, bytes."""

MAX_OUTPUT_BYTES: Final = 8 * 1024 * 1024
"""How much output is kept at most, whatever the agent says, bytes."""

DRAIN_SECONDS: Final = 0.25
"""How long the output may go on after the exit before the exit is told. What the process wrote is in the pipe
by then; a descendant that holds the pipe open must not hold up the answer."""

REAP_SECONDS: Final = 2.0
"""How long a killed process may take to die. Only one stuck in the kernel takes longer, perhaps for ever."""

_READ_BYTES: Final = 64 * 1024

Spawning = Callable[[], contextlib.AbstractContextManager[Callable[[int], object]]]
"""A context in which a process is started on the agent's behalf; it gives a function that is told the pid."""


@contextlib.contextmanager
def plain_spawning() -> Iterator[Callable[[int], object]]:
    """Nothing special."""
    yield lambda pid: None


class OutputRing:
    """The last `limit` bytes of an output, as text that begins at a character boundary."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.truncated = False

    def add(self, data: bytes) -> None:
        """Take the next piece."""
        self._kept += data
        # Cut seldom, so that each byte is moved once on average.
        if len(self._kept) > 2 * self._limit + _READ_BYTES:
            self._cut()

    def _cut(self) -> None:
        if len(self._kept) > self._limit:
            del self._kept[: len(self._kept) - self._limit]
            self.truncated = True

    def text(self, *, final: bool) -> str:
        """What is kept. Unless `final`, a character whose last bytes have not come yet is left out."""
        self._cut()
        start = 0
        if self.truncated:
            while start < min(3, len(self._kept)) and self._kept[start] & 0xC0 == 0x80:
                start += 1
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(bytes(self._kept[start:]), final)


class Terminal:
    """A command in a session and process group of its own, started by the constructor.

    Must be made on the main thread. `run` owns the process from then on: however it ends, the process
    group is dead and the process reaped. `kill_tree` is called on the event loop: it must be quick.
    Raises RpcError (-32602) when the command cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        output_limit: int,
        kill_tree: Callable[[int], None] | None = None,
        spawning: Spawning = plain_spawning,
    ) -> None:
        self._output = OutputRing(output_limit)
        self._kill_tree = kill_tree
        self._release = trio.Event()
        self.exited = trio.Event()
        """Set when the process has ended and its output has been read."""
        self.finished = trio.Event()
        """Set when `run` is over."""
        self._exit: tuple[int | None, str | None] = (None, None)
        read_end, write_end = os.pipe()
        try:
            # Standard input is empty: nobody could answer. The group is what is killed.
            with spawning() as own:
                self._process = subprocess.Popen(
                    list(argv),
                    cwd=cwd,
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=write_end,
                    stderr=write_end,
                    start_new_session=True,
                )
                own(self._process.pid)
        except (OSError, ValueError) as error:
            os.close(read_end)
            raise RpcError.invalid_params(f"The command cannot be started: {error}") from None
        finally:
            os.close(write_end)
        self._stream = trio.lowlevel.FdStream(read_end)
        # Until `run` reaps it the process keeps its id even when dead, so that no signal can hit another.
        self._pidfd = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        """The id of the process and of its group."""
        return self._process.pid

    def output(self) -> dict[str, Any]:
        """The answer to `terminal/output`."""
        status = self.exit_status() if self.exited.is_set() else None
        text = self._output.text(final=self.exited.is_set())
        answer: dict[str, Any] = {"output": text, "truncated": self._output.truncated}
        if status is not None:
            answer["exitStatus"] = status
        return answer

    def exit_status(self) -> dict[str, Any]:
        """The answer to `terminal/wait_for_exit`, once `exited` is set: exit code, or name of the signal."""
        code, signal_name = self._exit
        return {"exitCode": code, "signal": signal_name}

    def kill(self) -> None:
        """SIGKILL to the process group and whatever `kill_tree` finds. Nothing when `run` is over."""
        if self.finished.is_set():
            return
        if self._kill_tree is not None:
            # First: what left the group is found through its parents, while they live.
            self._kill_tree(self.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # all of the group has gone
            os.killpg(self.pid, signal.SIGKILL)

    def release(self) -> None:
        """Let `run` end: kill what is left and forget it."""
        self._release.set()

    async def run(self) -> None:
        """Read the output and wait for the end, until released. Cancellation kills at once.

        Afterwards the process group is dead and the process reaped, except for a process that the kernel
        does not let die within REAP_SECONDS.
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
                self._output.add(bytes(data))
                relaying.rest()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        drained.set()

    def _status(self) -> tuple[int | None, str | None]:
        try:
            ended = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            ended = None
        if ended is None:
            return None, None  # reaped by someone else, or stuck in the kernel
        if ended.si_code == os.CLD_EXITED:
            return ended.si_status, None
        return None, _signal_name(ended.si_status)

    def _reap(self) -> None:
        if not self.exited.is_set():
            self._exit = self._status()
        self._process.poll()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
