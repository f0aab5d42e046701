"""Drops the hooks of untrusted definitions in the workspace, which would run as commands, unconfirmed.

The SDK looks there for sub-agents (`.agents/agents`, `.openhands/agents`) and plugins (`.agents/plugins`,
`.openhands/plugins`) by itself. Their hooks are dropped, unless the operator allows the hooks of projects
(`OSTLER_HOOKS=project`).
"""

from __future__ import annotations

import logging
from typing import Any

from openhands.sdk.plugin import discovery
from openhands.sdk.subagent import registry

log = logging.getLogger(__name__)

_hooks_run = False


def allow(hooks: bool) -> None:
    """Set whether their hooks run, from the next conversation of this process on."""
    global _hooks_run
    _hooks_run = hooks


def install() -> None:
    """Filter what the SDK finds before it is used."""
    agents, plugins = registry.load_project_agents, discovery.load_project_plugins

    def load_project_agents(project_dir: Any) -> list[Any]:
        return [_without_hooks(each) for each in agents(project_dir)]

    def load_project_plugins(work_dir: Any) -> list[Any]:
        found = [_without_hooks(each) for each in plugins(work_dir)]
        return [
            each.model_copy(update={"agents": [_without_hooks(agent) for agent in each.agents]})
            for each in found
        ]

    registry.load_project_agents = load_project_agents
    discovery.load_project_plugins = load_project_plugins


def _without_hooks(found: Any) -> Any:
    if _hooks_run or found.hooks is None:
        return found
    log.warning("The hooks of %s are left out: it is from the workspace.", found.name)
    return found.model_copy(update={"hooks": None})
