"""The settings that new conversations start with, where their start request leaves the choice to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from supervisor.settings import fields
from supervisor.settings.errors import Location
from supervisor.settings.fields import Check

#: Every field with its default.
DEFAULTS: Final[Mapping[str, Any]] = {
    "schema_version": 1,
    "max_iterations": 500,
    "confirmation_mode": False,
    "security_analyzer": None,
    "default_runtime": "local",
    "worktree_base": "default_branch",
    "worktree_base_ref": None,
    "worktree_branch_prefix": "openhands/",
    "container_memory": None,
    "container_cpus": None,
    "container_browser": True,
}

SECURITY_ANALYZERS: Final = ("llm", "none")
RUNTIMES: Final = ("local", "worktree", "docker")
WORKTREE_BASES: Final = ("default_branch", "head", "ref")

_CHECKS: Final[Mapping[str, Check]] = {
    "schema_version": fields.at_least(1),
    "max_iterations": fields.at_least(1),
    "confirmation_mode": fields.boolean,
    "security_analyzer": fields.nullable(fields.one_of(SECURITY_ANALYZERS)),
    "default_runtime": fields.one_of(RUNTIMES),
    "worktree_base": fields.one_of(WORKTREE_BASES),
    "worktree_base_ref": fields.nullable(fields.string),
    "worktree_branch_prefix": fields.string,
    "container_memory": fields.nullable(fields.string),
    "container_cpus": fields.nullable(fields.positive),
    "container_browser": fields.boolean,
}


def decode_conversation_settings(obj: object, loc: Location) -> dict[str, Any]:
    """Their JSON with every field present. Unknown keys are dropped. Raises SettingsError."""
    return {**DEFAULTS, **fields.read(obj, loc, _CHECKS)}


def confirmation_policy(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The policy that they stand for, as clients derive it: an analyzer that tells risky calls is asked."""
    if not settings["confirmation_mode"]:
        return {"kind": "NeverConfirm"}
    if settings["security_analyzer"] == "llm":
        return {"kind": "ConfirmRisky", "threshold": "HIGH", "confirm_unknown": True}
    return {"kind": "AlwaysConfirm"}


def security_analyzer(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The analyzer that they name."""
    return {"kind": "LLMSecurityAnalyzer"} if settings["security_analyzer"] == "llm" else None
