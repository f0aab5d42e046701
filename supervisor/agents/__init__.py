"""An agent as an operating-system process. Knows no protocol."""

from __future__ import annotations

from .catalog import CUSTOM, CatalogError, Descriptor, detect, identify, load_catalog, presets
from .datadir import prepare_data_dir, usable_auth_method
from .environment import MARKER, base_environment, compose_environment, needs_data_dir
from .errors import InstallError, NodeMissing
from .install import Launch, ensure_installed, resolve_launch, starts_pinned
from .process import AgentProcess, ExitStatus, SpawnError, StopPolicy, StopReport, StopStep, TreeUsage, spawn

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
