"""How a server becomes one of several: what it takes from its configuration, its keys and its warden."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

import attrs
import trio

from gateway.configuration.address import http_url, ip_address
from gateway.configuration.machines import ADDRESS, MachinesConfig
from supervisor.agents.containment.lifeline import Lifeline
from supervisor.composition import Several
from supervisor.credentials.store import SecretStore
from supervisor.database.address import Database
from supervisor.database.connection import connect
from supervisor.machines.errors import MachinesRefused
from supervisor.machines.identity import SERVERS_LABEL

LOST: Final = 1
"""The exit status of a server without a warden that lost its lease."""


async def several_of(
    config: MachinesConfig, secrets: SecretStore, url: str, lifeline: Lifeline | None, loss: Loss
) -> Several:
    """What makes this server, which listens at `url`, one of several. Raises MachinesRefused."""
    if secrets.failure is not None:
        raise MachinesRefused(f"OSTLER_MASTER_KEY: {secrets.failure}")
    return Several(
        database=config.database,
        name=config.name,
        address=config.address or await _reachable(url, config.database),
        lease_seconds=config.lease_seconds,
        labels=config.labels,
        volumes=config.volumes,
        on_lease=(lambda _: None) if lifeline is None else lifeline.lease,
        on_lost=loss,
    )


def server_key(secrets: SecretStore) -> str:
    """The key by which servers trust each other's requests."""
    return secrets.cipher.derived(SERVERS_LABEL)


@attrs.define
class Loss:
    """Ends this process at once: another server may have its conversations. The warden kills its agents and
    starts the next server; without one, `kill` ends them here. It can be called in any thread."""

    lifeline: Lifeline | None
    kill: Callable[[], object] = lambda: None

    def __call__(self) -> None:
        """End the process."""
        if self.lifeline is not None and not self.lifeline.gone:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            self.kill()
        finally:
            os._exit(LOST)


async def _reachable(url: str, database: Database) -> str:
    """The URL at which others reach a server: with the address from which it reaches the database, where it
    listens on all of them. Raises MachinesRefused."""
    parts = urlsplit(url)
    found = ip_address(parts.hostname or "")
    if found is None or not found.is_unspecified:
        return url

    def ask() -> str | None:
        with connect(database, "ostler start") as connection:
            row = connection.execute("SELECT host(inet_client_addr())").fetchone()
        return None if row is None else row[0]

    address = await trio.to_thread.run_sync(ask)
    if address is None:  # a local socket
        raise MachinesRefused(
            f"{ADDRESS}: the server listens on all addresses; say which one the other servers reach"
        )
    return http_url(address, parts.port or 80)
