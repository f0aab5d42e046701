"""JSON schemas of what the routes give, for the interface description.

What they take is described where it is read, and so are events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from supervisor.conversations.agent.admission import FULL_POLICIES
from supervisor.conversations.state.status import AgentPhase
from supervisor.reading.schema import reference
from supervisor.settings import names

Schema = dict[str, Any]

ref = reference


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
    """An object."""
    schema: Schema = {"type": "object", "properties": dict(properties)}
    if required:
        schema["required"] = list(required)
    return {**schema, **more}


def full(**properties: Schema) -> Schema:
    """An object that has all of these."""
    return obj(properties, *properties)


STRING: Final[Schema] = {"type": "string"}
TEXT_OR_NULL: Final[Schema] = nullable(STRING)
BOOLEAN: Final[Schema] = {"type": "boolean"}
NUMBER: Final[Schema] = {"type": "number"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
SPENT: Final[Schema] = obj(
    {
        "tokens": {**COUNT, "description": "In and out"},
        "costs": {"type": "object", "additionalProperties": NUMBER, "description": "By currency"},
    },
    description="What conversations used, as their agents tell it",
)
UUID: Final[Schema] = {"type": "string", "format": "uuid"}
MOMENT: Final[Schema] = {"type": "string", "format": "date-time"}
FREE: Final[Schema] = {"type": "object", "additionalProperties": True}
PROFILE_NAME: Final[Schema] = {"type": "string", "pattern": f"^{names.PROFILE_NAME.pattern}$"}


def page(item: Schema) -> Schema:
    """A page of items with the id of the first one of the next page."""
    return obj({"items": array(item), "next_page_id": TEXT_OR_NULL}, "items")


ANY_PROFILE: Final[Schema] = {"anyOf": [ref("AgentProfile"), ref("OpenHandsAgentProfile")]}

TOOL_RESULT: Final = nullable(ref("MCPToolCallResult"))

ERROR_KIND: Final = nullable(choice(["timeout", "connection", "unknown"]))
"""Why an MCP server could not be reached."""

SHARE: Final = obj({"used": COUNT, "share": {**COUNT, "description": "At the most"}})

ACP_MODEL: Final = obj(
    {"model_id": STRING, "name": TEXT_OR_NULL, "description": TEXT_OR_NULL},
    "model_id",
)


COMPONENTS: Final[dict[str, Schema]] = {
    "Error": obj(
        {
            "detail": STRING,
            "exception": {**STRING, "description": "Type of an unforeseen failure (500 only)"},
            "error_id": {**STRING, "description": "Under which the server's log has the failure (500 only)"},
        },
        "detail",
    ),
    "Success": full(success=BOOLEAN),
    "BashEvent": {"oneOf": [ref("BashCommand"), ref("BashOutput"), ref("BashError")]},
    "BashEventPage": page(ref("BashEvent")),
    "ClearedEvents": full(cleared_count=COUNT),
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
    "ConversationPage": page(ref("ConversationInfo")),
    "EventPage": page(ref("Event")),
    "AgentResponseResult": full(response=STRING),
    "Agent": obj(
        {
            "conversation_id": UUID,
            "title": TEXT_OR_NULL,
            "provider": {**STRING, "description": "Key of the agent in the catalog"},
            "name": nullable({**STRING, "description": "What the agent calls itself"}),
            "version": TEXT_OR_NULL,
            "pid": nullable(COUNT),
            "state": choice(phase.value for phase in AgentPhase),
            "execution_status": {**STRING, "description": "Of the conversation"},
            "memory": nullable({**STRING, "description": "What the agent remembers of the conversation"}),
            "uptime": nullable({**NUMBER, "description": "Seconds"}),
            "restarts": COUNT,
            "last_exit": TEXT_OR_NULL,
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
            "restorable": {**BOOLEAN, "description": "Whether its next process can resume its session"},
            "usage": nullable(SPENT),
        },
        "conversation_id",
        "provider",
        "state",
    ),
    "SpareAgent": obj(
        {
            "kind": choice(
                ["spare", "parent"],
                description="An agent that waits for a conversation, or the program that forks such agents",
            ),
            "provider": {**STRING, "description": "Key of the agent in the catalog"},
            "name": nullable({**STRING, "description": "What the agent calls itself"}),
            "version": TEXT_OR_NULL,
            "pid": nullable(COUNT),
            "ready": {**BOOLEAN, "description": "Whether the next conversation can have it, or it can fork"},
            "uptime": {**NUMBER, "description": "Seconds"},
            "rss_bytes": {**COUNT, "description": "Of the process tree"},
            "cpu_seconds": {**NUMBER, "description": "Of the process tree"},
            "processes": COUNT,
            "containment": STRING,
        },
        "kind",
        "provider",
        "pid",
        "ready",
    ),
    "AgentList": full(agents=array(ref("Agent")), spares=array(ref("SpareAgent"))),
    "AgentStderr": full(lines=array(STRING)),
    "AgentTrace": full(
        frames=array(
            obj(
                {
                    "direction": choice(["<", ">"], description="> to the agent"),
                    "timestamp": MOMENT,
                    "size": {**COUNT, "description": "Bytes of the whole frame"},
                    "text": {**STRING, "description": "Its beginning, session ids masked"},
                    "process": {**COUNT, "description": "Of which of the agent's processes, from 1"},
                }
            )
        )
    ),
    "ServerStatus": obj(
        {
            "status": choice(["ready", "degraded", "stopping"]),
            "journal": obj(
                {
                    "writable": BOOLEAN,
                    "reason": TEXT_OR_NULL,
                    "since": TEXT_OR_NULL,
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
            "secret_key": obj({"source": TEXT_OR_NULL, "problem": TEXT_OR_NULL}),
            "session_key_wanted": BOOLEAN,
            "conversations": obj({"total": COUNT, "loaded": COUNT}),
            "agents": obj(
                {
                    "live": COUNT,
                    "starting": COUNT,
                    "queued": COUNT,
                    "hibernated": COUNT,
                    "parked": COUNT,
                    "spares": {**COUNT, "description": "Of the live ones, those that no conversation has"},
                    "rss_bytes": COUNT,
                }
            ),
            "turns": obj({"running": COUNT}),
            "usage": SPENT,
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
            "active_profile": TEXT_OR_NULL,
            "active_agent_profile_id": TEXT_OR_NULL,
            "active_meta_profile": TEXT_OR_NULL,
            "misc_settings": FREE,
        },
        "agent_settings",
        "conversation_settings",
        "llm_api_key_is_set",
    ),
    "SettingsSchema": full(model_name=STRING, sections=array(FREE)),
    "SecretItem": obj({"name": STRING, "description": TEXT_OR_NULL}, "name"),
    "SecretList": full(secrets=array(ref("SecretItem"))),
    "AgentProfileList": obj({"profiles": array(FREE), "active_agent_profile_id": TEXT_OR_NULL}, "profiles"),
    "AgentProfileDetail": full(name=STRING, profile=ANY_PROFILE),
    "AgentProfileMutation": full(name=STRING, message=STRING),
    "AgentProfileActivation": obj(
        {"id": STRING, "message": STRING, "agent_settings_applied": BOOLEAN}, "id", "message"
    ),
    "AgentProfileDiagnostics": obj(
        {
            "agent_kind": choice(["acp", "openhands"]),
            "valid": BOOLEAN,
            "errors": array(STRING),
            "unusable_tools": array(STRING),
            "llm_profile_ref": TEXT_OR_NULL,
            "llm_profile_resolved": BOOLEAN,
            "llm_api_key_set": BOOLEAN,
            "mcp_server_refs": nullable(array(STRING)),
            "resolved_mcp_config_keys": array(STRING),
            "dangling_mcp_server_refs": array(STRING),
            "disabled_skills": array(STRING),
            "public_skills": nullable(array(STRING)),
            "resolved_skills": array(STRING),
            "secret_refs": nullable(array(STRING)),
            "acp_api_key_secret_name": TEXT_OR_NULL,
            "acp_base_url_secret_name": TEXT_OR_NULL,
            "acp_file_secret_names": array(STRING),
            "meta_profile_ref": TEXT_OR_NULL,
            "dangling_meta_profile_ref": TEXT_OR_NULL,
            "dangling_meta_profile_llm_refs": array(STRING),
            "resolved_settings": nullable(FREE),
        },
        "agent_kind",
        "valid",
        "errors",
    ),
    "ProfileList": obj(
        {
            "profiles": array(
                obj(
                    {
                        "name": STRING,
                        "model": TEXT_OR_NULL,
                        "base_url": TEXT_OR_NULL,
                        "provider_connection_id": TEXT_OR_NULL,
                        "provider_connection_broken": BOOLEAN,
                        "api_key_set": BOOLEAN,
                    },
                    "name",
                )
            ),
            "active_profile": TEXT_OR_NULL,
        },
        "profiles",
    ),
    "ProfileDetail": obj({"name": STRING, "config": FREE, "api_key_set": BOOLEAN}, "name", "config"),
    "ProfileMutation": full(name=STRING, message=STRING),
    "ProfileActivation": obj({"name": STRING, "message": STRING, "llm_applied": BOOLEAN}, "name", "message"),
    "ProfileValidation": obj(
        {"valid": BOOLEAN, "error": nullable(obj({"type": STRING, "message": STRING}))}, "valid"
    ),
    "MetaProfileList": obj(
        {
            "meta_profiles": array(
                obj({"name": STRING, "classifier_model": TEXT_OR_NULL, "num_classes": COUNT}, "name")
            ),
            "active_meta_profile": TEXT_OR_NULL,
        },
        "meta_profiles",
    ),
    "MetaProfileDetail": full(name=STRING, config=ref("MetaProfile")),
    "MetaProfileMutation": full(name=STRING, message=STRING),
    "MetaProfileActivation": obj({"name": STRING, "message": STRING, "applied": BOOLEAN}, "name", "message"),
    "ProviderConnection": obj(
        {
            "id": STRING,
            "display_name": STRING,
            "provider": STRING,
            "base_url": TEXT_OR_NULL,
            "created_at": {**COUNT, "description": "Seconds since the epoch"},
            "updated_at": {**COUNT, "description": "Seconds since the epoch"},
            "api_key_set": BOOLEAN,
        },
        "id",
        "display_name",
        "provider",
        "created_at",
        "updated_at",
    ),
    "MCPServerPatch": {**FREE, "description": "A merge patch of an MCPServer: null removes a property"},
    "MCPToolCallResult": full(is_error=BOOLEAN, text=STRING),
    "MCPTestResponse": {
        "anyOf": [
            obj(
                {
                    "ok": {"const": True},
                    "tools": array(STRING),
                    "tool_result": ref("MCPToolCallResult"),
                },
                "ok",
                "tools",
            ),
            full(ok={"const": False}, error=STRING, error_kind=ERROR_KIND),
        ]
    },
    "MCPOAuthStartResponse": obj(
        {
            "ok": BOOLEAN,
            "job_id": TEXT_OR_NULL,
            "authorization_url": TEXT_OR_NULL,
            "error": TEXT_OR_NULL,
            "error_kind": ERROR_KIND,
        },
        "ok",
    ),
    "MCPOAuthStatusResponse": obj(
        {
            "ok": BOOLEAN,
            "status": choice(["pending", "authorizing", "succeeded", "failed"]),
            "job_id": STRING,
            "authorization_url": TEXT_OR_NULL,
            "callback_ready": BOOLEAN,
            "tools": nullable(array(STRING)),
            "tool_result": TOOL_RESULT,
            "oauth_state": nullable(FREE),
            "error": TEXT_OR_NULL,
            "error_kind": ERROR_KIND,
        },
        "ok",
        "status",
        "job_id",
    ),
    "AskAgentResponse": full(response=STRING),
    "StartChildConversationResponse": obj(
        {
            "conversation_id": UUID,
            "parent_conversation_id": UUID,
            "status": STRING,
            "title": TEXT_OR_NULL,
            "url": TEXT_OR_NULL,
            "workspace": TEXT_OR_NULL,
            "isolation": nullable(choice(["worktree", "shared"])),
        },
        "conversation_id",
        "parent_conversation_id",
        "status",
    ),
    "ConversationRuntimeInfo": obj(
        {
            "runtime_status": choice(["available", "starting", "missing", "ownership_lost", "error"]),
            "can_resume": BOOLEAN,
            "runtime_error": nullable(FREE),
        },
        "runtime_status",
        "can_resume",
    ),
    "ACPModelDiscovery": obj(
        {
            "agent_name": TEXT_OR_NULL,
            "agent_version": TEXT_OR_NULL,
            "current_model_id": TEXT_OR_NULL,
            "available_models": array(ACP_MODEL),
            "supports_runtime_model_switch": BOOLEAN,
            "error": nullable(full(code=STRING, detail=STRING)),
        }
    ),
}
"""Schemas by name, as far as they are not those of events."""
