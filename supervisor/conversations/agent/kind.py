"""The port between a conversation and the kind of its agent: all that differs between an agent that knows ACP
alone and the built-in one, in the words of conversations.

`kinds.kind_of` chooses an implementation from a record. The core asks what an agent does, not which kind it
is (`tests/test_rooms.py` counts the exceptions)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Protocol

import attrs

from supervisor.acp import PermissionRequest
from supervisor.agents import Descriptor
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.launch import Furnishing, Launcher, Plan
from supervisor.conversations.history.prompt import Blocks
from supervisor.conversations.recording.effects import Out
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.queue import Queued, TurnQueue
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.secret_box import SecretBox
from supervisor.conversations.state.turn import Turn
from supervisor.credentials.masking import Masker
from supervisor.events import ActionEvent, SecurityRisk, Vocabulary
from supervisor.journal import Log


class NotTold(Exception):
    """What an agent told is not accepted. The message says why, in words for the log."""


class Unreadable(NotTold):
    """It is an event, and cannot be read: what happened would be missing in the log."""


@attrs.frozen(kw_only=True)
class Heard:
    """What came of a word of the agent. `outs` are to be recorded. `work`: it shows that the agent worked on
    its message. `joins`: the message that it reads in the turn that runs. `changed`: the record has changed;
    `at_once`: that is to be stored together with the events."""

    outs: list[Out]
    work: bool = False
    joins: str | None = None
    changed: bool = False
    at_once: bool = False


@attrs.frozen
class Question:
    """A request about an action that is in the journal. `aside`: it is a child's, of which the agent's memory
    has nothing; `title`, `risk` and `given` are that one's."""

    action: ActionEvent
    aside: bool = False
    title: str = ""
    risk: SecurityRisk = SecurityRisk.UNKNOWN
    given: Any = None


@attrs.frozen
class Ending:
    """How the agent says that its turn has ended. `failed`: it told of an error that ends it."""

    status: str | None
    answer_id: str | None
    failed: bool


class Voice:
    """What one conversation's agent tells besides ACP's updates. As it is here, that is nothing."""

    by_updates = True
    """Whether what it does comes as updates of ACP."""
    calling = False
    """Whether a call that it told of is open."""
    spoke = False
    """Whether anything was told in this turn."""

    def __init__(self, record: ConversationRecord) -> None:
        self.record = record

    def take(self, method: str, params: Any, session_id: str | None) -> Heard:
        """Take what it tells. `session_id`: the open session. Raises NotTold, ValueError."""
        raise NotTold("the agent is not one of Ostler's own")

    def new_mask(self, mask: Masker) -> None:
        """Mask by this what it tells from here on."""

    def new_turn(self, item: Queued) -> None:
        """A turn begins: the agent gets this message, which is in the log."""
        self.record.retry_seq = None

    def handed_back(self, turn: Turn) -> None:
        """Nothing of the turn's message reached the agent: a run begins with it."""
        self.record.retry_seq = turn.prompt_seq

    def joined(self, message_id: str) -> None:
        """The agent reads this message in the turn that runs."""

    def ending(self, answer: Mapping[str, Any] | None) -> Ending | None:
        """How its turn ends by this answer to a prompt; None is that it gave none. None where ACP's stop
        reason is all that is said."""
        return None

    def question(self, request: PermissionRequest, mask: Masker) -> Question | None:
        """The action that it told, and now asks about. Raises RpcError where there is none; None where
        updates of ACP are all that is told."""
        return None

    def reopen(self, actions: Iterable[ActionEvent]) -> None:
        """Calls that an earlier process left open wait on: the agent will tell how they end."""

    def close_items(self) -> list[Out]:
        """What was streamed becomes nothing."""
        return []

    def close(self, asked: Collection[str]) -> list[Out]:
        """End the calls that are open, as interrupted: a turn is over. `asked`: ids of the actions that a
        person was asked about."""
        return []


class Live(Protocol):
    """What a kind may use of a conversation's live part."""

    deadlines: Deadlines
    queue: TurnQueue

    @property
    def launcher(self) -> Launcher:
        """The server's launcher."""

    @property
    def ready(self) -> Incarnation | None:
        """The agent, if it can take a prompt."""

    def check_room(self) -> None:
        """Raises AtCapacity where an agent would have to start, and may not."""

    def at_hand(self) -> AbstractAsyncContextManager[Incarnation]:
        """The agent, started if necessary. Raises AgentFailure, JournalError."""

    def at_rest(self) -> AbstractAsyncContextManager[bool]:
        """No process of the agent runs while the block does; False where it is in use."""

    async def move(self, ask: Callable[[Incarnation], Awaitable[object]], refuse: Callable[[], None]) -> None:
        """Have the agent go on from elsewhere. See `AgentLifecycle.move`."""

    async def transcript(self) -> str:
        """What was said on the active branch, for an agent that does not remember it."""


@attrs.frozen
class AgentKind(Furnishing, ABC):
    """One conversation's agent, as its kind has it. It holds the record and nothing else. What is not
    abstract is as it is for an agent that knows nothing of it.

    Unless a method says otherwise, it raises AgentFailure, AgentTimeout and JournalError where it needs the
    agent, NotAccepted (or NotPossible) where the agent or its kind refuses, and cancellation leaves the agent
    with what it was asked.
    """

    vocabulary: ClassVar[Vocabulary | None] = None
    """The only one that has words for what it does; None: any."""
    system_prompt: ClassVar[str | None] = None
    """What clients see as its system prompt; None where it tells its own."""
    runs_hooks: ClassVar[bool] = False
    """Whether it runs the conversation's hooks itself."""
    takes_changes: ClassVar[bool] = False
    """Whether it is told of changes of the conversation's settings while it runs (`configure`)."""
    starts_children: ClassVar[bool] = False
    """Whether it may start conversations that are parts of its own."""
    pauses: ClassVar[bool] = False
    """Whether a pause ends its turn after the present step, and a run goes on from there."""

    @property
    def messages_in_a_run(self) -> float:
        """The most messages that one run takes up."""
        return self.record.max_iterations

    def voice(self) -> Voice:
        """What is to hear it, for a live conversation."""
        return Voice(self.record)

    # -- what it is started and prompted with -------------------------------------------------------------

    async def recall(self, plan: Plan, log: Log, voice: Voice) -> Plan:
        """The plan with what the log has of its events by now. Raises JournalError."""
        return plan

    async def configure(self, run: Incarnation, change: Mapping[str, Any], seconds: float) -> None:
        """Tell it what changed of the conversation's settings."""

    def prompted_with(self, item: Queued, before: str | None, enclosed: Blocks) -> Mapping[str, Any] | None:
        """What it gets with a prompt besides ACP's blocks. `before`: a transcript."""
        return None

    def takes_messages(self, descriptor: Descriptor) -> bool:
        """Whether it reads messages during a turn (`steer`)."""
        return False

    async def steer(self, run: Incarnation, item: Queued, enclosed: Blocks) -> None:
        """Hand a message over during a turn. Returns when it was read, or is for after the turn."""

    # -- runs ---------------------------------------------------------------------------------------------

    def ends_first(self, queue: TurnQueue) -> bool:
        """Whether a run has to wait for the end of what is being interrupted."""
        return queue.ending and not queue.more

    @abstractmethod
    async def take_up_again(self, recorder: Recorder, queue: TurnQueue) -> bool:
        """Put into the queue what a run begins with: a turn that did not end well goes on. Whether there is
        anything to run. Raises JournalError."""

    def go_on(self, queue: TurnQueue) -> None:
        """A run begins: what was paused goes on first. Synchronous, right before it."""

    async def pause(self, live: Live) -> None:
        """The conversation was paused during its turn."""

    # -- besides the turns ----------------------------------------------------------------------------------

    @abstractmethod
    async def ask(self, live: Live, question: str) -> str:
        """The answer to a side question. Cancellation cancels what the agent does for it."""

    async def title(self, live: Live) -> str | None:
        """A title for the conversation after its first turn, if the agent is to find one."""
        return None

    async def navigate(self, live: Live, event_id: str | None, refuse: Callable[[], None]) -> bool:
        """Have it go on from an event, too. False where it does not: its next session is a new one. Raises
        what `refuse` raises."""
        return False

    @abstractmethod
    async def fork(self, live: Live, conversation_id: str, leaf: str | None, *, asks: bool) -> str | None:
        """The session of a fork's agent, with the memory of this one: as far as `leaf`, if one is named.
        `asks`: that is a message to the agent. None where none is to be had now; what the fork's agent finds
        nowhere else is copied all the same. Raises no AgentFailure."""

    @abstractmethod
    async def condense(self, live: Live) -> None:
        """Have the history summarized. Raises AtCapacity."""

    @abstractmethod
    async def load_plugin(self, live: Live, plugin_ref: str) -> None:
        """Load a plugin into it. Raises AtCapacity."""

    @abstractmethod
    async def with_model(self, box: SecretBox, llm: Mapping[str, Any]) -> Callable[[], None]:
        """What notes in the record that it has this language model, with its key."""

    def check_choice(self) -> None:
        """Whether it has modes and options to choose from. Raises NotAccepted."""
