"""What an agent behind the network door gets in place of its keys and addresses. Pure.

Each key that the agent uses over an API whose address it takes from its environment or settings becomes a
placeholder, and the address becomes one of the door. The door puts the key into the requests (`Upstream`).
"""

from __future__ import annotations

import base64
import ipaddress
import json
import re
import secrets
import string
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import SplitResult, quote_from_bytes, unquote, unquote_to_bytes, urlsplit

import attrs

from supervisor.agents.catalog import CredentialSource, Descriptor, Endpoint, Kind
from supervisor.agents.homes.credential import Choice
from supervisor.agents.walls.door.hosts import WayOut, way_out
from supervisor.agents.walls.door.shim import API_PORT, HOST, PROXY_PORT

API_URL: Final = f"http://{HOST}:{API_PORT}"
PROXY_URL: Final = f"http://{HOST}:{PROXY_PORT}"

PREFIX: Final = "/p/"
"""Beginning of a path of the door, before an upstream's number."""

PROXY_VARIABLES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
"""Variables that name a proxy, also in lower case."""

DIRECT: Final = f"{HOST},localhost,::1"
"""Hosts without a proxy: the agent's own loopback."""

NODE_PROXY: Final = "NODE_USE_ENV_PROXY"
"""Variable by which Node.js reads the others."""

KEPT_PREFIXES: Final = re.compile(
    r"sk-ant-(api|oat|admin)\d\d-|sk-or-v1-|sk-(proj|svcacct|admin|kimi)-|sk[-_]|AIza|gsk_|xai-|csk-|pplx-|nvapi-|hf_|r8_"
)
"""Beginnings of keys that say whose they are, and are no secret: some agents choose by them."""

CLASSES: Final = (string.ascii_lowercase, string.ascii_uppercase, string.digits)
"""A character of a placeholder is of the class of the key's: agents check the form."""

WITHIN_CHARACTERS: Final = 16
"""Characters from which a key is also replaced within other text. A shorter one may be a word."""

URL_MEMBERS: Final = ("baseURL", "baseUrl", "base_url", "api_base", "apiBase", "ollama_base_url")
KEY_MEMBERS: Final = ("apiKey", "api_key")
NAMING_MEMBERS: Final = ("env_key", "api_key_env_var")
"""Members of an object in a JSON document that describes a provider: its base URL, its key, and the variable
that holds its key."""

REFERENCE: Final = re.compile(r"\{env:(\w+)\}")
"""A key in such a document that is taken from a variable, as OpenCode writes it."""

DEPTH_MAX: Final = 64
"""Levels of a JSON document that are looked into."""

KEY_HEADERS: Final = frozenset({b"x-api-key", b"x-goog-api-key", b"api-key"})
"""Headers whose whole value is a key."""

AUTHORIZATION: Final = b"authorization"
BEARER: Final = b"bearer"
KEY_PARAMETER: Final = b"key"
"""Parameter of a query that is a key."""

NO_LOOPBACK: Final = (
    "it uses the sse transport on the loopback of Ostler's machine, which no agent behind the network door "
    "reaches; use the http transport"
)
"""Why an MCP server is left out."""

LIBRARIES: Final[Mapping[str, Endpoint]] = {
    "ANTHROPIC_API_KEY": Endpoint(url="https://api.anthropic.com", env="ANTHROPIC_BASE_URL"),
    "OPENAI_API_KEY": Endpoint(url="https://api.openai.com/v1", env="OPENAI_BASE_URL"),
    "GEMINI_API_KEY": Endpoint(url="https://generativelanguage.googleapis.com", env="GOOGLE_GEMINI_BASE_URL"),
}
"""Variables of the providers' own libraries, for an agent that is known by its command alone."""

MODEL_APIS: Final[Mapping[str, str]] = {
    "anthropic/": "https://api.anthropic.com",
    "claude-": "https://api.anthropic.com",
    "openai/": "https://api.openai.com/v1",
    "gpt-": "https://api.openai.com/v1",
    "o1": "https://api.openai.com/v1",
    "o3": "https://api.openai.com/v1",
    "o4": "https://api.openai.com/v1",
    "gemini/": "https://generativelanguage.googleapis.com/v1beta",
    "deepseek/": "https://api.deepseek.com/beta",
    "groq/": "https://api.groq.com/openai/v1",
    "mistral/": "https://api.mistral.ai/v1",
    "moonshot/": "https://api.moonshot.ai/v1",
    "openhands/": "https://llm-proxy.app.all-hands.dev",
    "openrouter/": "https://openrouter.ai/api/v1",
    "xai/": "https://api.x.ai/v1",
}
"""Base URLs that the built-in agent's library uses for a model without one, by the beginning of its name."""


class OtherKey(Exception):
    """A request carries a key that this agent was not given. The message is a sentence for the agent."""


@attrs.define(eq=False)
class Upstream:
    """A server that keys of the agent are for. It gets more keys while a start is wired."""

    origin: str
    """Scheme, host and port."""
    keys: dict[str, str] = attrs.field(factory=dict, repr=False)
    """The keys by their placeholders."""
    authorization: bytes | None = attrs.field(default=None, repr=False)
    """The header for a base URL with a user and a password."""

    def headers(self, given: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The headers of a request with keys in place of placeholders. Raises OtherKey."""
        found = [(name, self._header(name.lower(), value)) for name, value in given]
        if self.authorization is not None and all(name.lower() != AUTHORIZATION for name, _ in found):
            found.append((b"Authorization", self.authorization))
        return found

    def target(self, target: bytes) -> bytes:
        """The same of a path with a query."""
        path, mark, query = target.partition(b"?")
        parts = [self._parameter(part) for part in query.split(b"&")]
        return path + mark + b"&".join(parts)

    def _header(self, name: bytes, value: bytes) -> bytes:
        if name in KEY_HEADERS:
            return self._key(value)
        scheme, blank, token = value.partition(b" ")
        if name != AUTHORIZATION:
            return value
        if scheme.lower() != BEARER:
            return self._key(value)
        return scheme + blank + self._key(token.strip())

    def _parameter(self, part: bytes) -> bytes:
        name, equals, value = part.partition(b"=")
        if name != KEY_PARAMETER:
            return part
        return name + equals + quote_from_bytes(self._key(unquote_to_bytes(value)), safe="").encode()

    def _key(self, presented: bytes) -> bytes:
        found = self.keys.get(presented.decode("latin-1"))
        if found is not None:
            return found.encode()
        if self.keys and presented:
            raise OtherKey(
                "This request carries a key that Ostler did not give to this agent, so it is not sent to "
                f"{self.origin}. Make it a secret of the conversation, or start the agent without the door."
            )
        return presented


class Wiring:
    """What the door has to know of one start, collected while the parts of the start are rewired.

    `upstreams` grows with later parts, such as another model of the built-in agent; the door sees them.
    """

    def __init__(self) -> None:
        self.upstreams: list[Upstream] = []
        self.kept: list[str] = []
        """Credentials that the agent has as they are: names of variables, secrets, files or models."""
        self.hosts: tuple[str, ...] = ()
        """Hosts that the agent needs for these, as patterns of `hosts.AllowList`."""
        self.way_out = WayOut()
        """The proxy that the agent would have used."""
        self._placeholders: dict[str, str] = {}

    def environment(
        self,
        descriptor: Descriptor,
        given: Mapping[str, str],
        choice: Choice,
        confidential: Collection[str] = (),
    ) -> dict[str, str]:
        """The environment for inside. `given`: the composed one (`compose_environment`). `confidential`: the
        names of secrets that may be in it, to report those that stay."""
        self.way_out = way_out(given)
        env = {name: self._document(name, value, given) for name, value in given.items()}
        described = frozenset(self._placeholders)
        for source in _sources(descriptor, given):
            assert source.env is not None
            key, endpoint = given[source.env].strip(), source.api
            if endpoint is None or key in described:
                continue  # of a key that a document describes, that is the only API
            url = _present_url(descriptor, endpoint, given) or endpoint.url
            if url:
                _place(env, endpoint, self.address(url, key))
        for name in (descriptor.base_url_env, descriptor.base_url_alias):
            if name is not None and _is_url(given.get(name)):
                env[name] = self.address(given[name])
        env = {name: self._without_keys(value) for name, value in env.items()}
        self._note_kept(descriptor, given, env, choice, confidential)
        return {**env, **_proxies()}

    def session(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the built-in agent gets with its session, or a change of it: with the door's addresses for its
        models, and placeholders for their keys."""
        moved = self._models(given, 0)
        assert isinstance(moved, dict)
        return {name: self._cleaned(value, 0) for name, value in moved.items()}

    def servers(
        self, given: Iterable[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
        """The MCP servers of `session/new`, and (name, reason) of those that the agent would not reach.

        One over HTTP is reached like an API; one over `sse` through the proxy, so its host comes to `hosts`,
        since it names further addresses of its own.
        """
        found, dropped = [], []
        for server in given:
            url = server.get("url")
            if not _is_url(url):
                found.append(self._cleaned(server, 0))
            elif server.get("type") != "sse":
                headers = [self._server_header(str(url), each) for each in server.get("headers", ())]
                found.append({**server, "url": self.address(str(url)), "headers": headers})
            elif _is_loopback(str(url)):
                dropped.append((str(server.get("name")), NO_LOOPBACK))
            else:
                parts = urlsplit(str(url))
                port = parts.port or (443 if parts.scheme == "https" else 80)
                name = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
                self.hosts = (*self.hosts, f"{name}:{port}")
                found.append(dict(server))
        return found, dropped

    def _server_header(self, url: str, header: Mapping[str, str]) -> dict[str, str]:
        name, value = header["name"], header["value"]
        scheme, blank, token = value.partition(" ")
        if name.lower().encode() in KEY_HEADERS:
            scheme, blank, token = "", "", value
        elif name.lower().encode() != AUTHORIZATION or scheme.lower().encode() != BEARER:
            return dict(header)
        if not token.strip():
            return dict(header)
        self.address(url, token.strip())
        return {**header, "value": scheme + blank + self._placeholder(token.strip())}

    def address(self, url: str, key: str | None = None) -> str:
        """The door's address for a base URL, which is then reached with this key. Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it is not an http:// or https:// address")
        name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        origin = f"{parts.scheme}://{name}" + ("" if parts.port is None else f":{parts.port}")
        authorization = basic(parts)
        known = [(each.origin, each.authorization) for each in self.upstreams]
        if (origin, authorization) not in known:
            known.append((origin, authorization))
            self.upstreams.append(Upstream(origin, authorization=authorization))
        number = known.index((origin, authorization))
        upstream = self.upstreams[number]
        if key:
            upstream.keys[self._placeholder(key)] = key
        query = f"?{parts.query}" if parts.query else ""
        return f"{API_URL}{PREFIX}{number}{parts.path}{query}"

    def _placeholder(self, key: str) -> str:
        if key not in self._placeholders:
            self._placeholders[key] = placeholder(key)
        return self._placeholders[key]

    def _document(self, name: str, value: str, env: Mapping[str, str]) -> str:
        """A variable with the providers moved that its JSON describes."""
        if value[:1] not in ("{", "["):
            return value
        try:
            document = json.loads(value)
        except (ValueError, RecursionError):
            return value  # the agent reports its own configuration best
        moved = self._providers(document, env, 0)
        for key in _keys_in(moved, 0):
            if key not in self._placeholders and name not in self.kept:
                self.kept.append(name)
        return value if moved == document else json.dumps(moved)

    def _providers(self, node: Any, env: Mapping[str, str], depth: int) -> Any:
        if depth > DEPTH_MAX:
            return node
        if isinstance(node, list):
            return [self._providers(each, env, depth + 1) for each in node]
        if not isinstance(node, dict):
            return node
        copy = {name: self._providers(value, env, depth + 1) for name, value in node.items()}
        for member in URL_MEMBERS:
            if _is_url(node.get(member)):
                copy[member] = self.address(node[member], _key_beside(node, env))
        return copy

    def _models(self, node: Any, depth: int) -> Any:
        if depth > DEPTH_MAX:
            return node
        if isinstance(node, list):
            return [self._models(each, depth + 1) for each in node]
        if not isinstance(node, Mapping):
            return node
        copy = {name: self._models(value, depth + 1) for name, value in node.items()}
        model, key, url = node.get("model"), node.get("api_key"), node.get("base_url")
        for member in URL_MEMBERS:
            if _is_url(node.get(member)) and member != "base_url":
                copy[member] = self.address(node[member])
        by_login = node.get("auth_type") == "subscription"
        if not isinstance(model, str) or not (key or url or by_login):
            return copy
        usual = next((api for name, api in MODEL_APIS.items() if model.startswith(name)), None)
        address = url if _is_url(url) else usual
        if address is None or by_login:
            if model not in self.kept:
                self.kept.append(model)
        else:
            copy["base_url"] = self.address(address, key if isinstance(key, str) else None)
        return copy

    def _cleaned(self, node: Any, depth: int) -> Any:
        """A JSON value without keys that have a placeholder."""
        if isinstance(node, str):
            return self._without_keys(node)
        if depth > DEPTH_MAX:
            return node
        if isinstance(node, list):
            return [self._cleaned(each, depth + 1) for each in node]
        if isinstance(node, Mapping):
            return {name: self._cleaned(value, depth + 1) for name, value in node.items()}
        return node

    def _without_keys(self, text: str) -> str:
        for key, instead in self._placeholders.items():
            if len(key) >= WITHIN_CHARACTERS:
                text = text.replace(key, instead)
            elif text.strip() == key:
                text = instead
        return text

    def _note_kept(
        self,
        descriptor: Descriptor,
        given: Mapping[str, str],
        env: Mapping[str, str],
        choice: Choice,
        confidential: Collection[str],
    ) -> None:
        names = [credential.name or credential.file for credential in choice.credentials]
        own = [name for name in names if name is not None and self._stays(name, given, env)]
        own += [
            source.env
            for source in descriptor.credentials
            if source.env is not None and given.get(source.env) and self._stays(source.env, given, env)
        ]
        more = [name for name in confidential if given.get(name) and self._stays(name, given, env)]
        self.kept = list(dict.fromkeys([*self.kept, *own, *more]))
        if own or not self.upstreams:
            self.hosts = (*self.hosts, *descriptor.hosts)

    def _stays(self, name: str, given: Mapping[str, str], env: Mapping[str, str]) -> bool:
        return env.get(name) == given.get(name)


def basic(address: SplitResult) -> bytes | None:
    """The value of `Authorization` for the user and the password in an address, if it has a user."""
    if address.username is None:
        return None
    pair = f"{unquote(address.username)}:{unquote(address.password or '')}"
    return b"Basic " + base64.b64encode(pair.encode())


def placeholder(key: str) -> str:
    """A random text of the form of this key."""
    known = KEPT_PREFIXES.match(key)
    start = known.group() if known is not None else ""
    rest = key[len(start) :]
    if not any(character in alphabet for alphabet in CLASSES for character in rest):
        return start + secrets.token_hex(WITHIN_CHARACTERS)
    while (made := start + "".join(map(_like, rest))) == key:
        pass
    return made


def _like(character: str) -> str:
    alphabet = next((each for each in CLASSES if character in each), character)
    return secrets.choice(alphabet)


def _sources(descriptor: Descriptor, env: Mapping[str, str]) -> Iterator[CredentialSource]:
    """The places of keys that are filled in this environment."""
    for source in descriptor.credentials:
        if source.env is not None and env.get(source.env, "").strip():
            yield source
    if descriptor.all_secrets:
        for name, endpoint in LIBRARIES.items():
            if env.get(name, "").strip():
                yield CredentialSource(kind=Kind.API_KEY, env=name, api=endpoint)


def _present_url(descriptor: Descriptor, endpoint: Endpoint, env: Mapping[str, str]) -> str | None:
    """The base URL that the agent would use with the key."""
    agents = [descriptor.base_url_alias, descriptor.base_url_env]
    names = agents if endpoint.env is None or endpoint.env in agents else [endpoint.env]
    if endpoint.variable is not None and endpoint.property is not None:
        found = _at(_parsed(env.get(endpoint.variable)), endpoint.property.split("."))
        if _is_url(found):
            return str(found)
    return next((env[name] for name in names if name is not None and _is_url(env.get(name))), None)


def _place(env: dict[str, str], endpoint: Endpoint, url: str) -> None:
    """Put a base URL where the agent takes it from."""
    if endpoint.env is not None:
        env[endpoint.env] = url
    if endpoint.variable is None or endpoint.property is None:
        return
    document = _parsed(env.get(endpoint.variable) or "{}")
    if not isinstance(document, dict):
        return
    *path, last = endpoint.property.split(".")
    node = document
    for part in path:
        if not isinstance(node.get(part), dict):
            node[part] = {}
        node = node[part]
    node[last] = url
    env[endpoint.variable] = json.dumps(document)


def _proxies() -> dict[str, str]:
    named = {name: PROXY_URL for upper in PROXY_VARIABLES for name in (upper, upper.lower())}
    return {**named, "NO_PROXY": DIRECT, "no_proxy": DIRECT, NODE_PROXY: "1"}


def _parsed(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


def _at(node: Any, path: Iterable[str]) -> Any:
    for part in path:
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _key_beside(node: Mapping[str, Any], env: Mapping[str, str]) -> str | None:
    """The key of a provider that a JSON object describes."""
    for member in KEY_MEMBERS:
        value = node.get(member)
        if isinstance(value, str) and value.strip():
            named = REFERENCE.fullmatch(value)
            return (env.get(named[1], "") if named else value).strip() or None
    for member in NAMING_MEMBERS:
        if isinstance(node.get(member), str):
            return env.get(node[member], "").strip() or None
    return None


def _keys_in(node: Any, depth: int) -> Iterator[str]:
    if depth <= DEPTH_MAX:
        inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        for each in inner:
            yield from _keys_in(each, depth + 1)
        if isinstance(node, dict):
            for member in KEY_MEMBERS:
                value = node.get(member)
                if isinstance(value, str) and value.strip() and not REFERENCE.fullmatch(value):
                    yield value.strip()


def _is_loopback(url: str) -> bool:
    name = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _is_url(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
