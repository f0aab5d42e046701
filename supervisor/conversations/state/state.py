"""What a conversation is now - its status, its turns, the memory of its agent - and what changes it.

`transitions` has what each cause makes of it. `Recorder.apply` is the only place that stores a new state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from supervisor.conversations.state.status import CutOff, ExecutionStatus, Memory


@attrs.frozen(kw_only=True)
class State:
    """`prompted_seq`: the sequence number of the last message that was handed to the agent (-1: none). The
    messages after it are the queue.

    `turn`: the turn whose end is not recorded yet, by `number` and `message_id`. `turns`: their number.
    `turn_open`: the agent works on that turn. `unfinished`: it did not end well (yet), so that an explicit
    run continues it. `retry_seq`: a message that was handed over without effect, so that an explicit run may
    hand it over once more.

    `asked`: by id, the actions of the built-in agent's step that a person is asked about, each with the
    answer for the agent once there is one. Nothing of them has begun while any waits.
    `joined`: ids of the messages that the built-in agent was handed since it reported anything: it may report
    them again.
    `withdrawn`: the messages that were taken back while they waited, id and sequence number, until a later
    one is handed over.

    Of the agent's session: `session_id` (a bearer token: whole in one state, never in logs);
    `session_cwd`, its workspace; `session_disk`, where the agent's data was (`machines.disks`);
    `session_opened`, when it began (seconds since the epoch; no restore changes it); `session_used`, whether
    the agent did anything in it (else there is nothing to restore); `failed_restores`, how often the agent
    crashed while restoring it; `sessions`, their number; `cut_off`, how a turn of it ended with a tool call
    open, or maybe open (the server was killed), which some agents run when they resume.

    `memory_lost`: why the agent does not remember the conversation; its session is new then, and gets a
    transcript until it has done anything with it. `loss_reported`: clients have a state about that.
    """

    execution_status: ExecutionStatus = ExecutionStatus.IDLE
    last_user_message_id: str | None = None
    prompted_seq: int = -1
    retry_seq: int | None = None
    turns: int = 0
    turn: Mapping[str, Any] | None = None
    turn_open: bool = False
    unfinished: bool = False
    asked: Mapping[str, Mapping[str, Any] | None] = attrs.field(factory=dict)
    joined: tuple[str, ...] = ()
    withdrawn: Mapping[str, int] = attrs.field(factory=dict)
    session_id: str | None = None
    session_cwd: str | None = None
    session_disk: str | None = None
    session_opened: float = 0.0
    session_used: bool = False
    failed_restores: int = 0
    sessions: int = 0
    cut_off: CutOff | None = None
    memory_lost: str | None = None
    loss_reported: bool = False

    @property
    def remembers(self) -> bool:
        """Whether the agent remembers the conversation."""
        return self.session_used and self.memory_lost is None

    @property
    def waits(self) -> bool:
        """Whether an action waits for a person's answer: nothing of its step has begun."""
        return None in self.asked.values()


@attrs.frozen
class Update:
    """A state update for the journal."""

    key: str
    value: Any


Item = Any
"""An Update, or an event that a cause brings along and that goes to the journal as it is."""

TURN: Final = "turn"
"""The key of the updates that mark turns. Each begun turn gets exactly one end in the log."""

RUNNING: Final = "running"
JOINED: Final = "joined"
ENDED: Final = "ended"
"""The statuses in these updates."""

WITHDRAWN: Final = "message_withdrawn"
"""The key of the update for a message that its sender took back."""

BLOCKED: Final = "blocked"
"""Stop reason of a message that a hook blocked: the agent never got it."""

INTERRUPTED: Final = "interrupted"
"""Stop reason of a turn that was cut off by a crash of the server or of the agent's process."""


# -- causes: messages and turns -------------------------------------------------------------------------


@attrs.frozen
class Sent:
    """A message (`event`) joins the queue. `runs`: a run that has not begun yet takes it up."""

    event: Item
    message_id: str
    runs: bool


@attrs.frozen
class Withdrawn:
    """A message that waited was taken back: no turn follows for it."""

    seq: int
    message_id: str


@attrs.frozen
class TurnBegun:
    """A message is about to be handed to the agent. `native`: to the built-in agent, which skips a message
    that it has, and which may lack it until it reports something. `resumes`: there is no message."""

    seq: int
    message_id: str
    native: bool = False
    resumes: bool = False


@attrs.frozen
class TurnTaken:
    """A message leaves the queue for a turn that the agent has no part in: Ostler answers, or a hook blocks
    it. An unfinished earlier turn stays unfinished."""

    seq: int
    message_id: str


@attrs.frozen
class MessageJoined:
    """The built-in agent reads a message in the turn that runs."""

    seq: int
    message_id: str


@attrs.frozen
class NotHandedOver:
    """The turn ends before its message reached the agent: the next run begins with it."""

    seq: int


class MessagesTaken:
    """The built-in agent reported something of its own after the messages that it was handed: it has them."""


class Worked:
    """The agent did something with what it was handed."""


@attrs.frozen
class TurnEnded:
    """The turn is over. `finished`: whether it ended well; None leaves that as it is. `all_calls_ended`: it
    has left no call open. `taken`: the agent has the message for good. The other fields go to clients as they
    are:

    `stop_reason`: ACP's, as the agent reported it, or `failed` (with the code of the `error`), BLOCKED or
    INTERRUPTED. `answer_id`: the event that has the answer. `answered`: whether the agent wrote a word.
    `usage`: what the agent reported for it (see `usage.of_turn`). `seconds`: how long it took.
    """

    stop_reason: str
    error: str | None = None
    answer_id: str | None = None
    answered: bool = False
    usage: Mapping[str, Any] | None = None
    seconds: float | None = None
    finished: bool | None = None
    all_calls_ended: bool = False
    taken: bool = False

    def update(self, turn: Mapping[str, Any]) -> Update:
        """The end of this turn, for the journal."""
        value = {
            "status": ENDED,
            "number": turn.get("number"),
            "message_id": turn.get("message_id"),
            "stop_reason": self.stop_reason,
            "error": self.error,
            "answer_id": self.answer_id,
            "answered": self.answered,
            "usage": None if self.usage is None else dict(self.usage),
            "seconds": None if self.seconds is None else round(self.seconds, 3),
        }
        return Update(TURN, value)


@attrs.frozen
class CallsCutOff:
    """A turn is about to end, and `how` it leaves calls open. After a kill of the server it may have."""

    how: CutOff


# -- causes: runs ---------------------------------------------------------------------------------------


class RunBegun:
    """A run begins, or resumes after a pause."""


class PersonAsked:
    """A permission request waits for a person."""


class PersonAnswered:
    """No permission request waits any more."""


@attrs.frozen
class Paused:
    """The run stops, at once or after its turn. `events`: the pause or interrupt that clients see."""

    events: Sequence[Item] = ()


@attrs.frozen
class RunClosed:
    """The run ends with this status. `events` precede the end of its turn, if it ends with one; `updates`
    follow."""

    status: ExecutionStatus
    events: Sequence[Item] = ()
    ended: TurnEnded | None = None
    updates: Sequence[Update] = ()


@attrs.frozen
class CutOffByServer:
    """The server died during the turn. `events`: the ends of its open calls, and the error."""

    events: Sequence[Item]


# -- causes: what a person is asked by the built-in agent -----------------------------------------------


@attrs.frozen
class ActionAsked:
    """A person is asked about an action."""

    action_id: str


@attrs.frozen
class ActionAnswered:
    """A person has answered. The agent gets the answer, once."""

    action_id: str
    answer: Mapping[str, Any]


class AnswersDelivered:
    """The agent gets the answers, or nothing will."""


# -- causes: the agent's memory -------------------------------------------------------------------------


@attrs.frozen
class SessionOpened:
    """A session is open, a new or the earlier one. `reason`: why the earlier one could not be restored."""

    memory: Memory
    session_id: str
    cwd: str
    at: float
    reason: str | None = None
    disk: str | None = None


class RestoreFailed:
    """The agent crashed while it restored its session."""


@attrs.frozen
class MemoryLost:
    """The agent does not remember the conversation any more."""

    why: str


class LossReported:
    """Clients have a state that says that the memory was lost."""


@attrs.frozen
class Navigated:
    """A client moved to another event: the next events follow it. `seq`: its sequence number, None for the
    beginning; `last_seq`: the end of the log. `asks`: it is a message to the agent, which is queued again.
    `why`: the reason for the loss where the agent has not moved along; None: it has."""

    seq: int | None
    last_seq: int
    asks: bool
    why: str | None


@attrs.frozen
class Forked:
    """A copy of the conversation begins here. `prompted_seq`: as in the copy, whose events have new numbers.
    `session_id`: the fork of the agent's session, if there is one; `why` it is lost otherwise. `asks`: its
    last event is a message that is queued, also if its sender had taken it back."""

    prompted_seq: int
    last_user_message_id: str | None
    session_id: str | None
    why: str
    asks: bool
