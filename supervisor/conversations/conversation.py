"""One conversation: its record, its queue of messages, and what can be asked of it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, TypeVar

import attrs
import orjson
import structlog
import trio

from supervisor.agents import RestartPolicy
from supervisor.events import (
    Event,
    Message,
    MessageEvent,
    PauseEvent,
    TextContent,
    Vocabulary,
    decode_message,
    new_event_id,
)
from supervisor.journal import Journal, JournalUnavailable, Log, Stored

from . import prompt
from .admission import Admission
from .deadlines import Deadlines
from .errors import AgentFailure, AlreadyRunning, QueueFull, UnknownConversation
from .failures import error_event
from .history import OpenCalls, speech
from .info import conversation_info, full_state
from .launcher import Launcher
from .mounting import COMMAND
from .operators import Tally
from .originals import Allowance
from .record import ConversationRecord
from .recorder import Recorder
from .runner import Runner
from .unconfirmed import Unconfirmed
from .vault import Vault
from .work import Queued, message_size

log = structlog.get_logger(__name__)

T = TypeVar("T")

TITLE_CHARS: Final = 50
"""Length of a title made from the first message, as the wire's servers cut it."""

TRANSCRIPT_EVENTS: Final = 400
"""Newest events that a transcript is made of: more than its byte limit lets through."""

TRANSCRIPT_PAGE: Final = 20
"""Events of it that are read at once."""

QUEUED_MAX: Final = 1_000
"""Messages that may wait in one conversation. Each is a turn of its own: nobody means more."""

QUEUED_BYTES: Final = 64 * 1024 * 1024
"""What the messages that wait in one conversation may have together, bytes: two of the largest."""

PAGE_EVENTS: Final = 500
"""Events read at once when a conversation is loaded: bounded memory, few reads."""

LIVE_STATES: Final = frozenset({"running", "waiting_for_confirmation"})
"""States that only a living server can be in; found at start, they are what a crash interrupted."""


@attrs.frozen(kw_only=True)
class Context:
    """What every conversation of a server shares. The nursery is the supervisor's: runners live in it."""

    journal: Journal
    launcher: Launcher
    vault: Vault
    deadlines: Deadlines
    restart: RestartPolicy
    admission: Admission
    tally: Tally
    nursery: trio.Nursery
    allowance: Allowance = attrs.field(factory=Allowance)
    """How much each conversation may set aside of what is too large for its events."""


class Conversation:
    """A conversation that is loaded. The supervisor hands out one object per id.

    Its methods are the whole of what clients can ask. Each is durable when it returns; cancelling one
    takes nothing back that was recorded.
    """

    def __init__(self, context: Context, record: ConversationRecord, journal_log: Log) -> None:
        self.context = context
        self.record = record
        self.log = journal_log
        self.recorder = Recorder(journal_log, record)
        self.inbox: deque[Queued] = deque()
        self._unconfirmed = Unconfirmed()
        self.runner = Runner(self)

    @property
    def id(self) -> str:
        """The conversation's id, in dashed form."""
        return self.record.id

    @property
    def vocabulary(self) -> Vocabulary:
        """Which clients its events are written for."""
        return self.record.vocabulary

    @property
    def active(self) -> bool:
        """Whether a turn is under way or an agent is alive: such a conversation stays loaded."""
        return self.runner.busy or self.runner.pid is not None

    # -- reading --------------------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """The conversation resource, nulls present, as it is now: a crash could take some of it back."""
        return conversation_info(self.record)

    def full_state(self) -> bytes:
        """The state snapshot as an event that is not journalled, as `info`."""
        return full_state(self.record)

    async def durable_info(self) -> dict[str, Any]:
        """The resource, of what is on the disk. Raises JournalError."""
        return await self._durable_view(conversation_info)

    async def durable_state(self) -> bytes:
        """The snapshot, of what is on the disk. Raises JournalError."""
        return await self._durable_view(full_state)

    async def _durable_view(self, show: Callable[[ConversationRecord], T]) -> T:
        """The present state once it is durable, which takes milliseconds; or else the last one that is."""
        if self.recorder.unsaved and self.log.trouble is None:
            self.recorder.save()
        shown = show(self.record)
        if self.log.settled and not self.recorder.unsaved:
            await trio.lowlevel.checkpoint()
            return shown
        with trio.move_on_after(self.context.deadlines.shown):
            if await self.log.flushed_unless_troubled():
                return shown
        (stored,) = await self.context.journal.get_records([self.id])
        if stored is None:
            raise UnknownConversation(f"Conversation not found: {self.id}")
        return show(ConversationRecord.load(stored.record))

    def publish_state(self) -> None:
        """Send the snapshot to whoever listens, after all that was recorded before."""
        self.recorder.publish(self.full_state())

    async def transcript(self) -> str:
        """What was said and done so far, for an agent that lost its memory."""
        waiting = {item.event_id for item in self.inbox}
        lines: list[tuple[str, str]] = []
        read = size = 0
        page_id: str | None = None
        # Newest first, and no more than is told: a page may have a hundred large events.
        while read < TRANSCRIPT_EVENTS and size <= prompt.TRANSCRIPT_BYTES:
            page = await self.log.search(order="desc", limit=TRANSCRIPT_PAGE, page=page_id)
            for item in page.items:
                line = None if item.id in waiting else speech(orjson.loads(item.body))
                if line is not None:
                    lines.append(line)
                    size += len(line[1])
            read += len(page.items)
            page_id = page.next_page_id
            if page_id is None:
                break
        return prompt.transcript(reversed(lines))

    # -- messages and runs ----------------------------------------------------------------------------

    async def send(self, message: Message, *, run: bool, sender: str | None = None) -> str:
        """Queue a user's message; with `run` take up the queue. Returns the id of its event.

        Messages are prompted one after another in the order they came, each once. Raises QueueFull when
        too many wait already, AtCapacity; JournalUnavailable: either at once, and then nothing was taken, or
        after a while (`Deadlines.durable`), and then it is queued. The same message sent again is taken for
        the one that is queued.
        """
        queued = self._unconfirmed.find(message, sender)
        if queued is not None:
            await self._confirm(queued, message, sender)
            if run and queued in self.inbox:
                self._run()
            return queued.event_id
        self.log.accept()
        size = message_size(message)
        if self.inbox and (
            len(self.inbox) >= QUEUED_MAX or sum(item.size for item in self.inbox) + size > QUEUED_BYTES
        ):
            raise QueueFull(len(self.inbox))
        ours = prompt.is_command(message, COMMAND)
        if run and not ours:
            self._check_room()
        record = self.record
        events: list[Event] = []
        if record.execution_status in {"finished", "stuck"}:
            record.execution_status = "idle"
            events.append(self.recorder.state("execution_status", "idle"))
        event = MessageEvent(id=new_event_id(), source="user", llm_message=message, sender=sender)
        record.last_user_message_id = event.id
        if record.title is None and record.autotitle and not ours:
            record.title = _title(message)
        events += [event, self.recorder.state("last_user_message_id", event.id)]
        last = self.recorder.write(events)
        queued = Queued(last - 1, event.id, message)
        self.inbox.append(queued)
        if run:
            self._run()
        await self._confirm(queued, message, sender)
        return event.id

    async def _confirm(self, queued: Queued, message: Message, sender: str | None) -> None:
        try:
            await self._durable()
        except (JournalUnavailable, trio.Cancelled):
            # Its sender does not know what has become of it, and may well send it again.
            self._unconfirmed.add(queued, message, sender)
            raise
        self._unconfirmed.remove(queued)

    async def _durable(self) -> None:
        """Wait until all that was recorded is on the disk, for a bounded time.

        Raises JournalUnavailable when it is not by then; it stays queued.
        """
        with trio.move_on_after(self.context.deadlines.durable) as limit:
            await self.log.flushed()
        if limit.cancelled_caught:
            trouble = self.log.trouble
            reason = "the disk does not answer" if trouble is None else trouble.reason
            raise JournalUnavailable(
                f"It was taken and is queued, but it is not on the disk yet: {reason}. "
                "It will be stored as soon as that is possible; there is no need to send it again."
            )

    def _check_room(self) -> None:
        if self.runner.keeper.current is None:
            self.context.admission.check()

    def _run(self) -> None:
        if self.runner.busy and self.record.execution_status == "paused":
            # The turn that a pause let go on is simply running again.
            self.record.execution_status = "running"
            self.recorder.write([self.recorder.state("execution_status", "running")])
        self.runner.want()

    async def run(self) -> None:
        """Take up the queue. While a confirmation is waited for, this accepts it.

        With an empty queue, a turn that did not end well is gone on with: by the same message where
        nothing of it happened, else by a word to continue. Raises AlreadyRunning.
        """
        self.log.accept()
        if self.runner.waiting:
            self.runner.decide(accept=True, reason="")
        elif self.runner.busy and self.record.execution_status != "paused":
            raise AlreadyRunning("Conversation already running. Wait for completion or pause first.")
        elif self.inbox or self.runner.busy or await self._requeue():
            self._check_room()
            self._run()
        else:
            self.publish_state()  # nothing to do is an answer, too: clients wait for a state
        await self._durable()

    async def _requeue(self) -> bool:
        record = self.record
        if record.retry_seq is not None:
            stored = await self.log.read(record.retry_seq - 1, 1)
            if stored and not self.inbox:
                self.inbox.append(_queued(stored[0]))
                return True
        elif record.unfinished:
            message = Message(role="user", content=(TextContent(text=prompt.CONTINUE),))
            event = MessageEvent(id=new_event_id(), source="environment", llm_message=message)
            self.inbox.append(Queued(self.recorder.write([event]), event.id, message))
            return True
        return False

    async def pause(self) -> None:
        """Stop after the turn under way: the state is `paused` at once, the agent finishes what it does."""
        if self.record.execution_status in {"idle", "running"}:
            self.runner.hold()
            self.record.execution_status = "paused"
            self.recorder.write(
                [PauseEvent(id=new_event_id()), self.recorder.state("execution_status", "paused")]
            )
            self.publish_state()
        # Control returns also while its event cannot be stored: that stays queued.
        await self.log.flushed_unless_troubled()

    async def interrupt(self) -> None:
        """Cancel the turn under way. Answers when it has settled, at the latest after two seconds."""
        if self.runner.busy:
            await self.runner.interrupt()
        else:
            await self.pause()

    async def respond(self, accept: bool, reason: str) -> None:
        """Decide what waits for a confirmation. Nothing waiting is no error."""
        self.log.accept()
        self.runner.decide(accept, reason)
        await self._durable()

    # -- settings of the conversation -----------------------------------------------------------------

    async def set_title(self, title: str) -> None:
        """Set the title; automatic titles end with that."""
        self.log.accept()
        self.record.title = title
        self.record.autotitle = False
        self.recorder.save()
        await self._durable()

    async def set_tags(self, tags: dict[str, str]) -> None:
        """Replace the tags."""
        self.log.accept()
        self.record.tags = tags
        self.recorder.write([self.recorder.state("tags", tags)])
        await self._durable()

    async def add_child(self, conversation_id: str) -> None:
        """Note a conversation that was started as a part of this one."""
        self.record.children.append(conversation_id)
        self.recorder.save()
        await self.log.flushed_unless_troubled()

    async def set_confirmation_policy(self, policy: dict[str, Any]) -> None:
        """Replace the policy; it counts from the next permission request on."""
        self.log.accept()
        self.record.confirmation_policy = policy
        self.runner.policy_changed()
        self.recorder.write([self.recorder.state("confirmation_policy", policy)])
        await self._durable()

    async def set_security_analyzer(self, analyzer: dict[str, Any] | None) -> None:
        """Replace the analyzer. External agents are not analysed; it is kept for clients to read."""
        self.log.accept()
        self.record.security_analyzer = analyzer
        self.recorder.write([self.recorder.state("security_analyzer", analyzer)])
        await self._durable()

    async def set_secrets(self, secrets: Mapping[str, str]) -> None:
        """Add secrets by name. A live agent has its environment already: they count from its next start."""
        self.log.accept()
        self.record.secrets.update(await self.context.vault.seal(secrets))
        self.recorder.save()
        await self._durable()

    # -- its life ---------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Make the state true after a start of the server, and take up the queue of a run that it cut off.

        A turn that was under way when an earlier server died is reported and its open calls are closed as
        interrupted; it is not prompted again by itself. The messages behind it are, as they would have been.
        While it cannot be stored it stays queued, and no agent is started. Raises JournalUnavailable when the
        journal cannot be read now; then nothing was done.
        """
        record = self.record
        await self._find_leaf()
        async for item in self._after(record.prompted_seq, kind="MessageEvent", source="user"):
            self.inbox.append(_queued(item))
        going_on = record.execution_status in LIVE_STATES
        if record.turn_open or (going_on and not self.inbox):
            await self._report_cut_off()
        if going_on and self.inbox:
            self.runner.want()
        with trio.move_on_after(self.context.deadlines.durable):
            await self.log.flushed_unless_troubled()

    async def _report_cut_off(self) -> None:
        record = self.record
        calls = OpenCalls()
        async for item in self._after(record.prompted_seq):
            if item.kind in OpenCalls.KINDS:
                calls.take(orjson.loads(item.body), len(item.body))
        events: list[Event] = calls.closing()
        failure = AgentFailure(
            "ServerRestarted",
            "The server stopped while this turn was running; what the agent did last is not known.",
            kind="transient",
            retryable=True,
            user_action="retry",
        )
        events.append(error_event(failure))
        record.turn_open = False
        record.execution_status = "error"
        record.agent_state["phase"] = "stopped"
        events.append(self.recorder.state("execution_status", "error"))
        self.recorder.write(events)

    async def _find_leaf(self) -> None:
        """The newest time, and the newest event that is more than a state: what the next ones hang on."""
        newest = await self.log.newest()
        leaf = await self.log.newest(besides="ConversationStateUpdateEvent")
        if newest is not None:
            self.recorder.last_timestamp = newest.timestamp
        if leaf is not None:
            self.record.leaf_event_id = leaf.id

    async def _after(self, seq: int, **asked: str) -> AsyncIterator[Stored]:
        while page := await self.log.read(seq, PAGE_EVENTS, **asked):
            for item in page:
                yield item
            seq = page[-1].seq

    async def close(self) -> None:
        """Stop the agent. A turn under way is interrupted first, so that what it said is kept."""
        if self.runner.busy:
            await self.runner.interrupt()
        await self.runner.stop()


def _queued(stored: Stored) -> Queued:
    return Queued(stored.seq, stored.id, decode_message(orjson.loads(stored.body)["llm_message"]))


def _title(message: Message) -> str | None:
    text = " ".join(part.text for part in message.content if isinstance(part, TextContent)).strip()
    text = " ".join(text.split())
    return text if len(text) <= TITLE_CHARS else text[: TITLE_CHARS - 3].rstrip() + "..."
