"""An agent as an operating-system process. Knows no protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.first_use import names_of

if TYPE_CHECKING:
    from supervisor.agents.catalog import (
        CUSTOM,
        CatalogError,
        Descriptor,
        Kind,
        behaving,
        identify,
        load_catalog,
        presets,
    )
    from supervisor.agents.containment.containment import containment_level, open_containment
    from supervisor.agents.containment.levels import Level, LevelUnavailable
    from supervisor.agents.containment.lifeline import Lifeline
    from supervisor.agents.endings import ExitStatus, StopPolicy, StopReport, StopStep, TreeUsage
    from supervisor.agents.environment import (
        MARKER,
        base_environment,
        compose_environment,
        concerning,
        needs_data_dir,
    )
    from supervisor.agents.errors import InstallError, NodeMissing, SpawnError
    from supervisor.agents.homes.credential import (
        Choice,
        Credential,
        auth_params,
        choose_credential,
        helpful_names,
        in_file_secrets,
    )
    from supervisor.agents.homes.data_dir import prepare_data_dir
    from supervisor.agents.homes.logins import Logins, find_logins
    from supervisor.agents.homes.shared_logins import Lease, Rotated, SharedLogins
    from supervisor.agents.install.install import ensure_installed, resolve_launch, starts_pinned
    from supervisor.agents.install.packages import Launch
    from supervisor.agents.process import AgentProcess, spawn
    from supervisor.agents.restart import Parked, RestartBudget, RestartPolicy, Retry
else:
    homes = {
        "catalog": "CUSTOM CatalogError Descriptor Kind behaving identify load_catalog presets",
        "containment.containment": "containment_level open_containment",
        "homes.credential": "Choice Credential auth_params choose_credential helpful_names in_file_secrets",
        "homes.data_dir": "prepare_data_dir",
        "endings": "ExitStatus StopPolicy StopReport StopStep TreeUsage",
        "environment": "MARKER base_environment compose_environment concerning needs_data_dir",
        "errors": "InstallError NodeMissing SpawnError",
        "install.install": "ensure_installed resolve_launch starts_pinned",
        "containment.levels": "Level LevelUnavailable",
        "containment.lifeline": "Lifeline",
        "homes.logins": "Logins find_logins",
        "install.packages": "Launch",
        "process": "AgentProcess spawn",
        "restart": "Parked RestartBudget RestartPolicy Retry",
        "homes.shared_logins": "Lease Rotated SharedLogins",
    }
    __getattr__ = names_of(__name__, homes)

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
    "behaving",
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
