"""Hooks: their configuration, which of them an event triggers, and the meaning of their results.

Independent of conversations, and runs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.first_use import names_of

if TYPE_CHECKING:
    from supervisor.hooks.config import (
        HOOK_CONFIG,
        HookConfig,
        HookDefinition,
        HookEvent,
        HookMatcher,
        HookSource,
        check_hook_config,
        stored_hook_config,
    )
    from supervisor.hooks.project import HOOKS_FILE, hooks_of, read_project_hooks
    from supervisor.hooks.verdict import Ended, Verdict, judge, reason_of
else:
    homes = {
        "config": (
            "HOOK_CONFIG HookConfig HookDefinition HookEvent HookMatcher HookSource check_hook_config "
            "stored_hook_config"
        ),
        "project": "HOOKS_FILE hooks_of read_project_hooks",
        "verdict": "Ended Verdict judge reason_of",
    }
    __getattr__ = names_of(__name__, homes)

__all__ = [
    "HOOKS_FILE",
    "HOOK_CONFIG",
    "Ended",
    "HookConfig",
    "HookDefinition",
    "HookEvent",
    "HookMatcher",
    "HookSource",
    "Verdict",
    "check_hook_config",
    "hooks_of",
    "judge",
    "read_project_hooks",
    "reason_of",
    "stored_hook_config",
]
