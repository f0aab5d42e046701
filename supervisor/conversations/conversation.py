"""One conversation: its record, its queue of messages, and the operations on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson
import structlog
import trio

from supervisor.acp.schema import NAME_CHARS, cut
from supervisor.conversations.agent.context import Context
from supervisor.conversations.agent.lifecycle import AgentLifecycle
from supervisor.conversations.history import inbox, prompt, recovery
from supervisor.conversations.history.history import final_response
from supervisor.conversations.history.prompt import title_of
from supervisor.conversations.hooks import hooks
from supervisor.conversations.recording import permission_log
from supervisor.conversations.recording.bounds.attachments import Attachment
from supervisor.conversations.recording.effects import Recorded
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.resource import turn_states
from supervisor.conversations.resource.resource import agent_object, conversation_info, full_state
from supervisor.conversations.state.branch import MOVES_MAX, Branch, active, moved
from supervisor.conversations.state.confirmation import CONFIRMATION
from supervisor.conversations.state.errors import (
    AlreadyRunning,
    ConversationClosing,
    NotPossible,
    QueueFull,
    UnknownConversation,
    UnknownEvent,
)
from supervisor.conversations.state.queue import Queued, TurnQueue, message_size
from supervisor.conversations.state.record import ANALYZER, ConversationRecord
from supervisor.conversations.state.secret_box import split_secrets
from supervisor.conversations.state.status import LIVE_STATUSES, AgentPhase, ExecutionStatus, Memory
from supervisor.conversations.state.unconfirmed import Unconfirmed
from supervisor.conversations.turns.goal import GoalLoop
from supervisor.conversations.turns.runner import Runner
from supervisor.credentials.source import LookupSecret
from supervisor.events import (
    ActionEvent,
    Event,
    Message,
    MessageEvent,
    PauseEvent,
    TextContent,
    Vocabulary,
    decode_event,
    new_event_id,
)
from supervisor.journal import JournalUnavailable, Log, Stored
from supervisor.settings.built_in import secrets_within

log = structlog.get_logger(__name__)

T = TypeVar("T")

QUEUED_MAX: Final = 1_000
"""The most messages that may wait in one conversation; each is a separate turn."""

QUEUED_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of all waiting messages of one conversation: two of the largest."""

MOVED: Final = "the conversation was moved to another event"
"""The reason for the agent's lost memory after a client moved to another branch."""


class Conversation:
    """A loaded conversation. The supervisor hands out one object per id.

    Its methods are the operations of clients. Each result is durable when the method returns; cancellation
    does not undo what was recorded.
    """

    def __init__(self, context: Context, record: ConversationRecord, journal_log: Log) -> None:
        self.context = context
        self.record = record
        self.log = journal_log
        self.recorder = Recorder(journal_log, record)
        self.kind = context.kinds(record)
        self._queue = TurnQueue()
        self._unconfirmed = Unconfirmed()
        self._live: Runner | None = None
        self._goal = GoalLoop(self.recorder, self, context.nursery)
        self.starting_children = 0
        """The number of children that are being started for the agent."""

    @property
    def id(self) -> str:
        """The conversation's id, in dashed form."""
        return self.record.id

    @property
    def vocabulary(self) -> Vocabulary:
        """The event vocabulary: which clients its events are written for."""
        return self.record.start.vocabulary

    @property
    def _runner(self) -> Runner:
        """Its live part, made on first use: most loaded conversations are only read."""
        if self._live is None:
            self._live = Runner(self.context, self.recorder, self._queue, self.kind, owner=self)
        return self._live

    @property
    def active(self) -> bool:
        """Whether a turn is running, an agent is alive, or SessionEnd hooks are due: such a conversation
        stays loaded."""
        live = self._live is not None and (self._live.agent.live or self._live.session_open)
        return self.busy or self._goal.running or live

    @property
    def agent(self) -> AgentLifecycle:
        """The lifecycle of its agent, over all incarnations."""
        return self._runner.agent

    @property
    def agent_phase(self) -> AgentPhase:
        """The phase of its agent; does not create the live part."""
        return AgentPhase.NONE if self._live is None else self._live.agent.phase

    @property
    def busy(self) -> bool:
        """Whether a turn is running or about to begin."""
        return self._queue.busy

    @property
    def waiting(self) -> bool:
        """Whether a permission request waits for a person."""
        return self._live is not None and self._live.waiting

    @property
    def cancelling(self) -> bool:
        """Whether a cancelled turn has not ended yet."""
        return self._live is not None and self._live.cancelling

    @property
    def queued(self) -> list[Message]:
        """The messages that wait, in order."""
        return [item.message for item in self._queue.waiting]

    @property
    def closed(self) -> bool:
        """Whether it was closed and all its tasks have ended."""
        return self._live is not None and self._live.closed

    def accept(self) -> None:
        """Check that a change is allowed now. Raises ConversationClosing, JournalUnavailable."""
        self._refuse_closing()
        self.log.accept()

    def _refuse_closing(self) -> None:
        """Raise ConversationClosing if so. Call it again after each wait before a change."""
        if self._live is not None and self._live.closing:
            raise ConversationClosing

    # -- reading --------------------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """The present conversation resource, with nulls. It may not be durable yet."""
        return conversation_info(self.record, self.context.launcher.data, hooks=self.context.hooks)

    def full_state(self) -> bytes:
        """The state snapshot as an event that is not journalled; see `info`."""
        return full_state(self.record, self.context.launcher.data, hooks=self.context.hooks)

    async def durable_info(self) -> dict[str, Any]:
        """The conversation resource as it is on disk. Raises JournalError."""
        return await self._durable_view(partial(conversation_info, hooks=self.context.hooks))

    async def durable_state(self) -> bytes:
        """The state snapshot as it is on disk. Raises JournalError."""
        return await self._durable_view(partial(full_state, hooks=self.context.hooks))

    async def _durable_view(self, show: Callable[[ConversationRecord, Path], T]) -> T:
        """Return the present state once it is durable (milliseconds), or else the last durable one."""
        if self.recorder.unsaved and self.log.trouble is None:
            self.recorder.save(quiet=True)  # a read is not a change
        data = self.context.launcher.data
        shown = show(self.record, data)
        if self.log.settled and not self.recorder.unsaved:
            await trio.lowlevel.checkpoint()
            return shown
        with trio.move_on_after(self.context.deadlines.shown):
            if await self.log.flushed_unless_troubled():
                return shown
        (stored,) = await self.context.journal.get_records([self.id])
        if stored is None:
            raise UnknownConversation(f"Conversation not found: {self.id}")
        return show(ConversationRecord.load(stored.record), data)

    def not_taken(self, message: Message) -> list[tuple[int, str]]:
        """The parts of a message that the agent does not accept: (index, missing prompt capability). Empty
        before the agent's first start."""
        takes = self.record.reported.agent_state.get(prompt.TAKES)
        return [] if takes is None else prompt.not_taken(message, takes)

    # -- messages and runs ----------------------------------------------------------------------------

    async def send(self, message: Message, *, run: bool, sender: str | None = None) -> str:
        """Queue a user's message, and return the id of its event.

        `run`: also process the queue. Messages are prompted one after another in order of arrival, each once.
        A message repeated after an unconfirmed send counts as the queued one.

        Raises QueueFull, AtCapacity, NotPossible if its blocks exceed the conversation's limit of
        attachments, and JournalUnavailable: at once, and then the message was not accepted; or after
        `Deadlines.durable`, and then it is queued.
        """
        self._refuse_closing()
        await self._goal.stop()  # any other message replaces the goal
        return await self._send(message, run=run, sender=sender)

    async def begin(self, message: Message) -> None:
        """Send the first message of a new conversation. The caller has checked admission; if another start
        took the slot meanwhile, the message waits, since the conversation already exists.

        Raises JournalUnavailable.
        """
        await self._send(message, run=True, admitted=True)

    async def _send(
        self, message: Message, *, run: bool, sender: str | None = None, admitted: bool = False
    ) -> str:
        self._refuse_closing()
        run = run and not self._keeps_waiting  # it runs after the pending answer
        queued = self._unconfirmed.find(message, sender)
        if queued is not None:
            await self._confirm(queued, message, sender)
            if run and queued in self._queue.waiting:
                self._run()
            return queued.event_id
        self.accept()
        event_id = new_event_id()
        sent = message
        message, attachments = prompt.set_aside(sent, event_id)
        self._check_attachments(attachments)
        size = message_size(message)
        if self._queue.waiting and (
            len(self._queue.waiting) >= QUEUED_MAX
            or sum(item.size for item in self._queue.waiting) + size > QUEUED_BYTES
        ):
            raise QueueFull(len(self._queue.waiting))
        ours = prompt.is_command(message, prompt.MCP_COMMAND)
        if run and not ours and not admitted:
            self._runner.check_room()
        record = self.record
        events: list[Event | Recorded] = []
        if record.now.execution_status in {ExecutionStatus.FINISHED, ExecutionStatus.STUCK}:
            record.now.execution_status = ExecutionStatus.IDLE
            events.append(self.recorder.state("execution_status", ExecutionStatus.IDLE))
        event = MessageEvent(id=event_id, source="user", llm_message=message, sender=sender)
        record.last_user_message_id = event.id
        if record.title is None and record.autotitle and not ours:
            record.title = title_of(message)
        events += [Recorded(event, attachments), self.recorder.state("last_user_message_id", event.id)]
        behind = 1
        if run and self._queue.turn is None and record.now.execution_status is not ExecutionStatus.RUNNING:
            # As in `Runner.want`, but in the same transaction as the message.
            record.now.execution_status = ExecutionStatus.RUNNING
            events.append(self.recorder.state("execution_status", ExecutionStatus.RUNNING))
            behind = 2
        last = self.recorder.write(events)
        if self._live is not None:
            self._live.charge(sum(len(each.body) for each in attachments))
        queued = Queued(last - behind, event.id, message)
        self._queue.put(queued)
        if run:
            self._run()
        await self._confirm(queued, sent, sender)
        return event.id

    async def _confirm(self, queued: Queued, message: Message, sender: str | None) -> None:
        try:
            await self._durable()
        except (JournalUnavailable, trio.Cancelled):
            # The sender gets no confirmation, and may send it again.
            self._unconfirmed.add(queued, message, sender)
            raise
        self._unconfirmed.remove(queued)

    async def _durable(self) -> None:
        """Wait until everything recorded is on disk, for at most `Deadlines.durable`.

        Raises JournalUnavailable after that; the writes stay queued.
        """
        with trio.move_on_after(self.context.deadlines.durable) as limit:
            await self.log.flushed()
        if limit.cancelled_caught:
            trouble = self.log.trouble
            reason = "the disk does not answer" if trouble is None else trouble.reason
            raise JournalUnavailable(
                f"The message is queued, but it is not on the disk yet: {reason}. "
                "Ostler stores it as soon as it can. Do not send it again."
            )

    def _check_attachments(self, attachments: Sequence[Attachment]) -> None:
        most, size = self.context.allowance.conversation_bytes, sum(len(each.body) for each in attachments)
        if size and self.record.blob_bytes + size > most:
            raise NotPossible(
                f"The conversation holds {self.record.blob_bytes} bytes of attachments; {size} more are over "
                f"its limit of {most}. Send a link, or begin another conversation."
            )

    def _run(self) -> None:
        if self.busy and self.record.now.execution_status is ExecutionStatus.PAUSED:
            # Undo the pause of a turn that is still running.
            self.record.now.execution_status = ExecutionStatus.RUNNING
            self.recorder.write([self.recorder.state("execution_status", ExecutionStatus.RUNNING)])
        self._runner.want()

    async def run(self) -> None:
        """Process the queue. If a permission request waits, accept it.

        With an empty queue, a turn that did not end well is continued: with the same message if it had no
        effect, else with a request to continue. A turn that is being interrupted must end first.

        Raises AlreadyRunning.
        """
        self.accept()
        if self.kind.ends_first(self._queue):
            await self._ended()
            self.accept()
        if self.waiting:
            self._answer(accept=True, reason="")
        elif self.busy and self.record.now.execution_status is not ExecutionStatus.PAUSED:
            raise AlreadyRunning("Conversation already running. Wait for completion or pause first.")
        elif await self.kind.take_up_again(self.recorder, self._queue):
            self._refuse_closing()
            self._runner.check_room()
            self.kind.go_on(self._queue)
            self._run()
        else:
            self._runner.reports.publish()  # even if nothing runs, clients wait for a state
        await self._durable()

    async def _ended(self) -> None:
        """Wait for the end of an interrupted turn, since a run during it would have no effect. Raises
        AlreadyRunning after `Deadlines.end`."""
        with trio.move_on_after(self.context.deadlines.end) as limit:
            await self._queue.ended()
        if limit.cancelled_caught:
            raise AlreadyRunning("The interrupted turn has not ended yet. Try again later.")

    async def pause(self) -> None:
        """Stop after the current turn: the status becomes `paused` at once, and the agent finishes the
        turn. A goal that is between two turns ends. Raises ConversationClosing."""
        self._refuse_closing()
        if not self.busy:
            await self._goal.stop()
        if self.record.now.execution_status in {ExecutionStatus.IDLE, ExecutionStatus.RUNNING}:
            self._runner.hold()
            self.record.now.execution_status = ExecutionStatus.PAUSED
            self.recorder.write(
                [
                    PauseEvent(id=new_event_id()),
                    self.recorder.state("execution_status", ExecutionStatus.PAUSED),
                ]
            )
            self._runner.reports.publish()
            self._runner.pause_agent()
        elif self.waiting:
            self._runner.hold()  # a permission request still waits; no turn follows this one
        # Returns even while its event cannot be stored: the event stays queued.
        await self.log.flushed_unless_troubled()

    async def interrupt(self) -> None:
        """Cancel the current turn. Returns when it has ended, at the latest after two seconds.

        Raises ConversationClosing.
        """
        self._refuse_closing()
        if self.busy:
            await self._runner.interrupt()
        elif not self._runner.keeps:
            self._runner.cancel_hooks()
            await self.pause()
        if self._runner.keeps and not self.busy:
            self._runner.give_up()
            await self.log.flushed_unless_troubled()

    async def respond(
        self, accept: bool, reason: str, request_id: str | None = None, option_id: str | None = None
    ) -> None:
        """Answer the waiting permission request with this id, or all of them, by yes or no, or by one of its
        options. A no without an id is accepted even if no request waits.

        Raises NotPossible if no request with this id waits, or if there is nothing to accept; NotAccepted if
        the request has no such option; AtCapacity.
        """
        self.accept()
        self._answer(accept, reason, request_id, option_id)
        await self._durable()

    @property
    def _keeps_waiting(self) -> bool:
        """Whether permission requests wait whose agent is gone; its next process will repeat them."""
        return self.waiting and not self.busy

    def _answer(
        self, accept: bool, reason: str, request_id: str | None = None, option_id: str | None = None
    ) -> None:
        keeps = self._keeps_waiting
        if keeps:
            self._runner.check_room()
        if not self._runner.decide(accept, reason, request_id, option_id) and accept:
            raise NotPossible("Nothing waits for confirmation. Send a message, or run the conversation.")
        if keeps and not self.waiting:
            self._queue.waiting.appendleft(inbox.going_on(self.record))
            self._run()

    async def ask(self, text: str) -> None:
        """Send a text, and wait until the queue is empty, or the run has ended otherwise.

        `record.now.execution_status` is then the outcome. A waiting permission request does not end the wait.

        Raises as `send`.

        Cancellation interrupts nothing; the sent text stays queued.
        """
        await self.send(Message(role="user", content=(TextContent(text=text),)), run=True)
        await self._queue.idle()
        await self.log.flushed_unless_troubled()

    async def final_response(self) -> str:
        """The text of the newest final answer; empty if there is none. Raises JournalError."""
        return await final_response(self.log, self.branch if self.record.moves else None)

    # -- branches, and side questions ------------------------------------------------------------------

    @property
    def branch(self) -> Branch:
        """The active branch: the path of events that the next one extends."""
        return active(self.record.moves, self.log.last_seq)

    async def event(self, event_id: str) -> Stored:
        """One event. Raises UnknownEvent."""
        await self.log.flushed_unless_troubled()
        stored = await self.log.get(event_id)
        if stored is None:
            raise UnknownEvent(f"Event not found: {cut(event_id, NAME_CHARS)}")
        return stored

    async def navigate(self, event_id: str | None) -> None:
        """Make this event the parent of the next one; None: the beginning.

        Nothing is removed from the log. The agent's next session is new, and gets a transcript of the branch,
        unless the agent can move, too. If the event is a user's message, it is queued again; waiting messages
        off the branch leave the queue.

        Raises UnknownEvent, AlreadyRunning, NotPossible, JournalUnavailable.
        """
        self.accept()
        target = None if event_id is None else await self.event(event_id)
        self._refuse_while_busy()
        if event_id is not None and event_id == self.record.leaf_event_id:
            return
        if len(self.record.moves) >= MOVES_MAX:
            raise NotPossible(f"The conversation was moved {MOVES_MAX} times. Fork it to go on from there.")
        remembers = await self.kind.navigate(self._runner, event_id, self._refuse_while_busy)
        self._refuse_while_busy()
        if not remembers and (self.agent.live or self.agent.restarting):
            await self._runner.stop_agent()
            self._refuse_while_busy()  # a client may have sent a message meanwhile
        self.record.moves = moved(self.record.moves, self.log.last_seq, -1 if target is None else target.seq)
        self.record.leaf_event_id = event_id
        self._go_on_from(target, remembers=remembers)
        self.recorder.save()
        self._runner.reports.publish()
        await self._durable()

    def _go_on_from(self, target: Stored | None, *, remembers: bool = False) -> None:
        """Adjust the record and the queue to a branch that ends with this event. `remembers`: the agent has
        moved to it."""
        record = self.record
        record.now.unfinished = False
        record.now.retry_seq = None
        if not remembers:
            record.now.session_used = False
            record.now.memory_lost, record.now.loss_told = (None if target is None else MOVED), False
            record.reported.agent_state["memory"] = Memory.NEW if target is None else Memory.LOST
        self._queue.waiting.clear()
        if target is None:
            record.now.prompted_seq = max(record.now.prompted_seq, self.log.last_seq)
        elif inbox.is_asked(target):
            record.now.prompted_seq = target.seq - 1
            self._queue.waiting.append(inbox.queued(target))
        else:
            record.now.prompted_seq = max(record.now.prompted_seq, target.seq)

    def _refuse_while_busy(self) -> None:
        self._refuse_closing()
        if self.busy or self.waiting or self._goal.running:
            raise AlreadyRunning("The conversation is running. Interrupt it, or wait for its end.")

    async def fork_agent(self, conversation_id: str, leaf: str | None, *, asks: bool) -> str | None:
        """Fork the agent's session (`AgentKind.fork`); return its id, if any."""
        return await self.kind.fork(self._runner, conversation_id, leaf, asks=asks)

    async def ask_agent(self, question: str) -> str:
        """Ask the agent a side question, which causes no event, status or usage.

        Possible during a turn. Starts the agent if necessary.

        Raises AgentFailure, AgentTimeout, TooManyQuestions, AtCapacity, JournalError.

        Cancellation cancels the agent's work on it.
        """
        self._refuse_closing()
        self._runner.check_room()
        return await self._runner.side_question(question)

    async def switch_model(self, model: str) -> None:
        """Choose the agent's model: at once if it runs, else at its next start.

        Raises NotAccepted, AgentTimeout, AgentFailure, JournalUnavailable.
        """
        self.accept()
        await self.agent.switch_model(model)
        record = self.record
        self.recorder.write(
            [
                self.recorder.state("agent", agent_object(record)),
                self.recorder.state("agent_state", dict(record.reported.agent_state)),
            ]
        )
        await self._durable()

    async def choose_mode(self, mode: str) -> None:
        """Put the agent into a mode, in this session and in later ones. Starts the agent if necessary.

        Raises NotAccepted, AgentTimeout, AgentFailure, AtCapacity, JournalUnavailable.
        """
        await self._choose(None, mode)

    async def choose_option(self, option_id: str, value: str | bool) -> None:
        """Set a configuration option of the agent, in this session and in later ones; the rest as
        `choose_mode`."""
        await self._choose(option_id, value)

    async def _choose(self, option_id: str | None, value: str | bool) -> None:
        record = self.record
        self.kind.check_choice()
        self.accept()
        self._runner.check_room()
        await self._runner.choose(option_id, value)
        changed = [
            self.recorder.state("agent", agent_object(record)),
            self.recorder.state("agent_state", dict(record.reported.agent_state)),
        ]
        if CONFIRMATION in record.reported.agent_state:
            changed.append(self.recorder.state("confirmation", record.reported.agent_state[CONFIRMATION]))
        self.recorder.write(changed)
        await self._durable()

    async def condense(self) -> None:
        """Have the history summarized now. Starts the agent if necessary.

        Raises NotPossible if the agent cannot; AgentFailure, AgentTimeout, AtCapacity.
        """
        self._refuse_closing()
        await self.kind.condense(self._runner)
        await self.log.flushed_unless_troubled()

    async def load_plugin(self, plugin_ref: str) -> None:
        """Load a plugin into the agent. Raises NotAccepted, AgentFailure, AgentTimeout, AtCapacity."""
        self._refuse_closing()
        await self.kind.load_plugin(self._runner, plugin_ref)
        await self.log.flushed_unless_troubled()

    async def switch_llm(self, llm: Mapping[str, Any]) -> None:
        """Give the agent another language model, with its key: at once if it runs, else at its next start.

        Raises NotAccepted if the agent manages its models itself, or refuses this one; AgentFailure,
        JournalUnavailable.
        """
        self._refuse_closing()
        note = await self.kind.with_model(self.context.secret_box, llm)
        await self.agent.conceal(secrets_within(llm))
        self.accept()
        await self.agent.configure({"llm": dict(llm)}, note)
        self.recorder.write([self.recorder.state("agent", agent_object(self.record))])
        await self._durable()

    # -- goals ------------------------------------------------------------------------------------------

    async def start_goal(self, objective: str, max_iterations: int) -> None:
        """Prompt the agent with an objective until it is reached, at most `max_iterations` times.

        Raises AlreadyRunning, AtCapacity, JournalUnavailable.
        """
        self.accept()
        self._refuse_while_busy()
        self._runner.check_room()
        self._goal.start(objective, max_iterations)
        await self._durable()

    async def resume_goal(self) -> None:
        """Resume the interrupted goal. Raises NotAccepted if there is none; else as `start_goal`."""
        self.accept()
        self._refuse_while_busy()
        self._runner.check_room()
        self._goal.resume()
        await self._durable()

    async def stop_goal(self) -> None:
        """End the goal's loop; the current turn continues. It is not an error if there is no goal.

        Raises ConversationClosing.
        """
        self._refuse_closing()
        await self._goal.stop()
        await self.log.flushed_unless_troubled()

    async def prompt_for_goal(self, message: Message) -> None:
        """Send a message of the goal, and wait for the end of the run. Raises as `send`."""
        await self._send(message, run=True)
        await self._queue.idle()
        await self.log.flushed_unless_troubled()

    # -- settings of the conversation -----------------------------------------------------------------

    async def set_title(self, title: str) -> None:
        """Set the title. No automatic title replaces it."""
        self.accept()
        self.record.title = title
        self.record.autotitle = False
        self.recorder.save()
        await self._durable()

    async def set_tags(self, tags: dict[str, str]) -> None:
        """Replace the tags."""
        self.accept()
        self.record.tags = tags
        self.recorder.write([self.recorder.state("tags", tags)])
        await self._durable()

    async def add_child(self, conversation_id: str, *, by_agent: bool = False) -> None:
        """Record a child conversation, started by the agent or by a client."""
        self.record.children.append(conversation_id)
        if by_agent:
            self.record.started.append(conversation_id)
        self.recorder.save()
        await self.log.flushed_unless_troubled()

    async def set_confirmation_policy(self, policy: dict[str, Any]) -> None:
        """Replace the confirmation policy; it applies from the next permission request on."""
        self.accept()

        def note() -> None:
            self.record.confirmation_policy = policy

        await self.agent.configure({"confirmation_policy": policy}, note)
        self._runner.policy_changed()
        self.recorder.write([self.recorder.state("confirmation_policy", policy)])
        await self._durable()

    async def set_security_analyzer(self, analyzer: dict[str, Any] | None) -> None:
        """Replace the analyzer. The built-in agent runs it; for external ones it is kept for clients to read
        (see `recording/tool_calls/asked.py`). Raises NotAccepted, AgentFailure, JournalUnavailable."""
        analyzer, sealed = await self.context.secret_box.seal_part(analyzer)
        await self.agent.conceal(secrets_within(analyzer))
        self.accept()

        def note() -> None:
            self.record.keep_part(ANALYZER, analyzer, sealed)

        await self.agent.configure({"security_analyzer": analyzer}, note)
        self.recorder.write([self.recorder.state(ANALYZER, self.record.shown_part(ANALYZER))])
        await self._durable()

    async def set_secrets(self, secrets: Mapping[str, str | LookupSecret]) -> None:
        """Add secrets by name. They apply from the agent's next start, since a live agent's environment is
        fixed. Secrets that the conversation's profile does not allow are dropped."""
        self.accept()
        values, lookups = split_secrets(self.record.allowed(secrets))
        sealed = await self.context.secret_box.seal(values)
        places = await self.context.secret_box.seal_lookups(lookups)
        # Without a checkpoint, so that each name has only its latest value or lookup.
        for name in (*sealed, *places):
            self.record.secrets.pop(name, None)
            self.record.lookups.pop(name, None)
        self.record.secrets.update(sealed)
        self.record.lookups.update(places)
        self.recorder.save()
        await self._durable()

    # -- lifecycle --------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Correct the state after a start of the server, and resume the queue of a run that was cut off.

        A turn that was running when an earlier server died is reported, and its open tool calls are closed as
        interrupted. It is not prompted again (at-most-once). The messages after it are prompted. While this
        cannot be stored, it stays queued and no agent starts.

        Raises JournalUnavailable if the journal is unreadable now; then nothing was done.
        """
        record = self.record
        await recovery.find_leaf(self.recorder)
        self._queue.waiting.extend(await inbox.waiting(self.log, record, self.branch))
        going_on = record.now.execution_status in LIVE_STATUSES
        in_hooks = bool(record.hooks_running)
        if in_hooks:
            self.recorder.write(hooks.cut_off(self.recorder))
        self._goal.recover()
        if going_on and await self._wait_on():
            return
        unanswered = permission_log.cut_off(record)
        if unanswered:
            self.recorder.write(unanswered)
        if record.now.turn_open or (going_on and not self._queue.waiting):
            only_hooks = in_hooks and not record.now.turn_open
            detail = recovery.IN_HOOKS if only_hooks else recovery.IN_TURN
            asked = {str(each.value["tool_call_id"]) for each in unanswered}
            # An allowed call may have run while it was asked about again.
            asked -= permission_log.allowed_calls(record)
            await recovery.report_cut_off(self.recorder, detail, asked)
        elif record.now.turn is not None:
            self.recorder.write(turn_states.cut_off(record))
        if going_on and self._queue.waiting:
            self._runner.want()
        with trio.move_on_after(self.context.deadlines.durable):
            await self.log.flushed_unless_troubled()

    async def _wait_on(self) -> bool:
        """Keep waiting for the answer to actions that are in the agent's memory, or resume with an answer
        that an earlier server received. Returns whether either applies. Raises JournalUnavailable."""
        record = self.record
        if not record.now.asked or record.now.memory_lost is not None:
            return False
        found = [await self.log.get(event_id) for event_id in record.now.asked]
        stored = [each for each in found if each is not None]
        actions = [decode_event(orjson.loads(each.body)) for each in stored]
        known = [each for each in actions if isinstance(each, ActionEvent)]
        if len(known) < len(record.now.asked) or await recovery.ended_one(self.log, stored):
            return False
        if not self._runner.keep(known):
            return False
        record.reported.agent_state["phase"] = AgentPhase.STOPPED
        self.recorder.save(quiet=True)
        if not self.waiting:
            self._queue.waiting.appendleft(inbox.going_on(record))
            self._runner.want()
        return True

    async def restart_agent(self, *, force: bool = False) -> None:
        """Restart the agent with its session. Raises AgentFailure, JournalUnavailable."""
        self.accept()
        await self._runner.restart_agent(force=force)

    async def stop_agent(self, *, force: bool = False) -> None:
        """Stop the agent; the next message starts it again. `force`: do not wait for its turn. Raises
        ConversationClosing."""
        self._refuse_closing()
        await self._runner.stop_agent(force=force)

    @property
    def outlasting(self) -> bool:
        """Whether it only waits for a person, and will keep waiting after the server stops."""
        return self._live is not None and self._live.outlasting

    async def close(self, *, leaving: bool = False) -> None:
        """Accept no more changes, and stop the agent. A running turn is interrupted first, so that its output
        is kept. `leaving`: the server stops; permission requests that can survive this stay open.

        Raises JournalError, after the agent has ended. Raises AgentTimeout if some of its processes or tasks
        have not ended (`Runner.stop`); call it again to wait for them.

        Cancellation skips the steps before the end of the agent. Do not use the object afterwards.
        """
        self._runner.close()
        try:
            await self._goal.stop()
            if leaving and self.outlasting:
                self._runner.leave()
            elif self.busy:
                await self._runner.interrupt()
            await self._runner.end_session()
        finally:
            await self._runner.stop()
            self.context.sessions.discard(self)
