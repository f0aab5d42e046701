"""The server's side of the link to its warden (warden.py). Imports little: it runs before everything else."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from supervisor.agents.containment import warden

NO_WARDEN_VARIABLE: Final = "OSTLER_NO_WARDEN"
"""A switch (supervisor/switches.py). On: the server runs without a warden."""

WARDEN_NAME: Final = "ostler-warden"
SERVER_NAME: Final = "ostler"
"""Names that distinguish the two in process lists (their command lines are the same)."""

GONE_SECONDS: Final = warden.END_SECONDS
"""Seconds that a server may take to end once its warden is gone: as many as the warden would grant."""

FORCED: Final = 1
"""The exit status of a server that did not end within `GONE_SECONDS`."""


class WardenGone(Exception):
    """The warden ended before the server. The message is one line for the terminal."""


def warden_possible() -> bool:
    """Whether this system supports a warden: Linux with /proc."""
    return sys.platform == "linux" and Path("/proc/self/stat").exists()


def become_warden(restarts: int | None = None, drain: float | None = None) -> Lifeline:
    """Turn this process, which is still single-threaded, into the warden of servers, and return in each
    server.

    The server is a fork with everything that this process has in memory. The warden does not return: it exits
    with the status of its last server. `restarts` and `drain` default to the operator's settings (warden.py).
    From here on the server gets SIGTERM when the warden ends (`Lifeline.gone` tells it from another SIGTERM).

    Raises OSError in this process if it cannot be a warden, WardenGone in a server whose warden has ended
    meanwhile.
    """
    from supervisor.agents.spawning.prctl import be_subreaper, name_process, signal_at_parents_death

    if not be_subreaper():
        raise OSError("this system has no subreaper: orphans go to PID 1")
    # Unwritten text would be in the fork as well, and appear twice.
    sys.stdout.flush()
    sys.stderr.flush()
    name_process(WARDEN_NAME)
    outcome = warden.Warden(
        warden.budget() if restarts is None else restarts, warden.drain() if drain is None else drain
    ).run()
    if isinstance(outcome, int):
        sys.exit(outcome)
    name_process(SERVER_NAME)
    signal_at_parents_death(signal.SIGTERM)
    parent, channel, listening, restarts = outcome
    lifeline = Lifeline(parent, channel, [socket.socket(fileno=number) for number in listening], restarts)
    # It ended before the signal was asked for, so none will come.
    if lifeline.gone:
        raise WardenGone("the warden of this server is gone")
    return lifeline


class Lifeline:
    """A server's link to its warden. Owns the channel to it; the listening sockets belong to their taker.
    `restarts`: how often the warden has started a server again."""

    def __init__(
        self, parent: int, channel: socket.socket, listening: Sequence[socket.socket], restarts: int = 0
    ) -> None:
        self.restarts = restarts
        self._parent = parent
        self._channel = channel
        self._listening = list(listening)

    @property
    def gone(self) -> bool:
        """Whether the warden has ended, so that this server's leftovers would stay."""
        return os.getppid() != self._parent

    def end_without(self, kill: Callable[[], object], seconds: float = GONE_SECONDS) -> None:
        """From here on, exit this process `seconds` after its warden's end, unless it has ended by then.

        `kill`: called before that, in a thread; it ends what the server would leave.

        The warden kills a server that does not end. Without the warden this thread does, even if the event
        loop hangs.
        """
        import threading
        import time

        def watch() -> None:
            try:
                while self._channel.recv(1):
                    pass  # the warden sends nothing: this waits for its end
            except OSError:
                pass
            time.sleep(seconds)
            if self.gone:
                try:
                    kill()
                    _say_if_heard(
                        f"the server did not end within {seconds:g} s without its warden; killed it"
                    )
                finally:
                    # Not an exit of the interpreter, which would wait for the loop that hangs.
                    os._exit(FORCED)

        threading.Thread(target=watch, name="lifeline", daemon=True).start()

    def listening(self) -> list[socket.socket]:
        """Return the previous server's sockets, which the caller then owns; empty the first time."""
        sockets, self._listening = self._listening, []
        for sock in sockets:
            sock.setblocking(False)
        return sockets

    def serving(self, sockets: Sequence[socket.socket]) -> None:
        """Report to the warden that this server serves on these sockets, and send it copies for the next
        server."""
        self._report(warden.SERVING, [sock.fileno() for sock in sockets])

    def closing(self) -> None:
        """Report to the warden that this server is stopping: it closes the port and restarts nothing."""
        self._report(warden.CLOSING)

    def lease(self, until: float) -> None:
        """Report to the warden that this server may live until then (time.monotonic()), or again without end
        (0). Without a later report the warden kills it then. May be called in any thread."""
        try:
            # The warden may be stopped, and its queue full: it then kills too early rather than too late.
            self._channel.send(warden.LEASE + b"%.6f" % until, socket.MSG_DONTWAIT)
        except OSError:
            return

    def _report(self, word: bytes, descriptors: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._channel, [word], list(descriptors))  # never blocks: two short messages
        except OSError:
            return  # the warden is gone, which a signal reports


def _say_if_heard(text: str) -> None:
    """Write a line to standard error, unless that would block."""
    if select.select([], [2], [], 0)[1]:
        os.write(2, f"ostler: {text}\n".encode())
