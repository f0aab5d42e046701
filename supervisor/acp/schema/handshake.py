"""`initialize`: the agent's name and capabilities, and ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs

from supervisor.acp.errors import UnsupportedProtocolVersion
from supervisor.acp.schema.bounds import NAME_CHARS, WORDS_CHARS, Kept
from supervisor.acp.schema.read import Json, as_object, exact_id, line, marked, member, objects

KNOWN_MEMBERS: Final = ("protocolVersion", "agentCapabilities", "authMethods", "agentInfo", "_meta")
"""The members of the answer that are interpreted: nothing else in it can crowd them out."""

METHODS_MAX: Final = 50
"""The most login methods that are read. Agents offer one to five."""

VARIABLES_MAX: Final = 20
"""The most variables of a login method that are read. Agents name one or two."""

PROMPT: Final = ("image", "audio", "embeddedContext")
"""What of a prompt an agent may take or not. Texts and links every agent takes."""

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
    """A way to log in. `type` is `agent` (call `authenticate`), `env_var` (start the agent with `variables`,
    then call it), `terminal` (run a program), or unknown."""

    id: str
    name: str
    description: str | None
    type: str
    variables: tuple[str, ...]
    """Those that have to be set."""
    raw: Json = attrs.field(repr=False)


@attrs.frozen
class AgentCapabilities:
    """What the agent offers. Everything that it does not mention, it does not offer.

    `prompt` holds those of `PROMPT` that it takes. `session` holds the names of the offered session
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
    """The answer to `initialize`. `raw` is what is kept of it, `lost` says in words what is not."""

    capabilities: AgentCapabilities
    auth_methods: tuple[AuthMethod, ...]
    agent: Implementation | None
    raw: Json = attrs.field(repr=False)
    lost: str | None = None


def parse_initialize(result: Any) -> InitializeResult:
    """Read the answer to `initialize`. Raises UnsupportedProtocolVersion for any version but 1, or none."""
    kept = Kept()
    raw = kept.members(as_object(result), KNOWN_MEMBERS)
    version = raw.get("protocolVersion")
    if str(version) != str(PROTOCOL_VERSION):
        raise UnsupportedProtocolVersion(version)
    info = member(raw, "agentInfo")
    name = line(info, "name", NAME_CHARS)
    return InitializeResult(
        capabilities=_capabilities(member(raw, "agentCapabilities")),
        auth_methods=parse_auth_methods(raw),
        agent=Implementation(name, line(info, "title", NAME_CHARS), line(info, "version", NAME_CHARS))
        if name
        else None,
        raw=raw,
        lost=kept.lost,
    )


def parse_auth_methods(raw: Json) -> tuple[AuthMethod, ...]:
    """The `authMethods` of an object. Some agents repeat them in the data of error -32000.

    One whose id is too long to be kept is left out: it could not be called.
    """
    methods = []
    for method in (objects(raw, "authMethods") or ())[:METHODS_MAX]:
        method_id = exact_id(method, "id")
        if method_id is not None:
            methods.append(
                AuthMethod(
                    id=method_id,
                    name=line(method, "name", NAME_CHARS) or method_id,
                    description=line(method, "description", WORDS_CHARS),
                    # One agent marks its terminal methods in the vendor's corner.
                    type=line(method, "type", NAME_CHARS)
                    or line(member(method, "_meta"), "type", NAME_CHARS)
                    or "agent",
                    variables=tuple(_variables(method)),
                    raw=method,
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
            # With the second word they send it in pieces; without it one sends it whole at the end, and one
            # sends pieces that cannot be told from the whole.
            "_meta": {"terminal_output": True, "terminal_output_delta": True},
        },
    }
