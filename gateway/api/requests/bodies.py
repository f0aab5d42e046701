"""Request bodies: read from the request, and what they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import attrs
import orjson
import trio
from quart import Request as HttpRequest

from gateway.api.errors import ApiError
from gateway.api.requests.reading import InvalidRequest, Request, Whole, read_body
from gateway.api.schemas import STRING, array
from gateway.configuration.config import Config
from supervisor.credentials.secret import REDACTED, SECRET_NAME
from supervisor.patience import KeyedLimiters
from supervisor.reading.model import ErrorDetail, Like, Named, Variant, described, said
from supervisor.reading.rules import NO_NUL, Form, Items, Limit, Names, Properties, Size
from supervisor.reading.weight import LARGE_BYTES, too_heavy
from supervisor.settings.agent import AgentSettings
from supervisor.settings.llm import ProfileLLM
from supervisor.settings.merge import MAX_DEPTH, too_deep
from supervisor.settings.names import ProfileName
from supervisor.workspace.access import MAX_PATH_BYTES
from supervisor.workspace.commands.log import DEFAULT_SECONDS, MAX_COMMAND_CHARACTERS

JSON_TYPE = re.compile(r"application/(?:[\w.+-]+\+)?json", re.IGNORECASE)

MAX_TITLE_CHARACTERS = 200

DEFAULT_REASON = "User rejected the action."

MAX_REASON_CHARACTERS = 10_000
"""Longest reason for a rejection: it becomes an event, and may be sent to the agent."""

MAX_ANALYZER_BYTES = 16 * 1024
"""Largest security analyzer: it is only stored, and each answer about its conversation includes it."""

MAX_TAG_CHARACTERS = 256
"""The wire's limit of a tag's value, and Ostler's limit of its name."""

MAX_TAGS = 100
"""Most tags of one conversation: each answer about it includes them."""

NOT_BLANK: Final = "[^\\s\\u001c-\\u001f\\u0085]"
"""A pattern: some character that `str.strip` keeps."""

PLACEHOLDER: Final = f"^\\s*{re.escape(REDACTED)}\\s*$"
"""A pattern: the placeholder that clients see in place of a secret."""

SOURCE: Final = "source of a secret"
"""The name of the check of a secret's source: it needs the store, and the addresses of this server."""


MAX_VALUES: Final = 20_000
"""Most values of one body or message, keys included. Reading and checking one takes a microsecond or two, so
a body blocks the event loop for some 30 ms. Clients' bodies have some hundreds."""

PARSERS: Final = KeyedLimiters(1)
"""Large bodies and messages that are parsed at a time: the parser holds the GIL for 2 ms per megabyte."""


class TooHeavy(ValueError):
    """JSON that is not parsed, because the result would be too large. The message says why."""


async def parsed(data: bytes | str) -> Any:
    """Parse JSON from a client, in a thread if it is large.

    Raises TooHeavy, and orjson.JSONDecodeError. Cancellation abandons the thread, which ends within a tenth
    of a second.
    """
    if len(data) <= LARGE_BYTES:
        return _parsed(data)
    return await trio.to_thread.run_sync(_parsed, data, abandon_on_cancel=True, limiter=PARSERS.of("bodies"))


def _parsed(data: bytes | str) -> Any:
    data = data.encode() if isinstance(data, str) else data
    reason = too_heavy(data, MAX_VALUES, MAX_DEPTH)
    if reason is not None:
        raise TooHeavy(reason)
    found = orjson.loads(data)
    # What is read here may be written again, and cannot be from some depth on. Counting comes first: it is
    # cheap, and few bodies have as many brackets.
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and too_deep(found):
        raise TooHeavy(f"nested deeper than {MAX_DEPTH} levels")
    return found


async def json_body(request: HttpRequest, *, required: bool = True) -> Any:
    """The JSON in the request's body; None when there is none and none is required.

    Only declared JSON is read: a page of another site can make a browser post anything else here without
    asking first. Raises ApiError(415) for other types and InvalidRequest for what is not JSON, or too heavy.
    """
    data = await request.get_data(cache=False, as_text=False, parse_form_data=False)
    if not data:
        if required:
            raise InvalidRequest(ErrorDetail(("body",), "Field required", "missing"))
        return None
    if not JSON_TYPE.fullmatch(request.mimetype or ""):
        raise ApiError(415, "The body must be JSON, with the header Content-Type: application/json")
    try:
        return await parsed(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            ErrorDetail(("body", error.pos), f"JSON decode error: {error.msg}", "json_invalid")
        ) from None
    except TooHeavy as error:
        raise InvalidRequest(ErrorDetail(("body",), f"Value error, {error}", "value_error")) from None


def event_ids(body: Any, limit: int) -> list[str]:
    """A JSON array of event ids, at most `limit` of them. Raises InvalidRequest."""
    return list(read_body(Annotated[tuple[str, ...], Items(max_length=limit)], body))


def event_ids_schema(config: Config) -> dict[str, Any]:
    """What `event_ids` takes."""
    return array(STRING, maxItems=config.max_event_ids)


def _not_blank(text: str) -> str:
    found = text.strip()
    if not found:
        raise ValueError("a title must not be blank")
    return found


Title = Annotated[
    str, Limit(min_length=1, max_length=MAX_TITLE_CHARACTERS), Form(_not_blank, {"pattern": NOT_BLANK})
]
"""A title, without white space around it."""

Tags = Annotated[
    Mapping[str, Annotated[str, Limit(max_length=MAX_TAG_CHARACTERS)]],
    Properties(max_length=MAX_TAGS),
    Names(
        re.compile(f"[a-z0-9]{{1,{MAX_TAG_CHARACTERS}}}"),
        f"tag names hold at most {MAX_TAG_CHARACTERS} lower-case letters and digits",
    ),
]

Secrets = Annotated[
    Mapping[str, Annotated[Any, Named(SOURCE)]],
    Names(
        re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}"),
        "a secret name starts with a letter or an underscore "
        "and has at most 64 letters, digits, dots, dashes and underscores",
    ),
]
"""Of one conversation. Those that are kept for all are named more strictly, as in the interface."""


@attrs.frozen(kw_only=True)
class ExecuteBashRequest(Request):
    """A command for the shell."""

    command: Annotated[str, Limit(max_length=MAX_COMMAND_CHARACTERS), NO_NUL]
    cwd: Annotated[str, Limit(max_length=MAX_PATH_BYTES), NO_NUL] | None = None
    timeout: Whole = said(DEFAULT_SECONDS, "Seconds, after which it is ended with all that it has started")


@attrs.frozen(kw_only=True)
class UpdateConversationRequest(Request):
    """A new title, new tags, or both; None leaves as it is. What else a start request says is refused, since
    it would not change."""

    REFUSED: ClassVar[tuple[str, ...]] = (
        *("agent", "agent_settings", "confirmation_policy", "max_iterations", "secrets", "workspace"),
        *(each.name for each in attrs.fields(AgentSettings) if each.name.startswith("acp_")),
    )
    REFUSED_WHY: ClassVar[str] = (
        "Value error, this request changes the title and the tags alone. The model, the mode, the policy and "
        "secrets have requests of their own; everything else is said when a conversation is started"
    )

    title: Title | None = None
    tags: Tags | None = None


def _reason(text: str) -> str:
    return text or DEFAULT_REASON


@attrs.frozen(kw_only=True)
class ConfirmationResponseRequest(Request):
    """A person's answer to a pending request for permission, or to all. An empty reason is none."""

    accept: bool
    reason: Annotated[str, Limit(max_length=MAX_REASON_CHARACTERS)] = attrs.field(
        default=DEFAULT_REASON, converter=_reason
    )
    request_id: Annotated[str, Limit(max_length=MAX_REASON_CHARACTERS)] | None = said(
        None, "The `id` of the request in the state `permission_request`; null: all that wait"
    )
    option_id: Annotated[str, Limit(max_length=MAX_REASON_CHARACTERS)] | None = said(
        None, "The `id` of the option to choose; null: the smallest that fits `accept`"
    )


@attrs.frozen(kw_only=True)
class SecretCreateRequest(Request):
    """A global secret to be stored. Name and value are checked by the store."""

    name: str = attrs.field(metadata=described(pattern=f"^{SECRET_NAME.pattern}$"))
    value: str = attrs.field(
        repr=False,
        metadata=described(
            format="password",
            writeOnly=True,
            allOf=[
                {"pattern": "^[^\\u0000]*$"},
                {"pattern": NOT_BLANK},
                {"not": {"pattern": PLACEHOLDER}},
            ],
        ),
    )
    description: str | None = None


class ConfirmationPolicy(Variant):
    """When a person is asked."""

    __slots__ = ()
    FORBID: ClassVar[bool] = False
    NULL_IS_ABSENT: ClassVar[bool] = True
    CHOICE_ERROR: ClassVar[str] = "enum"
    variants: ClassVar[dict[str, type[Any]]] = {}


@attrs.frozen(kw_only=True)
class NeverConfirm(ConfirmationPolicy):
    """Never."""


@attrs.frozen(kw_only=True)
class AlwaysConfirm(ConfirmationPolicy):
    """For every call that asks."""


@attrs.frozen(kw_only=True)
class ConfirmRisky(ConfirmationPolicy):
    """From a risk on."""

    threshold: Literal["LOW", "MEDIUM", "HIGH"] = "HIGH"
    confirm_unknown: bool = True


@attrs.frozen(kw_only=True)
class SecurityAnalyzer(Request):
    """Who judges risks: any kind, kept for clients to read."""

    SCHEMA: ClassVar[Mapping[str, Any]] = {"description": "Any kind; kept for clients to read"}

    kind: str


KeptAnalyzer = Annotated[Mapping[str, Any], Like(SecurityAnalyzer), Size(MAX_ANALYZER_BYTES)]


@attrs.frozen(kw_only=True)
class SetConfirmationPolicyRequest(Request):
    """Another policy for a conversation."""

    policy: ConfirmationPolicy


@attrs.frozen(kw_only=True)
class SetSecurityAnalyzerRequest(Request):
    """Another analyzer for a conversation; null is none, and has to be said."""

    NULL_IS_ABSENT: ClassVar[bool] = False

    security_analyzer: KeptAnalyzer | None


@attrs.frozen(kw_only=True)
class UpdateSecretsRequest(Request):
    """Further secrets for a conversation."""

    secrets: Secrets = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class RestartAgentRequest(Request):
    """Whether an agent is restarted in the middle of a turn."""

    force: bool = False


@attrs.frozen(kw_only=True)
class SaveProfileRequest(Request):
    """An LLM profile to be stored, with its credentials or without."""

    llm: Annotated[Mapping[str, Any], Like(ProfileLLM)] = attrs.field(repr=False)
    include_secrets: bool = True


@attrs.frozen(kw_only=True)
class ValidateProfileRequest(Request):
    """An LLM profile to be tried before it is stored."""

    llm: Annotated[Mapping[str, Any], Like(ProfileLLM)] = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class MaterializeAgentProfileRequest(Request):
    """An agent profile to be judged in place of the one that is stored."""

    FORBID: ClassVar[bool] = True

    profile: Mapping[str, Any] | None = None


@attrs.frozen(kw_only=True)
class HooksRequest(Request):
    """The project whose hooks are asked for."""

    project_dir: str | None = None


@attrs.frozen(kw_only=True)
class ExposedUrl(Request):
    """An address at which a client's user sees a web application."""

    name: str
    url: str
    port: int


@attrs.frozen(kw_only=True)
class SandboxConfig(Request):
    """What a client knows of the machine."""

    exposed_urls: tuple[ExposedUrl, ...] = ()


NOT_FETCHED: Final = described("Accepted, and without effect here: nothing is fetched")


@attrs.frozen(kw_only=True)
class SkillsRequest(Request):
    """Which skills are asked for. What is not known is ignored."""

    load_public: bool = attrs.field(default=True, metadata=NOT_FETCHED)
    load_user: bool = True
    load_project: bool = True
    load_org: bool = attrs.field(default=True, metadata=NOT_FETCHED)
    marketplace_path: str | None = attrs.field(default=None, metadata=NOT_FETCHED)
    registered_marketplaces: Any = attrs.field(default=None, metadata=NOT_FETCHED, repr=False)
    org_configs: Any = attrs.field(default=None, metadata=NOT_FETCHED, repr=False)
    project_dir: str | None = None
    sandbox_config: SandboxConfig | None = None


@attrs.frozen(kw_only=True)
class PluginsRequest(Request):
    """Which plugins are asked for. What is not known is ignored."""

    project_dir: str | None = None


@attrs.frozen(kw_only=True)
class SubAgentsRequest(Request):
    """Which sub-agents are asked for. What is not known is ignored."""

    load_user: bool = True
    load_project: bool = True
    load_builtin: bool = True
    project_dir: str | None = None


@attrs.frozen(kw_only=True)
class InstallRequest(Request):
    """A source of something that is to be installed."""

    source: Annotated[str, Limit(min_length=1)]
    ref: str | None = None
    repo_path: str | None = None
    force: bool = False


@attrs.frozen(kw_only=True)
class EnabledRequest(Request):
    """Whether something installed is on."""

    enabled: bool


@attrs.frozen(kw_only=True)
class SubscriptionDevicePollRequest(Request):
    """A login to a subscription that was started."""

    device_code: str


@attrs.frozen(kw_only=True)
class RenameProfileRequest(Request):
    """The new name that a profile is to have."""

    new_name: ProfileName


@attrs.frozen(kw_only=True)
class MCPToolCall(Request):
    """A tool that is called when a server is tried."""

    name: Annotated[str, Limit(min_length=1)]
    arguments: Mapping[str, Any] | None = None


MAX_SERVER_NAME: Final = 128

DEFAULT_TEST_SECONDS: Final = 15.0
MOST_TEST_SECONDS: Final = 120
"""Of a test; the wire's."""

TEST_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "stdio": ("command", "args", "env", "cwd"),
    **dict.fromkeys(("http", "shttp", "streamable-http", "sse"), ("url", "headers", "auth")),
}
"""What is read of a server that is tried, by its type; the first must be there. MCPServer describes them."""

TEST_SERVER: Final = "mcp_test_server"
"""The name of the check of the server that is tried."""


@attrs.frozen(kw_only=True)
class MCPTestRequest(Request):
    """A server to be tried. `timeout` is in seconds."""

    name: Annotated[str, Limit(min_length=1, max_length=MAX_SERVER_NAME)] = "test-server"
    server: Annotated[Mapping[str, Any], Named(TEST_SERVER)] = attrs.field(repr=False)
    timeout: Annotated[float, Limit(gt=0, le=MOST_TEST_SECONDS)] = DEFAULT_TEST_SECONDS
    tool_call: Annotated[Mapping[str, Any], Like(MCPToolCall)] | None = None


@attrs.frozen(kw_only=True)
class MCPOAuthCallbackRequest(Request):
    """Where the browser was sent to after a login: the address has a code."""

    callback_url: Annotated[str, Limit(min_length=1)] = attrs.field(repr=False)
