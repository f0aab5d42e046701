"""The statuses of a conversation and the phases of its agent, in the words that clients read."""

from __future__ import annotations

import enum
from typing import Final


class ExecutionStatus(enum.StrEnum):
    """The status of a conversation, in the words of the wire."""

    IDLE = "idle"
    RUNNING = "running"
    PAUSED = "paused"
    WAITING_FOR_CONFIRMATION = "waiting_for_confirmation"
    FINISHED = "finished"
    ERROR = "error"
    STUCK = "stuck"


LIVE_STATUSES: Final = frozenset({ExecutionStatus.RUNNING, ExecutionStatus.WAITING_FOR_CONFIRMATION})
"""Statuses that only a running server can have; found at start, they mark what a crash interrupted."""


class AgentPhase(enum.StrEnum):
    """The phase of an agent.

    `RUNNING`, `WAITING` (for a person) and `CANCELLING` are what a `READY` agent does in a turn; operators
    see these instead.
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
    """What the agent remembers of the conversation.

    `FORKED`, before the first start of a fork's agent: a copy of the session of the one it comes from.
    """

    NEW = "new"
    RESUMED = "resumed"
    LOADED = "loaded"
    FORKED = "forked"
    LOST = "lost"


class CutOff(enum.StrEnum):
    """How a turn ended in which a tool call was open, or may have been."""

    CANCELLED = "cancelled"
    """The agent itself ended it as cancelled."""
    UNKNOWN = "unknown"
    """It was killed, say, or did not answer: what it takes the call for is unknown."""
    UNSEEN = "unseen"
    """The server was killed. The log has no open call, but one may have begun that was not stored."""
