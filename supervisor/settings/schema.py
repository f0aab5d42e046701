"""What a settings page shows: sections and fields, with labels and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from supervisor.settings.agent import (
    ACP,
    CUSTOM,
    DEFAULT_PROMPT_TIMEOUT,
    DEFAULT_SERVER,
    DEFAULT_STARTUP_TIMEOUT,
    Presets,
)
from supervisor.settings.conversation import (
    DEFAULTS,
    RUNTIMES,
    SECURITY_ANALYZERS,
    WORKTREE_BASES,
)

#: Key, label, type of value, prominence. The order is that of the page.
_ACP_FIELDS: Final = (
    ("acp_server", "ACP server", "string", "critical"),
    ("acp_command", "ACP command (custom override)", "array", "minor"),
    ("acp_args", "ACP extra args", "array", "minor"),
    ("acp_model", "ACP model", "string", "critical"),
    ("acp_session_mode", "ACP session mode", "string", "minor"),
    ("acp_prompt_timeout", "ACP prompt inactivity timeout (seconds)", "number", "minor"),
    ("acp_startup_timeout", "ACP startup timeout (seconds)", "number", "minor"),
)

_ACP_DEFAULTS: Final[Mapping[str, Any]] = {
    "acp_server": DEFAULT_SERVER,
    "acp_command": [],
    "acp_args": [],
    "acp_model": None,
    "acp_session_mode": None,
    "acp_prompt_timeout": DEFAULT_PROMPT_TIMEOUT,
    "acp_startup_timeout": DEFAULT_STARTUP_TIMEOUT,
}

#: Section key, its label, its fields as above.
_CONVERSATION_SECTIONS: Final = (
    ("general", "General", (("max_iterations", "Max iterations", "integer", "major"),)),
    (
        "verification",
        "Verification",
        (
            ("confirmation_mode", "Confirmation mode", "boolean", "major"),
            ("security_analyzer", "Security analyzer", "string", "major"),
        ),
    ),
    (
        "runtime",
        "Runtime",
        (
            ("default_runtime", "Default runtime", "string", "major"),
            ("worktree_base", "Worktree base", "string", "minor"),
            ("worktree_base_ref", "Worktree base ref", "string", "minor"),
            ("worktree_branch_prefix", "Worktree branch prefix", "string", "minor"),
            ("container_memory", "Container memory", "string", "minor"),
            ("container_cpus", "Container CPUs", "number", "minor"),
            ("container_browser", "Container browser", "boolean", "minor"),
        ),
    ),
)

_CONVERSATION_CHOICES: Final[Mapping[str, Sequence[str]]] = {
    "security_analyzer": SECURITY_ANALYZERS,
    "default_runtime": RUNTIMES,
    "worktree_base": WORKTREE_BASES,
}


def agent_schema(presets: Presets, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The settings of an ACP agent. ``names`` are what providers are called, by key."""
    labels = {CUSTOM: "Custom", **(names or {})}
    choices = {"acp_server": [(key, labels.get(key, key)) for key in (*presets, CUSTOM)]}
    section = _section(ACP, "ACP (Agent Client Protocol)", _ACP_FIELDS, _ACP_DEFAULTS, choices, ACP)
    return {"model_name": "AgentSettings", "sections": [section]}


def conversation_schema() -> dict[str, Any]:
    """The settings of new conversations."""
    choices = {key: [(value, value) for value in values] for key, values in _CONVERSATION_CHOICES.items()}
    return {
        "model_name": "ConversationSettings",
        "sections": [
            _section(key, label, fields, DEFAULTS, choices, None)
            for key, label, fields in _CONVERSATION_SECTIONS
        ],
    }


def _section(
    key: str,
    label: str,
    fields: Sequence[tuple[str, str, str, str]],
    defaults: Mapping[str, Any],
    choices: Mapping[str, Sequence[tuple[str, str]]],
    variant: str | None,
) -> dict[str, Any]:
    return {
        "key": key,
        "label": label,
        "variant": variant,
        "fields": [
            {
                "key": name,
                "label": field_label,
                "description": None,
                "section": key,
                "section_label": label,
                "value_type": value_type,
                "default": defaults[name],
                "prominence": prominence,
                "depends_on": [],
                "secret": False,
                "choices": [{"value": value, "label": text} for value, text in choices.get(name, ())],
                "variant": variant,
            }
            for name, field_label, value_type, prominence in fields
        ],
    }
