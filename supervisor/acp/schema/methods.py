"""Every method of protocol version 1, in both directions, and the capability that allows it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import attrs

from supervisor.acp.schema.handshake import InitializeResult
from supervisor.acp.schema.read import marked, member


class Side(enum.Enum):
    """Who sends a method."""

    CLIENT = "client"
    AGENT = "agent"
    BOTH = "both"


@attrs.frozen
class Method:
    """One method.

    `gate` is the path in the *receiver's* capabilities that must be offered; empty means always allowed.
    `session`: the method depends on what the answer that opened the session offered (`modes`,
    `configOptions`, `models`), which the caller must check. `stable` is False for methods that are not, or no
    longer, in the stable protocol.
    """

    name: str
    side: Side
    gate: tuple[str, ...] = ()
    notification: bool = False
    session: str | None = None
    stable: bool = True


def _session(name: str, *, stable: bool = True) -> Method:
    return Method(f"session/{name}", Side.CLIENT, ("sessionCapabilities", name), stable=stable)


METHODS: Final[Mapping[str, Method]] = {
    method.name: method
    for method in (
        Method("initialize", Side.CLIENT),
        Method("authenticate", Side.CLIENT),
        Method("logout", Side.CLIENT, ("auth", "logout")),
        Method("session/new", Side.CLIENT),
        Method("session/load", Side.CLIENT, ("loadSession",)),
        _session("resume"),
        _session("list"),
        _session("delete"),
        _session("close"),
        _session("fork", stable=False),
        Method("session/prompt", Side.CLIENT),
        Method("session/cancel", Side.CLIENT, notification=True),
        Method("session/set_mode", Side.CLIENT, session="modes"),
        Method("session/set_config_option", Side.CLIENT, session="configOptions"),
        Method("session/set_model", Side.CLIENT, session="models", stable=False),
        Method("session/update", Side.AGENT, notification=True),
        Method("session/request_permission", Side.AGENT),
        Method("fs/read_text_file", Side.AGENT, ("fs", "readTextFile")),
        Method("fs/write_text_file", Side.AGENT, ("fs", "writeTextFile")),
        Method("terminal/create", Side.AGENT, ("terminal",)),
        Method("terminal/output", Side.AGENT, ("terminal",)),
        Method("terminal/wait_for_exit", Side.AGENT, ("terminal",)),
        Method("terminal/kill", Side.AGENT, ("terminal",)),
        Method("terminal/release", Side.AGENT, ("terminal",)),
        Method("elicitation/create", Side.AGENT, ("elicitation",)),
        Method("elicitation/complete", Side.AGENT, ("elicitation", "url"), notification=True),
        Method("$/cancel_request", Side.BOTH, notification=True),
    )
}


def allowed(method: str, sender: Side, receiver: Mapping[str, Any]) -> bool:
    """Whether `sender` may send `method` to a side with the capabilities `receiver` (as in `initialize`)."""
    known = METHODS.get(method)
    if known is None or known.side not in (sender, Side.BOTH):
        return False
    here = receiver
    for step in known.gate:
        if not marked(here, step):
            return False
        here = member(here, step)
    return True


def method_offered(agent: InitializeResult, method: str) -> bool:
    """Whether this agent may be sent `method`.

    For a method that depends on the session, True is not sufficient: the answer that opened the session
    decides.
    """
    return allowed(method, Side.CLIENT, agent.capabilities.raw)
