"""The parameters of a client's requests, read strictly: an error names the member.

What ACP has and Ostler does not use (`_meta`, `additionalDirectories`) is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import attrs

from gateway.api.requests.messages import SocketMessage, check_taken
from gateway.api.requests.reading import AnyUuid, InvalidRequest, Request, read_body
from gateway.api.requests.start_request import MAX_PATH_CHARACTERS
from gateway.api.routes.conversations.operations import OptionValue
from supervisor.acp.schema import NAME_CHARS
from supervisor.reading.decode import decode
from supervisor.reading.model import ErrorDetail, Flaw, Invalid, wire_name
from supervisor.reading.rules import FILLED, NO_NUL, Items, Limit

if TYPE_CHECKING:
    from gateway.api.contract import Conversation
    from supervisor.events import Message

MAX_SERVERS: Final = 100
"""The most MCP servers of a session."""

MAX_PARTS: Final = 1_000
"""The most blocks of a prompt."""

Directory = Annotated[str, Limit(min_length=1, max_length=MAX_PATH_CHARACTERS), NO_NUL]
Name = Annotated[str, Limit(min_length=1, max_length=NAME_CHARS)]
Servers = Annotated[tuple[Mapping[str, Any], ...], Items(max_length=MAX_SERVERS)]


class _Parameters(Request):
    """An object of parameters, in ACP's names."""

    __slots__ = ()


@attrs.frozen(kw_only=True)
class NewSession(_Parameters):
    """`session/new`."""

    cwd: Directory
    mcp_servers: Servers = attrs.field(default=(), metadata=wire_name("mcpServers"), repr=False)

    def judge(self) -> Iterable[Flaw]:
        """An absolute directory: the server does not know where the editor is."""
        if not self.cwd.startswith("/"):
            yield ("cwd",), "value_error", "Value error, cwd must be an absolute path"


@attrs.frozen(kw_only=True)
class SessionNamed(_Parameters):
    """A request about one session."""

    session_id: AnyUuid = attrs.field(metadata=wire_name("sessionId"))


@attrs.frozen(kw_only=True)
class OpenSession(SessionNamed):
    """`session/load`, `session/resume`, `_ostler/attach`. `position`: see `UpdateReader`."""

    cwd: Directory | None = None
    position: Annotated[str, Limit(max_length=NAME_CHARS)] | None = None


@attrs.frozen(kw_only=True)
class ListSessions(_Parameters):
    """`session/list`."""

    cwd: Directory | None = None
    cursor: Annotated[str, Limit(max_length=NAME_CHARS)] | None = None


@attrs.frozen(kw_only=True)
class SetMode(SessionNamed):
    """`session/set_mode`."""

    mode_id: Name = attrs.field(metadata=wire_name("modeId"))


@attrs.frozen(kw_only=True)
class SetModel(SessionNamed):
    """`session/set_model`, which only older clients send."""

    model_id: Name = attrs.field(metadata=wire_name("modelId"))


@attrs.frozen(kw_only=True)
class SetOption(SessionNamed):
    """`session/set_config_option`."""

    config_id: Name = attrs.field(metadata=wire_name("configId"))
    value: OptionValue


@attrs.frozen(kw_only=True)
class Pair(_Parameters):
    """A variable, or a header."""

    name: Annotated[str, FILLED, NO_NUL]
    value: Annotated[str, NO_NUL] = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class McpServer(_Parameters):
    """A server of `mcpServers`: a `command`, or a `url` of the type http or sse."""

    name: Name
    type: str | None = None
    command: Annotated[str, FILLED, NO_NUL] | None = None
    args: tuple[str, ...] = attrs.field(default=(), repr=False)
    env: tuple[Pair, ...] = attrs.field(default=(), repr=False)
    url: Annotated[str, FILLED, NO_NUL] | None = attrs.field(default=None, repr=False)
    headers: tuple[Pair, ...] = attrs.field(default=(), repr=False)

    TYPES: ClassVar[tuple[str | None, ...]] = (None, "stdio", "http", "sse")

    def judge(self) -> Iterable[Flaw]:
        """One of both, as the type says."""
        if self.type not in self.TYPES:
            yield ("type",), "enum", "Input should be 'stdio', 'http' or 'sse'"
        elif (self.command is None) == (self.url is None):
            yield (), "value_error", "Value error, give either command or url"

    def entry(self) -> dict[str, Any]:
        """The server as Ostler's settings have it."""
        if self.command is not None:
            variables = {each.name: each.value for each in self.env}
            return {"command": self.command, "args": list(self.args), "env": variables}
        headers = {each.name: each.value for each in self.headers}
        transport = "sse" if self.type == "sse" else "http"
        return {"url": self.url, "transport": transport, "headers": headers}


def servers(given: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """MCP servers by name, as settings have them. Raises InvalidRequest."""
    read = [read_body(McpServer, each) for each in given]
    return {each.name: each.entry() for each in read}


def message(conversation: Conversation, prompt: Any) -> Message:
    """The message of a prompt's blocks. Raises InvalidRequest."""
    if not isinstance(prompt, list) or not prompt or len(prompt) > MAX_PARTS:
        detail = f"Input should be a list of 1 to {MAX_PARTS} content blocks"
        raise InvalidRequest(ErrorDetail(("prompt",), detail, "list_type"))
    try:
        made = decode(SocketMessage, {"role": "user", "content": [_part(each) for each in prompt]}).message
    except Invalid as error:
        raise InvalidRequest(*error.errors) from None
    check_taken(conversation, made, ())
    return made


def _part(block: Any) -> Any:
    """A block in the form that messages have: images as data URLs."""
    if isinstance(block, Mapping) and block.get("type") == "image" and isinstance(block.get("data"), str):
        url = f"data:{block.get('mimeType')};base64,{block['data']}"
        return {"type": "image", "image_urls": [url]}
    return block
