"""The settings of an ACP agent: which one, how it is started, what it may use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

import attrs

from supervisor.settings import fields
from supervisor.settings.errors import Location, SettingsError, problem
from supervisor.settings.fields import Check, ServerCheck

#: Command by provider. Choosing a provider means its command, and its command means the provider.
Presets = Mapping[str, tuple[str, ...]]

NO_PRESETS: Final[Presets] = {}

SCHEMA_VERSION: Final = 9

ACP: Final = "acp"
OPENHANDS: Final = "openhands"

#: Spellings of ``agent_kind``; the last is what older clients send.
AGENT_KINDS: Final[Mapping[str, str]] = {ACP: ACP, OPENHANDS: OPENHANDS, "llm": OPENHANDS}

#: Any command at all, which has to be given.
CUSTOM: Final = "custom"

#: What a wire client means that names neither provider nor command.
DEFAULT_SERVER: Final = "claude-code"

#: Seconds of silence after which a prompt is given up, and seconds for starting an agent.
DEFAULT_PROMPT_TIMEOUT: Final = 1800.0
DEFAULT_STARTUP_TIMEOUT: Final = 90.0

#: Keys of the built-in agent that would silently do nothing for an ACP agent.
REFUSED_FIELDS: Final = ("llm", "enable_sub_agents", "enable_switch_llm_tool")

NOT_AVAILABLE: Final = "Value error, the built-in agent is not available yet; choose an ACP agent"


@attrs.frozen(kw_only=True)
class FileSecret:
    """A secret that an agent wants as a file: ``<private dir>/<subdir>/<filename>``.

    ``env_var`` is set to the file or to its directory, as ``env_points_to`` says. ``warn_if_unset``
    names variables that the agent needs besides.
    """

    secret_name: str
    filename: str
    env_var: str
    subdir: str
    env_points_to: str = "file"
    warn_if_unset: tuple[str, ...] = ()

    def dump(self) -> dict[str, Any]:
        """Its JSON."""
        return {**attrs.asdict(self), "warn_if_unset": list(self.warn_if_unset)}


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
        subdir="gemini",
        warn_if_unset=("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION"),
    ),
    FileSecret(
        secret_name="KIMI_CODE_CONFIG_TOML",  # noqa: S106 - the name of one, not one
        filename="config.toml",
        env_var="KIMI_CODE_HOME",
        subdir="kimi",
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


@attrs.frozen(kw_only=True)
class AgentSettings:
    """Settings of the ``acp`` kind, decoded. ``acp_command`` is never empty.

    Timeouts are in seconds. ``mcp_config`` (server entry by name) and ``agent_context`` are kept as
    JSON; these and the arguments may hold credentials and stay out of repr.
    """

    acp_server: str
    acp_command: tuple[str, ...]
    acp_args: tuple[str, ...] = attrs.field(default=(), repr=False)
    acp_model: str | None = None
    acp_session_mode: str | None = None
    acp_prompt_timeout: float = attrs.field(default=DEFAULT_PROMPT_TIMEOUT, converter=float)
    acp_startup_timeout: float = attrs.field(default=DEFAULT_STARTUP_TIMEOUT, converter=float)
    mcp_config: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    acp_isolate_data_dir: bool = False
    acp_file_secrets: tuple[FileSecret, ...] = DEFAULT_FILE_SECRETS
    agent_context: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    schema_version: int = SCHEMA_VERSION


def agent_settings_to_dict(settings: AgentSettings) -> dict[str, Any]:
    """Settings as JSON, every field present. The inverse of ``agent_settings_from_dict``."""
    return {
        "schema_version": settings.schema_version,
        "agent_kind": ACP,
        "acp_server": settings.acp_server,
        "acp_command": list(settings.acp_command),
        "acp_args": list(settings.acp_args),
        "acp_model": settings.acp_model,
        "acp_session_mode": settings.acp_session_mode,
        "acp_prompt_timeout": settings.acp_prompt_timeout,
        "acp_startup_timeout": settings.acp_startup_timeout,
        "mcp_config": dict(settings.mcp_config),
        "acp_isolate_data_dir": settings.acp_isolate_data_dir,
        "acp_file_secrets": [secret.dump() for secret in settings.acp_file_secrets],
        "agent_context": settings.agent_context,
    }


def agent_settings_from_dict(obj: Mapping[str, Any]) -> AgentSettings:
    """Settings from JSON that ``agent_settings_to_dict`` made, perhaps of an earlier release.

    They are not judged again: a conversation keeps the agent it started with, whatever the presets
    are by now. Absent fields are defaulted, unknown ones dropped.
    """
    known = {field.name for field in attrs.fields(AgentSettings)}
    return _build({key: value for key, value in obj.items() if key in known})


def read_kind(obj: Mapping[str, Any], loc: Location) -> str:
    """``acp`` or ``openhands``. Unsaid, it is the former where an ``acp_…`` key is there."""
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
    check_server: ServerCheck = fields.mapping,
) -> AgentSettings:
    """The settings of an ACP agent from their JSON, absent fields defaulted.

    ``acp_command`` and ``acp_server`` are made to agree: without a command it is the provider's;
    a command that is a preset's makes that the provider; any other leaves the provider that was
    named, or else is ``custom``. Unknown keys are ignored. ``check_server`` checks the entries of
    ``mcp_config``. Raises SettingsError, for the built-in agent too.
    """
    if not isinstance(obj, Mapping):
        raise SettingsError(tuple(fields.mapping(obj, loc)))
    if read_kind(obj, loc) != ACP:
        raise problem((*loc, "agent_kind"), NOT_AVAILABLE, "value_error")
    checks: dict[str, Check] = {
        "schema_version": fields.at_least(1),
        "acp_server": fields.one_of((*presets, CUSTOM)),
        "acp_command": fields.strings,
        **_common_checks(check_server),
    }
    return _settle(fields.read(obj, loc, checks, refused=REFUSED_FIELDS), presets, loc)


def decode_acp_agent(
    obj: object,
    presets: Presets = NO_PRESETS,
    *,
    loc: Location = ("body", "agent"),
    check_server: ServerCheck = fields.mapping,
) -> AgentSettings:
    """The ``agent`` of a start request as settings. What only the built-in agent uses is ignored.

    A provider that is unknown here counts as ``custom``: the command is always given, and it is
    what runs. Raises SettingsError, for any other kind than ``ACPAgent`` too.
    """
    if not isinstance(obj, Mapping):
        raise SettingsError(tuple(fields.mapping(obj, loc)))
    if obj.get("kind") == "Agent":
        raise problem((*loc, "kind"), NOT_AVAILABLE, "value_error")
    if obj.get("kind") != "ACPAgent":
        raise problem((*loc, "kind"), "Input should be 'ACPAgent'", "union_tag_invalid")
    checks: dict[str, Check] = {
        "acp_server": fields.nullable(fields.string),
        "acp_command": _command,
        **_common_checks(check_server),
    }
    given = fields.read(obj, loc, checks, required=("acp_command",))
    if given.get("acp_server") not in presets:
        given.pop("acp_server", None)
    return _settle(given, presets, loc)


def _common_checks(check_server: ServerCheck) -> dict[str, Check]:
    return {
        "acp_args": fields.strings,
        "acp_model": fields.nullable(fields.string),
        "acp_session_mode": fields.nullable(fields.string),
        "acp_prompt_timeout": fields.positive,
        "acp_startup_timeout": fields.positive,
        "mcp_config": fields.entries(check_server),
        "acp_isolate_data_dir": fields.boolean,
        "acp_file_secrets": fields.items(_file_secret),
        "agent_context": fields.nullable(fields.mapping),
    }


def _command(value: object, loc: Location) -> list[Any]:
    if isinstance(value, list | tuple) and not value:
        return fields.detail(loc, "List should have at least 1 item", "too_short")
    return fields.strings(value, loc)


_FILE_SECRET_CHECKS: Final[Mapping[str, Check]] = {
    "secret_name": fields.filled,
    "filename": fields.filled,
    "env_var": fields.filled,
    "subdir": fields.filled,
    "env_points_to": fields.one_of(("dir", "file")),
    "warn_if_unset": fields.strings,
}


def _file_secret(value: object, loc: Location) -> list[Any]:
    """Names of files are checked here, so that no later join leaves the agent's private directory."""
    try:
        given = fields.read(
            value, loc, _FILE_SECRET_CHECKS, required=("secret_name", "filename", "env_var", "subdir")
        )
    except SettingsError as error:
        return list(error.errors)
    errors = []
    if given["filename"] in (".", "..") or "/" in given["filename"]:
        errors += fields.detail((*loc, "filename"), "Value error, it must be a bare file name", "value_error")
    subdir = PurePosixPath(given["subdir"])
    if subdir.is_absolute() or ".." in subdir.parts or not subdir.parts:
        errors += fields.detail(
            (*loc, "subdir"), "Value error, it must be a relative path below the directory", "value_error"
        )
    return errors


def _settle(given: dict[str, Any], presets: Presets, loc: Location) -> AgentSettings:
    command: tuple[str, ...] = tuple(given.get("acp_command", ()))
    server, command = match_preset(given.get("acp_server"), command, presets)
    if not command or not command[0].strip():
        raise problem((*loc, "acp_command"), f"Value error, agent {server} needs a command", "value_error")
    return _build({**given, "acp_server": server, "acp_command": command})


def _build(given: Mapping[str, Any]) -> AgentSettings:
    """From JSON values of the right types, only those given."""
    built = dict(given)
    for key in ("acp_command", "acp_args"):
        if key in built:
            built[key] = tuple(built[key])
    for key in ("acp_model", "acp_session_mode"):
        built[key] = built.get(key) or None
    if "acp_file_secrets" in built:
        built["acp_file_secrets"] = tuple(_decode_file_secret(item) for item in built["acp_file_secrets"])
    return AgentSettings(**built)


def _decode_file_secret(obj: Mapping[str, Any]) -> FileSecret:
    given = {key: obj[key] for key in _FILE_SECRET_CHECKS if key in obj}
    return FileSecret(**{**given, "warn_if_unset": tuple(given.get("warn_if_unset", ()))})


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
