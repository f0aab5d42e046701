"""How a server becomes one of several: what it takes from its configuration, its keys and its warden."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs
import trio

from gateway.configuration.address import http_url, ip_address
from gateway.configuration.keys import is_key
from gateway.configuration.machines import ADDRESS, PROVISION, MachinesConfig
from supervisor.agents.containment.lifeline import Lifeline
from supervisor.composition import Several
from supervisor.credentials.master import KEY_VARIABLES, Place
from supervisor.credentials.store import SecretStore
from supervisor.database.address import Database
from supervisor.database.connection import connect
from supervisor.machines.errors import MachinesRefused
from supervisor.machines.identity import SERVERS_LABEL
from supervisor.machines.membership import FRONT

OWN_KEYS: Final = frozenset({"OSTLER_API_KEY", "OSTLER_JOIN_KEY"})
"""Keys that are not handed over: those of commands, and of a server that joins."""

LOST: Final = 1
"""The exit status of a server without a warden that lost its lease."""


async def several_of(
    config: MachinesConfig, secrets: SecretStore, url: str, lifeline: Lifeline | None, loss: Loss
) -> Several:
    """What makes this server, which listens at `url`, one of several. Raises MachinesRefused."""
    if secrets.failure is not None:
        raise MachinesRefused(f"OSTLER_MASTER_KEY: {secrets.failure}") from secrets.failure
    return Several(
        database=config.database,
        name=config.name,
        address=config.address or await _reachable(url, config.database),
        lease_seconds=config.lease_seconds,
        labels=config.labels,
        volumes=config.volumes,
        only_conversation=config.only_conversation if config.provision is None else FRONT,
        on_lease=(lambda _: None) if lifeline is None else lifeline.lease,
        on_lost=loss,
    )


async def handed(config: MachinesConfig, secrets: SecretStore, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that servers get which are started by OSTLER_PROVISION: the keys of this one, and what
    must be the same on all. Raises MachinesRefused for a master key that cannot be handed over."""
    if config.provision is None:
        return {}
    keys = {name: value for name, value in environ.items() if is_key(name) and name not in OWN_KEYS}
    master = secrets.master
    if master.place in (Place.FILE, Place.NEW_FILE):
        keys[KEY_VARIABLES[0]] = await trio.to_thread.run_sync(Path(master.source).read_text)
    elif master.place is Place.KEYRING:
        raise MachinesRefused(
            f"{KEY_VARIABLES[0]}: the master key is in {master.source}, and servers that {PROVISION} starts "
            "could not have it; set it in this variable or in a key file"
        )
    return {
        **keys,
        "OSTLER_LEASE_SECONDS": str(config.lease_seconds),
        "OSTLER_PROVISION_IDLE_SECONDS": str(config.unneeded_seconds),
    }


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
