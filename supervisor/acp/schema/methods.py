"""Every method of protocol version 1, in both directions, and the capability that allows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from supervisor.acp.schema.handshake import InitializeResult
from supervisor.acp.schema.read import marked, member

CLIENT_METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "initialize": (),
    "authenticate": (),
    "logout": ("auth", "logout"),
    "session/new": (),
    "session/load": ("loadSession",),
    "session/resume": ("sessionCapabilities", "resume"),
    "session/list": ("sessionCapabilities", "list"),
    "session/delete": ("sessionCapabilities", "delete"),
    "session/close": ("sessionCapabilities", "close"),
    "session/fork": ("sessionCapabilities", "fork"),  # not in the stable protocol
    "session/prompt": (),
    "session/cancel": (),
    "session/set_mode": (),
    "session/set_config_option": (),
    "session/set_model": (),  # no longer in the stable protocol
    "$/cancel_request": (),
}
"""What Ostler may send, and the path in the agent's capabilities that must be offered; empty: always allowed.

`session/set_*` also depend on what the answer that opened the session offered, which the caller must check.
"""

AGENT_METHODS: Final = frozenset(
    (
        *("session/update", "session/request_permission"),
        *("fs/read_text_file", "fs/write_text_file"),
        *(
            "terminal/create",
            "terminal/output",
            "terminal/wait_for_exit",
            "terminal/kill",
            "terminal/release",
        ),
        *("elicitation/create", "elicitation/complete"),
        "$/cancel_request",
    )
)
"""What an agent may send."""

METHODS: Final = AGENT_METHODS.union(CLIENT_METHODS)


def method_offered(agent: InitializeResult, method: str) -> bool:
    """Whether this agent may be sent `method`."""
    path = CLIENT_METHODS.get(method)
    if path is None:
        return False
    here = agent.capabilities.raw
    for step in path:
        if not marked(here, step):
            return False
        here = member(here, step)
    return True
