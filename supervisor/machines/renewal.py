"""Renews the lease of this server, in a thread with a connection of its own: a busy event loop loses none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from random import SystemRandom
from typing import Final

import attrs
import psycopg
import structlog

from supervisor.database.address import Database
from supervisor.database.connection import Connection, connect
from supervisor.machines import membership
from supervisor.machines.lease import next_attempt, next_renewal

log = structlog.get_logger(__name__)

_draw = SystemRandom().random

STATEMENT_PART: Final = 0.3
"""The part of the TTL that one renewal may take: less than a third, so that the next one is in time."""

LATE: Final = 0.05
"""Seconds after the end of the lease at which the server ends itself. Its warden, which says why and kills
what is left, comes first. Half of what others wait before they declare it dead."""

END_SECONDS: Final = 10.0
"""Seconds that the end of the thread is waited for: an attempt to connect takes half of them."""


@attrs.frozen(kw_only=True)
class Callbacks:
    """What the thread calls, in this thread. `renewed`: the end of the lease in seconds of CLOCK_MONOTONIC;
    `draining`: the server is to be emptied, perhaps repeatedly; `lost`: the lease is lost, and why, once."""

    renewed: Callable[[float], None]
    draining: Callable[[], None]
    lost: Callable[[str], None]


class Renewals:
    """The thread. `until`: the end of the lease, in seconds of CLOCK_MONOTONIC. `figures`: the free bytes and
    conversations, to be stored with the next renewal."""

    def __init__(
        self, database: Database, server: int, ttl: float, until: float, callbacks: Callbacks
    ) -> None:
        self.until = until
        self.figures = (0, 0)
        self._database = database
        self._server = server
        self._ttl = ttl
        self._callbacks = callbacks
        self._connection: Connection | None = None
        self._failing = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin; the first renewal comes when it is due."""
        self._thread.start()

    def stop(self) -> None:
        """Return when the thread has ended, or after `END_SECONDS`. Blocks."""
        self._stop.set()
        self._thread.join(END_SECONDS)

    @property
    def ended(self) -> bool:
        """Whether the lease has ended, and the warden has had its time."""
        return time.monotonic() >= self.until + LATE

    def _run(self) -> None:
        wait = next_renewal(self._ttl, _draw())
        try:
            while not self._stop.wait(max(0.0, min(wait, self.until + LATE - time.monotonic()))):
                if self.ended:
                    self._callbacks.lost("its lease ended")
                    return
                try:
                    sent, state = self._renew()
                except psycopg.Error as error:
                    self._note_failure(error)
                    wait = next_attempt(self._ttl, _draw())
                    continue
                if self._stop.is_set():
                    return
                if state is None:
                    self._callbacks.lost("others declared it dead")
                    return
                self._failing = False
                self.until = sent + self._ttl
                self._callbacks.renewed(self.until)
                if state == "draining":
                    self._callbacks.draining()
                wait = sent + next_renewal(self._ttl, _draw()) - time.monotonic()
        finally:
            self._close()

    def _renew(self) -> tuple[float, str | None]:
        if self._connection is None:
            seconds = self._ttl * STATEMENT_PART
            self._connection = connect(self._database, "ostler lease", statement_seconds=seconds)
        sent = time.monotonic()  # before: the database counts from a later moment
        return sent, membership.renew(self._connection, self._server, *self.figures)

    def _note_failure(self, error: psycopg.Error) -> None:
        if not self._failing:
            log.warning("cannot renew the lease of this server; trying again", reason=str(error).strip())
        self._failing = True
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None
