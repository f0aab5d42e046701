"""What the process of a remote agent is started with."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit, urlunsplit

MODULE: Final = "supervisor.agents.remote"

ARGV: Final = (sys.executable, "-P", "-m", MODULE)
"""-P: do not search the workspace, which is the working directory, for the module."""

VARIABLE: Final = "REMOTE_AGENT"
"""An object: `url`, `headers` by name, and `max_bytes` of a message. In the environment alone: other users
see arguments."""

PATH: Final = "/acp"
"""Where the protocol's remote transport is, for an address without a path."""

SCHEMES: Final[Mapping[str, str]] = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


def variables(url: str, headers: Mapping[str, str], max_bytes: int) -> dict[str, str]:
    """The variables of such a process."""
    given = {"url": websocket_url(url), "headers": dict(headers), "max_bytes": max_bytes}
    return {VARIABLE: json.dumps(given)}


def websocket_url(url: str) -> str:
    """The address of the WebSocket that an http or https address means."""
    parts = urlsplit(url)
    path = PATH if parts.path in ("", "/") else parts.path
    return urlunsplit((SCHEMES[parts.scheme], parts.netloc, path, parts.query, ""))
