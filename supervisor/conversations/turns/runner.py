"""The runner: the task of a live conversation.

It takes messages from the queue, gets an agent for each, and obeys pause, interrupt and stop. The parts of a
turn are modules of their own: `prompting` sends a prompt and waits for the answer, `turns` begins and ends
the current turn, `incoming` handles what the agent sends, `permissions` answers its requests, `cancelling`
stops it, and `lifecycle` owns its processes.
"""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import structlog
import trio
from structlog.contextvars import bound_contextvars

from supervisor.acp import AcpError
from supervisor.acp.schema import text_block
from supervisor.conversations.agent.context import Context
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.kind import AgentKind
from supervisor.conversations.agent.launch.launcher import Launcher
from supervisor.conversations.agent.lifecycle import AgentLifecycle
from supervisor.conversations.agent.opening import confirm
from supervisor.conversations.history import inbox, prompt
from supervisor.conversations.history.history import transcript
from supervisor.conversations.history.prompt import Blocks, is_command, title_of
from supervisor.conversations.hooks.hooks import FEEDBACK, NOTHING, STOPS_MAX, Hooks
from supervisor.conversations.mcp import mounting
from supervisor.conversations.recording.bounds.attachments import Allowance, Originals
from supervisor.conversations.recording.effects import Title
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.recording.streamed import LiveOutput
from supervisor.conversations.recording.translate import Translator
from supervisor.conversations.resource.status_publisher import Reports
from supervisor.conversations.state.branch import active
from supervisor.conversations.state.confirmation import CONFIRMATION, may_ask
from supervisor.conversations.state.errors import (
    AgentFailure,
    AgentTimeout,
    ConversationClosing,
    NotAccepted,
    TooManyQuestions,
)
from supervisor.conversations.state.queue import Queued, TurnQueue
from supervisor.conversations.state.stage import Stage, Stages
from supervisor.conversations.state.status import AgentPhase, ExecutionStatus
from supervisor.conversations.turns.cancelling import CancelLadder
from supervisor.conversations.turns.debouncer import Debouncer
from supervisor.conversations.turns.incoming import Incoming
from supervisor.conversations.turns.permissions import Permissions
from supervisor.conversations.turns.prompting import Prompting
from supervisor.conversations.turns.silence import SilenceWatch
from supervisor.conversations.turns.steering import Steering
from supervisor.conversations.turns.terminal_outputs import TerminalOutputs
from supervisor.conversations.turns.turns import Turns
from supervisor.credentials.secret import CredentialsFailure
from supervisor.events import ActionEvent, Message, MessageEvent, TextContent, new_event_id
from supervisor.hooks.config import HookEvent
from supervisor.journal import JournalError
from supervisor.reading.weight import LARGE_BYTES

log = structlog.get_logger(__name__)

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
        self._owner = weakref.ref(owner)
        self._context = context
        self.deadlines = deadlines
        self._record = record
        self._recorder = recorder
        self.queue = queue
        self._kind = kind
        self._logger = log.bind(conversation_id=record.id)
        # Its task, which begins and ends many times:
        self._stage = Stages()
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._reviving = 0
        self._asked = 0
        self._turns_before = 0
        self._start_scope: trio.CancelScope | None = None
        self._handing = trio.CancelScope()
        # What it works with; each knows those above it that it needs:
        self._hooks = hooks = Hooks(context, recorder, queue)
        translator = _translator(recorder, context.allowance, hooks)
        voice = kind.voice()
        self.reports = reports = Reports(
            recorder, queue, context.nursery, deadlines.echo, context.launcher.data, hooks=context.hooks
        )
        self.agent = agent = AgentLifecycle(context, recorder, translator, reports, queue, kind, voice)
        self._permissions = permissions = Permissions(
            recorder, translator, reports, queue, voice, hooks=hooks
        )
        permissions.gone = lambda: agent.ready is None or not agent.ready.usable
        self._turns = turns = Turns(
            context, queue, agent, recorder, translator, reports, permissions, voice, hooks
        )
        TerminalOutputs(recorder, translator, agent)
        recorder.live = live = LiveOutput(recorder.log, record, context.nursery, lambda: recorder.mask)
        translator.on_progress = live.progress
        self._charge = translator.originals.charge
        silence = SilenceWatch(deadlines, agent, recorder, translator, permissions, voice)
        steering = Steering(queue, recorder, kind)
        self._prompting = Prompting(deadlines, queue, turns, agent, recorder, silence, steering)
        self._ladder = CancelLadder(deadlines, queue, agent, permissions, record.id)
        self._held = Debouncer(deadlines.hold, deadlines.hold_at_most, turns.release)
        self._incoming = Incoming(
            recorder,
            translator,
            turns,
            agent,
            permissions,
            silence,
            self._held,
            queue,
            context.journal,
            voice,
            context.children if kind.starts_children else None,
        )

    # -- what the conversation asks for ---------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a turn is running or about to begin."""
        return self.queue.busy

    @property
    def cancelling(self) -> bool:
        """Whether a cancelled turn has not ended yet."""
        return self.queue.turn is not None and self.queue.turn.cancelling

    @property
    def waiting(self) -> bool:
        """Whether a permission request waits for a person."""
        return self._permissions.waiting

    @property
    def keeps(self) -> bool:
        """See `Permissions.keeps`."""
        return self._permissions.keeps

    @property
    def outlasting(self) -> bool:
        """Whether it waits for a person alone, and can wait on without its process."""
        turn = self.queue.turn
        return turn is not None and not turn.cancelling and self._permissions.outlasting

    def keep(self, actions: Sequence[ActionEvent]) -> bool:
        """See `Permissions.keep`."""
        return self._permissions.keep(actions)

    def give_up(self) -> None:
        """See `Turns.give_up`."""
        self._turns.give_up()

    @property
    def closing(self) -> bool:
        """Whether nothing is accepted any more."""
        return self._stage.closing

    @property
    def closed(self) -> bool:
        """Whether its task has ended for good, and the agent with it."""
        return self._stage.now is Stage.CLOSED

    @property
    def session_open(self) -> bool:
        """Whether SessionEnd hooks are due: there are some, and the SessionStart hooks have run."""
        return self._hooks.session_open and self._hooks.has(HookEvent.SESSION_END)

    async def end_session(self) -> None:
        """End what runs of hooks, and run those of the end. Bounded by `Deadlines.session_end`."""
        await self._hooks.end_session()

    def cancel_hooks(self) -> None:
        """End the hooks that run, at once."""
        self._hooks.cancel()

    def charge(self, size: int) -> None:
        """Count attachments of messages towards the conversation's limit."""
        self._charge(size)

    def want(self) -> None:
        """Process the queue, at most `max_iterations` messages from now on. Idempotent; starts the task if
        there is none. Does nothing once it is closing."""
        if self.closing:
            return
        self.queue.wanted = True
        self._turns_before = self.queue.turns
        if self.queue.waiting and self.queue.turn is None:
            # Publish before the task starts, so that a poll cannot see a stale status.
            self.reports.status(ExecutionStatus.RUNNING)
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
        self._permissions.policy_changed()
        if self._nursery is not None and may_ask(self._record.confirmation_policy):
            self._nursery.start_soon(self._confirm)

    async def _confirm(self) -> None:
        """Put a live agent into a mode that asks. Best effort: an agent that is ending gets it at its next
        start."""
        run = self.agent.ready
        if run is None or run.session is None or not run.usable:
            return
        with suppress(AcpError, JournalError):
            told = await confirm(run, self._record, self.deadlines)
            if told is not None and self.agent.ready is run:
                self._record.reported.agent_state[CONFIRMATION] = told
                self._recorder.write([self._recorder.state(CONFIRMATION, told)])

    def decide(
        self, accept: bool, reason: str, request_id: str | None = None, option_id: str | None = None
    ) -> bool:
        """Answer a request that waits for a person, or all of them. See `Permissions.decide`."""
        return self._permissions.decide(accept, reason, request_id, option_id)

    async def interrupt(self) -> None:
        """Cancel the current turn. Returns when it has ended, at the latest after `interrupt_answer`.

        Cancelling this call does not take the interrupt back.
        """
        self.queue.wanted = False
        self._hooks.cancel()
        settled = self.queue.settled
        if not self.queue.active:
            self.reports.run_paused()  # it had not begun
        elif not self.queue.interrupted:
            self.queue.interrupted = True
            self._call_off()
            run, turn = self.agent.ready, self.queue.turn
            if turn is None:
                if self._start_scope is not None:
                    self._start_scope.cancel()
            elif run is not None and run.session is not None and self._nursery is not None:
                self._ladder.begin(turn, run, self._nursery)
            else:
                turn.cancel()  # its agent is gone while it waited to be prompted again
        with trio.move_on_after(self.deadlines.interrupt_answer):
            while self.queue.active and self.queue.settled is settled:
                await settled.wait()
        going_on = self.queue.active and self.queue.settled is settled
        if going_on and self._record.now.execution_status is not ExecutionStatus.PAUSED:
            # Not ended in time: return anyway; the state shows that the turn still runs.
            self._record.reported.agent_state["phase"] = AgentPhase.CANCELLING
            self.reports.interrupted()
            self.reports.publish()
        # Returns even while its event cannot be stored: the event stays queued.
        await self._recorder.log.flushed_unless_troubled()

    def _call_off(self) -> None:
        self.queue.called_off.set()
        self._handing.cancel()

    async def stop_agent(self, *, force: bool = False) -> None:
        """Stop the agent in order, or at once. A running turn is cancelled first, and recorded as
        cancelled."""
        if self.busy and not force:
            await self.interrupt()
        self._hooks.cancel()
        if force and self.queue.turn is not None:
            self.queue.wanted = False
            self.queue.interrupted = True
            self._call_off()
            self.queue.turn.cancel()
        await self.agent.stop()

    async def restart_agent(self, *, force: bool = False) -> None:
        """Restart the agent with the same session; earlier crashes no longer count.

        Raises AgentFailure if the start fails.
        """
        self._reviving += 1
        try:
            await self._task_begun()
            await self.stop_agent(force=force)
            self.agent.forgive()
            await self.agent.ensure()
            self.agent.note_restart()
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
        as `AgentLifecycle.choose`."""
        async with self.at_hand() as run:
            await self.agent.choose(run, option_id, value)

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

    def at_rest(self) -> AbstractAsyncContextManager[bool]:
        """See `AgentLifecycle.at_rest`."""
        return self.agent.at_rest()

    def check_room(self) -> None:
        """Raise AtCapacity if the agent would have to start, but may not."""
        if not self.agent.live:
            self._context.admission.check()

    async def move(self, ask: Callable[[Incarnation], Awaitable[object]], refuse: Callable[[], None]) -> None:
        """See `AgentLifecycle.move`; starts the agent if necessary."""
        async with self.at_hand() as run:
            await self.agent.move(run, ask, refuse)

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
            if self.closing:
                raise ConversationClosing
            self._start_task()
            await self._stage.moved()

    def close(self) -> None:
        """Accept nothing from now on; current work continues until `stop`. Idempotent."""
        self._stage.close()

    def leave(self) -> None:
        """End the task at once, so that permission requests stay open for the next server: the agent must not
        learn that they were cancelled. Only for one that is `outlasting`."""
        self._permissions.leaving = True
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
                self._turns.break_down(error)
        except BaseException:
            self.queue.wanted = False  # cancelled: nothing is taken up any more
            self.close()
            raise
        finally:
            self._turns.leave()
            self.queue.active = False
            self._stage.task_ended()
            if self.queue.wanted:
                self.want()
            elif self._reviving:
                self._start_task()
            del owner

    async def _work(self) -> None:
        """Work off the queue until there is neither work nor an agent."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.agent.enter(nursery, self._incoming)
            self._hooks.enter(nursery)
            nursery.start_soon(self._held.run)
            if not self.closing:
                self._stage.move(Stage.RUNNING)
            try:
                await self._until_idle()
            finally:
                # Start nothing in a closing nursery: callers that need an agent wait for the next task.
                self._nursery = None
                self.agent.leave()
                self._hooks.leave()
                if not self.closing:
                    self._stage.move(Stage.ENDING)
            nursery.cancel_scope.cancel()

    async def _until_idle(self) -> None:
        while True:
            self.queue.changed = trio.Event()
            await self._take_queue()
            if not (
                self.queue.wanted
                or self._reviving
                or self.agent.live
                or self.agent.restarting
                or self._hooks.running
            ):
                break
            await self.queue.changed.wait()

    async def _take_queue(self) -> None:
        while self.queue.more:
            self.queue.begin()
            self.reports.status(ExecutionStatus.RUNNING)
            try:
                await self._one_turn(self.queue.waiting[0])
            finally:
                self._start_scope = None
                if self.queue.turn is None and not self.queue.wanted:
                    self.queue.drop_go_ons()  # the agent did not start, say
                self.queue.end()
                self.agent.touch()
        self.queue.wanted = False
        self._context.admission.look_again()

    async def _one_turn(self, item: Queued) -> None:
        if is_command(item.message, prompt.MCP_COMMAND):
            await self._show_mcp(item)
            return
        record = self._record
        if self.queue.turns - self._turns_before >= self._kind.messages_in_a_run:
            self.reports.run_failed(_too_many_turns(self._record.start.max_iterations))
            return
        with trio.CancelScope() as starting:
            self._start_scope = starting
            try:
                if not self._recorder.log.settled:
                    await self._recorder.log.flushed()  # an agent works on nothing that could be lost
                agent = await self.agent.ensure()
                said = await self._hooks.before_prompt(item) if self._hooks.active else NOTHING
                if self.session_open:
                    self._context.sessions.add(self._owner())
                if not (agent.usable or said.blocked or said.cancelled):
                    agent = await self.agent.ensure()  # it ended while hooks ran
                told = await self.transcript() if record.now.memory_lost is not None else None
                enclosed = await inbox.enclosed(self._recorder.log, item)
                takes = record.reported.agent_state.get(prompt.TAKES, ())
                content = [] if item.goes_on else await _blocks(item, takes, enclosed)
            except AgentFailure as failure:
                self.reports.run_failed(failure)
                return
        self._start_scope = None
        if self._paused_before and not (starting.cancelled_caught or self.queue.interrupted):
            self.reports.run_closed(ExecutionStatus.PAUSED)  # the message stays queued, for the next run
            return
        if starting.cancelled_caught or self.queue.interrupted or said.cancelled:
            self.reports.run_paused()  # the message stays queued: nothing of it reached the agent
            return
        if said.blocked:
            self._turns.blocked(item)
            return
        turn = self._turns.begin(item)
        await self._handed_over()
        if self._paused_before and not self.queue.interrupted:
            self._turns.finish(turn, "cancelled")  # a run hands it over again
            return
        if not item.goes_on and (lacking := prompt.not_taken(item.message, takes, enclosed)):
            self._recorder.write([self._recorder.state("prompt_not_taken", _not_taken(item, lacking))])
        if told is not None:
            content = [text_block(told), *content]
        if said.context:
            content = [*content, text_block(said.context)]
        self._hooks.prompted(item)
        own = self._kind.prompted_with(item, told, enclosed)
        await self._prompting.prompt(agent, turn, content, own)
        if self._turns.held is not None:
            await self._end_run()
        automatic = record.autotitle and record.title == title_of(item.message)
        if automatic and record.now.turns == 1 and self._nursery is not None:
            self._nursery.start_soon(self._entitle)

    @property
    def _paused_before(self) -> bool:
        """Whether a pause came before the prompt was sent, so that the agent would ignore it."""
        return self._kind.pauses and self._record.now.execution_status is ExecutionStatus.PAUSED

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

    async def _end_run(self) -> None:
        """End a run that the agent has finished, after its hooks. A Stop hook may send the agent back."""
        with trio.CancelScope() as ending:
            self._start_scope = ending
            await self._hooks.calls_settled()
            said = NOTHING if self.queue.more else await self._hooks.at_stop()
        self._start_scope = None
        if self.queue.interrupted or ending.cancelled_caught or said.cancelled:
            self.queue.interrupted = True
        elif said.blocked and self._hooks.stops >= STOPS_MAX:
            self._turns.held = None
            self.reports.run_failed(_too_many_stops())
            return
        elif said.blocked:
            self._hooks.stops += 1
            message = Message(role="user", content=(TextContent(text=f"{FEEDBACK} {said.context}"),))
            event = MessageEvent(id=new_event_id(), source="environment", llm_message=message)
            seq = self._recorder.write([event])
            self.queue.waiting.append(Queued(seq, event.id, message, by_user=False))
        self._turns.end_held()

    async def transcript(self) -> str:
        """What was said on the active branch, without what waits."""
        journal_log = self._recorder.log
        branch = active(self._record.moves, journal_log.last_seq)
        return await transcript(journal_log, branch, {item.event_id for item in self.queue.waiting})

    async def _handed_over(self) -> None:
        """Wait until the hand-over of the message is durable, or the message is called off."""
        with trio.CancelScope() as self._handing:  # a task that waits for it would cost two passes of Trio's
            if not self.queue.called_off.is_set():
                await self._recorder.log.flushed()

    async def _show_mcp(self, item: Queued) -> None:
        """Answer `/mcp` without the agent; none is started."""
        try:
            now = await self._context.launcher.mounting(self._record)
        except (CredentialsFailure, OSError) as error:
            text = f"Cannot read the configuration: {error}"
        else:
            run = self.agent.ready
            running = None if run is None or not run.usable else (run.plan.mounting, run.mounted)
            text = mounting.overview(running, now)
        self._turns.answered(item, text)


async def _blocks(item: Queued, takes: Sequence[str], enclosed: Blocks) -> list[Mapping[str, Any]]:
    """The blocks of its prompt; in a thread where they take a while: pictures are decoded, to check them.

    Cancellation abandons the thread.
    """
    work = partial(prompt.blocks, item.message, takes, enclosed)
    if item.size <= LARGE_BYTES:
        return work()
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)


def _not_taken(item: Queued, lacking: list[tuple[int, str]]) -> dict[str, Any]:
    parts = [{"index": index, "capability": capability} for index, capability in lacking]
    return {"message_id": item.event_id, "parts": parts}


def _too_many_turns(most: int) -> AgentFailure:
    return AgentFailure(
        "MaxIterationsReached",
        f"The run took up {most} messages, as many as its max_iterations allows; more wait. "
        "Run the conversation again to go on with them.",
        retryable=True,
        user_action="retry",
        kind="config",
    )


def _too_many_stops() -> AgentFailure:
    return AgentFailure(
        "MaxIterationsReached",
        f"Stop hooks sent the agent back {STOPS_MAX} times in a row, and still do not let it finish. "
        "Send a message to go on.",
        user_action="retry",
        kind="config",
    )


def _translator(recorder: Recorder, allowance: Allowance, hooks: Hooks) -> Translator:
    record = recorder.record
    return Translator(
        core=not recorder.extended,
        confirming=may_ask(record.confirmation_policy) or hooks.has(HookEvent.PRE_TOOL_USE),
        session=max(0, record.now.sessions - 1),
        originals=Originals(allowance, kept=record.blob_bytes),
        workspace=record.start.working_dir,
        on_end=hooks.call_ended if hooks.has(HookEvent.POST_TOOL_USE) else None,
    )
