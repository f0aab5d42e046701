"""One MCP server entry, as settings and start requests hold it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

import attrs

from supervisor.reading.decode import attempt
from supervisor.reading.model import (
    NEVER_NULL,
    WITHOUT_EFFECT,
    ErrorDetail,
    Errors,
    Flaw,
    Invalid,
    Like,
    Location,
    Model,
    described,
)
from supervisor.reading.rules import FILLED

Transport = Literal["stdio", "http", "streamable-http", "sse"]

#: Values of `transport`. Without it a command means stdio and a URL means streamable HTTP.
TRANSPORTS: Final[tuple[str, ...]] = get_args(Transport)

REMOTE: Final = tuple(name for name in TRANSPORTS if name != "stdio")


class Auth(Model):
    """How to log in to a server, discriminated by `strategy`. Every field may be null or absent, but for a
    user's name. What is not known here (a client's state of a login) is kept."""

    __slots__ = ()
    TAG: ClassVar[str | None] = "strategy"
    TAG_REQUIRED: ClassVar[bool] = True
    NULL_IS_ABSENT: ClassVar[bool] = True


@attrs.frozen(kw_only=True)
class NoAuth(Auth):
    """Nothing is sent."""

    strategy: ClassVar[str] = "none"


@attrs.frozen(kw_only=True)
class ApiKeyAuth(Auth):
    """A header holds the key."""

    strategy: ClassVar[str] = "api_key"

    value: str | None = attrs.field(default=None, repr=False)
    header_name: Annotated[str, FILLED] | None = None


@attrs.frozen(kw_only=True)
class BearerAuth(Auth):
    """`Authorization: Bearer`."""

    strategy: ClassVar[str] = "bearer"

    value: str | None = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class BasicAuth(Auth):
    """`Authorization: Basic`."""

    strategy: ClassVar[str] = "basic"

    username: str
    password: str | None = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class HeaderAuth(Auth):
    """Headers of any names."""

    strategy: ClassVar[str] = "header"

    headers: Mapping[str, str] | None = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class OAuth2Auth(Auth):
    """A person logs in."""

    strategy: ClassVar[str] = "oauth2"

    authentication: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    state: Mapping[str, Any] | None = attrs.field(default=None, repr=False)


AnyAuth = NoAuth | ApiKeyAuth | BearerAuth | BasicAuth | HeaderAuth | OAuth2Auth


FOR_BUILT_IN: Final = described("For the built-in agent; without effect for others")


@attrs.frozen(kw_only=True)
class MCPServer(Model):
    """An entry, decoded. What may carry a credential is kept out of repr, the URL included.

    Times are in seconds. `auth` is the entry's JSON, one of `AnyAuth`. Exactly one of `command` and
    `url` is set. A property that is null counts as absent, but for `enabled`.
    """

    FORBID: ClassVar[bool] = True
    NULL_IS_ABSENT: ClassVar[bool] = True
    SCHEMA: ClassVar[Mapping[str, Any]] = {
        "anyOf": [
            {
                "properties": {"url": {"type": "null"}, "transport": {"enum": ["stdio", None]}},
                "required": ["command"],
                "not": {"properties": {"command": {"type": "null"}}},
            },
            {
                "properties": {"command": {"type": "null"}, "transport": {"enum": [*REMOTE, None]}},
                "required": ["url"],
                "not": {"properties": {"url": {"type": "null"}}},
            },
        ]
    }

    url: Annotated[str, FILLED] | None = attrs.field(default=None, repr=False)
    transport: Transport | None = None
    command: Annotated[str, FILLED] | None = None
    args: tuple[str, ...] = attrs.field(default=(), repr=False)
    env: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    cwd: str | None = None
    description: str | None = attrs.field(default=None, metadata=WITHOUT_EFFECT)
    icon: str | None = attrs.field(default=None, metadata=WITHOUT_EFFECT)
    timeout: float | None = attrs.field(default=None, metadata=FOR_BUILT_IN)
    sse_read_timeout: float | None = attrs.field(default=None, metadata=FOR_BUILT_IN)
    keep_alive: bool | None = attrs.field(default=None, metadata=FOR_BUILT_IN)
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    auth: Annotated[Mapping[str, Any], Like(AnyAuth)] | None = attrs.field(default=None, repr=False)
    enabled: bool = attrs.field(default=True, metadata=NEVER_NULL)

    def judge(self) -> Iterable[Flaw]:
        """A command or a URL, and the transport that goes with it."""
        if (self.command is None) == (self.url is None):
            return [((), "value_error", "Value error, exactly one of command and url must be given")]
        if self.transport is not None and (self.transport == "stdio") != (self.url is None):
            needed = "command" if self.transport == "stdio" else "url"
            message = f"Value error, transport {self.transport} needs a {needed}"
            return [(("transport",), "value_error", message)]
        return ()


class MCPServerError(Invalid):
    """An entry is not shaped as it must be. No message quotes a value."""


def server_errors(obj: object, loc: Location = ()) -> list[ErrorDetail]:
    """The errors of an entry, by location; `loc` is the location of the entry itself."""
    errors = Errors()
    attempt(MCPServer, obj, loc, errors)
    return list(errors.reported())


def decode_server(obj: object, loc: Location = ()) -> MCPServer:
    """An entry from its JSON. Raises MCPServerError with everything that is wrong."""
    errors = Errors()
    found = attempt(MCPServer, obj, loc, errors)
    if found is None or errors:
        raise MCPServerError(errors.reported())
    return found
