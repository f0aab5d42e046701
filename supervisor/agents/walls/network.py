"""What an agent reaches of the network. Pure."""

from __future__ import annotations

import enum
from typing import Final

import attrs

from supervisor.agents.spawning.descriptors import DOOR_CONNECTIONS
from supervisor.agents.walls.door.hosts import AllowList, allow_list

VARIABLE: Final = "OSTLER_AGENT_NETWORK"


class Network(enum.StrEnum):
    """What an agent reaches of the network."""

    FULL = "full"
    """What the machine reaches."""

    NONE = "none"
    """A loopback device of its own, and nothing else."""

    DOOR = "door"
    """The same, with a door: to the APIs that its keys are for, without the keys, and to hosts that the
    operator names."""


@attrs.frozen(kw_only=True)
class Reachable:
    """What agents reach of the network. `hosts`: through a door. `connections`: the most of each agent."""

    network: Network = Network.FULL
    hosts: AllowList = attrs.field(factory=lambda: allow_list(None))
    connections: int = DOOR_CONNECTIONS


def parse(text: str) -> Network:
    """Return the network of this name. Raises ValueError."""
    try:
        return Network(text)
    except ValueError:
        raise ValueError(f"{text!r} is not one of {', '.join(Network)}") from None
