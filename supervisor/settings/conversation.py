"""The settings that new conversations start with, where their start request leaves the choice to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import attrs

from supervisor.reading.model import Location, said
from supervisor.reading.rules import ABOVE_ZERO, Limit
from supervisor.reading.shapes import as_json
from supervisor.settings.errors import read
from supervisor.settings.names import Setting, Text


@attrs.frozen(kw_only=True)
class ConversationSettings(Setting):
    """What a conversation is started with. Memory is written as containers' tools do ("2g")."""

    schema_version: Annotated[int, Limit(ge=1)] = 1
    max_iterations: Annotated[int, Limit(ge=1)] = said(500, "Most iterations of a run.")
    confirmation_mode: bool = said(False, "Whether a person is asked before risky actions.")
    security_analyzer: Literal["llm", "none"] | None = said("llm", "Who judges the risk of an action.")
    default_runtime: Literal["local", "worktree", "docker"] = said("local", "Where conversations run.")
    worktree_base: Literal["default_branch", "head", "ref"] = said(
        "default_branch", "What the branch of a new worktree begins at."
    )
    worktree_base_ref: Text | None = said(None, "The branch, tag or commit of the base `ref`.")
    worktree_branch_prefix: Text = said("openhands/", "Begin of the name of a worktree's branch.")
    container_memory: Text | None = said(None, "Memory of a container, such as 512m or 4g.")
    container_cpus: Annotated[float, ABOVE_ZERO] | None = said(None, "Processors of a container.")
    container_browser: bool = said(True, "Whether a container has a browser.")


#: Every field with its default.
DEFAULTS: Final[Mapping[str, Any]] = as_json(ConversationSettings())


def decode_conversation_settings(obj: object, loc: Location) -> dict[str, Any]:
    """Their JSON with every field present. Unknown keys are dropped. Raises SettingsError."""
    return as_json(read(ConversationSettings, obj, loc))


def confirmation_policy(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The confirmation policy of these settings, as clients derive it: with the analyzer `llm` only risky
    calls are confirmed."""
    if not settings["confirmation_mode"]:
        return {"kind": "NeverConfirm"}
    if settings["security_analyzer"] == "llm":
        return {"kind": "ConfirmRisky", "threshold": "HIGH", "confirm_unknown": True}
    return {"kind": "AlwaysConfirm"}


def security_analyzer(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The analyzer that they name."""
    return {"kind": "LLMSecurityAnalyzer"} if settings["security_analyzer"] == "llm" else None
