"""The lifecycle of one conversation's agent, over all its incarnations.

It starts the agent on demand, restarts it after a crash, hibernates it when idle, and stops it in order.
`turns.agent_handler` handles the agent's messages.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Final

import trio
from structlog.contextvars import bind_contextvars, bound_contextvars

from supervisor.acp import ConnectionLost, Handler, OutputWatch
from supervisor.agents.endings import ExitStatus, StopPolicy
from supervisor.conversations.agent.incarnation import Incarnation, run_agent
from supervisor.conversations.agent.launch.plan import Plan
from supervisor.conversations.agent.lifecycle.presence import AgentPresence
from supervisor.conversations.agent.lifecycle.restarts import parked
from supervisor.conversations.agent.lifecycle.sessions import Sessions, with_last_output
from supervisor.conversations.agent.opening import may_repeat, wait_to_restore
from supervisor.conversations.agent.session_setup import STARTUP_TIMEOUT, lost, startup_timeout
from supervisor.conversations.agent.shared import Shared
from supervisor.conversations.agent.warm.process import WarmProcess
from supervisor.conversations.state.errors import AgentFailure, ConversationClosing
from supervisor.conversations.state.failures import limit_reached
from supervisor.conversations.state.state import RestoreFailed
from supervisor.conversations.state.status import AgentPhase

LAST_OUTPUT_SECONDS: Final = 1.0
"""Seconds after an agent's exit for its remaining output and its exit status to arrive.

Its pipes are closed a quarter of a second after the exit at the latest.
"""


class AgentLifecycle(AgentPresence):
    """Owns the agent's processes, one at a time, and records the agent's phase.

    Its tasks live in a nursery of the runner (`enter`). `TurnQueue.changed` is set when a process ends.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._step: str | None = None
        self._recorder = shared.recorder
        self._logger = shared.recorder.logger
        self._nursery: trio.Nursery | None = None
        self._handler: Handler | None = None
        self.lock = trio.Lock()
        """Held while it starts, stops, is repaired or changed."""
        self.sessions = Sessions(shared)
        self._concealed: set[str] | None = None
        """Secrets added during a start whose mask may already exist; None without a start."""
        self.watch_terminal: Callable[[str], OutputWatch] | None = None
        """Returns the watch that receives the output of an agent's terminal."""

    def enter(self, nursery: trio.Nursery, handler: Handler) -> None:
        """Allow starts: agents live in `nursery`, and `handler` gets their messages."""
        self._nursery, self._handler = nursery, handler

    def leave(self) -> None:
        """Note that the nursery has ended, and every process with it."""
        self._nursery = self._handler = None

    # -- for admission ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def borrowed(self) -> AsyncIterator[Incarnation]:
        """An agent for work outside turns; it is not hibernated while the block runs.

        A live agent is used as it is, also in a turn; else `ensure` starts one. Raises as `ensure`.
        """
        self._borrowed += 1
        try:
            async with self.lock:  # it may be hibernating
                run = self.ready
            if run is None or not run.usable:
                run = await self.ensure()
            yield run
        finally:
            self._borrowed -= 1
            self.touch()

    async def hibernate(self, reason: str) -> None:
        """Close the session and stop the process, if idle; the next message restores both.

        `reason` is logged.
        """
        async with self.lock:
            # Checked under the lock: a message may have come while this waited for it.
            if self.idle_since is not None:
                self._logger.info("hibernating an idle agent", reason=reason)
                await self.stop(AgentPhase.HIBERNATED)

    @asynccontextmanager
    async def at_rest(self) -> AsyncIterator[bool]:
        """Hibernate an idle agent, and keep it from starting while the block runs. Yields False, and does
        nothing, if the agent is in use."""
        async with self.lock:
            if self.idle_since is not None:
                await self.stop(AgentPhase.HIBERNATED)
            yield not self.live

    # -- starting ---------------------------------------------------------------------------------------

    async def ensure(self) -> Incarnation:
        """Return an agent that can take a prompt: the live one, or a new incarnation.

        While the agent restarts after a crash, this waits until it is ready or parked.

        Raises AgentFailure.

        Cancellation stops an agent that this call was starting.
        """
        run: Incarnation | None = None
        while run is None:
            await self.restarts.over()
            run = await self._ensure()
        return run

    async def _ensure(self, *, restarts: bool = False) -> Incarnation | None:
        """See `ensure`. `restarts`: for the restart after a crash. None for all others, if one has begun."""
        # Without a writable journal, backpressure would block the agent during its start.
        journal = self._context.journal
        if journal.trouble is not None or journal.failure is not None:
            await journal.writable()
        async with self.lock:
            run = self.ready
            if run is not None and run.usable:
                # Such an agent would run the call that an interrupt has cut off.
                if run.plan.descriptor.resumes_calls and may_repeat(self._record, run.plan.descriptor):
                    self._logger.info("restarting agent: it would run what was cut off")
                elif await self.outdated(run):
                    self._logger.info("restarting agent: its secrets changed")
                else:
                    return run
                await self.stop(AgentPhase.RESTARTING)
            if self.current is not None:
                # Only one process may hold a session: the old one must be gone before the new one starts.
                self.current.scope.cancel()
                await self.current.gone.wait()
            if self.restarts.active and not restarts:
                return None  # where a start crashes, it tries again
            if self.restarts.parked:
                raise parked(self.last_exit)
            # The pause holds for messages, too: clients that write must not speed up a crash loop.
            await trio.sleep_until(self.restarts.not_before)
            by_minute = self.descriptor.sessions_by_minute
            wait = wait_to_restore(self._record, by_minute=by_minute, now=time.time())
            if wait:
                self.set_phase(AgentPhase.RESTARTING)
                await trio.sleep(wait)
            if self._nursery is None:
                raise ConversationClosing
            return await self._start()

    async def _start(self) -> Incarnation:
        ready = False
        run: Incarnation | None = None
        try:
            self.set_phase(AgentPhase.STARTING)
            self._concealed = set()
            install = self._context.deadlines.install
            plan = await self._plan(install)
            warm = None if self._nursery is None else await self._context.warm_pool.take(plan)
            if warm is not None:
                run = await self._begin(plan, warm)
                if not await self._make_ready_untried(run):
                    # A plan serves one process, and the first one's is gone.
                    run, plan = None, await self._plan(install)
            if run is None:
                run = await self._begin(plan)
                await self._make_ready(run)
            self._context.warm_pool.used(self._record, run.plan)
            ready = True
        finally:
            self._concealed = None
            if not ready:
                if run is not None:
                    # Asked for, so that its exit does not count as a crash.
                    run.asked = run.asked or AgentPhase.STOPPED
                    run.scope.cancel()
                elif self.phase is not AgentPhase.PARKED:
                    self.set_phase(AgentPhase.STOPPED)
        return run

    async def _begin(self, plan: Plan, warm: WarmProcess | None = None) -> Incarnation:
        """Start the task of an incarnation. If that fails, end the warm process, which has no other owner.

        Raises ConversationClosing if the conversation was closed meanwhile: the caller need not be a task of
        the runner.
        """
        run: Incarnation | None = None
        try:
            if self._nursery is None or self._handler is None:
                with trio.CancelScope(shield=True):
                    await plan.ended()
                raise ConversationClosing
            run = await self._nursery.start(self._own, plan, self._handler, warm)
            assert run is not None
            return run
        finally:
            if run is None and warm is not None:
                warm.scope.cancel()

    async def _make_ready_untried(self, run: Incarnation) -> bool:
        """Open the session of a process that was warm. False if it ended or did not answer; it is gone
        then. This does not count as a crash, since an idle process may have broken unnoticed."""
        try:
            await self._make_ready(run)
        except (AgentFailure, ConnectionLost) as error:
            if not isinstance(error, ConnectionLost) and error.code != STARTUP_TIMEOUT:
                raise
            self._logger.warning("a warm process did not become ready; starting a process", error=str(error))
            run.asked = AgentPhase.STARTING
            run.scope.cancel()
            await run.gone.wait()
            return False
        return True

    async def _plan(self, install: float) -> Plan:
        self.sessions.plan_begins()
        with bound_contextvars(conversation_id=self._record.id):  # for logs of files and installations
            plan = await self._context.launcher.plan(self._record, self._progress, install)
        return await self.sessions.recall(plan)

    async def _make_ready(self, run: Incarnation) -> None:
        limit = self._record.agent.acp_startup_timeout
        try:
            async with self._context.admission.start():
                self.set_phase(AgentPhase.STARTING)
                with trio.fail_after(limit):
                    started = await self.sessions.open(run)
        except trio.TooSlowError as error:
            raise with_last_output(startup_timeout("get ready", limit), run) from error
        except AgentFailure as failure:
            raise with_last_output(failure, run) from failure
        except ConnectionLost as error:
            if run.untried:
                raise
            if run.initialized is not None and self._record.now.session_used:
                self._recorder.apply(RestoreFailed())
            self._note_crash(str(error))
            hit = run.process.limits.hit
            if hit is not None:
                raise limit_reached(hit) from error
            ended = lost(error, "ACPInitError")
            if run.initialized is None and run.process.exited.is_set():
                status = await run.process.wait()
                if status.code == 0:
                    # It exited deliberately before any request: so will the next one.
                    ended.kind, ended.retryable, ended.user_action = "config", False, "settings"
            raise ended from error
        # Only now: a warm process that broke while it waited must not spend the crash budget.
        run.untried = False
        self._context.counters.starts += 1
        self.started_at = trio.current_time()
        self.touch()
        self.sessions.opened(run, started)
        self.ready = run
        self.set_phase(AgentPhase.READY)

    @property
    def installing(self) -> str | None:
        """The present step of the agent's installation; None while it is not being installed."""
        return self._step if self.phase is AgentPhase.INSTALLING else None

    def _progress(self, line: str) -> None:
        self._step = line
        if self.phase is not AgentPhase.INSTALLING:
            # Clients that do not know this phase would show a thinking agent for minutes.
            self._publisher.said(f"{line}. Your message is answered when it is installed.")
        self.set_phase(AgentPhase.INSTALLING)
        self._logger.info("installing agent", step=line)

    async def _own(
        self,
        plan: Plan,
        handler: Handler,
        warm: WarmProcess | None,
        task_status: trio.TaskStatus[Incarnation] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """The task of one incarnation, from its admission to the end of its process tree. `warm`: the
        process to use instead of starting one."""
        # A task inherits the log context of its starter, which may be an operator's request.
        bind_contextvars(conversation_id=self._record.id)
        run: Incarnation | None = None
        ours = False
        waits = self._context.deadlines
        stop = StopPolicy(stdin_grace=waits.stop_stdin, term_grace=waits.stop_term, kill=waits.stop_kill)
        try:
            admission, watch = self._context.admission, self.watch_terminal
            if warm is None:
                place = admission.tenancy(self, lambda: self.set_phase(AgentPhase.QUEUED))
                by = self._context.warm_pool.forker(plan)
                begun = run_agent(
                    plan, handler, stop, waits.spawn, admission.terminals, watch, by, self._refused
                )
            else:
                self.rss_bytes, self.cpu_seconds = warm.rss_bytes, warm.cpu_seconds
                place = admission.succession(warm, self)
                begun = warm.take_over(plan, handler, admission.terminals, watch)
            async with place, begun as run, admission.closely(self, run.process.limits.holding.polled):
                self.output.begin(run)
                self.current = run
                if self._concealed:
                    await trio.to_thread.run_sync(run.plan.mask.add, tuple(self._concealed))
                task_status.started(run)
                # The exit, not the end of file: a grandchild may hold the pipes.
                await run.process.exited.wait()
                run.turn = run.turn or self._queue.turn  # the waiter for its answer ends it now
                with trio.move_on_after(LAST_OUTPUT_SECONDS):
                    await run.connection.closed.wait()  # pending requests fail with the reason
        except trio.Cancelled:
            ours = True  # the server or the conversation is closing
            raise
        finally:
            if run is not None:
                # Ends soon: leaving the block above has run the stop ladder.
                with trio.CancelScope(shield=True):
                    status = await run.process.wait()
                self._gone(run, status, ours=ours)
            self._queue.look_again()

    def _refused(self, host: str, port: int, why: str) -> None:
        """The door of the agent's network refused a host."""
        self._logger.warning("an agent's door refused a host", host=host, port=port, reason=why)
        self._publisher.network_refused(host, port, why)

    def _gone(self, run: Incarnation, status: ExitStatus, *, ours: bool) -> None:
        was_ready = self.ready is run
        self.ready = self.current = None
        run.stderr_tail.ended()
        hit = run.process.limits.hit
        self.last_exit = str(status) if hit is None else hit.text
        if run.asked is None and not ours and not run.untried:
            self._publisher.exited(status, run.stderr_tail.lines(), run.turn, hit)
        self.rss_bytes = self.processes = 0
        run.gone.set()
        if ours or run.asked is not None:
            if self.phase is not AgentPhase.PARKED and not self.restarts.active:
                self.set_phase(run.asked or AgentPhase.STOPPED)
        elif was_ready and (hit is not None or status.signal is not None or status.code):
            if not self._note_crash(hit.text if hit is not None else str(run.connection.reason or status)):
                return
            if self._nursery is None:
                self.set_phase(AgentPhase.STOPPED)
            else:
                self.restarts.begin(self._nursery, self._try_until_back, self._restart_ended)
                self.set_phase(AgentPhase.RESTARTING)
        # OTP's `transient`: an agent that exits with 0 meant to, and the next message starts it.
        elif was_ready:
            self.set_phase(AgentPhase.EXITED)

    def _note_crash(self, reason: str) -> bool:
        """Count a crash. False when the budget is spent and the agent is parked."""
        spent = self.restarts.crashed()
        if spent is None:
            return True
        self._logger.warning("agent is parked", crashes=spent.crashes)
        self.set_phase(AgentPhase.PARKED)
        # If the crash cut off a turn, the waiter for the turn reports that first.
        if not self._queue.busy:
            self._publisher.run_failed(parked(reason))
        return False

    async def _try_until_back(self) -> None:
        while True:
            before = self.restarts.crashes
            try:
                await self._ensure(restarts=True)
            except AgentFailure as failure:
                self._logger.info("agent not restarted", code=failure.code)
                # A crash during the start was counted: try again. Other failures are final.
                if self.phase is AgentPhase.PARKED or self.restarts.crashes == before:
                    return
                self.set_phase(AgentPhase.RESTARTING)
            else:
                self.restarts.restarted()
                return

    def _restart_ended(self) -> None:
        if self.phase is AgentPhase.RESTARTING:
            self.set_phase(AgentPhase.STOPPED)
        self._queue.look_again()

    def forgive(self) -> None:
        """Reset the crash budget, since an operator restarts the agent."""
        self.restarts.forgive()
        if self.phase is AgentPhase.PARKED:
            self.set_phase(AgentPhase.STOPPED)

    async def conceal(self, secrets: Collection[str]) -> None:
        """Mask these secrets in the agent's output and trace. Call it before the agent gets them.

        Cancellation waits for a thread."""
        if self._concealed is not None:
            self._concealed.update(secrets)
        if secrets and self.current is not None:
            await trio.to_thread.run_sync(self.current.plan.mask.add, tuple(secrets))

    # -- ending -----------------------------------------------------------------------------------------

    def drop(self, run: Incarnation, phase: AgentPhase = AgentPhase.STOPPED) -> None:
        """End an incarnation that is no longer usable, without waiting. If its process exited by itself, that
        counts as a crash, and so does its end above a limit."""
        if not run.process.exited.is_set() and run.process.limits.hit is None:
            run.asked = phase
        run.scope.cancel()

    async def stop(self, phase: AgentPhase = AgentPhase.STOPPED) -> None:
        """Stop the agent: close the session, close its input, SIGTERM, SIGKILL, reap; each step has a
        deadline.

        Returns when no process of the agent is left.

        After a cancellation, the owner of the process does the rest.
        """
        # First, or a restart would start what this stops.
        await self.restarts.call_off()
        run = self.current
        if run is None:
            if self.phase is not AgentPhase.NONE:
                self.set_phase(phase)
            return
        # Before anything ends, so that the exit is not taken for a crash.
        run.asked = phase
        await self.sessions.close(run)
        run.scope.cancel()
        await run.gone.wait()
