"""An agent's program that imports everything once, and then forks the agent's processes.

A program that takes seconds and a quarter of a gigabyte to import does so once; its forks share that memory.
The program (`builtin/parent.py`, for one) speaks the spawner's protocol (spawner.py). Where the spawner would
exec, it continues as a fork. So each process is the server's child, has its own session, process tag, marker
variable and control group, is known to the server before it runs any code of the agent, and does not end with
the program that forked it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from supervisor.agents.endings import StopPolicy
from supervisor.agents.errors import SpawnError
from supervisor.agents.process import OWN_PIPE, AgentProcess, spawn
from supervisor.agents.spawning import spawner
from supervisor.agents.spawning.link import SpawnerGone, receive, send_request

READY_SECONDS: Final = 60.0
"""Seconds for its imports: seven on an idle machine, more where many agents start."""


class Forker:
    """The server's side of the program. Made by `open_forker`. `gone` is set once it takes no more
    requests."""

    def __init__(self, process: AgentProcess, channel: socket.socket) -> None:
        self.process = process
        self._channel: socket.socket | None = channel
        self.gone = trio.Event()

    @property
    def usable(self) -> bool:
        """Whether it takes requests."""
        return self._channel is not None and not self.process.exited.is_set()

    async def send(self, handed: Sequence[int]) -> socket.socket:
        """Send a request, and return the channel that carried it. Raises SpawnerGone."""
        channel = self._channel
        if channel is None:
            raise SpawnerGone
        try:
            await send_request(channel, handed)
        except (OSError, trio.ClosedResourceError) as error:
            self.lost(channel)
            raise SpawnerGone from error
        return channel

    def lost(self, channel: socket.socket) -> None:
        """Send it no more requests: it is gone, or does not answer."""
        if channel is self._channel:
            self._channel = None
            self.gone.set()
            # Tasks that wait to send would else wait on a descriptor that is reused.
            trio.lowlevel.notify_closing(channel)
            channel.close()


@asynccontextmanager
async def open_forker(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], stop: StopPolicy, seconds: float
) -> AsyncIterator[Forker]:
    """Start the program, and wait until it can fork. Leaving the block ends it, but not its forks.

    `seconds`: the limit of its start, before its imports.

    Raises SpawnError.

    Owns the process: leaving the block, also by cancellation, stops it, shielded and bounded.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    forker: Forker | None = None
    try:
        ours.setblocking(False)
        command = [*argv, str(os.getpid()), spawner.__file__]
        streams = (theirs.fileno(), OWN_PIPE, OWN_PIPE)
        async with spawn(command, cwd=cwd, env=env, stop=stop, seconds=seconds, streams=streams) as process:
            theirs.close()
            word = b""
            with trio.move_on_after(READY_SECONDS):
                word = await receive(ours)
            if word != spawner.READY:
                lines = " ".join(process.stderr_tail()[-3:])
                raise SpawnError(f"{argv[0]} does not get ready to fork: {lines or 'it did not answer'}")
            forker = Forker(process, ours)
            try:
                yield forker
            finally:
                forker.lost(ours)
    finally:
        theirs.close()
        if forker is None:
            ours.close()
