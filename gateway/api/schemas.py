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


def obj(properties: Mapping[str, Schema], **more: Any) -> Schema:
    """An object. The name of a property that it always has ends with `!`."""
    schema: Schema = {
        "type": "object",
        "properties": {name.rstrip("!"): properties[name] for name in properties},
    }
    required = [name[:-1] for name in properties if name.endswith("!")]
    return {**schema, **({"required": required} if required else {}), **more}


def each(schema: Schema, names: str) -> dict[str, Schema]:
    """Properties of one type, their names separated by spaces."""
    return dict.fromkeys(names.split(), schema)


def full(**properties: Schema) -> Schema:
    """An object that has all of these."""
    return obj({f"{name}!": schema for name, schema in properties.items()})


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
SERVER: Final[Schema] = {**STRING, "description": "Of several over one database, the one that has it"}
UUID: Final[Schema] = {"type": "string", "format": "uuid"}
MOMENT: Final[Schema] = {"type": "string", "format": "date-time"}
FREE: Final[Schema] = {"type": "object", "additionalProperties": True}
PROFILE_NAME: Final[Schema] = {"type": "string", "pattern": f"^{names.PROFILE_NAME.pattern}$"}


def page(item: Schema) -> Schema:
    """A page of items with the id of the first one of the next page."""
    return obj({"items!": array(item), "next_page_id": TEXT_OR_NULL})


ANY_PROFILE: Final[Schema] = {"anyOf": [ref("AgentProfile"), ref("OpenHandsAgentProfile")]}

TOOL_RESULT: Final = nullable(ref("MCPToolCallResult"))

ERROR_KIND: Final = nullable(choice(["timeout", "connection", "unknown"]))
"""Why an MCP server could not be reached."""

SHARE: Final = obj({"used": COUNT, "share": {**COUNT, "description": "At the most"}})

ACP_MODEL: Final = obj({"model_id!": STRING, **each(TEXT_OR_NULL, "name description")})


COMPONENTS: Final[dict[str, Schema]] = {
    "Error": obj(
        {
            "detail!": STRING,
            "exception": {**STRING, "description": "Type of an unforeseen failure (500 only)"},
            "error_id": {**STRING, "description": "Under which the server's log has the failure (500 only)"},
        }
    ),
    "Success": full(success=BOOLEAN),
    "BashEvent": {"oneOf": [ref("BashCommand"), ref("BashOutput"), ref("BashError")]},
    "BashEventPage": page(ref("BashEvent")),
    "ClearedEvents": full(cleared_count=COUNT),
    "Status": obj(each(STRING, "status! message")),
    "ServerInfo": obj(
        {
            **each({**NUMBER, "description": "Seconds"}, "uptime! idle_time!"),
            "title": STRING,
            "version!": {**STRING, "description": "The version of the wire that is spoken"},
            **each(STRING, "ostler_version python_version"),
            **each(array(STRING), "usable_tools capabilities"),
            "docs": STRING,
        },
        additionalProperties=True,
    ),
    "ConversationPage": page(ref("ConversationInfo")),
    "EventPage": page(ref("Event")),
    "AgentResponseResult": full(response=STRING),
    "Agent": obj(
        {
            "conversation_id!": UUID,
            "title": TEXT_OR_NULL,
            "provider!": {**STRING, "description": "Key of the agent in the catalog"},
            "name": nullable({**STRING, "description": "What the agent calls itself"}),
            "version": TEXT_OR_NULL,
            "pid": nullable(COUNT),
            "state!": choice(phase.value for phase in AgentPhase),
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
            "walls": nullable({**STRING, "description": "off, guard or strict: what it can reach"}),
            "walls_mechanism": nullable({**STRING, "description": "What these are made of"}),
            "queue": {**COUNT, "description": "Messages that wait for the agent"},
            "changed_secrets": {
                **array(STRING),
                "description": "Names of secrets that are others now than when it was started",
            },
            "restorable": {**BOOLEAN, "description": "Whether its next process can resume its session"},
            "usage": nullable(SPENT),
            "server": SERVER,
        }
    ),
    "SpareAgent": obj(
        {
            "kind!": choice(
                ["spare", "parent"],
                description="An agent that waits for a conversation, or the program that forks such agents",
            ),
            "provider!": {**STRING, "description": "Key of the agent in the catalog"},
            "name": nullable({**STRING, "description": "What the agent calls itself"}),
            "version": TEXT_OR_NULL,
            "pid!": nullable(COUNT),
            "ready!": {**BOOLEAN, "description": "Whether the next conversation can have it, or it can fork"},
            "uptime": {**NUMBER, "description": "Seconds"},
            "rss_bytes": {**COUNT, "description": "Of the process tree"},
            "cpu_seconds": {**NUMBER, "description": "Of the process tree"},
            "processes": COUNT,
            "containment": STRING,
            "server": SERVER,
        }
    ),
    "Server": obj(
        {
            "name!": STRING,
            "address!": {**STRING, "description": "Where other servers reach it"},
            "version!": STRING,
            "labels!": {"type": "object", "additionalProperties": STRING},
            "state!": choice(["alive", "draining", "dead", "left"]),
            "free_bytes!": nullable({**COUNT, "description": "Memory for agents"}),
            "conversations!": COUNT,
            "lease_seconds!": {
                **NUMBER,
                "description": "Until it counts as dead; negative when it is overdue",
            },
            "started!": STRING,
            "this!": {**BOOLEAN, "description": "Whether it is the server that answers"},
        }
    ),
    "AgentList": full(agents=array(ref("Agent")), spares=array(ref("SpareAgent"))),
    "AgentStderr": full(lines=array(STRING)),
    "MetricsHistory": full(seconds=NUMBER, samples=array({"type": "object"})),
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
            "status!": choice(["ready", "degraded", "stopping"]),
            "servers": {**array(ref("Server")), "description": "Those over one database"},
            "journal": obj(
                {
                    "writable": BOOLEAN,
                    **each(TEXT_OR_NULL, "reason since"),
                    **each(COUNT, "attempts waiting_bytes"),
                }
            ),
            "pid": COUNT,
            "uptime": {**NUMBER, "description": "Seconds"},
            **each(STRING, "version! python_version"),
            "state": {**STRING, "description": "The state directory"},
            "containment": STRING,
            "walls": obj(
                {
                    "wall": STRING,
                    "mechanism": nullable({**STRING, "description": "What they are made of"}),
                    "obstacle": nullable({**STRING, "description": "Why there are none"}),
                }
            ),
            "secret_key": obj(each(TEXT_OR_NULL, "source problem")),
            "session_key_wanted": BOOLEAN,
            "conversations": obj(each(COUNT, "total loaded")),
            "agents": obj(
                {
                    **each(COUNT, "live starting queued hibernated parked"),
                    "spares": {**COUNT, "description": "Of the live ones, those that no conversation has"},
                    "rss_bytes": COUNT,
                }
            ),
            "turns": obj({"running": COUNT}),
            "usage": SPENT,
            "totals": obj(
                {
                    **each(COUNT, "starts restarts crashes"),
                    "warden_restarts": nullable(COUNT),
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
                    **each(SHARE, "agents terminals connections"),
                }
            ),
        }
    ),
    "SettingsResponse": obj(
        {
            **each(FREE, "agent_settings! conversation_settings!"),
            "llm_api_key_is_set!": BOOLEAN,
            **each(TEXT_OR_NULL, "active_profile active_agent_profile_id active_meta_profile"),
            "misc_settings": FREE,
        }
    ),
    "SettingsSchema": full(model_name=STRING, sections=array(FREE)),
    "SecretItem": obj({"name!": STRING, "description": TEXT_OR_NULL}),
    "SecretList": full(secrets=array(ref("SecretItem"))),
    "AgentProfileList": obj({"profiles!": array(FREE), "active_agent_profile_id": TEXT_OR_NULL}),
    "AgentProfileDetail": full(name=STRING, profile=ANY_PROFILE),
    "AgentProfileMutation": full(name=STRING, message=STRING),
    "AgentProfileActivation": obj({**each(STRING, "id! message!"), "agent_settings_applied": BOOLEAN}),
    "AgentProfileDiagnostics": obj(
        {
            "agent_kind!": choice(["acp", "openhands"]),
            "valid!": BOOLEAN,
            **each(array(STRING), "errors! unusable_tools"),
            "llm_profile_ref": TEXT_OR_NULL,
            **each(BOOLEAN, "llm_profile_resolved llm_api_key_set"),
            "mcp_server_refs": nullable(array(STRING)),
            **each(array(STRING), "resolved_mcp_config_keys dangling_mcp_server_refs disabled_skills"),
            "public_skills": nullable(array(STRING)),
            "resolved_skills": array(STRING),
            "secret_refs": nullable(array(STRING)),
            **each(TEXT_OR_NULL, "acp_api_key_secret_name acp_base_url_secret_name"),
            "acp_file_secret_names": array(STRING),
            **each(TEXT_OR_NULL, "meta_profile_ref dangling_meta_profile_ref"),
            "dangling_meta_profile_llm_refs": array(STRING),
            "resolved_settings": nullable(FREE),
        }
    ),
    "ProfileList": obj(
        {
            "profiles!": array(
                obj(
                    {
                        "name!": STRING,
                        **each(TEXT_OR_NULL, "model base_url provider_connection_id"),
                        **each(BOOLEAN, "provider_connection_broken api_key_set"),
                    }
                )
            ),
            "active_profile": TEXT_OR_NULL,
        }
    ),
    "ProfileDetail": obj({"name!": STRING, "config!": FREE, "api_key_set": BOOLEAN}),
    "ProfileMutation": full(name=STRING, message=STRING),
    "ProfileActivation": obj({**each(STRING, "name! message!"), "llm_applied": BOOLEAN}),
    "ProfileValidation": obj({"valid!": BOOLEAN, "error": nullable(obj(each(STRING, "type message")))}),
    "MetaProfileList": obj(
        {
            "meta_profiles!": array(
                obj({"name!": STRING, "classifier_model": TEXT_OR_NULL, "num_classes": COUNT})
            ),
            "active_meta_profile": TEXT_OR_NULL,
        }
    ),
    "MetaProfileDetail": full(name=STRING, config=ref("MetaProfile")),
    "MetaProfileMutation": full(name=STRING, message=STRING),
    "MetaProfileActivation": obj({**each(STRING, "name! message!"), "applied": BOOLEAN}),
    "ProviderConnection": obj(
        {
            **each(STRING, "id! display_name! provider!"),
            "base_url": TEXT_OR_NULL,
            **each({**COUNT, "description": "Seconds since the epoch"}, "created_at! updated_at!"),
            "api_key_set": BOOLEAN,
        }
    ),
    "MCPServerPatch": {**FREE, "description": "A merge patch of an MCPServer: null removes a property"},
    "MCPToolCallResult": full(is_error=BOOLEAN, text=STRING),
    "MCPTestResponse": {
        "anyOf": [
            obj({"ok!": {"const": True}, "tools!": array(STRING), "tool_result": ref("MCPToolCallResult")}),
            full(ok={"const": False}, error=STRING, error_kind=ERROR_KIND),
        ]
    },
    "MCPOAuthStartResponse": obj(
        {"ok!": BOOLEAN, **each(TEXT_OR_NULL, "job_id authorization_url error"), "error_kind": ERROR_KIND}
    ),
    "MCPOAuthStatusResponse": obj(
        {
            "ok!": BOOLEAN,
            "status!": choice(["pending", "authorizing", "succeeded", "failed"]),
            "job_id!": STRING,
            "authorization_url": TEXT_OR_NULL,
            "callback_ready": BOOLEAN,
            "tools": nullable(array(STRING)),
            "tool_result": TOOL_RESULT,
            "oauth_state": nullable(FREE),
            "error": TEXT_OR_NULL,
            "error_kind": ERROR_KIND,
        }
    ),
    "AskAgentResponse": full(response=STRING),
    "StartChildConversationResponse": obj(
        {
            **each(UUID, "conversation_id! parent_conversation_id!"),
            "status!": STRING,
            **each(TEXT_OR_NULL, "title url workspace"),
            "isolation": nullable(choice(["worktree", "shared"])),
        }
    ),
    "ConversationRuntimeInfo": obj(
        {
            "runtime_status!": choice(["available", "starting", "missing", "ownership_lost", "error"]),
            "can_resume!": BOOLEAN,
            "runtime_error": nullable(FREE),
        }
    ),
    "ACPModelDiscovery": obj(
        {
            **each(TEXT_OR_NULL, "agent_name agent_version current_model_id"),
            "available_models": array(ACP_MODEL),
            "supports_runtime_model_switch": BOOLEAN,
            "error": nullable(full(code=STRING, detail=STRING)),
        }
    ),
}
"""Schemas by name, as far as they are not those of events."""
