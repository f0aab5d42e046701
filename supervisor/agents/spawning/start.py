"""Starts the process of the spawner (spawner.py). Imports little: the server starts it before all else, so
that its interpreter is there by the time that the server's own imports are."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress

from supervisor.agents.spawning import spawner
from supervisor.agents.spawning.prctl import attachable

Launched = tuple["subprocess.Popen[bytes]", socket.socket]
"""The process, and our end of the channel to it. It waits for its tag."""

_ahead: list[Launched] = []
"""One that nobody has taken yet."""


def launch_ahead() -> None:
    """Start a spawner for whoever contains agents next. On the main thread, which it does not outlive: this
    waits for its exec. Where it cannot be started, the taker tries again, and reports it."""
    if sys.platform == "linux":
        with suppress(OSError):
            _ahead.append(launch(dies_with_us=True))


def take_ahead() -> Launched | None:
    """Return the spawner that was started ahead, for the caller to own; None if there is none."""
    return _ahead.pop() if _ahead else None


def launch(*, dies_with_us: bool) -> Launched:
    """Start a spawner, for the caller to own. Waits for its exec. Raises OSError.

    `dies_with_us`: it ends with the calling thread.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    words = (theirs.fileno(), os.getpid(), int(not attachable()), int(dies_with_us))
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
    return process, ours


def discard(launched: Launched) -> None:
    """End one that nobody uses."""
    process, channel = launched
    channel.close()
    process.kill()
    process.wait()  # killed, and never where it could hang: it reads no path
