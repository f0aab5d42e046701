"""The runner: the task of a live conversation.

It takes messages from the queue, and obeys pause, interrupt and stop. The parts of a turn are modules of
their own, which `wiring` makes: `hand_over` brings a message to the agent, `prompting` sends the prompt and
waits for the answer, `turns` begins and ends the current turn, `agent_handler` handles what it sends,
`permissions` answers its requests, `cancelling` stops it, and `lifecycle` owns its processes.
"""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final

import trio
from structlog.contextvars import bound_contextvars

from supervisor.acp import AcpError
from supervisor.conversations.agent.context import Context
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.kind import AgentKind
from supervisor.conversations.agent.launch.launcher import Launcher
from supervisor.conversations.agent.opening import confirm
from supervisor.conversations.history.history import transcript
from supervisor.conversations.history.prompt import title_of
from supervisor.conversations.recording.effects import Title
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.state.branch import active
from supervisor.conversations.state.confirmation import CONFIRMATION, may_ask
from supervisor.conversations.state.errors import (
    AgentFailure,
    AgentTimeout,
    NotAccepted,
    TooManyQuestions,
)
from supervisor.conversations.state.queue import Phase, Queued, TurnQueue
from supervisor.conversations.state.stage import Stage, Stages
from supervisor.conversations.state.state import RunBegun
from supervisor.conversations.state.status import LIVE_STATUSES, AgentPhase, ExecutionStatus
from supervisor.conversations.turns.hand_over import HandOver
from supervisor.conversations.turns.wiring import wire
from supervisor.hooks.config import HookEvent
from supervisor.journal.errors import JournalError

SIDE_QUESTIONS_MAX: Final = 4
"""Side questions of one conversation at a time: each is a session of the same agent process."""

NOT_ENDED: Final = "The agent did not end within {seconds:g} s. Try again later."


class Runner:
    """Runs one conversation while it has an agent or work to do.

    `want` starts its task in the supervisor's nursery. The task ends by itself when there is neither agent
    nor work. Cancellation stops the agent's process tree.
    """

    def __init__(
        self, context: Context, recorder: Recorder, queue: TurnQueue, kind: AgentKind, owner: object
    ) -> None:
        """`owner`: the conversation, which the task keeps loaded."""
        deadlines, record = context.deadlines, recorder.record
        # Weak: only a running task keeps its conversation loaded.
        self._owner = weakref.ref(owner)
        self._context = context
        self.deadlines = deadlines
        self._record = record
        self._recorder = recorder
        self.queue = queue
        self._kind = kind
        self._logger = recorder.logger
        # Its task, which begins and ends many times:
        self._stage = Stages()
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._reviving = 0
        self._asked = 0
        # What it works with:
        parts = wire(context, recorder, queue, kind)
        self.publisher = parts.shared.publisher
        self.agent = parts.agent
        self.repair = parts.repair
        self.reconfiguration = parts.reconfiguration
        self._translator = parts.shared.translator
        self.hooks = parts.hooks
        self.permissions = parts.permissions
        self.turns = parts.turns
        self._ladder = parts.ladder
        self._held = parts.held
        self._handler = parts.handler
        self._hand_over = HandOver(parts, self, self._note_session)

    # -- what the conversation asks for ---------------------------------------------------------------

    @property
    def cancelling(self) -> bool:
        """Whether a cancelled turn has not ended yet."""
        return self.queue.turn is not None and self.queue.turn.cancelling

    @property
    def waiting(self) -> bool:
        """Whether a permission request waits for a person."""
        return self.permissions.waiting

    @property
    def outlasting(self) -> bool:
        """Whether it waits for a person alone, and can wait on without its process."""
        turn = self.queue.turn
        return turn is not None and not turn.cancelling and self.permissions.outlasting

    def refuse_closing(self) -> None:
        """Raise ConversationClosing if nothing is accepted any more."""
        self._stage.refuse_closing()

    @property
    def closed(self) -> bool:
        """Whether its task has ended for good, and the agent with it."""
        return self._stage.now is Stage.CLOSED

    @property
    def session_open(self) -> bool:
        """Whether SessionEnd hooks are due: there are some, and the SessionStart hooks have run."""
        return self.hooks.session_open and self.hooks.has(HookEvent.SESSION_END)

    def charge(self, size: int) -> None:
        """Count attachments of messages towards the conversation's limit."""
        self._translator.originals.charge(size)

    def want(self) -> None:
        """Process the queue, at most `max_iterations` messages from now on. Idempotent; starts the task if
        there is none. Does nothing once it is closing."""
        if self._stage.closing:
            return
        self.queue.wanted = True
        self._hand_over.begin_run()
        if self.queue.waiting and self.queue.turn is None:
            # Publish before the task starts, so that a poll cannot see a stale status.
            self._recorder.apply(RunBegun())
        self.queue.look_again()
        self._start_task()

    def _start_task(self) -> None:
        if self._stage.now is Stage.STOPPED:
            self._stage.move(Stage.STARTING)
            self._scope = trio.CancelScope()  # made before the task runs, so that a stop can cancel it
            self._context.nursery.start_soon(self._main)

    def hold(self) -> None:
        """Take nothing more from the queue after the current turn."""
        self.queue.wanted = False

    def policy_changed(self) -> None:
        """Apply the changed confirmation policy from the next request on."""
        self.permissions.policy_changed()
        if self._nursery is not None and may_ask(self._record.confirmation_policy):
            self._nursery.start_soon(self._confirm)

    async def _confirm(self) -> None:
        """Put a live agent into a mode that asks. Best effort: an agent that is ending gets it at its next
        start."""
        run = self.agent.ready
        if run is None or run.session is None or not run.usable:
            return
        with suppress(AcpError, JournalError):
            confirmation = await confirm(run, self._record, self.deadlines)
            if confirmation is not None and self.agent.ready is run:
                self._record.reported.agent_state[CONFIRMATION] = confirmation
                self._recorder.write([self._recorder.state(CONFIRMATION, confirmation)])

    async def interrupt(self) -> None:
        """Cancel the current turn. Returns when it has ended, at the latest after `interrupt_answer`.

        Cancelling this call does not take the interrupt back.
        """
        self.queue.wanted = False
        self.hooks.cancel()
        # Each message has an event of its own: this must not wait for one that is taken up later.
        settled = self.queue.settled
        if not self.queue.active:
            self.publisher.run_paused()  # it had not begun
        elif not self.queue.interrupted:
            self.queue.interrupt()
            self._hand_over.call_off()
            run, turn = self.agent.ready, self.queue.turn
            if turn is None:
                self._hand_over.cancel_start()
            elif run is not None and run.session is not None and self._nursery is not None:
                self._ladder.begin(turn, run, self._nursery)
            else:
                turn.cancel()  # its agent is gone while it waited to be prompted again
        # The ladder may take longer; the client gets its answer, and the agent is replaced behind it.
        with trio.move_on_after(self.deadlines.interrupt_answer):
            while self.queue.active and self.queue.settled is settled:
                await settled.wait()
        still_active = self.queue.active and self.queue.settled is settled
        if still_active and self._record.now.execution_status is not ExecutionStatus.PAUSED:
            # Not ended in time: return anyway; the state shows that the turn still runs.
            self._record.reported.agent_state["phase"] = AgentPhase.CANCELLING
            self.publisher.interrupted()
            self.publisher.publish()
        # Returns even while its event cannot be stored: the event stays queued.
        await self._recorder.log.flushed_unless_troubled()

    async def stop_agent(self, *, force: bool = False) -> None:
        """Stop the agent in order, or at once. A running turn is cancelled first, and recorded as
        cancelled."""
        if self.queue.busy and not force:
            await self.interrupt()
        self.hooks.cancel()
        if force and self.queue.turn is not None:
            self.queue.wanted = False
            self.queue.interrupt()
            self._hand_over.call_off()
            self.queue.turn.cancel()
        await self.agent.stop()

    async def restart_agent(self, *, force: bool = False) -> None:
        """Restart the agent with the same session; earlier crashes no longer count.

        Raises AgentFailure if the start fails.
        """
        # Keeps the task alive until the agent is there: an idle task would end in between.
        self._reviving += 1
        try:
            await self._task_begun()
            await self.stop_agent(force=force)
            self.agent.forgive()
            await self.agent.ensure()
            self.agent.restarts.restarted()
        finally:
            self._reviving -= 1
            self.queue.look_again()

    async def side_question(self, question: str) -> str:
        """Ask the agent a side question, also in a turn; start it if necessary.

        Raises TooManyQuestions, AgentFailure, JournalError.

        Cancellation cancels the agent's work on it.
        """
        if self._asked >= SIDE_QUESTIONS_MAX:
            raise TooManyQuestions(
                f"{self._asked} side questions of this conversation wait for their answers. Try again later."
            )
        self._asked += 1
        try:
            return await self._kind.ask(self, question)
        finally:
            self._asked -= 1

    async def choose(self, option_id: str | None, value: str | bool) -> None:
        """Set an option of the agent's session, or its mode (`option_id` None); start it if necessary. Raises
        as `Reconfiguration.choose`."""
        async with self.at_hand() as run:
            await self.reconfiguration.choose(run, option_id, value)
        if option_id is None:
            self.permissions.unasked.chosen = True

    def pause_agent(self) -> None:
        """The conversation was paused: its agent may end its turn over that."""
        if self._nursery is not None and self.queue.turn is not None:
            self._nursery.start_soon(self._kind.pause, self)

    # -- what the kind of agent may use: see `kind.Live` -------------------------------------------------

    @property
    def launcher(self) -> Launcher:
        """The server's launcher."""
        return self._context.launcher

    @property
    def ready(self) -> Incarnation | None:
        """The agent, if it can take a prompt."""
        return self.agent.ready

    @property
    def calling(self) -> bool:
        """Whether a tool call is open."""
        return self._translator.calling

    def at_rest(self) -> AbstractAsyncContextManager[bool]:
        """See `AgentLifecycle.at_rest`."""
        return self.agent.at_rest()

    def check_room(self) -> None:
        """Raise AtCapacity if the agent would have to start, but may not."""
        if not self.agent.live:
            self._context.admission.check()

    async def move(self, ask: Callable[[Incarnation], Awaitable[object]], refuse: Callable[[], None]) -> None:
        """See `SessionRepair.move`; starts the agent if necessary."""
        async with self.at_hand() as run:
            await self.repair.move(run, ask, refuse)

    @asynccontextmanager
    async def at_hand(self) -> AsyncIterator[Incarnation]:
        """The agent, started if necessary. The task stays for the block."""
        self._reviving += 1
        try:
            await self._task_begun()
            async with self.agent.borrowed() as run:
                yield run
        finally:
            self._reviving -= 1
            self.queue.look_again()

    async def _task_begun(self) -> None:
        """Wait until the task is there, in which an agent can live. Raises ConversationClosing."""
        while self._stage.now is not Stage.RUNNING:
            self._stage.refuse_closing()
            self._start_task()
            await self._stage.moved()

    def close(self) -> None:
        """Accept nothing from now on; current work continues until `stop`. Idempotent."""
        self._stage.close()

    def leave(self) -> None:
        """End the task at once, so that permission requests stay open for the next server: the agent must not
        learn that they were cancelled. Only for one that is `outlasting`."""
        self.permissions.leaving = True
        run = self.agent.current
        if run is not None:
            with suppress(ProcessLookupError):
                os.kill(run.process.pid, signal.SIGKILL)  # our child, and not reaped yet
        self._scope.cancel()

    async def stop(self) -> None:
        """End the task, and the agent with it: in order within `Deadlines.end`, then by cancelling the task.

        Raises AgentTimeout if the task has not ended within the same time again; it is cancelled then.

        Shielded from cancellation, within these times.
        """
        self.queue.wanted = False
        self.close()
        seconds = self.deadlines.end
        # Shielded: a cancelled caller must not leave an agent behind.
        with trio.move_on_after(seconds, shield=True):
            await self.agent.stop()
        self._scope.cancel()
        with trio.move_on_after(seconds, shield=True):
            while not self.closed:
                await self._stage.moved()
        if not self.closed:
            raise AgentTimeout("ACPAgentExited", NOT_ENDED.format(seconds=2 * seconds), retryable=True)

    # -- the task ---------------------------------------------------------------------------------------

    async def _main(self) -> None:
        owner = self._owner()  # loaded as long as this runs: a second one must not begin on the same log
        try:
            # What is logged below of processes and connections names the conversation, too.
            with self._scope, bound_contextvars(conversation_id=self._record.id):
                await self._work()
        except Exception as error:
            if self._context.journal.failure is not None:
                # The journal has failed for all conversations, which ends the server.
                self._logger.warning("conversation stopped: the journal failed")
                self.queue.wanted = False
            else:
                # An internal error stays in its conversation; the others continue.
                self._logger.exception("conversation failed")
                self.turns.break_down(error)
        except BaseException:
            self.queue.wanted = False  # cancelled: nothing is taken up any more
            self.close()
            raise
        finally:
            # After a cancellation, too: what the agent said last belongs to the log.
            self.turns.leave()
            self.queue.phase = Phase.NONE
            self._stage.task_ended()
            # A message that came while the task ended would wait forever.
            if self.queue.wanted:
                self.want()
            elif self._reviving:
                self._start_task()
            del owner

    async def _work(self) -> None:
        """Work off the queue until there is neither work nor an agent."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.agent.enter(nursery, self._handler)
            self.hooks.enter(nursery)
            nursery.start_soon(self._held.run)
            if not self._stage.closing:
                self._stage.move(Stage.RUNNING)
            try:
                await self._until_idle()
            finally:
                # Start nothing in a closing nursery: callers that need an agent wait for the next task.
                self._nursery = None
                self.agent.leave()
                self.hooks.leave()
                if not self._stage.closing:
                    self._stage.move(Stage.ENDING)
            nursery.cancel_scope.cancel()

    async def _until_idle(self) -> None:
        while True:
            # Replaced before the checks, so that a change during them is not missed.
            self.queue.changed = trio.Event()
            await self._take_queue()
            if not (
                self.queue.wanted
                or self._reviving
                or self.agent.live
                or self.agent.restarts.active
                or self.hooks.running
            ):
                break
            await self.queue.changed.wait()

    def _note_session(self) -> None:
        if self.session_open:
            self._context.sessions.add(self._owner())

    async def _take_queue(self) -> None:
        took = False
        while self.queue.more:
            took = True
            self.queue.begin()
            self._recorder.apply(RunBegun())
            try:
                # It leaves the queue with its hand-over: if the agent cannot start, the next run begins with
                # it.
                item = self.queue.waiting[0]
                if await self._hand_over.take(item):
                    self._entitle_after(item)
            finally:
                self._hand_over.settle()
                if self.queue.turn is None and not self.queue.wanted:
                    self.queue.drop_resumptions()  # the agent did not start, say
                self.queue.end()
                # Idle time counts from the end of the work, not from its beginning.
                self.agent.touch()
        self.queue.wanted = False
        if took and self._record.now.execution_status in LIVE_STATUSES and not self.waiting:
            self.publisher.run_paused()  # interrupted between two messages: no turn is left to say so
        # An idle agent can make room for a start that waits.
        self._context.admission.look_again()

    def _entitle_after(self, item: Queued) -> None:
        """After the first turn: begin to look for a title, if the present one is only the message's."""
        record = self._record
        # Titles that a person or an earlier turn gave stay.
        automatic = record.autotitle and record.title == title_of(item.message)
        if automatic and record.now.turns == 1 and self._nursery is not None:
            self._nursery.start_soon(self._entitle)

    async def _entitle(self) -> None:
        """Have the agent find a title, once the first turn is over. Best effort: the beginning of the first
        message is one."""
        try:
            title = await self._kind.title(self)
        except (NotAccepted, AgentFailure, JournalError) as error:
            self._logger.info("the agent gave no title", error=str(error))
            return
        if title is not None and title.strip():
            with suppress(JournalError):
                self._recorder.emit([Title(title.strip())])

    async def transcript(self) -> str:
        """What was said on the active branch, without what waits."""
        journal_log = self._recorder.log
        branch = active(self._record.moves, journal_log.last_seq)
        return await transcript(journal_log, branch, {item.event_id for item in self.queue.waiting})
