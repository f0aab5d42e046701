"""Reports the server's state to systemd: ready, stopping, and watchdog signs of life (sd_notify(3)).

Datagrams to a socket that the environment names; without one, nothing happens.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from typing import Final

import structlog
import trio

log = structlog.get_logger(__name__)

SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"
INTERVAL_VARIABLE: Final = "WATCHDOG_USEC"
PID_VARIABLE: Final = "WATCHDOG_PID"

SEND_SECONDS: Final = 2.0
"""Seconds for one datagram: the service manager has a queue, and is in trouble itself if that stays full."""

MICROSECONDS: Final = 1_000_000


class Notifier:
    """The service manager's socket. `interval`: the watchdog's interval, in seconds."""

    def __init__(self, address: str | None, interval: float | None) -> None:
        self._address = address
        self.interval = interval if address else None

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Notifier:
        """Read the notification variables, and remove them: they are not for the server's children.

        A watchdog counts if it is for this process or for the warden above it.
        """
        address = environ.pop(SOCKET_VARIABLE, "")
        interval = environ.pop(INTERVAL_VARIABLE, "")
        pid = environ.pop(PID_VARIABLE, "")
        ours = pid in ("", str(os.getpid()), str(os.getppid()))
        watched = ours and interval.isdigit() and int(interval) > 0
        if not address.startswith(("/", "@")):
            return cls(None, None)
        return cls(
            "\0" + address[1:] if address.startswith("@") else address,
            int(interval) / MICROSECONDS if watched else None,
        )

    async def ready(self, status: str) -> None:
        """Report that the server is ready; `status` is a line for people."""
        await self._tell(f"READY=1\nSTATUS={status}")

    async def status(self, status: str) -> None:
        """Report the server's status: a line for people."""
        await self._tell(f"STATUS={status}")

    async def stopping(self) -> None:
        """Report that the server is stopping."""
        await self._tell("STOPPING=1\nSTATUS=Stopping")

    async def keep_alive(self) -> None:
        """Notify the watchdog twice per interval until cancelled. From the loop: a stuck loop sends
        nothing."""
        while self.interval is not None:
            await self._tell("WATCHDOG=1")
            await trio.sleep(self.interval / 2)

    async def _tell(self, text: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                # Connected, so that waiting for room means room in the other side's queue.
                sock.connect(self._address)
                with trio.move_on_after(SEND_SECONDS):
                    await trio.socket.from_stdlib_socket(sock).send(text.encode())
        except OSError as error:
            log.warning("cannot notify the service manager", error=str(error))
