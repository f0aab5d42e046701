"""The server's side of the spawner (spawner.py): starts it, sends it requests, and restarts it."""

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
"""Seconds for a spawner to get ready: a bare interpreter, started in some ten milliseconds."""

_LAUNCHING: Final = KeyedLimiters(2)


class SpawnerGone(Exception):
    """The spawner ended, or was killed, before it had started the requested process."""


class Spawner:
    """The spawner process (spawner.py). `open` starts it; `close` ends it.

    It is restarted when it is gone or does not answer: agents that run as the same user can kill it.
    """

    def __init__(self, number: int) -> None:
        self.tag: Final = number
        """The spawner's own tag, by which the orphan reaper finds it."""
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._starting = trio.Lock()

    async def open(self) -> None:
        """Start it, unless one was started ahead. Call it on the main thread, before there are agents: it
        waits for the exec. Raises OSError."""
        ahead = take_ahead()
        if ahead is not None:
            try:
                await self._take(ahead)
            except OSError:  # it was killed meanwhile
                log.warning("the spawner that was started ahead is gone; starting another")
            else:
                return
        await self._take(launch(dies_with_us=True))

    def close(self) -> None:
        """Kill the spawner; the processes that it started stay."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()  # it was killed, and cannot hang in the kernel: it opens no path
            self._process = None

    def pids(self) -> tuple[int, ...]:
        """Return the PID of the spawner, if there is one."""
        return () if self._process is None else (self._process.pid,)

    async def send(self, handed: Sequence[int]) -> socket.socket:
        """Send a request, and return the channel that carried it.

        Raises SpawnerGone, and OSError if no spawner can be started.
        """
        channel = await self._connected()
        try:
            await send_request(channel, handed)
        except OSError as error:
            self.lost(channel)
            raise SpawnerGone from error
        return channel

    def lost(self, channel: socket.socket) -> None:
        """Drop a spawner that is gone or does not answer, unless it was replaced already."""
        # A task that waited for an older spawner must not end the new one.
        if channel is self._channel:
            log.warning("spawner is gone; starting it again")
            self.close()

    async def _connected(self) -> socket.socket:
        async with self._starting:
            if self._channel is None:
                # In a thread, since opening the interpreter's file may block, too. So the spawner must not
                # end with its thread: the end of the channel reports the server's death to it.
                start = partial(launch, dies_with_us=False)
                what = "to start the spawner"
                limiter = _LAUNCHING.of("")
                found = await in_time(start, what, limiter=limiter, seconds=HELLO_SECONDS, wasted=discard)
                await self._take(found)
            assert self._channel is not None
            return self._channel

    async def _take(self, launched: Launched) -> None:
        """Give it its tag, and wait until it is ready."""
        # Kept before anything can fail, so that `close` ends it.
        self._process, channel = launched
        self._channel = channel
        # Before the first request, so that everything it starts has these limits from the beginning.
        descriptors.restore_limit(self._process.pid)
        ready = False
        try:
            with suppress(OSError), trio.move_on_after(HELLO_SECONDS):
                channel.send(b"%d" % self.tag)
                ready = await receive(channel) == spawner.READY
        finally:
            if not ready:
                self.close()
        if not ready:
            raise OSError("cannot start the spawner, which starts agents")


async def send_request(channel: socket.socket, handed: Sequence[int]) -> None:
    """Send a request with these descriptors. Raises OSError, also once the channel is closed."""
    while True:
        try:
            socket.send_fds(channel, [b"s"], list(handed))
        except BlockingIOError:
            await trio.lowlevel.wait_writable(channel)
        else:
            return


async def receive(sock: socket.socket) -> bytes:
    """Return the next message, empty at the end of file."""
    while True:
        try:
            return sock.recv(256)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)
        except ConnectionResetError:
            return b""
