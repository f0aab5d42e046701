"""The plan of a start behind the network door. Pure."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import attrs

from supervisor.agents.walls.door.rewiring import Wiring
from supervisor.agents.walls.network import Reachable
from supervisor.conversations.agent.launch.plan import DoorPlan, Plan


def behind_door(plan: Plan, confidential: Collection[str], reachable: Reachable, parent: Path) -> Plan:
    """Return the plan with the door's addresses, and placeholders for keys, in its environment, its login and
    the extension parameters of its session; and with what the door has to know.

    `confidential`: the names of the secrets in its environment that are not plain text, to report those that
    stay. `reachable`: what the operator allows. `parent`: where the door's directory is made.
    """
    wiring = Wiring()
    environment = wiring.environment(plan.descriptor, plan.environment, plan.login.choice, confidential)
    return attrs.evolve(
        plan,
        environment=environment,
        login=attrs.evolve(plan.login, environment=environment),
        own=None if plan.own is None else wiring.session(plan.own),
        door=DoorPlan(wiring, reachable.hosts, parent, reachable.connections),
    )
