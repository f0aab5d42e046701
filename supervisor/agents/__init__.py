"""An agent as an operating-system process. Knows no protocol."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisor.agents.catalog import (
        CUSTOM,
        CatalogError,
        Descriptor,
        Kind,
        identify,
        load_catalog,
        presets,
    )
    from supervisor.agents.containment import containment_level, open_containment
    from supervisor.agents.credential import (
        Choice,
        Credential,
        auth_params,
        choose_credential,
        helpful_names,
        in_file_secrets,
    )
    from supervisor.agents.datadir import prepare_data_dir
    from supervisor.agents.endings import ExitStatus, StopPolicy, StopReport, StopStep, TreeUsage
    from supervisor.agents.environment import (
        MARKER,
        base_environment,
        compose_environment,
        concerning,
        needs_data_dir,
    )
    from supervisor.agents.errors import InstallError, NodeMissing, SpawnError
    from supervisor.agents.install import ensure_installed, resolve_launch, starts_pinned
    from supervisor.agents.levels import Level, LevelUnavailable
    from supervisor.agents.lifeline import Lifeline
    from supervisor.agents.logins import Logins, find_logins
    from supervisor.agents.package_manager import Launch
    from supervisor.agents.process import AgentProcess, spawn
    from supervisor.agents.restart import Parked, RestartBudget, RestartPolicy, Retry
    from supervisor.agents.shared_logins import Lease, Rotated, SharedLogins
else:
    HOMES = {
        "AgentProcess": "process",
        "CUSTOM": "catalog",
        "CatalogError": "catalog",
        "Choice": "credential",
        "Credential": "credential",
        "Descriptor": "catalog",
        "ExitStatus": "endings",
        "InstallError": "errors",
        "Kind": "catalog",
        "Launch": "package_manager",
        "Lease": "shared_logins",
        "Level": "levels",
        "LevelUnavailable": "levels",
        "Lifeline": "lifeline",
        "Logins": "logins",
        "MARKER": "environment",
        "NodeMissing": "errors",
        "Parked": "restart",
        "RestartBudget": "restart",
        "RestartPolicy": "restart",
        "Retry": "restart",
        "Rotated": "shared_logins",
        "SharedLogins": "shared_logins",
        "SpawnError": "errors",
        "StopPolicy": "endings",
        "StopReport": "endings",
        "StopStep": "endings",
        "TreeUsage": "endings",
        "auth_params": "credential",
        "base_environment": "environment",
        "choose_credential": "credential",
        "compose_environment": "environment",
        "concerning": "environment",
        "containment_level": "containment",
        "ensure_installed": "install",
        "find_logins": "logins",
        "helpful_names": "credential",
        "identify": "catalog",
        "in_file_secrets": "credential",
        "load_catalog": "catalog",
        "needs_data_dir": "environment",
        "open_containment": "containment",
        "prepare_data_dir": "datadir",
        "presets": "catalog",
        "resolve_launch": "install",
        "spawn": "process",
        "starts_pinned": "install",
    }

    def __getattr__(name):
        # At the first use: the demo agent lives in this package and starts much faster without these.
        if name in HOMES:
            return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CUSTOM",
    "MARKER",
    "AgentProcess",
    "CatalogError",
    "Choice",
    "Credential",
    "Descriptor",
    "ExitStatus",
    "InstallError",
    "Kind",
    "Launch",
    "Lease",
    "Level",
    "LevelUnavailable",
    "Lifeline",
    "Logins",
    "NodeMissing",
    "Parked",
    "RestartBudget",
    "RestartPolicy",
    "Retry",
    "Rotated",
    "SharedLogins",
    "SpawnError",
    "StopPolicy",
    "StopReport",
    "StopStep",
    "TreeUsage",
    "auth_params",
    "base_environment",
    "choose_credential",
    "compose_environment",
    "concerning",
    "containment_level",
    "ensure_installed",
    "find_logins",
    "helpful_names",
    "identify",
    "in_file_secrets",
    "load_catalog",
    "needs_data_dir",
    "open_containment",
    "prepare_data_dir",
    "presets",
    "resolve_launch",
    "spawn",
    "starts_pinned",
]
