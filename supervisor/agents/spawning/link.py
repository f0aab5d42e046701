"""The server's side of the spawner (spawner.py): started, spoken to, and started again when it is gone."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import structlog
import trio

from supervisor.agents.spawning import descriptors, spawner
from supervisor.agents.spawning.start import Launched, discard, launch, take_ahead
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
        """Start it, unless it was started ahead. On the main thread, before there are agents: this waits for
        its exec. Raises OSError."""
        ahead = take_ahead()
        if ahead is not None:
            try:
                await self._take(ahead)
            except OSError:  # somebody ended it meanwhile
                log.warning("the spawner that was started ahead is gone; starting another")
            else:
                return
        await self._take(launch(dies_with_us=True))

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
                start = partial(launch, dies_with_us=False)
                what = "to start the spawner"
                limiter = _LAUNCHING.of("")
                found = await in_time(start, what, limiter=limiter, seconds=HELLO_SECONDS, wasted=discard)
                await self._take(found)
            assert self._channel is not None
            return self._channel

    async def _take(self, launched: Launched) -> None:
        """Give it its tag, and wait until it is ready."""
        self._process, channel = launched
        self._channel = channel
        # Before it is asked for anything: all that it starts has these limits from its first moment.
        descriptors.give_back(self._process.pid)
        word = b""
        try:
            channel.send(b"%d" % self.tag)
            with trio.move_on_after(HELLO_SECONDS):
                word = await receive(channel)
        except OSError:
            word = b""
        finally:
            if word != spawner.READY:
                self.close()
        if word != spawner.READY:
            raise OSError("cannot start the spawner, which starts agents")


async def receive(sock: socket.socket) -> bytes:
    """Return the next message; empty at the end."""
    while True:
        try:
            return sock.recv(256)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)
        except ConnectionResetError:
            return b""
