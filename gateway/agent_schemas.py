"""JSON schemas of how an agent is chosen: in a start request, in the settings, as a profile.

What one property says about another - a command that is missing where no provider has one - is judged by the
server alone.
"""

from __future__ import annotations

from typing import Any

from gateway.schemas import (
    BOOLEAN,
    FREE,
    NEVER,
    NO_NUL,
    PROFILE_NAME,
    STRING,
    Schema,
    array,
    choice,
    nullable,
    obj,
    ref,
)
from supervisor.agents import load_catalog
from supervisor.mcp.server import AUTH_FIELDS
from supervisor.settings.agent import ACP, CUSTOM, REFUSED_FIELDS

PATTERN_UUID: Schema = {"type": "string", "format": "uuid", "minLength": 36, "maxLength": 36}
SECONDS: Schema = {"type": "number", "exclusiveMinimum": 0}
FILLED: Schema = {"type": "string", "minLength": 1}
STRINGS_BY_NAME: Schema = {"type": "object", "additionalProperties": STRING}

LEADS_AWAY = r"^/|(^|/)\.\.(/|$)"
"""A pattern: a path that is absolute or goes up."""

LEADS_NOWHERE = r"^[./]*$"
"""A pattern: a path without a name in it."""

COMMON: dict[str, Schema] = {
    "acp_args": array(NO_NUL),
    "acp_model": nullable(NO_NUL),
    "acp_session_mode": nullable(NO_NUL),
    "acp_prompt_timeout": {**SECONDS, "description": "Seconds of silence after which a prompt is given up"},
    "acp_startup_timeout": {**SECONDS, "description": "Seconds"},
    "mcp_config": {"type": "object", "additionalProperties": ref("MCPServer")},
    "acp_isolate_data_dir": BOOLEAN,
    "acp_file_secrets": array(ref("FileSecret")),
    "agent_context": nullable(FREE),
}
"""What both forms of an agent's settings have."""


def agent_components() -> dict[str, Schema]:
    """The schemas by name. Reads the catalogue, whose agents are the providers that there are."""
    providers = choice([*load_catalog(), CUSTOM], description="An agent of the catalogue, or custom")
    settings: dict[str, Any] = {
        "schema_version": {"type": "integer", "minimum": 1},
        "acp_server": providers,
        "acp_command": {**array(NO_NUL), "description": "Empty: the provider's"},
        **COMMON,
        **dict.fromkeys(REFUSED_FIELDS, NEVER),
    }
    return {
        "ACPAgentSettings": obj(
            {"agent_kind": {"const": ACP}, **settings},
            "agent_kind",
            description="Another kind than acp is refused. Without agent_kind any acp_... property means it.",
        ),
        "ACPAgent": obj(
            {
                "kind": {"const": "ACPAgent"},
                "acp_server": nullable(NO_NUL),
                "acp_command": array(NO_NUL, minItems=1),
                **COMMON,
            },
            "kind",
            "acp_command",
        ),
        "AgentProfile": obj(
            {
                "schema_version": {"type": "integer", "minimum": 1},
                "agent_kind": {"const": ACP},
                "id": PATTERN_UUID,
                "name": PROFILE_NAME,
                "revision": {"type": "integer", "minimum": 0},
                "mcp_server_refs": nullable(array(NO_NUL)),
                "secret_refs": nullable(array(NO_NUL)),
                "acp_server": providers,
                **{name: COMMON[name] for name in COMMON if name in PROFILE_FIELDS},
                "acp_command": nullable({**NO_NUL, "description": "Split as a shell would"}),
                "acp_args": nullable(array(NO_NUL)),
            },
            additionalProperties=False,
            description="id and revision are the server's; the name is that of the path",
        ),
        "FileSecret": obj(
            {
                "secret_name": {**NO_NUL, "minLength": 1},
                "filename": {
                    **NO_NUL,
                    "minLength": 1,
                    "not": {"anyOf": [{"pattern": "/"}, {"enum": [".", ".."]}]},
                },
                "env_var": {**NO_NUL, "minLength": 1},
                "subdir": {
                    **NO_NUL,
                    "not": {"anyOf": [{"pattern": LEADS_AWAY}, {"pattern": LEADS_NOWHERE}]},
                },
                "env_points_to": choice(["dir", "file"]),
                "warn_if_unset": array(NO_NUL),
            },
            "secret_name",
            "filename",
            "env_var",
            "subdir",
        ),
        "MCPServer": _mcp_server(),
        **_mcp_components(),
    }


PROFILE_FIELDS = frozenset({"acp_model", "acp_session_mode", "acp_prompt_timeout", "acp_startup_timeout"})
"""What a profile has in common with the settings."""


def _mcp_components() -> dict[str, Schema]:
    """What is asked and answered when an MCP server is tried, or logged in to."""
    auth = nullable(obj({"strategy": choice(AUTH_FIELDS)}, "strategy"))
    kind = nullable(choice(["timeout", "connection", "unknown"]))
    text, result = nullable(STRING), nullable(ref("MCPToolCallResult"))
    names = array(STRING)
    return {
        "MCPServerPatch": {**FREE, "description": "A merge patch of an MCPServer: null removes a property"},
        "MCPTestRequest": obj(
            {
                "name": nullable({"type": "string", "minLength": 1, "maxLength": 128}),
                "server": {
                    "anyOf": [
                        obj(
                            {
                                "type": nullable(choice(["stdio"])),
                                "command": FILLED,
                                "args": nullable(array(STRING)),
                                "env": nullable(STRINGS_BY_NAME),
                                "cwd": nullable(STRING),
                            },
                            "command",
                        ),
                        obj(
                            {
                                "type": choice(["http", "shttp", "streamable-http", "sse"]),
                                "url": FILLED,
                                "headers": nullable(STRINGS_BY_NAME),
                                "auth": auth,
                            },
                            "type",
                            "url",
                        ),
                    ]
                },
                "timeout": nullable({"type": "number", "exclusiveMinimum": 0, "maximum": 120}),
                "tool_call": nullable(obj({"name": FILLED, "arguments": nullable(FREE)}, "name")),
            },
            "server",
        ),
        "MCPToolCallResult": obj({"is_error": BOOLEAN, "text": STRING}, "is_error", "text"),
        "MCPTestResponse": {
            "anyOf": [
                obj({"ok": {"const": True}, "tools": names, "tool_result": result}, "ok", "tools"),
                obj(
                    {"ok": {"const": False}, "error": STRING, "error_kind": kind}, "ok", "error", "error_kind"
                ),
            ]
        },
        "MCPOAuthStartResponse": obj(
            {"ok": BOOLEAN, "job_id": text, "authorization_url": text, "error": text, "error_kind": kind},
            "ok",
        ),
        "MCPOAuthStatusResponse": obj(
            {
                "ok": BOOLEAN,
                "status": choice(["pending", "authorizing", "succeeded", "failed"]),
                "job_id": STRING,
                "authorization_url": text,
                "callback_ready": BOOLEAN,
                "tools": nullable(names),
                "tool_result": result,
                "oauth_state": nullable(FREE),
                "error": text,
                "error_kind": kind,
            },
            "ok",
            "status",
            "job_id",
        ),
    }


def _mcp_server() -> Schema:
    """One of a command and a URL, and what goes with it. A property that is null counts as absent."""
    null = {"type": "null"}
    shared = {
        "description": nullable(STRING),
        "icon": nullable(STRING),
        "timeout": nullable({"type": "number"}),
        "sse_read_timeout": nullable({"type": "number"}),
        "keep_alive": nullable(BOOLEAN),
        "args": nullable(array(STRING)),
        "env": nullable(STRINGS_BY_NAME),
        "cwd": nullable(STRING),
        "headers": nullable(STRINGS_BY_NAME),
        "auth": nullable({**obj({"strategy": choice(AUTH_FIELDS)}, "strategy")}),
        "enabled": BOOLEAN,
    }
    closed = {"additionalProperties": False}
    return {
        "anyOf": [
            obj(
                {**shared, "command": FILLED, "url": null, "transport": nullable(choice(["stdio"]))},
                "command",
                **closed,
            ),
            obj(
                {
                    **shared,
                    "url": FILLED,
                    "command": null,
                    "transport": nullable(choice(["http", "streamable-http", "sse"])),
                },
                "url",
                **closed,
            ),
        ]
    }
