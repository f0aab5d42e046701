"""What the server's agents are called here, and where it installs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from gateway.cli.client import Server
from gateway.cli.failures import Failure
from gateway.cli.locations import agents_directory
from gateway.cli.suggest import did_you_mean

BUILT_IN: Final = "openhands"
"""The built-in agent, which has its own kind of settings."""

CUSTOM: Final = "custom"
"""What clients of the wire know some agents as, with their command."""

DONE_FILE: Final = ".ostler-installed.json"
"""Stands in the directory of an agent that is installed (`supervisor.agents.install.install`)."""

Place = tuple[Path, str, int | None]
"""The directory of all agents, the key of the one, and how many megabytes it takes."""


@cache
def _keys() -> dict[tuple[str, ...], str]:
    # Imported here, since it takes time, and only agents unknown to the wire need it.
    from supervisor.agents.catalog import load_catalog, presets

    return {command: key for key, command in presets(load_catalog()).items()}


def agent_key(agent: Mapping[str, Any] | None) -> str | None:
    """The catalogue key of an agent, or of agent settings, as the server sent them."""
    found = (agent or {}).get("acp_server")
    if agent and agent.get("agent_kind") == BUILT_IN:
        return BUILT_IN
    if agent and found == CUSTOM:
        return _keys().get(tuple(agent.get("acp_command") or ()), CUSTOM)
    return None if found is None else str(found)


def with_key(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Agent settings with the agent's own key."""
    key = agent_key(settings)
    return dict(settings) if key is None else {**settings, "acp_server": key}


def known_agents() -> list[str]:
    """The agents of the catalogue, by the names of its files: reading them would take much longer."""
    import supervisor

    return sorted(path.stem for path in Path(supervisor.__file__).parent.glob("agents/catalog/*.toml"))


def no_agent(name: str) -> str:
    """What to say of an agent that there is not."""
    return (
        f"there is no agent {name!r}{did_you_mean(name, known_agents())} (see `ostler agents list`;"
        " `ostler settings set acp_command` sets any other command)"
    )


def where_installed(server: Server, agent: str | None) -> Callable[[], Place | None]:
    """Returns a cached look-up of the agent's installation directory (None: the settings' agent). The look-up
    gives None if the directory cannot be seen from here."""
    return cache(partial(_place, server, agent))


def _place(server: Server, agent: str | None) -> Place | None:
    if not server.local:
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
