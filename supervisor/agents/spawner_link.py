"""The server's side of the spawner (spawner.py): started, spoken to, and started again when it is gone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import structlog
import trio

from supervisor.agents import descriptors, spawner
from supervisor.agents.prctl import attachable
from supervisor.patience import KeyedLimiters, in_time

log = structlog.get_logger(__name__)

HELLO_SECONDS: Final = 10.0
"""For a spawner to be there: a bare interpreter, started in some ten milliseconds."""

_LAUNCHING: Final = KeyedLimiters(2)


class SpawnerGone(Exception):
    """The spawner ended, or was killed, before it had started the requested process."""


class Spawner:
    """The spawner process (spawner.py). `open` starts it; `close` ends it.

    It is restarted when it is gone or does not answer: agents that run as the same user can kill it.
    """

    def __init__(self, number: int) -> None:
        self.tag: Final = number
        """What it carries itself, so that the orphan reaper finds it."""
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._starting = trio.Lock()

    async def open(self) -> None:
        """Start it. On the main thread, before there are agents: this waits for its exec. Raises OSError."""
        self._take(*_launch(self.tag, dies_with_us=True))
        await self._greet()

    def close(self) -> None:
        """End it; the processes that it started stay."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()  # killed, and never where it could hang: it reads no path
            self._process = None

    def pids(self) -> tuple[int, ...]:
        """The PID of the spawner, while there is one."""
        return () if self._process is None else (self._process.pid,)

    async def send(self, handed: Sequence[int]) -> socket.socket:
        """Send a request, and return the spawner that has it.

        Raises SpawnerGone, and OSError if no spawner can be started.
        """
        channel = await self._connected()
        while True:
            try:
                socket.send_fds(channel, [b"s"], list(handed))
            except BlockingIOError:
                await trio.lowlevel.wait_writable(channel)
            except OSError as error:
                self.lost(channel)
                raise SpawnerGone from error
            else:
                return channel

    def lost(self, channel: socket.socket) -> None:
        """Replace a spawner that is gone or does not answer, unless another is there already."""
        if channel is self._channel:
            log.warning("spawner is gone; starting it again")
            self.close()

    async def _connected(self) -> socket.socket:
        async with self._starting:
            if self._channel is None:
                # In a thread, whose end must not be the process's: its parent's death it learns from the
                # channel. The interpreter is a file, too, that may not answer.
                launch = partial(_launch, self.tag, dies_with_us=False)
                what = "to start the spawner"
                limiter = _LAUNCHING.of("")
                found = await in_time(launch, what, limiter=limiter, seconds=HELLO_SECONDS, wasted=_discard)
                self._take(*found)
                await self._greet()
            assert self._channel is not None
            return self._channel

    def _take(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self._process, self._channel = process, channel

    async def _greet(self) -> None:
        """Wait until it is ready."""
        assert self._channel is not None
        word = b""
        try:
            with trio.move_on_after(HELLO_SECONDS):
                word = await receive(self._channel)
        except OSError:
            word = b""
        finally:
            if word != spawner.READY:
                self.close()
        if word != spawner.READY:
            raise OSError("cannot start the spawner, which starts agents")


def _discard(found: tuple[subprocess.Popen[bytes], socket.socket]) -> None:
    process, channel = found
    channel.close()
    process.kill()
    process.wait()


def _launch(number: int, *, dies_with_us: bool) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    words = (theirs.fileno(), os.getpid(), number, int(not attachable()), int(dies_with_us))
    # Environments pass through it; its own is empty, but for what the interpreter itself may need.
    env = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", spawner.__file__, *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=env,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    # Before it is asked for anything: all that it starts has these limits from its first moment.
    descriptors.give_back(process.pid)
    return process, ours


async def receive(sock: socket.socket) -> bytes:
    """Return the next message; empty at the end."""
    while True:
        try:
            return sock.recv(256)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)
        except ConnectionResetError:
            return b""
