"""Typed forms of the messages that Ostler interprets; everything else is kept as the agent sent it.

Agents deviate from the protocol, so reading is liberal: members of the wrong type count as absent, unknown
enum values stay strings, and every type keeps the object it was read from as `raw`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.first_use import names_of

if TYPE_CHECKING:
    from supervisor.acp.schema.bounds import (
        EXACT_CHARS,
        ID_CHARS,
        NAME_CHARS,
        WORDS_CHARS,
        Members,
        bounded,
        cut,
        short_id,
    )
    from supervisor.acp.schema.handshake import (
        PROTOCOL_VERSION,
        AgentCapabilities,
        AuthMethod,
        Implementation,
        InitializeResult,
        initialize_params,
        parse_auth_methods,
        parse_initialize,
    )
    from supervisor.acp.schema.methods import METHODS, Method, Side, allowed, method_offered
    from supervisor.acp.schema.permission import PermissionOption, PermissionRequest, parse_permission
    from supervisor.acp.schema.prompt import (
        UNKNOWN_STOP_REASON,
        PromptResult,
        Usage,
        image_block,
        parse_prompt_result,
        resource_link_block,
        text_block,
        usage_in_meta,
    )
    from supervisor.acp.schema.session import (
        Choice,
        ConfigOption,
        Mode,
        Model,
        Models,
        Modes,
        SessionResult,
        find_option,
        mode_option,
        model_option,
        parse_config_options,
        parse_session,
        set_option_params,
    )
    from supervisor.acp.schema.update_reader import parse_tool_call_update, parse_update
    from supervisor.acp.schema.updates import (
        AgentMessageChunk,
        AgentThoughtChunk,
        AvailableCommands,
        Command,
        Compaction,
        CompactionSummaryChunk,
        ConfigOptionsUpdate,
        ContentChunk,
        Cost,
        CurrentMode,
        Location,
        Notice,
        Plan,
        PlanEntry,
        SessionInfo,
        ToolCall,
        ToolCallFields,
        ToolCallUpdate,
        UnknownUpdate,
        Update,
        UsageUpdate,
        UserMessageChunk,
    )
else:
    homes = {
        "bounds": "EXACT_CHARS ID_CHARS NAME_CHARS WORDS_CHARS Members bounded cut short_id",
        "handshake": (
            "AgentCapabilities AuthMethod Implementation InitializeResult PROTOCOL_VERSION "
            "initialize_params parse_auth_methods parse_initialize"
        ),
        "methods": "METHODS Method Side allowed method_offered",
        "permission": "PermissionOption PermissionRequest parse_permission",
        "prompt": (
            "PromptResult UNKNOWN_STOP_REASON Usage image_block parse_prompt_result "
            "resource_link_block text_block usage_in_meta"
        ),
        "session": (
            "Choice ConfigOption Mode Model Models Modes SessionResult find_option mode_option "
            "model_option parse_config_options parse_session set_option_params"
        ),
        "update_reader": "parse_tool_call_update parse_update",
        "updates": (
            "AgentMessageChunk AgentThoughtChunk AvailableCommands Command Compaction "
            "CompactionSummaryChunk ConfigOptionsUpdate ContentChunk Cost CurrentMode Location "
            "Notice Plan PlanEntry SessionInfo ToolCall ToolCallFields ToolCallUpdate UnknownUpdate Update "
            "UsageUpdate UserMessageChunk"
        ),
    }
    __getattr__ = names_of(__name__, homes)

__all__ = [
    "EXACT_CHARS",
    "ID_CHARS",
    "METHODS",
    "NAME_CHARS",
    "PROTOCOL_VERSION",
    "UNKNOWN_STOP_REASON",
    "WORDS_CHARS",
    "AgentCapabilities",
    "AgentMessageChunk",
    "AgentThoughtChunk",
    "AuthMethod",
    "AvailableCommands",
    "Choice",
    "Command",
    "Compaction",
    "CompactionSummaryChunk",
    "ConfigOption",
    "ConfigOptionsUpdate",
    "ContentChunk",
    "Cost",
    "CurrentMode",
    "Implementation",
    "InitializeResult",
    "Location",
    "Members",
    "Method",
    "Mode",
    "Model",
    "Models",
    "Modes",
    "Notice",
    "PermissionOption",
    "PermissionRequest",
    "Plan",
    "PlanEntry",
    "PromptResult",
    "SessionInfo",
    "SessionResult",
    "Side",
    "ToolCall",
    "ToolCallFields",
    "ToolCallUpdate",
    "UnknownUpdate",
    "Update",
    "Usage",
    "UsageUpdate",
    "UserMessageChunk",
    "allowed",
    "bounded",
    "cut",
    "find_option",
    "image_block",
    "initialize_params",
    "method_offered",
    "mode_option",
    "model_option",
    "parse_auth_methods",
    "parse_config_options",
    "parse_initialize",
    "parse_permission",
    "parse_prompt_result",
    "parse_session",
    "parse_tool_call_update",
    "parse_update",
    "resource_link_block",
    "set_option_params",
    "short_id",
    "text_block",
    "usage_in_meta",
]
