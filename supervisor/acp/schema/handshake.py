"""`initialize`: who the agent is and what it can do, who we are and what we can do."""

from __future__ import annotations

from typing import Any, Final

import attrs

from ..errors import UnsupportedProtocolVersion
from .read import Json, as_object, identifier, marked, member, objects, text

PROTOCOL_VERSION: Final = 1
"""The only stable version. An agent asked for 2 may answer with an unfinished draft of it."""


@attrs.frozen
class Implementation:
    """The agent's name for itself. Informative only: no two agents agree on its form."""

    name: str
    title: str | None
    version: str | None


@attrs.frozen
class AuthMethod:
    """A way to log in. `type` is `agent` (call `authenticate`), `terminal` (run a program), or unknown."""

    id: str
    name: str
    description: str | None
    type: str
    raw: Json = attrs.field(repr=False)

    @property
    def in_terminal(self) -> bool:
        """Whether a person has to run a program for it. Such an id never goes to `authenticate`."""
        return self.type == "terminal"


@attrs.frozen
class AgentCapabilities:
    """What the agent offers. Everything that it does not mention, it does not offer.

    `session` holds the names of the offered session capabilities (`resume`, `close`, `list` ...).
    """

    load_session: bool
    image: bool
    audio: bool
    embedded_context: bool
    mcp_http: bool
    mcp_sse: bool
    session: frozenset[str]
    logout: bool
    raw: Json = attrs.field(repr=False)


@attrs.frozen
class InitializeResult:
    """The answer to `initialize`."""

    protocol_version: int
    capabilities: AgentCapabilities
    auth_methods: tuple[AuthMethod, ...]
    agent: Implementation | None
    steering: bool
    raw: Json = attrs.field(repr=False)


def parse_initialize(result: Any) -> InitializeResult:
    """Read the answer to `initialize`. Raises UnsupportedProtocolVersion for any version but 1, or none."""
    raw = as_object(result)
    version = raw.get("protocolVersion")
    if str(version) != str(PROTOCOL_VERSION):
        raise UnsupportedProtocolVersion(version)
    info = member(raw, "agentInfo")
    name = text(info, "name")
    return InitializeResult(
        protocol_version=PROTOCOL_VERSION,
        capabilities=_capabilities(member(raw, "agentCapabilities")),
        auth_methods=parse_auth_methods(raw),
        agent=Implementation(name, text(info, "title"), text(info, "version")) if name else None,
        steering=member(member(raw, "_meta"), "steering").get("supported") is True,
        raw=raw,
    )


def parse_auth_methods(raw: Json) -> tuple[AuthMethod, ...]:
    """The `authMethods` of an object. Some agents repeat them in the data of error -32000."""
    methods = []
    for method in objects(raw, "authMethods") or ():
        method_id = identifier(method, "id")
        if method_id is not None:
            methods.append(
                AuthMethod(
                    id=method_id,
                    name=text(method, "name") or method_id,
                    description=text(method, "description"),
                    # One agent marks its terminal methods in the vendor's corner.
                    type=text(method, "type") or text(member(method, "_meta"), "type") or "agent",
                    raw=method,
                )
            )
    return tuple(methods)


def _capabilities(raw: Json) -> AgentCapabilities:
    prompt = member(raw, "promptCapabilities")
    mcp = member(raw, "mcpCapabilities")
    session = member(raw, "sessionCapabilities")
    return AgentCapabilities(
        load_session=marked(raw, "loadSession"),
        image=marked(prompt, "image"),
        audio=marked(prompt, "audio"),
        embedded_context=marked(prompt, "embeddedContext"),
        mcp_http=marked(mcp, "http"),
        mcp_sse=marked(mcp, "sse"),
        session=frozenset(name for name in session if name != "_meta" and marked(session, name)),
        logout=marked(member(raw, "auth"), "logout"),
        raw=raw,
    )


def initialize_params(version: str, *, fs: bool, terminal: bool) -> dict[str, Any]:
    """The parameters of `initialize`, true to what is served here.

    `version` is ours; `fs` and `terminal` tell whether the file and terminal methods are served to this
    agent. Elicitation and terminal logins are not served and therefore not mentioned.
    """
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "clientInfo": {"name": "ostler", "title": "Ostler", "version": version},
        "clientCapabilities": {
            "fs": {"readTextFile": fs, "writeTextFile": fs},
            "terminal": terminal,
            "session": {"configOptions": {"boolean": {}}, "notices": {}, "compaction": {}},
            # A convention of two agents: the output of their own shells, in tool call updates.
            "_meta": {"terminal_output": True},
        },
    }
