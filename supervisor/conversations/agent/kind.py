"""The port between a conversation and the kind of its agent: everything in which a plain ACP agent and the
built-in agent differ.

`kinds.kind_of` chooses an implementation from a record. The core asks what an agent can do, not which kind it
is (`tests/test_rooms.py` counts the exceptions)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Protocol

import attrs

from supervisor.acp import PermissionRequest
from supervisor.agents.catalog import Descriptor
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.launch.launcher import Furnishing, Launcher
from supervisor.conversations.agent.launch.plan import Plan
from supervisor.conversations.history.prompt import Blocks
from supervisor.conversations.recording.effects import Effect
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.queue import Queued, TurnQueue
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.secret_box import SecretBox
from supervisor.conversations.state.state import NotHandedOver, TurnBegun
from supervisor.conversations.state.turn import Turn
from supervisor.credentials.masking import Masker
from supervisor.events import ActionEvent, SecurityRisk, Vocabulary
from supervisor.journal.log import Log


class NotRecorded(Exception):
    """An extension notification was rejected. The message says why, for the log."""


class Unreadable(NotRecorded):
    """An event is unreadable, so that the log lacks something that happened."""


@attrs.frozen(kw_only=True)
class Heard:
    """What an extension notification does. `effects` are to be recorded. `work`: the agent has worked on its
    message. `has_messages`: it has in its memory what it was handed. `joins`: the message that it reads in
    the current turn. `changed`: the record has changed; `at_once`: the change must be stored together with
    the events."""

    effects: list[Effect]
    work: bool = False
    has_messages: bool = False
    joins: str | None = None
    changed: bool = False
    at_once: bool = False


@attrs.frozen
class Question:
    """A permission request about an action that is in the journal. `aside`: it is about a sub-agent's action,
    which is not in the agent's memory; `title`, `risk` and `given` describe that action."""

    action: ActionEvent
    aside: bool = False
    title: str = ""
    risk: SecurityRisk = SecurityRisk.UNKNOWN
    given: Any = None


@attrs.frozen
class Ending:
    """How the agent reports the end of its turn. `failed`: it reported an error that ended the turn."""

    status: str | None
    answer_id: str | None
    failed: bool


class Voice:
    """What one conversation's agent reports besides ACP's updates. This base class accepts nothing."""

    by_updates = True
    """Whether it reports its work in ACP updates."""
    calling = False
    """Whether a tool call that it reported is open."""
    spoke = False
    """Whether it reported anything in this turn."""

    def __init__(self, record: ConversationRecord) -> None:
        self.record = record

    def take(self, method: str, params: Any, session_id: str | None) -> Heard:
        """Handle an extension notification. `session_id`: the open one. Raises NotRecorded, ValueError."""
        raise NotRecorded("the agent is not one of Ostler's own")

    def new_mask(self, mask: Masker) -> None:
        """Set the masker for later notifications."""

    def new_turn(self, item: Queued) -> None:
        """A turn begins: the agent is prompted with this message, which is in the log."""

    def begun(self, item: Queued) -> TurnBegun:
        """What the begin of that turn changes."""
        return TurnBegun(item.seq, item.event_id, native=not self.by_updates, resumes=item.resumes)

    def not_handed_over(self, turn: Turn) -> NotHandedOver | None:
        """What changes when a turn ends before the agent got its message; None: that is noted since its
        begin."""
        return NotHandedOver(turn.prompt_seq) if self.by_updates else None

    def joined(self, message_id: str) -> None:
        """The agent reads this message in the current turn."""

    def ending(self, answer: Mapping[str, Any] | None) -> Ending | None:
        """Interpret the answer to a prompt; `answer` None: there was none. Returns None if only ACP's stop
        reason counts."""
        return None

    def question(self, request: PermissionRequest, mask: Masker) -> Question | None:
        """The recorded action that a permission request is about. Raises RpcError if there is none; returns
        None for an agent that reports in ACP updates only."""
        return None

    def reopen(self, actions: Iterable[ActionEvent]) -> None:
        """Keep calls open that an earlier process left open: the agent will report how they end."""

    def close_items(self) -> list[Effect]:
        """Abort the open streams."""
        return []

    def close(self, asked: Collection[str]) -> list[Effect]:
        """At the end of a turn: end the open calls as interrupted. `asked`: ids of the actions that a person
        was asked about."""
        return []


class Live(Protocol):
    """The interface to a live conversation that a kind may use."""

    deadlines: Deadlines
    queue: TurnQueue

    @property
    def launcher(self) -> Launcher:
        """The server's launcher."""

    @property
    def ready(self) -> Incarnation | None:
        """The agent, if it can take a prompt."""

    @property
    def calling(self) -> bool:
        """Whether a tool call is open."""

    def check_room(self) -> None:
        """Raise AtCapacity if an agent would have to start, but may not."""

    def at_hand(self) -> AbstractAsyncContextManager[Incarnation]:
        """The agent, started if necessary. Raises AgentFailure, JournalError."""

    def at_rest(self) -> AbstractAsyncContextManager[bool]:
        """Keep the agent stopped while the block runs; yields False if it is in use."""

    async def move(self, ask: Callable[[Incarnation], Awaitable[object]], refuse: Callable[[], None]) -> None:
        """Move the agent to another event. See `SessionRepair.move`."""

    async def transcript(self) -> str:
        """A transcript of the active branch, for an agent without memory of it."""


@attrs.frozen
class AgentKind(Furnishing, ABC):
    """The behaviour of one conversation's agent that depends on its kind. Holds only the record. The default
    implementations are those for an agent without the feature.

    Unless a method says otherwise, it raises AgentFailure, AgentTimeout and JournalError where it needs the
    agent, and NotAccepted (or NotPossible) where the agent or its kind refuses. Cancellation does not undo a
    request that the agent already has.
    """

    vocabulary: ClassVar[Vocabulary | None] = None
    """The only event vocabulary that can express what it does; None: any."""
    system_prompt: ClassVar[str | None] = None
    """What clients see as its system prompt; None if the agent reports it."""
    runs_hooks: ClassVar[bool] = False
    """Whether it runs the conversation's hooks itself."""
    takes_changes: ClassVar[bool] = False
    """Whether it accepts changes of the conversation's settings while it runs (`configure`)."""
    starts_children: ClassVar[bool] = False
    """Whether it may start child conversations."""
    sends_usage: ClassVar[bool] = False
    """Whether it reports its usage itself, whenever that changes."""
    pauses: ClassVar[bool] = False
    """Whether a pause ends its turn after the current step, and a run resumes there."""

    @property
    def messages_in_a_run(self) -> float:
        """The most messages that one run prompts."""
        return self.record.start.max_iterations

    def voice(self) -> Voice:
        """Return a new Voice for a live conversation."""
        return Voice(self.record)

    # -- what clients see of it ---------------------------------------------------------------------------

    @abstractmethod
    def shown(self) -> dict[str, Any]:
        """The agent as the polymorphic object that clients decode, without secrets."""

    @abstractmethod
    def usage(self) -> dict[str, Any]:
        """What it used (`stats`), as far as it is known."""

    # -- what it is started and prompted with -------------------------------------------------------------

    async def recall(self, plan: Plan, log: Log, voice: Voice) -> Plan:
        """Return the plan, with what the log has of the agent's events. Raises JournalError."""
        return plan

    async def configure(self, run: Incarnation, change: Mapping[str, Any], seconds: float) -> None:
        """Send it a change of the conversation's settings."""

    def prompted_with(self, item: Queued, before: str | None, enclosed: Blocks) -> Mapping[str, Any] | None:
        """Extension parameters of a prompt, besides ACP's blocks. `before`: a transcript."""
        return None

    def takes_messages(self, descriptor: Descriptor) -> bool:
        """Whether it reads messages during a turn (`send_mid_turn`)."""
        return False

    async def send_mid_turn(self, run: Incarnation, item: Queued, enclosed: Blocks) -> None:
        """Send a message during a turn. Returns when the agent has read it, or deferred it until after the
        turn."""

    # -- runs ---------------------------------------------------------------------------------------------

    def ends_first(self, queue: TurnQueue) -> bool:
        """Whether a run has to wait until the interrupted turn has ended."""
        return queue.ending and not queue.more

    @abstractmethod
    async def take_up_again(self, recorder: Recorder, queue: TurnQueue) -> bool:
        """Queue the continuation of a turn that did not end well. Returns whether there is anything to run.
        Raises JournalError."""

    def resume_paused(self, queue: TurnQueue) -> None:
        """Before a run: queue the continuation of a paused turn first. Synchronous."""

    async def pause(self, live: Live) -> None:
        """Handle a pause of the conversation during a turn."""

    # -- besides the turns ----------------------------------------------------------------------------------

    @abstractmethod
    async def ask(self, live: Live, question: str) -> str:
        """The answer to a side question. Cancellation cancels the agent's work on it."""

    async def title(self, live: Live) -> str | None:
        """A title for the conversation after its first turn; None if the agent makes none."""
        return None

    async def navigate(self, live: Live, event_id: str | None, refuse: Callable[[], None]) -> bool:
        """Move the agent to an event, too. Returns False if it cannot: its next session will be a new one.
        Raises what `refuse` raises."""
        return False

    @abstractmethod
    async def fork(self, live: Live, conversation_id: str, leaf: str | None, *, asks: bool) -> str | None:
        """Fork the agent's session, up to the event `leaf` if given, and return its id. `asks`: the leaf is a
        message to the agent. None if that is impossible now; data that the fork's agent needs is copied in
        any case. Raises no AgentFailure."""

    @abstractmethod
    async def condense(self, live: Live) -> None:
        """Have the history summarized. Raises AtCapacity."""

    @abstractmethod
    async def load_plugin(self, live: Live, plugin_ref: str) -> None:
        """Load a plugin into it. Raises AtCapacity."""

    @abstractmethod
    async def with_model(self, box: SecretBox, llm: Mapping[str, Any]) -> Callable[[], None]:
        """Return a callback that notes this language model, with its key, in the record."""

    def check_choice(self) -> None:
        """Raise NotAccepted if it has no models, modes and options of ACP to choose from."""
