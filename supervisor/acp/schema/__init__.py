"""Typed forms of the messages that Ostler interprets; everything else is kept as the agent sent it.

Agents deviate from the protocol, so reading is liberal: members of the wrong type count as absent, unknown
enum values stay strings, and every type keeps the object it was read from as `raw`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.first_use import names_of

if TYPE_CHECKING:
    from supervisor.acp.schema.bounds import *  # noqa: F403
    from supervisor.acp.schema.handshake import *  # noqa: F403
    from supervisor.acp.schema.methods import *  # noqa: F403
    from supervisor.acp.schema.prompt import *  # noqa: F403
    from supervisor.acp.schema.session_options import *  # noqa: F403
    from supervisor.acp.schema.updates import *  # noqa: F403
else:
    homes = {
        "bounds": "EXACT_CHARS ID_CHARS NAME_CHARS WORDS_CHARS Members bounded cut short_id",
        "handshake": "AuthMethod InitializeResult initialize_params parse_auth_methods parse_initialize",
        "methods": "AGENT_METHODS CLIENT_METHODS METHODS method_offered",
        "prompt": (
            "PromptResult Usage image_block parse_prompt_result resource_link_block text_block usage_in_meta"
        ),
        "session_options": (
            "Choice Choices ConfigOption SessionResult find_option mode_option model_option modes_block "
            "parse_session set_option_params"
        ),
        "updates": (
            "AgentMessageChunk AgentThoughtChunk AvailableCommands ConfigOptionsUpdate ContentChunk "
            "CurrentMode PermissionOption PermissionRequest Plan SessionInfo ToolCall ToolCallFields "
            "ToolCallUpdate UnknownUpdate Update UsageUpdate UserMessageChunk parse_permission "
            "parse_update text_of"
        ),
    }
    __all__ = " ".join(homes.values()).split()
    __getattr__ = names_of(__name__, homes)
