"""Where a server on this machine installs agents, to show the progress of an installation."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

from gateway.cli.agents.names import agent_key
from gateway.cli.client import Server
from gateway.cli.failures import Failure
from gateway.cli.locations import agents_directory
from gateway.cli.talk.start_request import LOCAL

Place = tuple[Path, str, int | None]
"""The directory of all agents, the key of the one, and how many megabytes it takes."""


def where_installed(server: Server, agent: str | None) -> Callable[[], Place | None]:
    """Returns a cached look-up of the agent's installation directory (None: the settings' agent). The look-up
    gives None if the directory cannot be seen from here."""
    return functools.cache(functools.partial(_place, server, agent))


def _place(server: Server, agent: str | None) -> Place | None:
    if server.host not in LOCAL:
        return None
    try:
        state = Path(server.get("/api/status")["state"])
        key = agent or str(agent_key(server.get("/api/settings")["agent_settings"]))
    except Failure:
        return None
    prefix = agents_directory(state, os.environ)
    if not prefix.is_dir():
        prefix = state / "agents"
    # Imported here, since it takes time, and only waiting for an installation needs it.
    from supervisor.agents.catalog import load_catalog

    descriptor = load_catalog().get(key)
    package = None if descriptor is None else descriptor.package
    return prefix, key, None if package is None else package.size_mb
