"""Listens for the hints of other servers, in a thread: who hears one looks at once. Without, all still look
from time to time, so one that is lost costs time alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from random import SystemRandom
from typing import Final

import psycopg

from supervisor.database.address import Database
from supervisor.database.connection import connect
from supervisor.machines.lease import next_attempt
from supervisor.machines.membership import HINTS

_draw = SystemRandom().random

LISTEN_SECONDS: Final = 1.0
"""Seconds after which the thread looks whether it is to end."""

END_SECONDS: Final = 2.0
"""Seconds that its end is waited for. An attempt to connect takes longer, and ends by itself."""


class Hints:
    """The thread. `heard` is called in it: for hints, and after each connection, as some may have been
    missed."""

    def __init__(self, database: Database, ttl: float, heard: Callable[[], None]) -> None:
        self._database = database
        self._ttl = ttl
        self._heard = heard
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hints", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def end(self) -> None:
        """Have the thread end: after the next hint, or `LISTEN_SECONDS`."""
        self._stop.set()

    def join(self) -> None:
        """Return when the thread has ended, or after `END_SECONDS`. Blocks."""
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        wait = 0.0
        while not self._stop.wait(wait):
            try:
                self._listen()
            except psycopg.Error:  # the renewals of the lease report it
                wait = next_attempt(self._ttl, _draw())

    def _listen(self) -> None:
        with closing(connect(self._database, "ostler hints")) as connection:
            connection.execute(f"LISTEN {HINTS}")
            self._heard()
            while not self._stop.is_set():
                for _ in connection.notifies(timeout=LISTEN_SECONDS, stop_after=1):
                    self._heard()
