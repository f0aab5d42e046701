"""JSON schemas of what the routes take and give, for the interface description. Events have their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gateway.bodies import MAX_TITLE_CHARACTERS, POLICIES, THRESHOLDS
from gateway.reading import MAX_TAG_CHARACTERS
from supervisor.conversations.agent.admission import FULL_POLICIES
from supervisor.conversations.state.start import MAX_ITERATIONS_DEFAULT
from supervisor.credentials import REDACTED
from supervisor.credentials.secret import SECRET_NAME
from supervisor.events import Vocabulary
from supervisor.settings import names
from supervisor.settings.document import DIFFS, POINTERS

Schema = dict[str, Any]

NOT_BLANK: Final = "[^\\s\\u0000-\\u001f\\u0085]"
"""A pattern: some character that is neither white space nor, as Python has it, as good as that."""

PLACEHOLDER: Final = f"^\\s*{re.escape(REDACTED)}\\s*$"
"""A pattern: what clients are shown in place of a secret."""


def ref(name: str) -> Schema:
    """A reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def array(items: Mapping[str, Any], **limits: Any) -> Schema:
    """An array of one kind of items."""
    return {"type": "array", "items": dict(items), **limits}


def nullable(schema: Mapping[str, Any]) -> Schema:
    """That, or null."""
    return {"anyOf": [dict(schema), {"type": "null"}]}


def choice(values: Iterable[str], **more: Any) -> Schema:
    """One of these strings."""
    return {"type": "string", "enum": list(values), **more}


def choice_in_any_case(values: Iterable[str]) -> Schema:
    """One of these words, in small letters or in capitals."""
    words = ("".join(f"[{c.lower()}{c.upper()}]" for c in value) for value in values)
    return {"type": "string", "pattern": f"^({'|'.join(words)})$"}


def integer(minimum: int, maximum: int, default: int) -> Schema:
    """A whole number within bounds, both included."""
    return {"type": "integer", "minimum": minimum, "maximum": maximum, "default": default}


def obj(properties: Mapping[str, Schema], *required: str, **more: Any) -> Schema:
    """An object. Unknown properties of requests are ignored, so they are not forbidden here."""
    schema: Schema = {"type": "object", "properties": dict(properties)}
    if required:
        schema["required"] = list(required)
    return {**schema, **more}


def given(properties: Mapping[str, Schema], *required: str, **more: Any) -> Schema:
    """An object that a request brings: a property that is null counts as one that is not there."""
    return obj(
        {name: each if name in required else nullable(each) for name, each in properties.items()},
        *required,
        **more,
    )


STRING: Final[Schema] = {"type": "string"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
NUMBER: Final[Schema] = {"type": "number"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
UUID: Final[Schema] = {"type": "string", "format": "uuid"}
NO_NUL: Final[Schema] = {"type": "string", "pattern": "^[^\\u0000]*$"}
MOMENT: Final[Schema] = {"type": "string", "format": "date-time"}
FREE: Final[Schema] = {"type": "object", "additionalProperties": True}
TAGS: Final[Schema] = {
    "type": "object",
    "additionalProperties": {"type": "string", "maxLength": MAX_TAG_CHARACTERS},
    "propertyNames": {"pattern": "^[a-z0-9]+$"},
}
TITLE: Final[Schema] = {"type": "string", "pattern": NOT_BLANK, "maxLength": MAX_TITLE_CHARACTERS}
PROFILE_NAME: Final[Schema] = {"type": "string", "pattern": f"^{names.PROFILE_NAME.pattern}$"}


def page(item: Schema) -> Schema:
    """A page of items with the id of the first one of the next page."""
    return obj({"items": array(item), "next_page_id": nullable(STRING)}, "items")


SECRETS: Final[Schema] = {
    "type": "object",
    "propertyNames": {"pattern": f"^{SECRET_NAME.pattern}$"},
    "additionalProperties": ref("SecretSource"),
}
NEVER: Final[Schema] = {"not": {}}
STATIC_SECRET: Final[dict[str, Any]] = {"value": nullable(NO_NUL), "description": nullable(STRING)}
RISKY: Final = "ConfirmRisky"


SHARE: Final = obj({"used": COUNT, "share": {**COUNT, "description": "At the most"}})

COMPONENTS: Final[dict[str, Schema]] = {
    "ValidationError": obj(
        {"loc": array({"anyOf": [STRING, {"type": "integer"}]}), "msg": STRING, "type": STRING},
        "loc",
        "msg",
        "type",
    ),
    "HTTPValidationError": obj({"detail": array(ref("ValidationError"))}, "detail"),
    "Error": obj(
        {
            "detail": STRING,
            "exception": {**STRING, "description": "Type of an unforeseen failure (500 only)"},
            "error_id": {**STRING, "description": "Under which the server's log has the failure (500 only)"},
        },
        "detail",
    ),
    "Success": obj({"success": BOOLEAN}, "success"),
    "Status": obj({"status": STRING, "message": STRING}, "status"),
    "ServerInfo": obj(
        {
            "uptime": {**NUMBER, "description": "Seconds"},
            "idle_time": {**NUMBER, "description": "Seconds"},
            "title": STRING,
            "version": {**STRING, "description": "The version of the wire that is spoken"},
            "ostler_version": STRING,
            "python_version": STRING,
            "usable_tools": array(STRING),
            "capabilities": array(STRING),
            "docs": STRING,
        },
        "uptime",
        "idle_time",
        "version",
        additionalProperties=True,
    ),
    "Workspace": obj(
        {"working_dir": {**NO_NUL, "minLength": 1}, "kind": {"const": "LocalWorkspace"}}, "working_dir"
    ),
    "SecretSource": {
        "anyOf": [
            NO_NUL,
            obj({"kind": {"const": "StaticSecret"}, **STATIC_SECRET}, "kind"),
            obj({"kind": {"const": "StaticSecret"}, **STATIC_SECRET, "url": NEVER}),
            obj(
                {
                    "kind": {"const": "LookupSecret"},
                    "url": {**STRING, "description": "/api/settings/secrets/<name> of this server"},
                    "headers": nullable({"type": "object", "additionalProperties": STRING}),
                    "description": nullable(STRING),
                },
                "url",
            ),
        ]
    },
    "ConfirmationPolicy": {
        "anyOf": [
            obj({"kind": choice(kind for kind in POLICIES if kind != RISKY)}, "kind"),
            given(
                {
                    "kind": {"const": RISKY},
                    "threshold": choice(THRESHOLDS, default="HIGH"),
                    "confirm_unknown": {"type": "boolean", "default": True},
                },
                "kind",
            ),
        ]
    },
    "SendMessageRequest": given(
        {
            "role": choice(["user"], default="user"),
            "content": array({"anyOf": [ref("TextContent"), ref("ImageContent")]}),
            "run": {"type": "boolean", "default": False},
        }
    ),
    "StartConversationRequest": given(
        {
            "workspace": ref("Workspace"),
            "conversation_id": UUID,
            "agent": ref("ACPAgent"),
            "agent_settings": ref("ACPAgentSettings"),
            "agent_profile_id": UUID,
            "event_vocabulary": choice(Vocabulary),
            "initial_message": ref("SendMessageRequest"),
            "confirmation_policy": ref("ConfirmationPolicy"),
            "security_analyzer": ref("SecurityAnalyzer"),
            "max_iterations": {"type": "integer", "minimum": 1, "default": MAX_ITERATIONS_DEFAULT},
            "stuck_detection": {"type": "boolean", "default": True},
            "tags": TAGS,
            "secrets": SECRETS,
            "title": TITLE,
            "autotitle": {"type": "boolean", "default": True},
            "parent_conversation_id": UUID,
        },
        "workspace",
        additionalProperties=True,
        anyOf=[
            {"properties": {"agent_profile_id": {"type": "null"}}},
            {"properties": {"agent": {"type": "null"}, "agent_settings": {"type": "null"}}},
        ],
        description="The agent is named by one of agent, agent_settings and agent_profile_id, "
        "or left to the server's settings when none is given.",
    ),
    "ConversationInfo": obj(
        {
            "id": UUID,
            "workspace": ref("Workspace"),
            "execution_status": STRING,
            "title": nullable(STRING),
            "tags": TAGS,
            "agent": FREE,
            "created_at": MOMENT,
            "updated_at": MOMENT,
        },
        "id",
        "execution_status",
        additionalProperties=True,
    ),
    "ConversationPage": page(ref("ConversationInfo")),
    "EventPage": page(ref("Event")),
    "UpdateConversationRequest": given({"title": TITLE, "tags": TAGS}),
    "ConfirmationResponseRequest": given({"accept": BOOLEAN, "reason": STRING}, "accept"),
    "SetConfirmationPolicyRequest": obj({"policy": ref("ConfirmationPolicy")}, "policy"),
    "SetSecurityAnalyzerRequest": obj(
        {"security_analyzer": nullable(ref("SecurityAnalyzer"))}, "security_analyzer"
    ),
    "SecurityAnalyzer": obj({"kind": STRING}, "kind", description="Any kind; kept for clients to read"),
    "UpdateSecretsRequest": obj({"secrets": SECRETS}, "secrets"),
    "AgentResponseResult": obj({"response": STRING}, "response"),
    "Agent": obj(
        {
            "conversation_id": UUID,
            "title": nullable(STRING),
            "provider": {**STRING, "description": "Key of the agent in the catalog"},
            "name": nullable({**STRING, "description": "What the agent calls itself"}),
            "version": nullable(STRING),
            "pid": nullable(COUNT),
            "state": choice(
                [
                    "none",
                    "queued",
                    "installing",
                    "starting",
                    "ready",
                    "running",
                    "waiting",
                    "cancelling",
                    "restarting",
                    "parked",
                    "hibernated",
                    "stopped",
                    "exited",
                ]
            ),
            "execution_status": {**STRING, "description": "Of the conversation"},
            "memory": nullable({**STRING, "description": "What the agent remembers of the conversation"}),
            "uptime": nullable({**NUMBER, "description": "Seconds"}),
            "restarts": COUNT,
            "last_exit": nullable(STRING),
            "idle": nullable({**NUMBER, "description": "Seconds since it was needed; null while it is"}),
            "rss_bytes": nullable({**COUNT, "description": "Of the process tree"}),
            "cpu_seconds": nullable({**NUMBER, "description": "Of the process tree"}),
            "processes": nullable(COUNT),
            "containment": STRING,
            "queue": {**COUNT, "description": "Messages that wait for the agent"},
            "changed_secrets": {
                **array(STRING),
                "description": "Names of secrets that are others now than when it was started",
            },
        },
        "conversation_id",
        "provider",
        "state",
    ),
    "AgentList": obj({"agents": array(ref("Agent"))}, "agents"),
    "RestartAgentRequest": given({"force": {"type": "boolean", "default": False}}),
    "AgentStderr": obj({"lines": array(STRING)}, "lines"),
    "AgentTrace": obj(
        {
            "frames": array(
                obj(
                    {
                        "direction": choice(["<", ">"], description="> to the agent"),
                        "timestamp": MOMENT,
                        "size": {**COUNT, "description": "Bytes of the whole frame"},
                        "text": {**STRING, "description": "Its beginning, session ids masked"},
                    }
                )
            )
        },
        "frames",
    ),
    "ServerStatus": obj(
        {
            "status": choice(["ready", "degraded", "stopping"]),
            "journal": obj(
                {
                    "writable": BOOLEAN,
                    "reason": nullable(STRING),
                    "since": nullable(STRING),
                    "attempts": COUNT,
                    "waiting_bytes": COUNT,
                }
            ),
            "pid": COUNT,
            "uptime": {**NUMBER, "description": "Seconds"},
            "version": STRING,
            "python_version": STRING,
            "state": {**STRING, "description": "The state directory"},
            "containment": STRING,
            "secret_key": obj({"source": nullable(STRING), "problem": nullable(STRING)}),
            "session_key_wanted": BOOLEAN,
            "conversations": obj({"total": COUNT, "loaded": COUNT}),
            "agents": obj(
                {
                    "live": COUNT,
                    "starting": COUNT,
                    "queued": COUNT,
                    "hibernated": COUNT,
                    "parked": COUNT,
                    "rss_bytes": COUNT,
                }
            ),
            "turns": obj({"running": COUNT}),
            "totals": obj(
                {
                    "starts": COUNT,
                    "restarts": COUNT,
                    "crashes": COUNT,
                    "turns": {"type": "object", "additionalProperties": COUNT},
                },
                description="Since the start of the server; turns by the reason of their end",
            ),
            "limits": obj(
                {
                    "agents": nullable(COUNT),
                    "memory_bytes": nullable({**COUNT, "description": "Of all agents' process trees"}),
                    "starts": {**COUNT, "description": "At the same time"},
                    "idle_seconds": nullable({**NUMBER, "description": "Then an agent is hibernated"}),
                    "when_full": choice(FULL_POLICIES),
                }
            ),
            "descriptors": obj(
                {
                    "used": nullable(COUNT),
                    "limit": {**COUNT, "description": "Files that the server may open"},
                    "reserve": {**COUNT, "description": "For operators, and for what is soon closed again"},
                    "agents": SHARE,
                    "terminals": SHARE,
                    "connections": SHARE,
                }
            ),
        },
        "status",
        "version",
    ),
    "SettingsResponse": obj(
        {
            "agent_settings": FREE,
            "conversation_settings": FREE,
            "llm_api_key_is_set": BOOLEAN,
            "active_profile": nullable(STRING),
            "active_agent_profile_id": nullable(STRING),
            "active_meta_profile": nullable(STRING),
            "misc_settings": FREE,
        },
        "agent_settings",
        "conversation_settings",
        "llm_api_key_is_set",
    ),
    "SettingsUpdateRequest": obj(
        {
            "agent_settings_diff": nullable(
                {
                    **FREE,
                    "description": "Merge patch (RFC 7386) of agent_kind, acp_server, acp_model ...",
                }
            ),
            "conversation_settings_diff": nullable(FREE),
            "misc_settings_diff": nullable(FREE),
            "active_profile": nullable(PROFILE_NAME),
            "active_agent_profile_id": nullable(UUID),
            "active_meta_profile": nullable(PROFILE_NAME),
        },
        anyOf=[
            *({"properties": {name: {"type": "object"}}, "required": [name]} for name in DIFFS),
            *({"required": [name]} for name in POINTERS),
        ],
    ),
    "SettingsSchema": obj({"model_name": STRING, "sections": array(FREE)}, "model_name", "sections"),
    "SecretCreateRequest": obj(
        {
            "name": {"type": "string", "pattern": f"^{SECRET_NAME.pattern}$"},
            "value": {
                **NO_NUL,
                "format": "password",
                "writeOnly": True,
                "allOf": [{"pattern": NOT_BLANK}, {"not": {"pattern": PLACEHOLDER}}],
            },
            "description": nullable(STRING),
        },
        "name",
        "value",
    ),
    "SecretItem": obj({"name": STRING, "description": nullable(STRING)}, "name"),
    "SecretList": obj({"secrets": array(ref("SecretItem"))}, "secrets"),
    "AgentProfileList": obj(
        {"profiles": array(FREE), "active_agent_profile_id": nullable(STRING)}, "profiles"
    ),
    "AgentProfileDetail": obj({"name": STRING, "profile": ref("AgentProfile")}, "name", "profile"),
    "AgentProfileMutation": obj({"name": STRING, "message": STRING}, "name", "message"),
    "AgentProfileActivation": obj(
        {"id": STRING, "message": STRING, "agent_settings_applied": BOOLEAN}, "id", "message"
    ),
}
"""Schemas by name, as far as they are not those of events."""
