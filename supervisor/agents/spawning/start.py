"""Launches the spawner (spawner.py). Imports little: the server calls it first, so that the spawner's
interpreter is ready by the time that the server's own imports are done."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress

from supervisor.agents.spawning import spawner
from supervisor.agents.spawning.prctl import attachable

Launched = tuple["subprocess.Popen[bytes]", socket.socket]
"""The process, and the server's end of the channel to it. The process waits for its tag."""

_ahead: list[Launched] = []
"""A spawner that was started ahead and not taken yet."""


def launch_ahead() -> None:
    """Start a spawner ahead, for `take_ahead`. Call it on the main thread, with which the spawner ends: it
    waits for the exec. An error is ignored; the taker tries again, and reports it."""
    if sys.platform == "linux":
        with suppress(OSError):
            _ahead.append(launch(dies_with_us=True))


def take_ahead() -> Launched | None:
    """Return the spawner that was started ahead, which the caller then owns; None if there is none."""
    return _ahead.pop() if _ahead else None


def launch(*, dies_with_us: bool) -> Launched:
    """Start a spawner, which the caller then owns. Waits for its exec. Raises OSError.

    `dies_with_us`: it ends with the calling thread.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    words = (theirs.fileno(), os.getpid(), int(not attachable()), int(dies_with_us))
    # Environments pass through it; its own is empty except for what the interpreter itself may need.
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
    return process, ours


def discard(launched: Launched) -> None:
    """End a spawner that is not needed."""
    process, channel = launched
    channel.close()
    process.kill()
    process.wait()  # it was killed, and cannot hang in the kernel: it opens no path
