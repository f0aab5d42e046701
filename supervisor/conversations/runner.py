"""The task of a live conversation: it takes messages from the queue, makes sure of an agent for each, and is
told to hold, to interrupt, and to stop.

What it works with are rooms of their own: `prompting` sees a turn through, `turns` knows the turn under way
and ends it, `incoming` hears the agent, `permission_requests` answers what it asks, `cancelling` makes it
stop, `keeper` has its processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from supervisor.acp.schema import text_block
from supervisor.agents import ExitStatus
from supervisor.credentials import CredentialsFailure

from . import mounting, permissions, prompt
from .agent import AgentRun
from .cancelling import CancelLadder
from .confirmations import Confirmations
from .errors import AgentFailure
from .hold import HoldTimer
from .incoming import Incoming
from .keeper import Keeper
from .originals import Allowance, Originals
from .permission_requests import PermissionRequests
from .prompt import is_command
from .prompting import Prompting
from .recorder import Recorder
from .reports import Reports
from .session import Memory
from .silence import SilenceWatch
from .starting import Started, note_session
from .translate import Translator
from .turns import Turns
from .work import Queued, Work

if TYPE_CHECKING:
    from .conversation import Conversation

log = structlog.get_logger(__name__)


class Runner:
    """Runs one conversation while it has an agent or work to do.

    Its task is started in the supervisor's nursery by `want` and ends by itself when there is neither;
    cancelling it stops the agent's process tree. It is the keeper's `Host`.
    """

    def __init__(self, conversation: Conversation) -> None:
        context, recorder = conversation.context, conversation.recorder
        deadlines, record = context.deadlines, conversation.record
        self._conversation = conversation
        self._record = record
        self._recorder = recorder
        self._deadlines = deadlines
        # Its task, which begins and ends many times:
        self._wake = trio.Event()
        self._scope: trio.CancelScope | None = None
        self._done: trio.Event | None = None
        self._begun = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._reviving = 0
        self._start_scope: trio.CancelScope | None = None
        self._transcript: str | None = None
        # What it works with; each knows those above it that it needs:
        self._work = work = Work(conversation.inbox)
        self._keeper = keeper = Keeper(context, record, self)
        self._keeper.wake = lambda: self._wake.set()
        self._reports = reports = Reports(recorder, record, conversation.publish_state)
        self._translator = translator = _translator(recorder, context.allowance)
        self._confirmations = confirmations = Confirmations()
        self._turns = turns = Turns(context, work, keeper, recorder, translator, reports, confirmations)
        silence = SilenceWatch(deadlines, keeper, recorder, translator, confirmations)
        self._prompting = Prompting(deadlines, work, turns, keeper, recorder, silence)
        self._ladder = CancelLadder(deadlines, work, turns, keeper, confirmations)
        self._permission_requests = PermissionRequests(
            recorder, translator, reports, turns, confirmations, silence
        )
        self._held = HoldTimer(deadlines.hold, deadlines.hold_at_most, turns.release)
        self._incoming = Incoming(
            recorder,
            translator,
            turns,
            keeper,
            self._permission_requests,
            silence,
            self._held,
            work,
            context.journal,
        )

    # -- what the conversation asks for ---------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a turn is under way, or is about to be."""
        return self._work.busy

    @property
    def pid(self) -> int | None:
        """Process id of the live agent, if there is one."""
        return None if self._keeper.run is None else self._keeper.run.pid

    @property
    def keeper(self) -> Keeper:
        """The keeper of the conversation's agent."""
        return self._keeper

    @property
    def cancelling(self) -> bool:
        """Whether a cancelled turn has not settled yet."""
        return self._turns.cancelling

    @property
    def waiting(self) -> bool:
        """Whether a person's confirmation is waited for."""
        return bool(self._confirmations)

    def want(self) -> None:
        """Take up the queue. Idempotent; starts the task when there is none."""
        self._work.wanted = True
        if self._work.inbox and self._turns.current is None:
            self._reports.status("running")  # true from here on: who asks next must not see an old state
        self._wake.set()
        self._start_task()

    def _start_task(self) -> None:
        if self._done is None:
            self._done = trio.Event()
            self._conversation.context.nursery.start_soon(self._main)

    def hold(self) -> None:
        """Take nothing more from the queue after the turn under way."""
        self._work.wanted = False

    def policy_changed(self) -> None:
        """The confirmation policy is another one now; it counts from the next request on."""
        self._permission_requests.policy_changed()

    def decide(self, accept: bool, reason: str) -> bool:
        """Answer everything that waits for a person. False when nothing waits."""
        return self._permission_requests.decide(accept, reason)

    async def interrupt(self) -> None:
        """Cancel the turn under way: returns when it has settled, at the latest after `interrupt_answer`.

        Cancelling this call does not take the interrupt back.
        """
        self._work.wanted = False
        settled = self._work.settled
        if not self._work.active:
            self._turns.run_paused()  # it had not begun
        elif not self._work.interrupted:
            self._work.interrupted = True
            self._work.called_off.set()
            run, turn = self._keeper.run, self._turns.current
            if turn is None:
                if self._start_scope is not None:
                    self._start_scope.cancel()
            elif run is not None and run.session is not None:
                assert self._nursery is not None
                self._ladder.begin(turn, run, self._nursery)
            else:
                turn.cancel()  # its agent is gone while it waited to be prompted again
        with trio.move_on_after(self._deadlines.interrupt_answer):
            while self._work.active and self._work.settled is settled:
                await settled.wait()
        going_on = self._work.active and self._work.settled is settled
        if going_on and self._record.execution_status != "paused":
            # Not settled in time: control returns all the same, and the state tells what still goes on.
            self._record.agent_state["phase"] = "cancelling"
            self._reports.interrupted()
            self._conversation.publish_state()
        # Control returns also while its event cannot be stored: that stays queued.
        await self._recorder.log.flushed_unless_troubled()

    async def stop_agent(self, *, force: bool = False) -> None:
        """Stop the agent in order, or at once: a turn under way is cancelled first, and recorded as that."""
        if self.busy and not force:
            await self.interrupt()
        if force and self._turns.current is not None:
            self._work.wanted = False
            self._work.interrupted = True
            self._work.called_off.set()
            self._turns.current.cancel()
        await self._keeper.stop()

    async def restart_agent(self, *, force: bool = False) -> None:
        """Stop it and start it again with the same session; crashes so far are forgiven.

        Raises AgentFailure when it does not come back.
        """
        self._reviving += 1
        try:
            self._start_task()
            await self._begun.wait()
            await self.stop_agent(force=force)
            self._keeper.forgive()
            await self._keeper.ensure()
            self._keeper.note_restart()
        finally:
            self._reviving -= 1
            self._wake.set()

    async def stop(self) -> None:
        """End the task and the agent with it. Returns when both are gone; shielded, since it cleans up."""
        self._work.wanted = False
        with trio.CancelScope(shield=True):
            await self._keeper.stop()
            while self._done is not None:
                if self._scope is not None:
                    self._scope.cancel()
                await self._done.wait()

    # -- the task ---------------------------------------------------------------------------------------

    async def _main(self) -> None:
        done = self._done
        assert done is not None
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._keeper.live_in(nursery)
                self._begun.set()
                self._scope = nursery.cancel_scope
                nursery.start_soon(self._held.run)
                while True:
                    self._wake = trio.Event()
                    await self._take_queue()
                    if not (
                        self._work.wanted or self._reviving or self._keeper.current or self._keeper.restarting
                    ):
                        break
                    await self._wake.wait()
                nursery.cancel_scope.cancel()
        except Exception as error:
            if self._conversation.context.journal.failure is not None:
                # Nothing can be recorded any more, in any conversation: the server ends over that.
                log.warning("conversation ends with the journal", conversation=self._record.id)
                self._work.wanted = False
            else:
                # A fault of ours stays in its conversation; its siblings go on.
                log.exception("conversation failed", conversation=self._record.id)
                self._turns.break_down(error)
        except BaseException:
            self._work.wanted = False  # cancelled: nothing is taken up any more
            raise
        finally:
            self._nursery = self._scope = self._done = None
            self._begun = trio.Event()
            self._keeper.live_in(None)
            self._work.active = False
            done.set()
            if self._work.wanted:
                self.want()

    async def _take_queue(self) -> None:
        while self._work.more:
            self._work.begin()
            if self._record.execution_status != "running":
                self._reports.status("running")
            try:
                await self._one_turn(self._work.inbox[0])
            finally:
                self._start_scope = None
                self._work.end()
        self._work.wanted = False
        self._conversation.context.admission.look_again()

    async def _one_turn(self, item: Queued) -> None:
        if is_command(item.message, mounting.COMMAND):
            await self._show_mcp(item)
            return
        with trio.CancelScope() as starting:
            self._start_scope = starting
            try:
                await self._recorder.log.flushed()  # an agent works on nothing that could be lost
                agent = await self._keeper.ensure()
            except AgentFailure as failure:
                self._turns.run_failed(failure)
                return
        self._start_scope = None
        if starting.cancelled_caught or self._work.interrupted:
            self._turns.run_paused()  # the message stays queued: nothing of it reached the agent
            return
        assert agent.session is not None
        turn = self._turns.begin(item)
        await self._handed_over()
        images = agent.initialized is not None and agent.initialized.capabilities.image
        content = prompt.blocks(item.message, images=images)
        if self._transcript is not None:
            content = [text_block(self._transcript), *content]
            self._transcript = None
        await self._prompting.prompt(agent, turn, content)

    async def _handed_over(self) -> None:
        """Wait until it is durable that the message is handed to the agent, or until it is called off."""
        if self._recorder.log.settled:
            await trio.lowlevel.checkpoint()
            return
        async with trio.open_nursery() as nursery:

            async def call_off() -> None:
                await self._work.called_off.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(call_off)
            await self._recorder.log.flushed()
            nursery.cancel_scope.cancel()

    async def _show_mcp(self, item: Queued) -> None:
        """Answer `/mcp` ourselves: no agent is asked, and none is started."""
        try:
            now = await self._conversation.context.launcher.mounting(self._record)
        except (CredentialsFailure, OSError) as error:
            text = f"The configuration cannot be read: {error}"
        else:
            run = self._keeper.run
            running = None if run is None or not run.usable else (run.plan.mounting, run.mounted)
            text = mounting.overview(running, now)
        self._turns.answered(item, text)

    # -- what the keeper tells ---------------------------------------------------------------------------

    @property
    def incoming(self) -> Incoming:
        """What becomes of all that the agent says."""
        return self._incoming

    def replaying(self, going_on: bool) -> None:
        """What the agent sends now is what the journal already holds, or is new again."""
        self._incoming.replaying = going_on

    def may_sleep(self) -> bool:
        """Whether nobody waits for anything that the agent does."""
        run = self._keeper.run
        return not self.busy and not self._confirmations and (run is None or not run.services.terminals)

    async def opened(self, run: AgentRun, started: Started) -> None:
        """A session is open: keep its facts, and make up for a memory that was lost."""
        self._recorder.mask = self._translator.mask = run.plan.mask
        note_session(self._record, run, started)
        self._translator.new_session(self._record.sessions - 1)
        self._reports.session(started)
        if started.mounted:
            self._recorder.emit(self._translator.state("mcp_servers", started.mounted.dump()))
        if started.session.result.config_options:
            options = [option.raw for option in started.session.result.config_options]
            self._recorder.emit(self._translator.state("config_options", options))
        if started.session.memory is Memory.LOST:
            self._transcript = await self._conversation.transcript()

    def phase_changed(self, phase: str) -> None:
        """Where the agent is, as a state that clients see."""
        self._reports.phase(phase)

    def exited(self, status: ExitStatus, words: list[str]) -> None:
        """The agent's process ended by itself: told as a state, also when no turn was taken down by it."""
        self._reports.exited(status, self._turns.current is not None, words)

    def parked(self, failure: AgentFailure) -> None:
        """The agent crashed too often. A turn that it took down with it is reported first."""
        if not self.busy:
            self._turns.run_failed(failure)


def _translator(recorder: Recorder, allowance: Allowance) -> Translator:
    record = recorder.record
    return Translator(
        core=not recorder.extended,
        confirming=permissions.asks_a_person(record.confirmation_policy),
        session=max(0, record.sessions - 1),
        originals=Originals(allowance, kept=record.blob_bytes),
    )
