"""Agents as clients of the wire know them.

Their enumeration of providers is closed, and clients reject data with any other. So a catalogue agent that is
not in it is shown as `custom`, with its command; `match_preset` recognizes it when a client sends it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from supervisor.settings.agent import CUSTOM

WIRE_ALIASES: Final = frozenset({"claude-code", "codex", "gemini-cli", "kimi-code", "pi", "opencode", CUSTOM})
"""What `acp_server` is to clients (ACPAgentSettings and ACPAgentProfile of the wire)."""


def server_on_wire(server: str) -> str:
    """The provider as clients know it."""
    return server if server in WIRE_ALIASES else CUSTOM


def settings_on_wire(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Agent settings, of either kind, as clients know them. Their command is filled in already."""
    found = dict(settings)
    if "acp_server" in found:
        found["acp_server"] = server_on_wire(str(found["acp_server"]))
    return found
