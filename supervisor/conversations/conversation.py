"""One conversation: its record, its queue of messages, and what can be asked of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, TypeVar

import orjson
import structlog
import trio

from supervisor.conversations.agent.context import Context
from supervisor.conversations.agent.lifecycle import AgentLifecycle
from supervisor.conversations.recording import prompt
from supervisor.conversations.recording.final_response import final_response
from supervisor.conversations.recording.history import OpenCalls
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.recording.resource import conversation_info, full_state
from supervisor.conversations.state.errors import AgentFailure, AlreadyRunning, QueueFull, UnknownConversation
from supervisor.conversations.state.failures import error_event
from supervisor.conversations.state.queue import Queued, TurnQueue, message_size
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.status import LIVE_STATUSES, AgentPhase, ExecutionStatus
from supervisor.conversations.state.unconfirmed import Unconfirmed
from supervisor.conversations.turns.runner import Runner
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
from supervisor.journal import JournalUnavailable, Log, Stored

log = structlog.get_logger(__name__)

T = TypeVar("T")

TITLE_CHARS: Final = 50
"""Length of a title made from the first message, as the wire's servers cut it."""

QUEUED_MAX: Final = 1_000
"""Messages that may wait in one conversation. Each is a turn of its own: nobody means more."""

QUEUED_BYTES: Final = 64 * 1024 * 1024
"""What the messages that wait in one conversation may have together, bytes: two of the largest."""

PAGE_EVENTS: Final = 500
"""Events read at once when a conversation is loaded: bounded memory, few reads."""


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
        self._queue = TurnQueue()
        self._unconfirmed = Unconfirmed()
        self._runner = Runner(context, self.recorder, self._queue)

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
        return self.busy or self.agent.live

    @property
    def agent(self) -> AgentLifecycle:
        """Its agent, over all its incarnations."""
        return self._runner.agent

    @property
    def busy(self) -> bool:
        """Whether a turn is under way, or is about to be."""
        return self._queue.busy

    @property
    def waiting(self) -> bool:
        """Whether a person's confirmation is waited for."""
        return self._runner.waiting

    @property
    def cancelling(self) -> bool:
        """Whether a cancelled turn has not settled yet."""
        return self._runner.cancelling

    @property
    def queued(self) -> list[Message]:
        """The messages that wait, in their order."""
        return [item.message for item in self._queue.waiting]

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
            if run and queued in self._queue.waiting:
                self._run()
            return queued.event_id
        self.log.accept()
        size = message_size(message)
        if self._queue.waiting and (
            len(self._queue.waiting) >= QUEUED_MAX
            or sum(item.size for item in self._queue.waiting) + size > QUEUED_BYTES
        ):
            raise QueueFull(len(self._queue.waiting))
        ours = prompt.is_command(message, prompt.MCP_COMMAND)
        if run and not ours:
            self._check_room()
        record = self.record
        events: list[Event] = []
        if record.execution_status in {ExecutionStatus.FINISHED, ExecutionStatus.STUCK}:
            record.execution_status = ExecutionStatus.IDLE
            events.append(self.recorder.state("execution_status", ExecutionStatus.IDLE))
        event = MessageEvent(id=new_event_id(), source="user", llm_message=message, sender=sender)
        record.last_user_message_id = event.id
        if record.title is None and record.autotitle and not ours:
            record.title = _title(message)
        events += [event, self.recorder.state("last_user_message_id", event.id)]
        last = self.recorder.write(events)
        queued = Queued(last - 1, event.id, message)
        self._queue.waiting.append(queued)
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
        if not self.agent.live:
            self.context.admission.check()

    def _run(self) -> None:
        if self.busy and self.record.execution_status is ExecutionStatus.PAUSED:
            # The turn that a pause let go on is simply running again.
            self.record.execution_status = ExecutionStatus.RUNNING
            self.recorder.write([self.recorder.state("execution_status", ExecutionStatus.RUNNING)])
        self._runner.want()

    async def run(self) -> None:
        """Take up the queue. While a confirmation is waited for, this accepts it.

        With an empty queue, a turn that did not end well is gone on with: by the same message where
        nothing of it happened, else by a word to continue. Raises AlreadyRunning.
        """
        self.log.accept()
        if self.waiting:
            self._runner.decide(accept=True, reason="")
        elif self.busy and self.record.execution_status is not ExecutionStatus.PAUSED:
            raise AlreadyRunning("Conversation already running. Wait for completion or pause first.")
        elif self._queue.waiting or self.busy or await self._requeue():
            self._check_room()
            self._run()
        else:
            self._runner.reports.publish()  # nothing to do is an answer, too: clients wait for a state
        await self._durable()

    async def _requeue(self) -> bool:
        record = self.record
        if record.retry_seq is not None:
            stored = await self.log.read(record.retry_seq - 1, 1)
            if stored and not self._queue.waiting:
                self._queue.waiting.append(_queued(stored[0]))
                return True
        elif record.unfinished:
            message = Message(role="user", content=(TextContent(text=prompt.CONTINUE),))
            event = MessageEvent(id=new_event_id(), source="environment", llm_message=message)
            self._queue.waiting.append(Queued(self.recorder.write([event]), event.id, message))
            return True
        return False

    async def pause(self) -> None:
        """Stop after the turn under way: the state is `paused` at once, the agent finishes what it does."""
        if self.record.execution_status in {ExecutionStatus.IDLE, ExecutionStatus.RUNNING}:
            self._runner.hold()
            self.record.execution_status = ExecutionStatus.PAUSED
            self.recorder.write(
                [
                    PauseEvent(id=new_event_id()),
                    self.recorder.state("execution_status", ExecutionStatus.PAUSED),
                ]
            )
            self._runner.reports.publish()
        # Control returns also while its event cannot be stored: that stays queued.
        await self.log.flushed_unless_troubled()

    async def interrupt(self) -> None:
        """Cancel the turn under way. Answers when it has settled, at the latest after two seconds."""
        if self.busy:
            await self._runner.interrupt()
        else:
            await self.pause()

    async def respond(self, accept: bool, reason: str) -> None:
        """Decide what waits for a confirmation. Nothing waiting is no error."""
        self.log.accept()
        self._runner.decide(accept, reason)
        await self._durable()

    async def ask(self, text: str) -> None:
        """Send a text, and return once all that waits has been answered, or a run has ended otherwise: then
        `record.execution_status` tells how. While a person is to confirm something, it goes on waiting.

        Raises as `send`. Cancelling it interrupts nothing; what was sent stays queued.
        """
        await self.send(Message(role="user", content=(TextContent(text=text),)), run=True)
        await self._queue.idle()
        await self.log.flushed_unless_troubled()

    async def final_response(self) -> str:
        """The text of the newest final answer, empty when there is none. Raises JournalError."""
        return await final_response(self.log)

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
        self._runner.policy_changed()
        self.recorder.write([self.recorder.state("confirmation_policy", policy)])
        await self._durable()

    async def set_security_analyzer(self, analyzer: dict[str, Any] | None) -> None:
        """Replace the analyzer. It is kept for clients to read: none is run (see `recording/risk.py`)."""
        self.log.accept()
        self.record.security_analyzer = analyzer
        self.recorder.write([self.recorder.state("security_analyzer", analyzer)])
        await self._durable()

    async def set_secrets(self, secrets: Mapping[str, str]) -> None:
        """Add secrets by name. A live agent has its environment already: they count from its next start."""
        self.log.accept()
        self.record.secrets.update(await self.context.secret_box.seal(secrets))
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
            self._queue.waiting.append(_queued(item))
        going_on = record.execution_status in LIVE_STATUSES
        if record.turn_open or (going_on and not self._queue.waiting):
            await self._report_cut_off()
        if going_on and self._queue.waiting:
            self._runner.want()
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
        record.execution_status = ExecutionStatus.ERROR
        record.agent_state["phase"] = AgentPhase.STOPPED
        events.append(self.recorder.state("execution_status", ExecutionStatus.ERROR))
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

    async def restart_agent(self, *, force: bool = False) -> None:
        """Stop the agent and start it again with its session. Raises AgentFailure, JournalUnavailable."""
        self.log.accept()
        await self._runner.restart_agent(force=force)

    async def stop_agent(self, *, force: bool = False) -> None:
        """Stop the agent; the next message starts it again. With `force` its turn is not waited for."""
        await self._runner.stop_agent(force=force)

    async def close(self) -> None:
        """Stop the agent. A turn under way is interrupted first, so that what it said is kept."""
        if self.busy:
            await self._runner.interrupt()
        await self._runner.stop()


def _queued(stored: Stored) -> Queued:
    return Queued(stored.seq, stored.id, decode_message(orjson.loads(stored.body)["llm_message"]))


def _title(message: Message) -> str | None:
    text = " ".join(part.text for part in message.content if isinstance(part, TextContent)).strip()
    text = " ".join(text.split())
    return text if len(text) <= TITLE_CHARS else text[: TITLE_CHARS - 3].rstrip() + "..."
