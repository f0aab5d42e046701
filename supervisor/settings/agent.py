"""The settings of an ACP agent: which one, how it is started, what it may use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Final, Literal

import attrs

from supervisor.reading.decode import among
from supervisor.reading.model import (
    WITHOUT_EFFECT,
    Check,
    ErrorDetail,
    Errors,
    Flaw,
    Location,
    Named,
    described,
    said,
)
from supervisor.reading.rules import ABOVE_ZERO, FILLED, NO_NUL, Form, Items, Limit
from supervisor.reading.shapes import as_json
from supervisor.settings.errors import SettingsError, problem, read
from supervisor.settings.names import Setting, Text
from supervisor.settings.remote import RELAY_COMMAND, Address, Headers, judge_headers
from supervisor.settings.variables import Meant, Variables, judge_variables
from supervisor.stored import structure

#: Checks an MCP server entry; the mcp room provides it. Takes a value and its location, and returns its
#: errors.
ServerCheck = Callable[[object, Location], list[ErrorDetail]]

#: Command by provider. Choosing a provider means its command, and its command means the provider.
Presets = Mapping[str, tuple[str, ...]]

NO_PRESETS: Final[Presets] = {}

SCHEMA_VERSION: Final = 9

ACP: Final = "acp"
OPENHANDS: Final = "openhands"

#: Spellings of `agent_kind`; the last is what older clients send.
AGENT_KINDS: Final[Mapping[str, str]] = {ACP: ACP, OPENHANDS: OPENHANDS, "llm": OPENHANDS}

#: Any command at all, which has to be given.
CUSTOM: Final = "custom"

#: What a wire client means that names neither provider nor command.
DEFAULT_SERVER: Final = "claude-code"

#: Seconds of silence after which a prompt is given up, and seconds for starting an agent.
DEFAULT_PROMPT_TIMEOUT: Final = 1800.0
DEFAULT_STARTUP_TIMEOUT: Final = 90.0

#: Keys of the built-in agent that would silently have no effect for an ACP agent.
REFUSED_FIELDS: Final = ("llm", "enable_sub_agents", "enable_switch_llm_tool")

#: Fields that no other server of the wire has: clients see them only if they are not empty.
OWN_FIELDS: Final = frozenset(
    {
        *("acp_home", "acp_home_links", "acp_home_copies", "acp_env", "acp_env_plain"),
        *("acp_client_methods", "acp_after_cut_off", "acp_url", "acp_headers", "acp_limits"),
        *("acp_walls", "acp_walls_read", "acp_walls_write"),
    }
)

NOT_HERE: Final = "Value error, the built-in agent has no place here; name an ACP agent"


def _bare_name(text: str) -> str:
    if text in (".", "..") or "/" in text:
        raise ValueError("it must be a bare file name")
    return text


def _path_below(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError("it must be a relative path below the directory")
    return text


#: Names of files are checked, so that no later join leaves the agent's private directory.
BARE_NAME: Final = Form(_bare_name, {"not": {"anyOf": [{"pattern": "/"}, {"enum": [".", ".."]}]}})

#: Patterns of paths that are absolute or go up, and of those without a name in them.
LEADS_AWAY: Final = r"^/|(^|/)\.\.(/|$)"
LEADS_NOWHERE: Final = r"^[./]*$"

PATH_BELOW: Final = Form(
    _path_below, {"not": {"anyOf": [{"pattern": LEADS_AWAY}, {"pattern": LEADS_NOWHERE}]}}
)


def _absolute(text: str) -> str:
    # No home is meant by `~`: the client's is not the server's.
    if not text.startswith("/") or ".." in PurePosixPath(text).parts:
        raise ValueError("it must be an absolute path without ..")
    return text


#: Patterns of paths that are not absolute, and of those that go up.
NOT_ABSOLUTE: Final = "^[^/]"
GOES_UP: Final = r"(^|/)\.\.(/|$)"

ABSOLUTE: Final = Form(_absolute, {"not": {"anyOf": [{"pattern": NOT_ABSOLUTE}, {"pattern": GOES_UP}]}})

#: Characters of a path: as many bytes as Linux takes (PATH_MAX).
PATH_CHARACTERS: Final = 4096

#: Further paths of one agent, of each kind: each is a mount and some words of a command.
WALL_PATHS: Final = 64

WallPath = Annotated[str, Limit(min_length=1, max_length=PATH_CHARACTERS, nul=False), ABSOLUTE]
WallPaths = Annotated[tuple[WallPath, ...], Items(max_length=WALL_PATHS)]


@attrs.frozen(kw_only=True)
class FileSecret(Setting):
    """A secret that an agent reads from a file: `<private dir>/<subdir>/<filename>`.

    `env_var` is set to the file or to its directory, as `env_points_to` says. `warn_if_unset`
    names variables that the agent needs besides.
    """

    secret_name: Annotated[str, FILLED, NO_NUL]
    filename: Annotated[str, FILLED, NO_NUL, BARE_NAME]
    env_var: Annotated[str, FILLED, NO_NUL]
    subdir: Annotated[str, FILLED, NO_NUL, PATH_BELOW]
    env_points_to: Literal["dir", "file"] = "file"
    warn_if_unset: tuple[Text, ...] = ()


DEFAULT_FILE_SECRETS: Final = (
    FileSecret(
        secret_name="CODEX_AUTH_JSON",  # noqa: S106 - the name of one, not one
        filename="auth.json",
        env_var="CODEX_HOME",
        subdir="codex",
        env_points_to="dir",
    ),
    FileSecret(
        secret_name="GOOGLE_APPLICATION_CREDENTIALS_JSON",  # noqa: S106 - the name of one, not one
        filename="gcloud-credentials.json",
        env_var="GOOGLE_APPLICATION_CREDENTIALS",
        subdir="gemini-cli",
        warn_if_unset=("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION"),
    ),
    FileSecret(
        secret_name="KIMI_CODE_CONFIG_TOML",  # noqa: S106 - the name of one, not one
        filename="config.toml",
        env_var="KIMI_CODE_HOME",
        subdir="kimi-code",
        env_points_to="dir",
    ),
    FileSecret(
        secret_name="PI_AUTH_JSON",  # noqa: S106 - the name of one, not one
        filename="auth.json",
        env_var="PI_CODING_AGENT_DIR",
        subdir="pi",
        env_points_to="dir",
    ),
)


#: A petabyte: more than any machine has, and less than the kernel's numbers can hold.
MOST_BYTES: Final = 1 << 50

#: Processes, or open files: as many PIDs as a kernel gives.
MOST_COUNT: Final = 1 << 22

MOST_CPUS: Final = 4096.0

BYTES: Final = Limit(gt=0, le=MOST_BYTES)
COUNT: Final = Limit(gt=0, le=MOST_COUNT)
CPUS: Final = Limit(gt=0, le=MOST_CPUS)

#: The field of an agent's limits.
ACP_LIMITS: Final = "acp_limits"


@attrs.frozen(kw_only=True)
class Limits(Setting):
    """The limits of one agent. Null: the server's."""

    NAME: ClassVar[str] = "AgentLimits"
    FORBID: ClassVar[bool] = True

    memory: Annotated[int, BYTES] | None = said(None, "Bytes of its processes")
    processes: Annotated[int, COUNT] | None = said(None, "Its processes, with their threads")
    cpus: Annotated[float, CPUS] | None = said(None, "Processors, such as 1.5")
    file_size: Annotated[int, BYTES] | None = said(None, "Bytes of a file that it writes")
    open_files: Annotated[int, COUNT] | None = said(None, "Open files of each process")
    disk: Annotated[int, BYTES] | None = said(None, "Bytes on the disk of its own home")

    def given(self) -> dict[str, Any]:
        """Those that are set, by name."""
        return {name: value for name, value in attrs.asdict(self).items() if value is not None}


@attrs.frozen
class LimitBounds:
    """The highest limits that settings may have, by name: the operator's."""

    most: Mapping[str, float] = attrs.field(factory=dict)

    def check(self, limits: Limits | None, loc: Location) -> None:
        """Refuse limits above the operator's. `loc`: of the agent's settings. Raises SettingsError."""
        given = {} if limits is None else limits.given()
        errors = tuple(
            ErrorDetail(
                loc=(*loc, ACP_LIMITS, name),
                msg=f"Input should be less than or equal to {most:.15g}, the server's own limit",
                type="less_than_equal",
            )
            for name, most in self.most.items()
            if name in given and given[name] > most
        )
        if errors:
            raise SettingsError(errors)


NO_BOUNDS: Final = LimitBounds()


def _or_no_limits(limits: Limits | None) -> Limits | None:
    """None of them set is the same as none at all."""
    return limits if limits is not None and limits.given() else None


def _or_none(text: str | None) -> str | None:
    """Clients send an empty text where they mean none."""
    return text or None


#: Names of checks that the descriptions leave to the caller, who has the catalogue and the mcp room.
PROVIDER: Final = "provider"
MCP_SERVER: Final = "mcp_server"

Server = Annotated[Mapping[str, Any], Named(MCP_SERVER)]


@attrs.frozen(kw_only=True)
class CommonAgentSettings(Setting):
    """What both spellings of an ACP agent have: that of settings, and that of start requests.

    Timeouts are in seconds. `mcp_config` (server entry by name) and `agent_context` are kept as
    JSON; these and the arguments may hold credentials and stay out of repr.
    """

    acp_args: tuple[Text, ...] = attrs.field(default=(), repr=False)
    acp_model: Text | None = attrs.field(default=None, converter=_or_none)
    acp_session_mode: Text | None = attrs.field(default=None, converter=_or_none)
    acp_prompt_timeout: Annotated[float, ABOVE_ZERO] = attrs.field(
        default=DEFAULT_PROMPT_TIMEOUT,
        converter=float,
        metadata=described("Seconds of silence after which a prompt is given up"),
    )
    acp_startup_timeout: Annotated[float, ABOVE_ZERO] = attrs.field(
        default=DEFAULT_STARTUP_TIMEOUT, converter=float, metadata=described("Seconds")
    )
    mcp_config: Mapping[str, Server] = attrs.field(factory=dict, repr=False)
    acp_isolate_data_dir: bool = False
    acp_home: Literal["own", "shared"] | None = said(
        None, "Whose home the agent has: its conversation's, or the user's. Null: as it is known"
    )
    acp_home_links: tuple[Annotated[str, FILLED, NO_NUL, PATH_BELOW], ...] = said(
        (), "Of the user's home, what a home of its own has links to"
    )
    acp_home_copies: tuple[Annotated[str, FILLED, NO_NUL, PATH_BELOW], ...] = said(
        (), "Of the user's home, what is copied, once, into a home of its own"
    )
    acp_env: Variables = attrs.field(
        factory=dict,
        metadata=described("Variables for the agent that are not secrets: they are shown and never masked"),
    )
    acp_env_plain: Meant = said((), "Of acp_env, what is not a secret although its name sounds like one")
    acp_walls: Literal["off", "guard", "strict"] | None = said(
        None, "What the agent can reach of the machine, at least as strong as OSTLER_WALLS. Null: that one"
    )
    acp_walls_read: WallPaths = said(
        (), "Further paths that the agent may read, of those of OSTLER_WALLS_ALLOW_READ"
    )
    acp_walls_write: WallPaths = said(
        (), "Further paths that the agent may write, of those of OSTLER_WALLS_ALLOW_WRITE"
    )
    acp_client_methods: Literal["none", "fs", "terminal", "both"] | None = said(
        None, "The client's methods that the agent is offered. Null: as it is known"
    )
    acp_after_cut_off: Literal["restore", "new_session"] | None = said(
        None,
        "Whether a session in which a tool call was cut off is restored, or a new one gets a transcript. "
        "Null: as the agent is known; a new one where it is not",
    )
    acp_url: Address | None = attrs.field(
        default=None,
        converter=_or_none,
        metadata=described(
            "The address of a remote agent (ACP over a WebSocket: ws, wss, http or https), which takes the "
            "place of a command"
        ),
    )
    acp_headers: Headers = attrs.field(
        factory=dict,
        metadata=described("Headers for acp_url. Credentials are named: ${NAME} stands for a secret"),
    )
    acp_limits: Limits | None = attrs.field(
        default=None,
        converter=_or_no_limits,
        metadata=described("Limits of the agent's process tree, at most those of the server"),
    )
    acp_file_secrets: tuple[FileSecret, ...] = attrs.field(factory=lambda: DEFAULT_FILE_SECRETS)
    agent_context: Mapping[str, Any] | None = attrs.field(default=None, repr=False, metadata=WITHOUT_EFFECT)

    def judge(self) -> Iterable[Flaw]:
        """No credentials among the plain variables and headers."""
        yield from judge_variables("acp_env", self.acp_env, self.acp_env_plain)
        yield from judge_headers("acp_headers", self.acp_headers)


@attrs.frozen(kw_only=True)
class AgentSettings(CommonAgentSettings):
    """Settings of the `acp` kind. Once decoded, server and command agree and are not empty."""

    NAME: ClassVar[str] = "ACPAgentSettings"
    TAG: ClassVar[str | None] = "agent_kind"
    TAG_REQUIRED: ClassVar[bool] = True
    agent_kind: ClassVar[str] = ACP
    has_document: ClassVar[bool] = False
    """Whether its process gets a document, which is encrypted as a whole."""
    REFUSED: ClassVar[tuple[str, ...]] = REFUSED_FIELDS
    SCHEMA: ClassVar[Mapping[str, Any]] = {
        "description": ("Another kind than acp is refused. Without agent_kind any acp_... property means it.")
    }

    schema_version: Annotated[int, Limit(ge=1)] = SCHEMA_VERSION
    acp_server: Annotated[str, Named(PROVIDER)] = ""
    acp_command: tuple[Text, ...] = said((), "Empty: the provider's")


@attrs.frozen(kw_only=True)
class BuiltInSettings(AgentSettings):
    """The built-in agent of one conversation, made by `built_in.py` and never read from a client.

    `shown` is its `agent` as clients read it, without secrets. `document` is what its process gets; at rest
    it is None, and `sealed` the token that it was made.
    """

    NAME: ClassVar[str] = "BuiltInSettings"
    agent_kind: ClassVar[str] = OPENHANDS
    has_document: ClassVar[bool] = True

    acp_server: str = OPENHANDS
    shown: Mapping[str, Any] = attrs.field(factory=dict)
    document: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    sealed: str | None = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class ACPAgent(CommonAgentSettings):
    """The `agent` of a start request. What only the built-in agent uses is ignored."""

    TAG: ClassVar[str | None] = "kind"
    TAG_REQUIRED: ClassVar[bool] = True
    kind: ClassVar[str] = "ACPAgent"

    acp_server: Text | None = None
    acp_command: Annotated[tuple[Text, ...], Items(min_length=1)]


def with_own_fields(
    agent: AgentSettings, given: Mapping[str, Any], settings: AgentSettings | None
) -> AgentSettings:
    """An agent that a start request spells out in `given`, with what the settings say in `OWN_FIELDS`.

    That holds where the request says nothing in any of them, since clients of the wire do not know them, and
    names the agent of the settings: the same server, and for `custom` the same command.
    """
    if settings is None or OWN_FIELDS & given.keys() or agent.acp_server != settings.acp_server:
        return agent
    if agent.acp_server == "custom" and agent.acp_command != settings.acp_command:
        return agent
    return attrs.evolve(agent, **{name: getattr(settings, name) for name in OWN_FIELDS})


def agent_settings_to_dict(settings: AgentSettings) -> dict[str, Any]:
    """Settings as JSON, with every field of the wire, and those of OWN_FIELDS that are not empty.

    The inverse of `agent_settings_from_dict`.
    """
    found = as_json(settings)
    return {name: value for name, value in found.items() if name not in OWN_FIELDS or value}


def agent_settings_from_dict(obj: Mapping[str, Any]) -> AgentSettings:
    """Settings from JSON that `agent_settings_to_dict` made, perhaps of an earlier release.

    They are not validated again: a conversation keeps the agent it started with, even if the presets
    have changed. Absent fields are defaulted, unknown ones dropped.
    """
    return structure(BuiltInSettings if obj.get("agent_kind") == OPENHANDS else AgentSettings, obj)


def read_kind(obj: Mapping[str, Any], loc: Location) -> str:
    """`acp` or `openhands`. If not given, it is `acp` if there is an `acp_…` key."""
    kind = obj.get("agent_kind")
    if kind is None:
        return ACP if any(key.startswith("acp_") for key in obj) else OPENHANDS
    if not isinstance(kind, str) or kind not in AGENT_KINDS:
        raise problem((*loc, "agent_kind"), "Input should be 'openhands' or 'acp'", "literal_error")
    return AGENT_KINDS[kind]


def decode_agent_settings(
    obj: object,
    presets: Presets,
    *,
    loc: Location = ("body", "agent_settings"),
    check_server: ServerCheck | None = None,
    bounds: LimitBounds = NO_BOUNDS,
) -> AgentSettings:
    """The settings of an ACP agent from their JSON, absent fields defaulted.

    `acp_command` and `acp_server` are made to agree: without a command it is the provider's;
    a command that is a preset's makes that the provider; any other leaves the provider that was
    named, or else is `custom`. `acp_url` takes the place of both. Unknown keys are ignored. `check_server`
    checks the entries of `mcp_config`; `bounds` are the highest `acp_limits`. Raises SettingsError, for the
    built-in agent too.
    """
    if isinstance(obj, Mapping):
        if read_kind(obj, loc) != ACP:
            raise problem((*loc, "agent_kind"), NOT_HERE, "value_error")
        obj = {**obj, "agent_kind": ACP}
    found = read(AgentSettings, obj, loc, checks_of(presets, check_server))
    bounds.check(found.acp_limits, loc)
    return _settle(found, presets, loc)


def decode_acp_agent(
    obj: object,
    presets: Presets = NO_PRESETS,
    *,
    loc: Location = ("body", "agent"),
    check_server: ServerCheck | None = None,
    bounds: LimitBounds = NO_BOUNDS,
) -> AgentSettings:
    """The `agent` of a start request as settings. What only the built-in agent uses is ignored.

    A provider that is unknown here counts as `custom`: the command is always given, and it is
    what runs. `bounds` are the highest `acp_limits`. Raises SettingsError, for any other kind than `ACPAgent`
    too.
    """
    if isinstance(obj, Mapping):
        if obj.get("kind") == "Agent":
            raise problem((*loc, "kind"), NOT_HERE, "value_error")
        if obj.get("kind") != ACPAgent.kind:
            raise problem((*loc, "kind"), "Input should be 'ACPAgent'", "union_tag_invalid")
    agent = read(ACPAgent, obj, loc, checks_of(presets, check_server))
    bounds.check(agent.acp_limits, loc)
    common = {field.name: getattr(agent, field.name) for field in attrs.fields(CommonAgentSettings)}
    known = agent.acp_server if agent.acp_server and agent.acp_server in presets else ""
    return _settle(AgentSettings(**common, acp_server=known, acp_command=agent.acp_command), presets, loc)


def checks_of(presets: Presets, check_server: ServerCheck | None) -> dict[str, Check]:
    """The checks that the descriptions leave to others."""
    checks = {PROVIDER: among((*presets, CUSTOM))}
    if check_server is not None:
        checks[MCP_SERVER] = server_check(check_server)
    return checks


def server_check(check_server: ServerCheck) -> Check:
    """The check of the mcp room as one of the reader's."""

    def read(value: Any, loc: Location, errors: Errors) -> Any:
        errors.note(check_server(value, loc))
        return value

    return read


def _settle(given: AgentSettings, presets: Presets, loc: Location) -> AgentSettings:
    if given.acp_url is not None:
        return attrs.evolve(given, acp_server=CUSTOM, acp_command=RELAY_COMMAND)
    server, command = match_preset(given.acp_server or None, given.acp_command, presets)
    if not command or not command[0].strip():
        raise problem((*loc, "acp_command"), f"Value error, agent {server} needs a command", "value_error")
    return attrs.evolve(given, acp_server=server, acp_command=command)


def match_preset(
    server: str | None, command: tuple[str, ...], presets: Presets
) -> tuple[str, tuple[str, ...]]:
    """Provider and command that belong together; the command stays empty where no preset has one."""
    if not command:
        server = server or DEFAULT_SERVER
        return server, presets.get(server, ())
    if server is not None and presets.get(server) == command:
        return server, command
    for key, preset in presets.items():
        if preset == command:
            return key, command
    return server or CUSTOM, command
