"""What a settings page shows: sections and fields, with labels and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from supervisor.reading import as_json
from supervisor.reading.shapes import Choice, Elsewhere, ListOf, Narrowed, Scalar, Shape, properties_of
from supervisor.settings.agent import ACP, CUSTOM, DEFAULT_SERVER, AgentSettings, Presets
from supervisor.settings.conversation import DEFAULTS, ConversationSettings
from supervisor.settings.names import Setting
from supervisor.settings.spoken import SPOKEN

#: Key, label, prominence. The order is that of the page; all else is in the description of the settings.
_ACP_FIELDS: Final = (
    ("acp_server", "ACP server", "critical"),
    ("acp_command", "ACP command (custom override)", "minor"),
    ("acp_args", "ACP extra args", "minor"),
    ("acp_model", "ACP model", "critical"),
    ("acp_session_mode", "ACP session mode", "minor"),
    ("acp_prompt_timeout", "ACP prompt inactivity timeout (seconds)", "minor"),
    ("acp_startup_timeout", "ACP startup timeout (seconds)", "minor"),
)

#: A new server's settings name no provider: this one is meant.
_ACP_DEFAULTS: Final[Mapping[str, Any]] = {**as_json(AgentSettings()), "acp_server": DEFAULT_SERVER}

#: Section key, its label, its fields as above.
_CONVERSATION_SECTIONS: Final = (
    ("general", "General", (("max_iterations", "Max iterations", "major"),)),
    (
        "verification",
        "Verification",
        (
            ("confirmation_mode", "Confirmation mode", "major"),
            ("security_analyzer", "Security analyzer", "major"),
        ),
    ),
    (
        "runtime",
        "Runtime",
        (
            ("default_runtime", "Default runtime", "major"),
            ("worktree_base", "Worktree base", "minor"),
            ("worktree_base_ref", "Worktree base ref", "minor"),
            ("worktree_branch_prefix", "Worktree branch prefix", "minor"),
            ("container_memory", "Container memory", "minor"),
            ("container_cpus", "Container CPUs", "minor"),
            ("container_browser", "Container browser", "minor"),
        ),
    ),
)

_VALUE_TYPES: Final[Mapping[type, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def agent_schema(presets: Presets, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The settings of an ACP agent. `names` are what providers are called, by key."""
    labels = {CUSTOM: "Custom", **(names or {})}
    choices = {"acp_server": [(key, labels.get(key, key)) for key in (*presets, CUSTOM) if key in SPOKEN]}
    section = _section(
        ACP, "ACP (Agent Client Protocol)", _ACP_FIELDS, AgentSettings, _ACP_DEFAULTS, choices, ACP
    )
    return {"model_name": "AgentSettings", "sections": [section]}


def conversation_schema() -> dict[str, Any]:
    """The settings of new conversations."""
    return {
        "model_name": "ConversationSettings",
        "sections": [
            _section(key, label, fields, ConversationSettings, DEFAULTS, {}, None)
            for key, label, fields in _CONVERSATION_SECTIONS
        ],
    }


def _section(
    key: str,
    label: str,
    fields: Sequence[tuple[str, str, str]],
    model: type[Setting],
    defaults: Mapping[str, Any],
    choices: Mapping[str, Sequence[tuple[str, str]]],
    variant: str | None,
) -> dict[str, Any]:
    shapes = {each.name: _bare(each.shape) for each in properties_of(model)}
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
                "value_type": _value_type(shapes[name]),
                "default": defaults[name],
                "prominence": prominence,
                "depends_on": [],
                "secret": False,
                "choices": [
                    {"value": value, "label": text}
                    for value, text in choices.get(name) or _words(shapes[name])
                ],
                "variant": variant,
            }
            for name, field_label, prominence in fields
        ],
    }


def _bare(shape: Shape) -> Shape:
    """The shape without what narrows it."""
    while isinstance(shape, Narrowed | Elsewhere):
        shape = shape.shape
    return shape


def _value_type(shape: Shape) -> str:
    match shape:
        case Scalar((only,)):
            return _VALUE_TYPES[only]
        case ListOf():
            return "array"
    return "string"


def _words(shape: Shape) -> Sequence[tuple[str, str]]:
    return [(value, value) for value in shape.values] if isinstance(shape, Choice) else ()
