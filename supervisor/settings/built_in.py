"""The built-in agent of one conversation: what it is started with, and what clients see of that. Pure.

Its document is what the agent's process gets: `agent`, as clients of the SDK write it, or `agent_settings`.
The SDK judges it, so it is kept as it came; and it is sealed as a whole, since a key may stand anywhere in
it. MCP servers are taken out of it: they go the way of every agent's.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import attrs
import orjson

from supervisor.reading.model import Location
from supervisor.settings.agent import (
    AGENT_KINDS,
    MCP_SERVER,
    OPENHANDS,
    AgentSettings,
    BuiltInSettings,
    Server,
    ServerCheck,
    server_check,
)
from supervisor.settings.errors import problem, read
from supervisor.settings.exposure import (
    CREDENTIALS,
    ENCRYPTED_START,
    PLACEHOLDER,
    REDACTED,
    StorageCipher,
    shown_url,
)
from supervisor.settings.llm import LLM, decode_llm
from supervisor.settings.merge import MAX_DEPTH, too_deep
from supervisor.settings.openhands import decode_openhands_settings
from supervisor.settings.variables import looks_like_credential

KIND: Final = "Agent"
"""The `kind` of the built-in agent in start requests, and in the resource."""

DOCUMENT_BYTES: Final = 1024 * 1024
"""Most of an agent's document, bytes of JSON: it is stored with each change of the conversation's record.
With a hundred skills it has some hundred kilobytes."""

DEFAULT_TOOLS: Final = ("FinishTool", "ThinkTool")
"""Tools that every such agent has, even if its settings do not list them; the wire's names."""

UNSAID: Final[Mapping[str, Any]] = {
    "tools": [],
    "include_default_tools": list(DEFAULT_TOOLS),
    "filter_tools_regex": None,
    "agent_context": None,
    "persona": None,
    "condenser": None,
    "critic": None,
    "tool_concurrency_limit": 1,
}
"""Defaults of its library for properties that an agent does not give. Clients see all of them."""

NAMED: Final = frozenset(
    {*CREDENTIALS, "critic_api_key", "client_secret", "access_token", "refresh_token", "password"}
)
"""Properties whose text is a secret, at any depth."""

EXTRA_HEADERS: Final = "extra_headers"
"""A model's. All are hidden from clients that read the document; see `secrets_within`."""

HOLDING: Final = frozenset({"env", EXTRA_HEADERS, "headers", "secrets"})
"""Properties whose own properties are secrets by name: texts, or descriptions of where they come from."""

SOURCE: Final = frozenset({"kind", "url", "value"})
"""Properties of such a description."""

AUTH: Final = "auth"
"""The property with the credentials of an MCP server, in its `value` or under one of the names above."""

BY_LOGIN: Final = "oauth"
"""The value that names a login method, and is not a token."""


class _Place(enum.Enum):
    """How a part of a document may hold secrets."""

    PLAIN = enum.auto()
    SECRET = enum.auto()
    """Every text in it is a secret."""
    BY_NAME = enum.auto()
    """The value of one of `HOLDING`."""
    DESCRIBED = enum.auto()
    """The description of one secret."""
    AUTH = enum.auto()
    URL = enum.auto()
    """Where a secret is fetched from: its user, path and query may be keys."""


def decode_built_in(obj: object, loc: Location, check_server: ServerCheck) -> BuiltInSettings:
    """Agent settings of the kind `openhands`, of a client or of the server. Raises SettingsError."""
    assert isinstance(obj, Mapping)
    given = _checked({**obj, "agent_kind": OPENHANDS}, loc)
    judged = decode_openhands_settings(given, loc, check_server)
    for place, name in (("agent_context", "current_datetime"), ("condenser", "max_tokens")):
        part = given.get(place)
        if isinstance(part, Mapping) and part.get(name, ...) is None:
            # The SDK distinguishes null from absent here. The null comes from our own settings, and means
            # absent.
            given[place] = {key: value for key, value in part.items() if key != name}
    servers = given.pop("mcp_config", None) or {}
    return BuiltInSettings(
        mcp_config=servers, shown=_shown_of_settings(judged), document={"agent_settings": given}
    )


def decode_agent(obj: object, loc: Location, check_server: ServerCheck) -> BuiltInSettings:
    """The `agent` of a start request, of kind `Agent`. Raises SettingsError.

    What Ostler uses of it is checked, its model and its MCP servers; the SDK judges the rest when it starts.
    """
    assert isinstance(obj, Mapping)
    given = _checked(obj, loc)
    if "llm" not in given:
        raise problem((*loc, "llm"), "Field required", "missing")
    read(LLM, given["llm"], (*loc, "llm"))
    tools = given.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise problem((*loc, "tools"), "Input should be a valid list", "list_type")
    found = read(
        Mapping[str, Server],
        given.pop("mcp_config", None) or {},
        (*loc, "mcp_config"),
        {MCP_SERVER: server_check(check_server)},
    )
    return BuiltInSettings(mcp_config=found, shown={**UNSAID, **hidden(given)}, document={"agent": given})


def decode_model(obj: object, loc: Location) -> dict[str, Any]:
    """Another model for it. Placeholders of secrets are none. Raises SettingsError."""
    if isinstance(obj, Mapping):
        obj = _checked(obj, loc)
    return decode_llm(obj, loc)


def is_built_in(obj: Mapping[str, Any]) -> bool:
    """Whether agent settings say that they are the built-in agent's."""
    return AGENT_KINDS.get(str(obj.get("agent_kind"))) == OPENHANDS


def _checked(obj: Mapping[str, Any], loc: Location) -> dict[str, Any]:
    """A copy, without placeholders of secrets."""
    if too_deep(obj):
        raise problem(loc, f"Value error, nested deeper than {MAX_DEPTH} levels", "value_error")
    if len(orjson.dumps(obj)) > DOCUMENT_BYTES:
        raise problem(loc, f"Value error, more than {DOCUMENT_BYTES} bytes of JSON", "value_error")
    copy = without_placeholders(obj)
    assert isinstance(copy, dict)
    return copy


def with_model(settings: BuiltInSettings, llm: Mapping[str, Any]) -> BuiltInSettings:
    """The same agent with another model: of the document, which is open, and of what is shown."""
    assert settings.document is not None
    document = {name: {**part, "llm": llm} for name, part in settings.document.items()}
    return attrs.evolve(settings, document=document, shown={**settings.shown, "llm": hidden(llm)})


# -- secrets ------------------------------------------------------------------------------------------------


def hidden(obj: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with a placeholder for each secret."""
    copy = hidden_within(obj)
    assert isinstance(copy, dict)
    return copy


def hidden_within(value: Any) -> Any:
    """The same of any JSON value."""
    return _walked(value, lambda _: REDACTED, shown_url)


def without_placeholders(value: Any) -> Any:
    """A copy of a JSON value without what clients send that have no secret."""
    return _walked(value, lambda text: None if PLACEHOLDER.fullmatch(text) else text)


def document_secrets(settings: BuiltInSettings) -> list[str]:
    """Every secret in the open document, to be masked where the agent says it."""
    return secrets_within(settings.document or {})


def secrets_within(obj: Any) -> list[str]:
    """Every secret in a JSON value of the built-in agent's; of URLs that hold one the URL, and its parts.

    Of a model's `extra_headers` only credentials count: the others are ordinary text.
    """
    found: list[str] = []

    def note(value: str) -> str:
        found.append(value)
        return value

    def note_url(url: str) -> str:
        if shown_url(url) != url:
            found.extend((url, *_keys_in(url)))
        return url

    _walked(_without_plain_headers(obj), note, note_url)
    return found


def decrypted(obj: Mapping[str, Any], cipher: StorageCipher) -> dict[str, Any]:
    """An agent with every secret in the clear that a client was shown encrypted. Raises what the cipher
    raises."""

    def opened(value: str) -> str:
        return cipher.decrypt(value).decode() if value.startswith(ENCRYPTED_START) else value

    copy = _walked(obj, opened)
    assert isinstance(copy, dict)
    return copy


def seal_document(settings: AgentSettings, cipher: StorageCipher) -> AgentSettings:
    """The settings for the disk. Raises what the cipher raises."""
    if not isinstance(settings, BuiltInSettings) or settings.document is None:
        return settings
    return attrs.evolve(settings, document=None, sealed=cipher.encrypt(orjson.dumps(settings.document)))


def open_document(settings: AgentSettings, cipher: StorageCipher) -> AgentSettings:
    """The settings for use. Raises what the cipher raises."""
    if not isinstance(settings, BuiltInSettings) or settings.sealed is None:
        return settings
    return attrs.evolve(settings, document=orjson.loads(cipher.decrypt(settings.sealed)), sealed=None)


def _without_plain_headers(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_plain_headers(each) for each in node]
    if not isinstance(node, Mapping):
        return node
    copy = {name: _without_plain_headers(value) for name, value in node.items()}
    headers = copy.get(EXTRA_HEADERS)
    if isinstance(headers, Mapping):
        copy[EXTRA_HEADERS] = {
            name: value for name, value in headers.items() if looks_like_credential(name.replace("-", "_"))
        }
    return copy


def _keys_in(url: str) -> list[str]:
    try:
        parts = urlsplit(url)
        return [each for each in (parts.password, *(value for _, value in parse_qsl(parts.query))) if each]
    except ValueError:
        return []


def _walked(
    node: Any,
    replace: Callable[[str], str | None],
    replace_url: Callable[[str], str | None] | None = None,
    place: _Place = _Place.PLAIN,
) -> Any:
    """A copy with `replace` applied to each secret, and `replace_url` (or it) to each URL that may hold one;
    what becomes None is left out.

    Its depth is bounded by `too_deep`.
    """
    if isinstance(node, str):
        change = replace_url or replace if place is _Place.URL else replace
        return change(node) if node and place in (_Place.SECRET, _Place.URL) else node
    if isinstance(node, Mapping):
        copy = {}
        for name, old in node.items():
            new = _walked(old, replace, replace_url, _place_of(name, old, place))
            if new is not None or old is None:
                copy[name] = new
        return copy
    if isinstance(node, list):
        # Of secrets by name a list has names, or descriptions.
        within = _Place.PLAIN if place is _Place.BY_NAME else place
        return [
            _walked(
                each,
                replace,
                replace_url,
                _Place.DESCRIBED if place is _Place.BY_NAME and isinstance(each, Mapping) else within,
            )
            for each in node
        ]
    return node


def _place_of(name: str, value: Any, around: _Place) -> _Place:
    """What the property `name` of a part is."""
    if around is _Place.SECRET:
        return _Place.SECRET
    if around is _Place.BY_NAME:
        described = isinstance(value, Mapping) and not SOURCE.isdisjoint(value)
        return _Place.DESCRIBED if described else _Place.SECRET
    if name == "value" and around in (_Place.AUTH, _Place.DESCRIBED):
        return _Place.SECRET
    if name == "url" and around is _Place.DESCRIBED:
        return _Place.URL
    if name in HOLDING:
        return _Place.BY_NAME
    if isinstance(value, str):
        return _Place.SECRET if name in NAMED or (name == AUTH and value != BY_LOGIN) else _Place.PLAIN
    return _Place.AUTH if name == AUTH else _Place.PLAIN


# -- what clients see ---------------------------------------------------------------------------------------


def _shown_of_settings(judged: Mapping[str, Any]) -> dict[str, Any]:
    """A prediction of the agent that the SDK will make of these settings."""
    condenser = judged["condenser"]
    llm = judged["llm"]
    made: dict[str, Any] = {
        **UNSAID,
        "kind": KIND,
        "llm": llm,
        "tools": judged["tools"] or [],
        "agent_context": judged["agent_context"],
        "persona": judged["persona"],
        "tool_concurrency_limit": judged["tool_concurrency_limit"],
    }
    if condenser["enabled"] and condenser["condenser_kind"] == "llm_summarizing":
        kept = {
            name: value
            for name, value in condenser.items()
            if name not in ("condenser_kind", "enabled") and value is not None
        }
        made["condenser"] = {
            "kind": "LLMSummarizingCondenser",
            "llm": {**llm, "usage_id": "condenser"},
            **kept,
        }
    return hidden(made)
