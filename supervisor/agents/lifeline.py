"""The server's side of the bond with its warden (warden.py). Imports little: it runs before all else."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from supervisor.agents import warden

__all__ = ["NO_WARDEN_VARIABLE", "Lifeline", "WardenGone", "become_warden", "warden_possible"]

NO_WARDEN_VARIABLE: Final = "OSTLER_NO_WARDEN"
"""Set to anything: the server runs without a warden."""


class WardenGone(Exception):
    """The warden ended while the server was being started."""


def warden_possible() -> bool:
    """Whether this system has what a warden needs: Linux with /proc."""
    return sys.platform == "linux" and Path("/proc/self/stat").exists()


def become_warden(command: Sequence[str]) -> NoReturn:
    """Turn this process, single-threaded still, into the warden of a server that `command` runs.

    Raises OSError when it cannot.
    """
    from supervisor.agents.prctl import be_subreaper

    # Before the exec, which keeps it: the warden itself gets by without ctypes.
    if not be_subreaper():
        raise OSError("this system hands orphans to nobody but its first process")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-I", "-S", warden.__file__, *command])  # noqa: S606


class Lifeline:
    """A server's bond with its warden. Owns the channel to it; the listening sockets go to who takes them."""

    def __init__(self, channel: socket.socket, listening: Sequence[socket.socket]) -> None:
        self._channel = channel
        self._listening = list(listening)

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Lifeline | None:
        """The bond that the environment tells of, which is taken out of it; None without a warden.

        From here on the server is sent SIGTERM when the warden ends. Raises WardenGone.
        """
        text = environ.pop(warden.VARIABLE, None)
        if text is None:
            return None
        from supervisor.agents.prctl import signal_at_parents_death

        parent, channel, sockets = text.split(":")
        descriptors = [int(channel), *(int(number) for number in sockets.split(",") if number)]
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        signal_at_parents_death(signal.SIGTERM)
        if os.getppid() != int(parent):
            raise WardenGone("the warden of this server is gone")
        return cls(
            socket.socket(fileno=descriptors[0]), [socket.socket(fileno=number) for number in descriptors[1:]]
        )

    def listening(self) -> list[socket.socket]:
        """The sockets of the server before, for the caller to own; empty the first time."""
        sockets, self._listening = self._listening, []
        for sock in sockets:
            sock.setblocking(False)
        return sockets

    def serving(self, sockets: Sequence[socket.socket]) -> None:
        """Tell the warden that we serve on these sockets, and let it have them for a server after us."""
        self._tell(warden.SERVING, [sock.fileno() for sock in sockets])

    def closing(self) -> None:
        """Tell the warden that we were told to stop: it lets go of the port and starts nobody after us."""
        self._tell(warden.CLOSING)

    def _tell(self, word: bytes, descriptors: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._channel, [word], list(descriptors))  # never waits: two words, read at once
        except OSError:
            return  # it is gone, which a signal tells us
