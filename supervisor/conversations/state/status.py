"""The statuses of a conversation and the phases of its agent, in the words that clients read."""

from __future__ import annotations

import enum
from typing import Final


class ExecutionStatus(enum.StrEnum):
    """The status of a conversation, as the wire spells it."""

    IDLE = "idle"
    RUNNING = "running"
    PAUSED = "paused"
    WAITING_FOR_CONFIRMATION = "waiting_for_confirmation"
    FINISHED = "finished"
    ERROR = "error"
    STUCK = "stuck"


LIVE_STATUSES: Final = frozenset({ExecutionStatus.RUNNING, ExecutionStatus.WAITING_FOR_CONFIRMATION})
"""Statuses that only a living server can be in; found at start, they are what a crash interrupted."""


class AgentPhase(enum.StrEnum):
    """Where an agent is between two starts of its process.

    `RUNNING`, `WAITING` (for a person) and `CANCELLING` are what an agent that is `READY` does in a turn:
    operators are shown these instead.
    """

    NONE = "none"
    QUEUED = "queued"
    INSTALLING = "installing"
    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"
    CANCELLING = "cancelling"
    RESTARTING = "restarting"
    PARKED = "parked"
    HIBERNATED = "hibernated"
    STOPPED = "stopped"
    EXITED = "exited"


class Memory(enum.StrEnum):
    """What the agent remembers of the conversation."""

    NEW = "new"
    RESUMED = "resumed"
    LOADED = "loaded"
    LOST = "lost"
