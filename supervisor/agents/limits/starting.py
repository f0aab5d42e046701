"""What this machine can hold limits with, and the limits of an agent that is about to start."""

from __future__ import annotations

from supervisor.agents.containment import cgroup
from supervisor.agents.containment.containment import agents_controllers
from supervisor.agents.containment.levels import Level
from supervisor.agents.containment.marker import ProcessMarker
from supervisor.agents.errors import SpawnError
from supervisor.agents.limits.keeper import Keeper, keep
from supervisor.agents.limits.mechanisms import CONTROLLERS, Available, hold, namespace_counts
from supervisor.agents.limits.values import NO_LIMITS, AgentLimits


def obstacle(limits: AgentLimits, level: Level) -> str | None:
    """Return why limits cannot be kept at this containment level, and what to do; None if they can. Reads a
    small file, and changes nothing."""
    group = cgroup.agents_group() if level is Level.CGROUP else None
    offered = frozenset[str]() if group is None else cgroup.offered(group)
    return hold(limits, Available(controllers=offered)).refusal()


def available(
    level: Level, limits: AgentLimits, *, walled: bool = False, user: int | None = None
) -> Available:
    """What there is to hold these limits with, at a containment level of this run. `walled`: whether the
    agent's command makes a user namespace of its own, or becomes a `user` of its own.

    The first call with limits enables controllers (`Containment.controllers`).
    """
    if not limits:
        return Available()
    return Available(
        controllers=agents_controllers(CONTROLLERS.values()),
        namespace=(walled or level is Level.PIDNS) and namespace_counts(user),
    )


def keep_limits(
    limits: AgentLimits | None,
    process_marker: ProcessMarker,
    *,
    walled: bool = False,
    user: int | None = None,
) -> Keeper:
    """Set the limits of an agent that is about to start, as far as the starter does not set them. `walled`,
    `user`: as in `available`.

    Raises SpawnError, also for a limit that nothing holds here.
    """
    limits = limits or NO_LIMITS
    there = available(process_marker.level, limits, walled=walled, user=user)
    keeper = keep(limits, there, process_marker.group)
    refusal = keeper.holding.refusal()
    if refusal is not None:
        raise SpawnError(refusal)
    try:
        keeper.set_up()
    except OSError as error:
        raise SpawnError(
            f"the limits of the control group cannot be set ({error.filename}: {error.strerror}); "
            "without OSTLER_CONTAINMENT=cgroup other mechanisms hold them"
        ) from error
    return keeper
