"""What a conversation is now: its status, its turns, and the memory of its agent."""

from __future__ import annotations

from typing import Any

import attrs

from supervisor.conversations.state.status import CutOff, ExecutionStatus


@attrs.define(kw_only=True)
class State:
    """`prompted_seq`: the sequence number of the last user message that was handed to the agent (-1: none).
    The messages after it are the queue.

    `turn`: the turn whose end is not recorded yet, by `number` and `message_id` (see
    `recording.turn_states`). `turns`: how many there were.

    `turn_open`: the turn of that message is running. `unfinished`: it did not end well (yet), so that an
    explicit run continues it. `retry_seq`: a message that was handed over without effect, so that an explicit
    run may hand it over once more.

    `asked`: by id, the actions of the built-in agent's step that a person is asked about, each with the
    answer for the agent once there is one. Nothing of them has begun while any waits.
    `joined`: ids of the messages that the built-in agent was handed since it reported anything: it may report
    them again.

    Of the agent's session: `session_id` (a bearer token: whole in one state, never in logs);
    `session_cwd`, its workspace; `session_opened`, when it was last opened (seconds since the epoch);
    `session_used`, whether the agent did anything in it (else there is nothing to restore);
    `failed_restores`, how often the agent crashed while restoring it; `sessions`, their number; `cut_off`,
    how a turn of it ended with a tool call open, which some agents run when they resume.

    `memory_lost`: why the agent does not remember the conversation; its session is new then, and gets a
    transcript until it has done anything with it. `loss_told`: clients have been told that.
    """

    execution_status: ExecutionStatus = ExecutionStatus.IDLE
    prompted_seq: int = -1
    retry_seq: int | None = None
    turns: int = 0
    turn: dict[str, Any] | None = None
    turn_open: bool = False
    unfinished: bool = False
    asked: dict[str, dict[str, Any] | None] = attrs.field(factory=dict)
    joined: list[str] = attrs.field(factory=list)
    session_id: str | None = None
    session_cwd: str | None = None
    session_opened: float = 0.0
    session_used: bool = False
    failed_restores: int = 0
    sessions: int = 0
    cut_off: CutOff | None = None
    memory_lost: str | None = None
    loss_told: bool = False

    @property
    def remembers(self) -> bool:
        """Whether the agent remembers the conversation."""
        return self.session_used and self.memory_lost is None
