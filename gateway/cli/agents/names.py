"""What an agent is called here: clients of the wire know some as `custom`, with their command."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

CUSTOM: Final = "custom"


@cache
def _keys() -> dict[tuple[str, ...], str]:
    # Imported here, since it takes time, and only agents unknown to the wire need it.
    from supervisor.agents.catalog import load_catalog, presets

    return {command: key for key, command in presets(load_catalog()).items()}


def agent_key(agent: Mapping[str, Any] | None) -> str | None:
    """The catalogue key of an agent, or of agent settings, as the server sent them."""
    found = (agent or {}).get("acp_server")
    if agent and found == CUSTOM:
        return _keys().get(tuple(agent.get("acp_command") or ()), CUSTOM)
    return None if found is None else str(found)


def with_key(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Agent settings with the agent's own key."""
    key = agent_key(settings)
    return dict(settings) if key is None else {**settings, "acp_server": key}
