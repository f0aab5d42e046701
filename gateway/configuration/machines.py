"""The settings of several servers over one database; None without OSTLER_DATABASE."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import attrs

from gateway.configuration.address import listed
from gateway.configuration.parsing import ConfigError, pick, positive_float
from supervisor.extras import missing

if TYPE_CHECKING:
    from supervisor.database.address import Database
    from supervisor.machines.volumes import Volumes

DATABASE: Final = "OSTLER_DATABASE"
NAME: Final = "OSTLER_SERVER_NAME"
ADDRESS: Final = "OSTLER_ADVERTISE_URL"

LEASE_SECONDS: Final = 15.0
"""Seconds that a server may be silent before others take over. Three times what a fail-over of a local
PostgreSQL, or a pause of a virtual machine, usually takes; renewed each third of it."""

SHORTEST_LEASE_SECONDS: Final = 1.0
"""Below that a busy machine would lose its conversations to a pause of the processor."""

PROVISION: Final = "OSTLER_PROVISION"

PROVISION_SECONDS: Final = 120.0
"""Seconds until a server that is started for a conversation has joined: a pod is pulled and started."""

UNNEEDED_SECONDS: Final = 1800.0
"""Seconds without turn and socket after which such a server leaves: longer than a person thinks."""

ONLY: Final = "OSTLER_ONLY_CONVERSATION"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_LABEL: Final = re.compile(r"([A-Za-z0-9_.-]{1,63})=([A-Za-z0-9_.:/-]{0,255})")


@attrs.frozen(kw_only=True)
class Provision:
    """How a server for one conversation is started: by this command, within these seconds."""

    command: tuple[str, ...]
    seconds: float = PROVISION_SECONDS


@attrs.frozen(kw_only=True)
class MachinesConfig:
    """How this server is one of several. `address`: the URL at which the others reach it; None: where it
    listens. `volumes`: directories that other servers see, too. `provision`: others are started for
    conversations, and this one has none. `only_conversation`: it was started for this one, and leaves after
    `unneeded_seconds` without use."""

    database: Database
    name: str
    address: str | None = None
    lease_seconds: float = LEASE_SECONDS
    labels: Mapping[str, str] = attrs.field(factory=dict)
    volumes: Volumes
    provision: Provision | None = None
    only_conversation: str | None = None
    unneeded_seconds: float = UNNEEDED_SECONDS


def read_machines(env: Mapping[str, str]) -> MachinesConfig | None:
    """Read the variables. Raises ConfigError, naming the variable; it never repeats the database's
    address."""
    text = env.get(DATABASE)
    if not text:
        if env.get(PROVISION):
            raise ConfigError(f"{PROVISION}: servers are started over a shared database; set {DATABASE}")
        return None
    lacking = missing("postgres", DATABASE)
    if lacking is not None:
        raise ConfigError(lacking)
    from supervisor.database.address import parse
    from supervisor.machines.volumes import VARIABLE, Volumes
    from supervisor.machines.volumes import parse as parse_volumes

    try:
        database = parse(text)
    except ValueError as error:
        raise ConfigError(f"{DATABASE}: {error}") from None
    address: str | None = None
    only: str | None = None
    only = pick(env, ONLY, _conversation, only)
    command: tuple[str, ...] | None = None
    command = pick(env, PROVISION, _command, command)
    if command is not None and only is not None:
        raise ConfigError(f"{PROVISION}: a server for one conversation starts no others; remove it here")
    return MachinesConfig(
        database=database,
        name=pick(env, NAME, _name, only or _host_name()),
        address=pick(env, ADDRESS, _url, address),
        lease_seconds=pick(env, "OSTLER_LEASE_SECONDS", _lease, LEASE_SECONDS),
        labels=pick(env, "OSTLER_SERVER_LABELS", _labels, {}),
        volumes=pick(env, VARIABLE, parse_volumes, Volumes()),
        provision=None
        if command is None
        else Provision(
            command=command,
            seconds=pick(env, "OSTLER_PROVISION_SECONDS", positive_float, PROVISION_SECONDS),
        ),
        only_conversation=only,
        unneeded_seconds=pick(env, "OSTLER_PROVISION_IDLE_SECONDS", positive_float, UNNEEDED_SECONDS),
    )


def _host_name() -> str:
    found = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:63].lstrip("-_.")
    return found or "ostler"


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a name: up to 63 letters, digits, dots, dashes and underscores")
    return text


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise ValueError(f"{text!r} is not an address such as http://10.0.0.5:8000")
    return text.rstrip("/")


def _lease(text: str) -> float:
    value = positive_float(text)
    if value < SHORTEST_LEASE_SECONDS:
        raise ValueError(f"{text} is shorter than {SHORTEST_LEASE_SECONDS:g} s")
    return value


def _command(text: str) -> tuple[str, ...]:
    found = tuple(shlex.split(text))
    if not found or shutil.which(found[0]) is None:
        raise ValueError(f"{found[0] if found else text!r} is not a program that can be run")
    return found


def _conversation(text: str) -> str:
    return str(uuid.UUID(text))


def _labels(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in listed(text):
        match = _LABEL.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is not a label such as zone=a")
        found[match[1]] = match[2]
    return found
