"""`initialize`: the agent's name and capabilities, and Ostler's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs

from supervisor.acp.errors import UnsupportedProtocolVersion
from supervisor.acp.schema.bounds import NAME_CHARS, Kept
from supervisor.acp.schema.read import Json, as_object, exact_id, line, marked, member, objects

_KNOWN_MEMBERS: Final = ("protocolVersion", "agentCapabilities", "authMethods", "agentInfo", "_meta")
"""The members of the answer that are interpreted. Others cannot displace them (`Kept.members`)."""

METHODS_MAX: Final = 50
"""The most login methods that are read. Agents offer one to five."""

VARIABLES_MAX: Final = 20
"""The most variables of a login method that are read. Agents name one or two."""

PROMPT: Final = ("image", "audio", "embeddedContext")
"""The optional prompt capabilities. Every agent accepts texts and links."""

PROTOCOL_VERSION: Final = 1
"""The only stable version. If version 2 were requested, an agent might answer with an unfinished draft of
it."""


@attrs.frozen
class Implementation:
    """The agent's self-reported name and version. Informative only: agents differ in its form."""

    name: str
    version: str | None


@attrs.frozen
class AuthMethod:
    """A way to log in. `type` is `agent` (call `authenticate`), `env_var` (start the agent with `variables`,
    then call it), `terminal` (run a program), or unknown."""

    id: str
    name: str
    type: str
    variables: tuple[str, ...]
    """The environment variables that must be set."""


@attrs.frozen
class AgentCapabilities:
    """What the agent offers. A missing capability is not offered.

    `prompt` holds the members of `PROMPT` that it accepts. `session` holds the names of the offered session
    capabilities (`resume`, `close`, `list` ...).
    """

    load_session: bool
    prompt: frozenset[str]
    mcp_http: bool
    mcp_sse: bool
    session: frozenset[str]
    raw: Json = attrs.field(repr=False)


@attrs.frozen
class InitializeResult:
    """The answer to `initialize`. `raw` is what is kept of it, `lost` describes what was dropped."""

    capabilities: AgentCapabilities
    auth_methods: tuple[AuthMethod, ...]
    agent: Implementation | None
    raw: Json = attrs.field(repr=False)
    lost: str | None = None


def parse_initialize(result: Any) -> InitializeResult:
    """Read the answer to `initialize`. Raises UnsupportedProtocolVersion unless its version is 1."""
    kept = Kept()
    raw = kept.members(as_object(result), _KNOWN_MEMBERS)
    version = raw.get("protocolVersion")
    if str(version) != str(PROTOCOL_VERSION):
        raise UnsupportedProtocolVersion(version)
    info = member(raw, "agentInfo")
    name = line(info, "name", NAME_CHARS)
    return InitializeResult(
        capabilities=_capabilities(member(raw, "agentCapabilities")),
        auth_methods=parse_auth_methods(raw),
        agent=Implementation(name, line(info, "version", NAME_CHARS)) if name else None,
        raw=raw,
        lost=kept.lost,
    )


def parse_auth_methods(raw: Json) -> tuple[AuthMethod, ...]:
    """The `authMethods` of an object. Some agents repeat them in the data of error -32000.

    A method whose id is too long to keep is left out: it could not be called.
    """
    methods = []
    for method in (objects(raw, "authMethods") or ())[:METHODS_MAX]:
        method_id = exact_id(method, "id")
        if method_id is not None:
            methods.append(
                AuthMethod(
                    id=method_id,
                    name=line(method, "name", NAME_CHARS) or method_id,
                    # One agent puts the type of its terminal methods into `_meta`.
                    type=line(method, "type", NAME_CHARS)
                    or line(member(method, "_meta"), "type", NAME_CHARS)
                    or "agent",
                    variables=tuple(_variables(method)),
                )
            )
    return tuple(methods)


def _variables(method: Json) -> Iterator[str]:
    """The names of the variables that a method needs; an earlier draft had one, as `varName`."""
    for each in (objects(method, "vars") or ())[:VARIABLES_MAX]:
        name = exact_id(each, "name")
        if name is not None and each.get("optional") is not True:
            yield name
    single = exact_id(method, "varName")
    if single is not None:
        yield single


def _capabilities(raw: Json) -> AgentCapabilities:
    prompt = member(raw, "promptCapabilities")
    mcp = member(raw, "mcpCapabilities")
    session = member(raw, "sessionCapabilities")
    return AgentCapabilities(
        load_session=marked(raw, "loadSession"),
        prompt=frozenset(name for name in PROMPT if marked(prompt, name)),
        mcp_http=marked(mcp, "http"),
        mcp_sse=marked(mcp, "sse"),
        session=frozenset(name for name in session if name != "_meta" and marked(session, name)),
        raw=raw,
    )


def initialize_params(version: str, *, fs: bool, terminal: bool) -> dict[str, Any]:
    """The parameters of `initialize`, with the capabilities that Ostler serves.

    `version` is Ostler's; `fs` and `terminal`: whether this agent may use the file and terminal methods.
    Elicitation and terminal logins are not supported and therefore not announced.
    """
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "clientInfo": {"name": "ostler", "title": "Ostler", "version": version},
        "clientCapabilities": {
            "fs": {"readTextFile": fs, "writeTextFile": fs},
            "terminal": terminal,
            "session": {"configOptions": {"boolean": {}}, "notices": {}, "compaction": {}},
            # A convention of two agents: they send the output of their shells in tool call updates. With
            # `terminal_output_delta` they send pieces. Without it, one sends the whole output at the end, the
            # other pieces that are indistinguishable from the whole.
            "_meta": {"terminal_output": True, "terminal_output_delta": True},
        },
    }
