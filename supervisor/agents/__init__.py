"""An agent as an operating-system process. Knows no protocol."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .catalog import CUSTOM, CatalogError, Descriptor, detect, identify, load_catalog, presets
    from .datadir import prepare_data_dir, usable_auth_method
    from .environment import MARKER, base_environment, compose_environment, needs_data_dir
    from .errors import InstallError, NodeMissing
    from .install import Launch, ensure_installed, resolve_launch, starts_pinned
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
else:

    def __getattr__(name):
        # At the first use: the demo agent lives in this package and starts much faster without these.
        if name in __all__:
            for home in ("catalog", "datadir", "environment", "errors", "install", "process"):
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
    "NodeMissing",
    "SpawnError",
    "StopPolicy",
    "StopReport",
    "StopStep",
    "TreeUsage",
    "base_environment",
    "compose_environment",
    "detect",
    "ensure_installed",
    "identify",
    "load_catalog",
    "needs_data_dir",
    "prepare_data_dir",
    "presets",
    "resolve_launch",
    "spawn",
    "starts_pinned",
    "usable_auth_method",
]
