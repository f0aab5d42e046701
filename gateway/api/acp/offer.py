"""The answer to `initialize`: what Ostler offers as an ACP agent. Its bridge gives it, too, while the server
refuses its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from supervisor.version import __version__

PROTOCOL_VERSION: Final = 1

CAPABILITIES: Final[dict[str, Any]] = {
    "loadSession": True,
    "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
    "mcpCapabilities": {"http": True, "sse": True},
    "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "delete": {}},
}
"""What Ostler can do with any agent. What an agent does not take of a prompt is put into words for it."""


def initialized(methods: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """The answer, with ways to authenticate."""
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "agentInfo": {"name": "ostler", "title": "Ostler", "version": __version__},
        "agentCapabilities": CAPABILITIES,
        "authMethods": list(methods),
    }
