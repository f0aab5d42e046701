"""One conversation: its record, its queue of messages, and the operations on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import orjson
import structlog
import trio

from supervisor.acp.schema import NAME_CHARS, cut
from supervisor.conversations.agent.context import Context
from supervisor.conversations.changes import Changes
from supervisor.conversations.core import Core
from supervisor.conversations.history import inbox, prompt, recovery
from supervisor.conversations.history.history import final_response
from supervisor.conversations.history.prompt import title_of
from supervisor.conversations.hooks import hooks
from supervisor.conversations.recording import permission_log
from supervisor.conversations.recording.bounds.attachments import Attachment
from supervisor.conversations.recording.effects import Recorded
from supervisor.conversations.state.branch import MOVES_MAX, Branch, active, moved
from supervisor.conversations.state.errors import (
    AlreadyRunning,
    NotPossible,
    QueueFull,
    UnknownEvent,
)
from supervisor.conversations.state.queue import Queued, Unconfirmed, message_size
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.state import (
    INTERRUPTED,
    Navigated,
    Paused,
    PersonAsked,
    RunBegun,
    Sent,
    TurnEnded,
    Withdrawn,
)
from supervisor.conversations.state.status import LIVE_STATUSES, AgentPhase, ExecutionStatus, Memory
from supervisor.conversations.state.turn import FileReader
from supervisor.conversations.turns.goal import GoalLoop
from supervisor.conversations.updates import UpdateReader
from supervisor.events import (
    ActionEvent,
    Message,
    MessageEvent,
    PauseEvent,
    TextContent,
    decode_event,
    new_event_id,
)
from supervisor.journal.errors import JournalUnavailable
from supervisor.journal.log import Log
from supervisor.journal.rows import Stored

log = structlog.get_logger(__name__)

QUEUED_MAX: Final = 1_000
"""The most messages that may wait in one conversation; each is a separate turn."""

QUEUED_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of all waiting messages of one conversation: two of the largest."""

MOVED_TO: Final = "server"
"""The key of the state that says which server has the conversation now."""

MOVED: Final = "the conversation was moved to another event"
"""The reason for the agent's lost memory after a client moved to another branch."""


class Conversation(Core):
    """A loaded conversation. The supervisor hands out one object per id.

    Its methods are the operations of clients. Each result is durable when the method returns; cancellation
    does not undo what was recorded.
    """

    def __init__(self, context: Context, record: ConversationRecord, journal_log: Log) -> None:
        super().__init__(context, record, journal_log)
        self.changes = Changes(self)
        self._unconfirmed = Unconfirmed()
        self._by_id = trio.Lock()
        """Held while a message of an id that its sender chose is looked for, and stored."""
        self._goal = GoalLoop(self.recorder, self, context.nursery)
        self.starting_children = 0
        """The number of children that are being started for the agent."""

    @property
    def active(self) -> bool:
        """Whether a turn is running, an agent is alive, or SessionEnd hooks are due: such a conversation
        stays loaded."""
        live = self._live is not None and (self._live.agent.live or self._live.session_open)
        return self.busy or self._goal.running or live

    # -- messages and runs ----------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        run: bool,
        sender: str | None = None,
        reads: FileReader | None = None,
        event_id: str | None = None,
    ) -> str:
        """Queue a user's message, and return the id of its event.

        `run`: also process the queue. Messages are prompted one after another in order of arrival, each once.
        A message repeated after an unconfirmed send counts as the queued one.
        `reads`: reads files for the agent during this message's turn (`state.turn.FileReader`).
        `event_id`: the id that its event is to have. Where a message has it already, nothing is stored, and
        nothing is prompted again.

        Raises QueueFull, AtCapacity, NotPossible if its blocks exceed the conversation's limit of
        attachments or another event has the id, and JournalUnavailable: at once, and then the message was not
        accepted; or after `Deadlines.durable`, and then it is queued.
        """
        self.refuse_closing()
        if event_id is None:
            await self._goal.stop()  # any other message replaces the goal
            return await self._send(message, run=run, sender=sender, reads=reads)
        async with self._by_id:
            await self.durable()  # what another request sent under this id, and did not wait for
            known = await self.log.get(event_id)
            if known is None:
                await self._goal.stop()
                return await self._send(message, run=run, sender=sender, reads=reads, event_id=event_id)
        if (known.kind, known.source) != (MessageEvent.__name__, "user"):
            raise NotPossible(f"{event_id} is the id of another event. Choose one that is new.")
        if run and any(each.event_id == event_id for each in self.queue.waiting):
            self._run()
        return event_id

    async def begin(self, message: Message) -> None:
        """Send the first message of a new conversation. The caller has checked admission; if another start
        took the slot meanwhile, the message waits, since the conversation already exists.

        Raises JournalUnavailable.
        """
        await self._send(message, run=True, admitted=True)

    async def _send(
        self,
        message: Message,
        *,
        run: bool,
        sender: str | None = None,
        admitted: bool = False,
        reads: FileReader | None = None,
        event_id: str | None = None,
    ) -> str:
        self.refuse_closing()
        run = run and not self._keeps_waiting  # it runs after the pending answer
        queued = self._unconfirmed.find(message, sender) if event_id is None else None
        if queued is not None:
            await self._confirm(queued, message, sender)
            if run and queued in self.queue.waiting:
                self._run()
            return queued.event_id
        self.accept()
        event_id = event_id or new_event_id()
        sent = message
        message, attachments = prompt.set_aside(sent, event_id)
        self._check_attachments(attachments)
        size = message_size(message)
        if self.queue.waiting and (
            len(self.queue.waiting) >= QUEUED_MAX
            or sum(item.size for item in self.queue.waiting) + size > QUEUED_BYTES
        ):
            raise QueueFull(len(self.queue.waiting))
        ours = prompt.is_command(message, prompt.MCP_COMMAND)
        if run and not ours and not admitted:
            self.runner.check_room()
        record = self.record
        event = MessageEvent(id=event_id, source="user", llm_message=message, sender=sender)
        if record.title is None and record.autotitle and not ours:
            record.title = title_of(message)
        begins = run and self.queue.turn is None
        seq = self.recorder.apply(Sent(Recorded(event, attachments), event.id, begins))
        if self._live is not None:
            self._live.charge(sum(len(each.body) for each in attachments))
        queued = Queued(seq, event.id, message, reads=reads)
        self.queue.put(queued)
        if run:
            self._run()
        await self._confirm(queued, sent, sender)
        return event.id

    async def _confirm(self, queued: Queued, message: Message, sender: str | None) -> None:
        try:
            await self.durable()
        except (JournalUnavailable, trio.Cancelled):
            # The sender gets no confirmation, and may send it again.
            self._unconfirmed.add(queued, message, sender)
            raise
        self._unconfirmed.remove(queued)

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
            self.recorder.apply(RunBegun())
        self.runner.want()

    async def run(self) -> None:
        """Process the queue. If a permission request waits, accept it.

        With an empty queue, a turn that did not end well is continued: with the same message if it had no
        effect, else with a request to continue. A turn that is being interrupted must end first.

        Raises AlreadyRunning.
        """
        self.accept()
        if self.kind.ends_first(self.queue):
            await self._ended()
            self.accept()
        if self.waiting:
            self._answer(accept=True, reason="")
        elif self.busy and self.record.now.execution_status is not ExecutionStatus.PAUSED:
            raise AlreadyRunning("Conversation already running. Wait for completion or pause first.")
        elif await self.kind.take_up_again(self.recorder, self.queue):
            self.refuse_closing()
            self.runner.check_room()
            self.kind.resume_paused(self.queue)
            self._run()
        else:
            self.runner.publisher.publish()  # even if nothing runs, clients wait for a state
        await self.durable()

    async def _ended(self) -> None:
        """Wait for the end of an interrupted turn, since a run during it would have no effect. Raises
        AlreadyRunning after `Deadlines.end`."""
        with trio.move_on_after(self.context.deadlines.end) as limit:
            await self.queue.ended()
        if limit.cancelled_caught:
            raise AlreadyRunning("The interrupted turn has not ended yet. Try again later.")

    async def pause(self) -> None:
        """Stop after the current turn: the status becomes `paused` at once, and the agent finishes the
        turn. A goal that is between two turns ends. Raises ConversationClosing."""
        self.refuse_closing()
        if not self.busy:
            await self._goal.stop()
        if self.record.now.execution_status in {ExecutionStatus.IDLE, ExecutionStatus.RUNNING}:
            self.runner.hold()
            self.recorder.apply(Paused((PauseEvent(id=new_event_id()),)))
            self.runner.publisher.publish()
            self.runner.pause_agent()
        elif self.waiting:
            self.runner.hold()  # a permission request still waits; no turn follows this one
        # Returns even while its event cannot be stored: the event stays queued.
        await self.log.flushed_unless_troubled()

    async def interrupt(self) -> None:
        """Cancel the current turn. Returns when it has ended, at the latest after two seconds.

        Raises ConversationClosing.
        """
        self.refuse_closing()
        if self.busy:
            await self.runner.interrupt()
        elif not self.runner.permissions.keeps:
            self.runner.hold()  # a run that found nothing to do may not have been looked at yet
            self.runner.hooks.cancel()
            await self.pause()
        if self.runner.permissions.keeps and not self.busy:
            self.runner.turns.give_up()
            await self.log.flushed_unless_troubled()

    async def withdraw(self, message_id: str) -> None:
        """Take one message back: from the queue, or by an interrupt of its turn. The messages behind it are
        taken up as before. Does nothing for a message whose turn has ended. Returns as `interrupt` does.

        Raises ConversationClosing, JournalUnavailable.
        """
        self.refuse_closing()
        queue, wanted = self.queue, self.queue.wanted
        first = queue.waiting[0].event_id if queue.waiting else None
        current = (first if queue.active else None) if queue.turn is None else queue.turn.message_id
        if current == message_id:
            await self.runner.interrupt()
        item = queue.withdraw(message_id)
        if item is not None:
            self.recorder.apply(Withdrawn(item.seq, message_id))
            if not queue.busy and self.record.now.execution_status in LIVE_STATUSES:
                self.runner.publisher.run_paused()  # it was the only one of a run that had not begun
        if wanted and queue.waiting:
            self._run()
        await self.log.flushed_unless_troubled()

    async def start_agent(self) -> None:
        """Start the agent and its session before there is a message, so that its modes, options and commands
        are known. Does nothing if they are there.

        Raises AgentFailure, AtCapacity, JournalError. Cancellation stops a start that no one else waits for.
        """
        self.accept()
        self.runner.check_room()
        async with self.runner.at_hand():
            pass
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
        await self.durable()

    @property
    def _keeps_waiting(self) -> bool:
        """Whether permission requests wait whose agent is gone; its next process will repeat them."""
        return self.waiting and self.queue.turn is None

    def _answer(
        self, accept: bool, reason: str, request_id: str | None = None, option_id: str | None = None
    ) -> None:
        keeps = self._keeps_waiting
        if keeps:
            self.runner.check_room()
        if not self.runner.permissions.decide(accept, reason, request_id, option_id) and accept:
            raise NotPossible("Nothing waits for confirmation. Send a message, or run the conversation.")
        if keeps and not self.waiting:
            self.queue.waiting.insert(0, inbox.resumption(self.record))
            self._run()

    async def ask(self, text: str) -> None:
        """Send a text, and wait until the queue is empty, or the run has ended otherwise.

        `record.now.execution_status` is then the outcome. A waiting permission request does not end the wait.

        Raises as `send`.

        Cancellation interrupts nothing; the sent text stays queued.
        """
        await self.send(Message(role="user", content=(TextContent(text=text),)), run=True)
        await self.queue.idle()
        await self.log.flushed_unless_troubled()

    async def final_response(self) -> str:
        """The text of the newest final answer; empty if there is none. Raises JournalError."""
        return await final_response(self.log, self.branch if self.record.moves else None)

    def follow_updates(self, after: str | None) -> UpdateReader:
        """Follow what the agent sends, among the events; `after` as for `UpdateReader`.

        Raises ValueError for what is no position, JournalError.
        """
        return UpdateReader(self.log, self.recorder.updates, after)

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
            raise NotPossible(
                f"The conversation was moved {MOVES_MAX} times. Fork it to continue from there."
            )
        remembers = await self.kind.navigate(self.runner, event_id, self._refuse_while_busy)
        self._refuse_while_busy()
        if not remembers and (self.agent.live or self.agent.restarts.active):
            await self.runner.stop_agent()
            self._refuse_while_busy()  # a client may have sent a message meanwhile
        if self.runner.permissions.keeps:
            self.runner.turns.give_up()  # the answers to questions of the branch that is left
        self.record.moves = moved(self.record.moves, self.log.last_seq, -1 if target is None else target.seq)
        self.record.leaf_event_id = event_id
        self._continue_from(target, remembers=remembers)
        self.recorder.save()
        self.runner.publisher.publish()
        await self.durable()

    def _continue_from(self, target: Stored | None, *, remembers: bool = False) -> None:
        """Adjust the record and the queue to a branch that ends with this event. `remembers`: the agent has
        moved to it."""
        seq = None if target is None else target.seq
        asks = target is not None and inbox.is_asked(target)
        self.recorder.apply(Navigated(seq, self.log.last_seq, asks, None if remembers else MOVED))
        if not remembers:
            self.record.reported.agent_state["memory"] = Memory.NEW if target is None else Memory.LOST
        self.queue.waiting.clear()
        if target is not None and asks:
            self.queue.waiting.append(inbox.queued(target))

    def _refuse_while_busy(self) -> None:
        self.refuse_closing()
        if self.busy or self.waiting or self._goal.running:
            raise AlreadyRunning("The conversation is running. Interrupt it, or wait for its end.")

    async def fork_agent(self, conversation_id: str, leaf: str | None, *, asks: bool) -> str | None:
        """Fork the agent's session (`AgentKind.fork`); return its id, if any."""
        return await self.kind.fork(self.runner, conversation_id, leaf, asks=asks)

    async def ask_agent(self, question: str) -> str:
        """Ask the agent a side question, which causes no event, status or usage.

        Possible during a turn. Starts the agent if necessary.

        Raises AgentFailure, AgentTimeout, TooManyQuestions, AtCapacity, JournalError.

        Cancellation cancels the agent's work on it.
        """
        self.refuse_closing()
        self.runner.check_room()
        return await self.runner.side_question(question)

    async def condense(self) -> None:
        """Have the history summarized now. Starts the agent if necessary.

        Raises NotPossible if the agent cannot; AgentFailure, AgentTimeout, AtCapacity.
        """
        self.refuse_closing()
        await self.kind.condense(self.runner)
        await self.log.flushed_unless_troubled()

    async def load_plugin(self, plugin_ref: str) -> None:
        """Load a plugin into the agent. Raises NotAccepted, AgentFailure, AgentTimeout, AtCapacity."""
        self.refuse_closing()
        await self.kind.load_plugin(self.runner, plugin_ref)
        await self.log.flushed_unless_troubled()

    # -- goals ------------------------------------------------------------------------------------------

    async def start_goal(self, objective: str, max_iterations: int) -> None:
        """Prompt the agent with an objective until it is reached, at most `max_iterations` times.

        Raises AlreadyRunning, AtCapacity, JournalUnavailable.
        """
        self.accept()
        self._refuse_while_busy()
        self.runner.check_room()
        self._goal.start(objective, max_iterations)
        await self.durable()

    async def resume_goal(self) -> None:
        """Resume the interrupted goal. Raises NotAccepted if there is none; else as `start_goal`."""
        self.accept()
        self._refuse_while_busy()
        self.runner.check_room()
        self._goal.resume()
        await self.durable()

    async def stop_goal(self) -> None:
        """End the goal's loop; the current turn continues. It is not an error if there is no goal.

        Raises ConversationClosing.
        """
        self.refuse_closing()
        await self._goal.stop()
        await self.log.flushed_unless_troubled()

    async def prompt_for_goal(self, message: Message) -> None:
        """Send a message of the goal, and wait for the end of the run. Raises as `send`."""
        await self._send(message, run=True)
        await self.queue.idle()
        await self.log.flushed_unless_troubled()

    async def add_child(self, conversation_id: str, *, by_agent: bool = False) -> None:
        """Record a child conversation, started by the agent or by a client."""
        self.record.children.append(conversation_id)
        if by_agent:
            self.record.started.append(conversation_id)
        self.recorder.save()
        await self.log.flushed_unless_troubled()

    # -- lifecycle --------------------------------------------------------------------------------------

    async def recover(self, move: Mapping[str, str] | None = None) -> None:
        """Correct the state after a start of the server, and resume the queue of a run that was cut off.

        A turn that was running when an earlier server died is reported, and its open tool calls are closed as
        interrupted. It is not prompted again (at-most-once). The messages after it are prompted. While this
        cannot be stored, it stays queued and no agent starts.

        `move`: how it came from another server, for clients: `from`, `to`, `why`.

        Raises JournalUnavailable if the journal is unreadable now; then nothing was done.
        """
        record = self.record
        await recovery.find_leaf(self.recorder)
        if move is not None:
            self.recorder.write([self.recorder.state(MOVED_TO, dict(move))], quiet=True)
        self.queue.waiting.extend(await inbox.waiting(self.log, record, self.branch))
        was_live = record.now.execution_status in LIVE_STATUSES
        in_hooks = bool(record.hooks_running)
        if in_hooks:
            self.recorder.write(hooks.cut_off(self.recorder))
        self._goal.recover()
        if was_live and await self._wait_on():
            return
        unanswered = permission_log.cut_off(record)
        if unanswered:
            self.recorder.write(unanswered)
        if record.now.turn_open or (was_live and not self.queue.waiting):
            only_hooks = in_hooks and not record.now.turn_open
            detail = recovery.IN_HOOKS if only_hooks else recovery.IN_TURN
            asked = {str(each.value["tool_call_id"]) for each in unanswered}
            # An allowed call may have run while it was asked about again.
            asked -= permission_log.allowed_calls(record)
            await recovery.report_cut_off(self.recorder, detail, asked)
        elif record.now.turn is not None:
            self.recorder.apply(TurnEnded(INTERRUPTED))
        if was_live and self.queue.waiting:
            self.runner.want()
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
        if not self.runner.permissions.keep(known):
            return False
        record.reported.agent_state["phase"] = AgentPhase.STOPPED
        self.recorder.save(quiet=True)
        if self.waiting:
            self.recorder.apply(PersonAsked(), quiet=True)  # the server may have died just before that
        else:
            self.queue.waiting.insert(0, inbox.resumption(record))
            self.runner.want()
        return True

    async def restart_agent(self, *, force: bool = False) -> None:
        """Restart the agent with its session. Raises AgentFailure, JournalUnavailable."""
        self.accept()
        await self.runner.restart_agent(force=force)

    async def stop_agent(self, *, force: bool = False) -> None:
        """Stop the agent; the next message starts it again. `force`: do not wait for its turn. Raises
        ConversationClosing."""
        self.refuse_closing()
        await self.runner.stop_agent(force=force)

    @property
    def outlasting(self) -> bool:
        """Whether it only waits for a person, and will keep waiting after the server stops."""
        return self._live is not None and self._live.outlasting

    async def leave(self) -> None:
        """Close the conversation for another server, which takes up the messages that wait if this one
        would have. Raises as `close` does."""
        busy = self.queue.busy
        await self.close(leaving=True)
        if busy and self.queue.waiting:
            self.recorder.apply(RunBegun(), quiet=True)

    async def close(self, *, leaving: bool = False) -> None:
        """Accept no more changes, and stop the agent. A running turn is interrupted first, so that its output
        is kept. `leaving`: the server stops; permission requests that can survive this stay open, and of the
        others an error says that nothing of them has begun.

        Raises JournalError, after the agent has ended. Raises AgentTimeout if some of its processes or tasks
        have not ended (`Runner.stop`); call it again to wait for them.

        Cancellation skips the steps before the end of the agent. Do not use the object afterwards.
        """
        self.runner.close()
        ends = leaving and self.waiting and not self.outlasting
        failure = recovery.question_ended(self.record) if ends else None
        try:
            await self._goal.stop()
            if leaving and self.outlasting:
                self.runner.leave()
            elif self.busy:
                await self.runner.interrupt()
            await self.runner.hooks.end_session()
        finally:
            await self.runner.stop()
            self.context.sessions.discard(self)
            if failure is not None and self.record.now.execution_status is ExecutionStatus.PAUSED:
                self.runner.publisher.run_failed(failure)
