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
from supervisor.conversations.history.title import title_of
from supervisor.conversations.hooks import hooks
from supervisor.conversations.recording import permission_log
from supervisor.conversations.recording.bounds.attachments import Attachment
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.recording.tool_calls.events import Recorded
from supervisor.conversations.resource import turn_states
from supervisor.conversations.resource.final_response import final_response
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
from supervisor.credentials import LookupSecret
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
from supervisor.settings import secrets_within

log = structlog.get_logger(__name__)

T = TypeVar("T")

QUEUED_MAX: Final = 1_000
"""The most messages that may wait in one conversation; each is a turn of its own."""

QUEUED_BYTES: Final = 64 * 1024 * 1024
"""The most bytes that the waiting messages of one conversation may have together: two of the largest."""

MOVED: Final = "the conversation was moved to another event"
"""Why the agent does not remember a branch that a client moved to."""


class Conversation:
    """A loaded conversation. The supervisor hands out one object per id.

    Its methods are all operations that clients have. Each result is durable when the method returns;
    cancellation does not take back what was recorded.
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
        """Children that the agent has asked for, and that are not there yet."""

    @property
    def id(self) -> str:
        """The conversation's id, in dashed form."""
        return self.record.id

    @property
    def vocabulary(self) -> Vocabulary:
        """The event vocabulary: which clients its events are written for."""
        return self.record.vocabulary

    @property
    def _runner(self) -> Runner:
        """Its live part, made when something is first asked of it: most loaded conversations rest, and are
        only read."""
        if self._live is None:
            self._live = Runner(self.context, self.recorder, self._queue, self.kind, owner=self)
        return self._live

    @property
    def active(self) -> bool:
        """Whether a turn is running, an agent is alive, or hooks wait for the end: such a conversation stays
        loaded."""
        live = self._live is not None and (self._live.agent.live or self._live.session_open)
        return self.busy or self._goal.running or live

    @property
    def agent(self) -> AgentLifecycle:
        """The lifecycle of its agent, over all incarnations."""
        return self._runner.agent

    @property
    def agent_phase(self) -> AgentPhase:
        """Where its agent is; cheap where it has none."""
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
        """Whether nothing of it runs any more, for good."""
        return self._live is not None and self._live.closed

    def accept(self) -> None:
        """The entrance of all that changes it. Raises ConversationClosing, JournalUnavailable."""
        self._refuse_closing()
        self.log.accept()

    def _refuse_closing(self) -> None:
        """Asked again after each wait that comes before a change."""
        if self._live is not None and self._live.closing:
            raise ConversationClosing

    # -- reading --------------------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """The present conversation resource, with nulls; a crash could take some of it back."""
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
            self.recorder.save(quiet=True)  # to read is no change
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
        """The parts of a message that its agent is known not to take: the index of each, and the prompt
        capability that the agent lacks. Before it has started, none are known."""
        takes = self.record.agent_state.get(prompt.TAKES)
        return [] if takes is None else prompt.not_taken(message, takes)

    # -- messages and runs ----------------------------------------------------------------------------

    async def send(self, message: Message, *, run: bool, sender: str | None = None) -> str:
        """Queue a user's message, and return the id of its event.

        `run`: also take up the queue. Messages are prompted one after another in order of arrival, each once.
        A repeated message counts as the queued one.

        Raises QueueFull when too many messages wait, AtCapacity, and JournalUnavailable: at once, and then
        the message was not taken; or after `Deadlines.durable`, and then it is queued. NotPossible when its
        blocks are over the conversation's limit of attachments.
        """
        self._refuse_closing()
        await self._goal.stop()  # whoever says something else takes over
        return await self._send(message, run=run, sender=sender)

    async def begin(self, message: Message) -> None:
        """Send the first message of a new conversation. Its creator has made sure that there is room for the
        agent: if somebody was quicker it waits, since the conversation is there already.

        Raises JournalUnavailable.
        """
        await self._send(message, run=True, admitted=True)

    async def _send(
        self, message: Message, *, run: bool, sender: str | None = None, admitted: bool = False
    ) -> str:
        self._refuse_closing()
        run = run and not self._keeps_waiting  # as one beside an agent that asks: after the answer
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
        if record.execution_status in {ExecutionStatus.FINISHED, ExecutionStatus.STUCK}:
            record.execution_status = ExecutionStatus.IDLE
            events.append(self.recorder.state("execution_status", ExecutionStatus.IDLE))
        event = MessageEvent(id=event_id, source="user", llm_message=message, sender=sender)
        record.last_user_message_id = event.id
        if record.title is None and record.autotitle and not ours:
            record.title = title_of(message)
        events += [Recorded(event, attachments), self.recorder.state("last_user_message_id", event.id)]
        behind = 1
        if run and self._queue.turn is None and record.execution_status is not ExecutionStatus.RUNNING:
            # As `Runner.want` does: with the message, so that both are one transaction.
            record.execution_status = ExecutionStatus.RUNNING
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
            # Its sender does not know what has become of it, and may well send it again.
            self._unconfirmed.add(queued, message, sender)
            raise
        self._unconfirmed.remove(queued)

    async def _durable(self) -> None:
        """Wait until everything recorded is on disk, for a bounded time.

        Raises JournalUnavailable if it is not by then; it stays queued.
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
        if self.busy and self.record.execution_status is ExecutionStatus.PAUSED:
            # The turn that a pause let finish is simply running again.
            self.record.execution_status = ExecutionStatus.RUNNING
            self.recorder.write([self.recorder.state("execution_status", ExecutionStatus.RUNNING)])
        self._runner.want()

    async def run(self) -> None:
        """Take up the queue. If a permission request waits, accept it.

        With an empty queue, a turn that did not end well is continued: by the same message if nothing of it
        happened, else by a request to continue. One that is being interrupted ends first.

        Raises AlreadyRunning.
        """
        self.accept()
        if self.kind.ends_first(self._queue):
            await self._ended()
            self.accept()
        if self.waiting:
            self._answer(accept=True, reason="")
        elif self.busy and self.record.execution_status is not ExecutionStatus.PAUSED:
            raise AlreadyRunning("Conversation already running. Wait for completion or pause first.")
        elif await self.kind.take_up_again(self.recorder, self._queue):
            self._refuse_closing()
            self._runner.check_room()
            self.kind.go_on(self._queue)
            self._run()
        else:
            self._runner.reports.publish()  # nothing to do is an answer, too: clients wait for a state
        await self._durable()

    async def _ended(self) -> None:
        """Wait for the end of what is being interrupted: to run on it would have no effect. Raises
        AlreadyRunning where that takes too long."""
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
            self._runner.pause_agent()
        elif self.waiting:
            self._runner.hold()  # a person is still asked; nothing follows this turn
        # Control returns also while its event cannot be stored: that stays queued.
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
        """Answer the waiting permission request of this id, or all of them, by yes or no, or by one of the
        options that it offers. A no is not an error where none waits and none is named: nothing runs.

        Raises NotPossible if no request of this id waits, or if there is nothing to accept, NotAccepted if it
        has no such option, AtCapacity.
        """
        self.accept()
        self._answer(accept, reason, request_id, option_id)
        await self._durable()

    @property
    def _keeps_waiting(self) -> bool:
        """Whether a person is asked about actions whose agent is gone: the next one asks again."""
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

        `record.execution_status` then tells how. A permission request that waits for a person does not end
        the wait.

        Raises as `send`.

        Cancellation interrupts nothing; the sent text stays queued.
        """
        await self.send(Message(role="user", content=(TextContent(text=text),)), run=True)
        await self._queue.idle()
        await self.log.flushed_unless_troubled()

    async def final_response(self) -> str:
        """The text of the newest final answer; empty if there is none. Raises JournalError."""
        return await final_response(self.log, self.branch if self.record.moves else None)

    # -- branches, and what is asked beside the conversation -------------------------------------------

    @property
    def branch(self) -> Branch:
        """The active branch: the events that the next one follows."""
        return active(self.record.moves, self.log.last_seq)

    async def event(self, event_id: str) -> Stored:
        """One event. Raises UnknownEvent."""
        await self.log.flushed_unless_troubled()
        stored = await self.log.get(event_id)
        if stored is None:
            raise UnknownEvent(f"Event not found: {cut(event_id, NAME_CHARS)}")
        return stored

    async def navigate(self, event_id: str | None) -> None:
        """Make this event the one that the next one follows; None: the beginning.

        Nothing is removed from the log. The agent's next session is new, and gets a transcript of the branch.
        A user's message that is moved to waits to be taken up again; messages off the branch wait no longer.

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
            self._refuse_while_busy()  # somebody may have sent a message meanwhile
        self.record.moves = moved(self.record.moves, self.log.last_seq, -1 if target is None else target.seq)
        self.record.leaf_event_id = event_id
        self._go_on_from(target, remembers=remembers)
        self.recorder.save()
        self._runner.reports.publish()
        await self._durable()

    def _go_on_from(self, target: Stored | None, *, remembers: bool = False) -> None:
        """Fit the record and the queue to a branch that ends with this event. `remembers`: the agent has
        moved to it."""
        record = self.record
        record.unfinished = False
        record.retry_seq = None
        if not remembers:
            record.session_used = False
            record.memory_lost, record.loss_told = (None if target is None else MOVED), False
            record.agent_state["memory"] = Memory.NEW if target is None else Memory.LOST
        self._queue.waiting.clear()
        if target is None:
            record.prompted_seq = max(record.prompted_seq, self.log.last_seq)
        elif inbox.is_asked(target):
            record.prompted_seq = target.seq - 1
            self._queue.waiting.append(inbox.queued(target))
        else:
            record.prompted_seq = max(record.prompted_seq, target.seq)

    def _refuse_while_busy(self) -> None:
        self._refuse_closing()
        if self.busy or self.waiting or self._goal.running:
            raise AlreadyRunning("The conversation is running. Interrupt it, or wait for its end.")

    async def fork_agent(self, conversation_id: str, leaf: str | None, *, asks: bool) -> str | None:
        """The session of a fork's agent (`AgentKind.fork`)."""
        return await self.kind.fork(self._runner, conversation_id, leaf, asks=asks)

    async def ask_agent(self, question: str) -> str:
        """Ask the agent something beside the conversation: no event, no status, no usage comes of it.

        Also in a turn. An agent that does not run is started.

        Raises AgentFailure, AgentTimeout, TooManyQuestions, AtCapacity, JournalError.

        Cancellation cancels what the agent does for it.
        """
        self._refuse_closing()
        self._runner.check_room()
        return await self._runner.side_question(question)

    async def switch_model(self, model: str) -> None:
        """Choose the agent's model: at once where it lives, else for its next start.

        Raises NotAccepted, AgentTimeout, AgentFailure, JournalUnavailable.
        """
        self.accept()
        await self.agent.switch_model(model)
        record = self.record
        self.recorder.write(
            [
                self.recorder.state("agent", agent_object(record)),
                self.recorder.state("agent_state", dict(record.agent_state)),
            ]
        )
        await self._durable()

    async def choose_mode(self, mode: str) -> None:
        """Put the agent into a mode, in this session and in later ones. An agent that does not run is
        started.

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
            self.recorder.state("agent_state", dict(record.agent_state)),
        ]
        if CONFIRMATION in record.agent_state:
            changed.append(self.recorder.state("confirmation", record.agent_state[CONFIRMATION]))
        self.recorder.write(changed)
        await self._durable()

    async def condense(self) -> None:
        """Have the history summarized now. Starts the agent if necessary.

        Raises NotPossible where it cannot; AgentFailure, AgentTimeout, AtCapacity.
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
        """Give the agent another language model, with its key: at once where it runs, else with its start.

        Raises NotAccepted where it has models of its own, or refuses this one; AgentFailure,
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
        """Prompt the agent with an objective until it is reached, `max_iterations` times at the most.

        Raises AlreadyRunning, AtCapacity, JournalUnavailable.
        """
        self.accept()
        self._refuse_while_busy()
        self._runner.check_room()
        self._goal.start(objective, max_iterations)
        await self._durable()

    async def resume_goal(self) -> None:
        """Go on with the goal that was interrupted. Raises NotAccepted if there is none; else as
        `start_goal`."""
        self.accept()
        self._refuse_while_busy()
        self._runner.check_room()
        self._goal.resume()
        await self._durable()

    async def stop_goal(self) -> None:
        """End the loop of the goal; the turn under way goes on. It is not an error if there is none.

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
        """Record a conversation that was started as a part of this one, by its agent or by a client."""
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
        (see `recording/tool_calls/risk.py`). Raises NotAccepted, AgentFailure, JournalUnavailable."""
        analyzer, sealed = await self.context.secret_box.seal_part(analyzer)
        await self.agent.conceal(secrets_within(analyzer))
        self.accept()

        def note() -> None:
            self.record.keep_part(ANALYZER, analyzer, sealed)

        await self.agent.configure({"security_analyzer": analyzer}, note)
        self.recorder.write([self.recorder.state(ANALYZER, self.record.shown_part(ANALYZER))])
        await self._durable()

    async def set_secrets(self, secrets: Mapping[str, str | LookupSecret]) -> None:
        """Add secrets by name. They apply from the agent's next start on: a live agent has its environment
        already. What the conversation's profile does not allow is dropped."""
        self.accept()
        values, lookups = split_secrets(self.record.allowed(secrets))
        sealed = await self.context.secret_box.seal(values)
        places = await self.context.secret_box.seal_lookups(lookups)
        # At once, and under each name what was said last.
        for name in (*sealed, *places):
            self.record.secrets.pop(name, None)
            self.record.lookups.pop(name, None)
        self.record.secrets.update(sealed)
        self.record.lookups.update(places)
        self.recorder.save()
        await self._durable()

    # -- its life ---------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Correct the state after a start of the server, and take up the queue of a run that was cut off.

        A turn that was running when an earlier server died is reported, and its open tool calls are closed as
        interrupted. It is not prompted again by itself. The messages behind it are prompted. While that
        cannot be stored, it stays queued and no agent starts.

        Raises JournalUnavailable if the journal is unreadable now; then nothing was done.
        """
        record = self.record
        await recovery.find_leaf(self.recorder)
        self._queue.waiting.extend(await inbox.waiting(self.log, record, self.branch))
        going_on = record.execution_status in LIVE_STATUSES
        in_hooks = bool(record.hooks_running)
        if in_hooks:
            self.recorder.write(hooks.cut_off(self.recorder))
        self._goal.recover()
        if going_on and await self._wait_on():
            return
        unanswered = permission_log.cut_off(record)
        if unanswered:
            self.recorder.write(unanswered)
        if record.turn_open or (going_on and not self._queue.waiting):
            only_hooks = in_hooks and not record.turn_open
            detail = recovery.IN_HOOKS if only_hooks else recovery.IN_TURN
            asked = {str(each.value["tool_call_id"]) for each in unanswered}
            asked -= permission_log.allowed_calls(record)  # asked about once more, while they ran
            await recovery.report_cut_off(self.recorder, detail, asked)
        elif record.turn is not None:
            self.recorder.write(turn_states.cut_off(record))
        if going_on and self._queue.waiting:
            self._runner.want()
        with trio.move_on_after(self.context.deadlines.durable):
            await self.log.flushed_unless_troubled()

    async def _wait_on(self) -> bool:
        """Whether it waits on for the answer to actions that are in the agent's memory, or goes on
        with the answer that an earlier server had. Raises JournalUnavailable."""
        record = self.record
        if not record.asked or record.memory_lost is not None:
            return False
        found = [await self.log.get(event_id) for event_id in record.asked]
        stored = [each for each in found if each is not None]
        actions = [decode_event(orjson.loads(each.body)) for each in stored]
        known = [each for each in actions if isinstance(each, ActionEvent)]
        if len(known) < len(record.asked) or await recovery.ended_one(self.log, stored):
            return False
        if not self._runner.keep(known):
            return False
        record.agent_state["phase"] = AgentPhase.STOPPED
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
        """Stop the agent; the next message starts it again. With `force`, do not wait for its turn. Raises
        ConversationClosing."""
        self._refuse_closing()
        await self._runner.stop_agent(force=force)

    @property
    def outlasting(self) -> bool:
        """Whether it waits for a person alone, and will wait on after the end of the server."""
        return self._live is not None and self._live.outlasting

    async def close(self, *, leaving: bool = False) -> None:
        """Accept nothing from here on, and stop the agent. A running turn is interrupted first, so that its
        output is kept. `leaving`: the server ends; what can wait on for a person does.

        Raises JournalError; the agent has ended then, too. Raises AgentTimeout if something of it has not
        ended (`Runner.stop`); another call waits for that again.

        Cancellation skips what comes before the end of the agent. The object is not used afterwards.
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
