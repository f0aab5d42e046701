"""An agent as an operating-system process. Knows no protocol."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .catalog import CUSTOM, CatalogError, Descriptor, detect, identify, load_catalog, presets
    from .containment import containment_level, open_containment
    from .datadir import prepare_data_dir, usable_auth_method
    from .environment import MARKER, base_environment, compose_environment, needs_data_dir
    from .errors import InstallError, NodeMissing
    from .install import Launch, ensure_installed, resolve_launch, starts_pinned
    from .levels import Level, LevelUnavailable
    from .lifeline import Lifeline
    from .process import (
        AgentProcess,
        ExitStatus,
        SpawnError,
        StopPolicy,
        StopReport,
        StopStep,
        TreeUsage,
        spawn,
    )
    from .restart import Parked, RestartBudget, RestartPolicy, Retry
else:
    HOMES = (
        "catalog", "containment", "datadir", "environment", "errors", "install", "levels", "lifeline",
        "process", "restart",
    )  # fmt: skip

    def __getattr__(name):
        # At the first use: the demo agent lives in this package and starts much faster without these.
        if name in __all__:
            for home in HOMES:
                module = importlib.import_module(f"{__name__}.{home}")
                if name in module.__all__:
                    return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CUSTOM",
    "MARKER",
    "AgentProcess",
    "CatalogError",
    "Descriptor",
    "ExitStatus",
    "InstallError",
    "Launch",
    "Level",
    "LevelUnavailable",
    "Lifeline",
    "NodeMissing",
    "Parked",
    "RestartBudget",
    "RestartPolicy",
    "Retry",
    "SpawnError",
    "StopPolicy",
    "StopReport",
    "StopStep",
    "TreeUsage",
    "base_environment",
    "compose_environment",
    "containment_level",
    "detect",
    "ensure_installed",
    "identify",
    "load_catalog",
    "needs_data_dir",
    "open_containment",
    "prepare_data_dir",
    "presets",
    "resolve_launch",
    "spawn",
    "starts_pinned",
    "usable_auth_method",
]
