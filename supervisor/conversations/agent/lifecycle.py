"""The lifecycle of one conversation's agent, over all its incarnations.

It starts the agent on demand, restarts it after a crash, hibernates it when idle, and stops it in order.
`turns.incoming` handles the agent's messages.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import structlog
import trio
from structlog.contextvars import bind_contextvars, bound_contextvars

from supervisor.acp import (
    AcpError,
    ConnectionLost,
    Handler,
    OutputWatch,
    TraceLine,
    method_offered,
    shorten_session_id,
)
from supervisor.acp.trace import Trace
from supervisor.agents.catalog import Descriptor
from supervisor.agents.containment.marker import Snapshot
from supervisor.agents.endings import ExitStatus, StopPolicy
from supervisor.agents.restart import Parked, RestartBudget
from supervisor.conversations.agent.incarnation import Incarnation, run_agent
from supervisor.conversations.agent.launch.plan import Plan
from supervisor.conversations.agent.opening import (
    Started,
    load_agent,
    may_repeat,
    note_session,
    open_agent,
    session_states,
    wait_to_restore,
)
from supervisor.conversations.agent.options import (
    check_room,
    note_mode,
    note_option,
    set_mode,
    set_option,
)
from supervisor.conversations.agent.session import (
    STARTUP_TIMEOUT,
    check_model,
    lost,
    set_model,
    startup_timeout,
)
from supervisor.conversations.agent.shared import Shared
from supervisor.conversations.agent.side.registry import SideSession
from supervisor.conversations.agent.stderr_tail import Words
from supervisor.conversations.agent.warm.process import Spare
from supervisor.conversations.state.errors import AgentFailure, ConversationClosing, NotAccepted
from supervisor.conversations.state.state import MemoryLost, RestoreFailed, SessionOpened
from supervisor.conversations.state.status import AgentPhase
from supervisor.conversations.state.turn import Turn
from supervisor.credentials.masking import NOTHING, Masker
from supervisor.journal.errors import JournalError

log = structlog.get_logger(__name__)

LAST_WORDS_SECONDS: Final = 1.0
"""Seconds after an agent's exit for its remaining output and its exit status to arrive.

Its pipes are closed a quarter of a second after the exit at the latest.
"""

TRACES_EARLIER: Final = 3
"""How many earlier processes of an agent keep their last frames, which show why a process ended."""

FRAMES_EARLIER: Final = 64
"""The most frames kept of each: with texts of 512 bytes, some 100 KiB for the three."""


class AgentLifecycle:
    """Owns the agent's processes, one at a time, and records the agent's phase.

    Its tasks live in a nursery of the runner (`enter`). `TurnQueue.changed` is set when a process ends.
    """

    def __init__(self, shared: Shared) -> None:
        self._kind = shared.kind
        self._voice = shared.voice
        self._context = shared.context
        self._recorder = shared.recorder
        self._record = shared.record
        self._translator = shared.translator
        self._reports = shared.reports
        self._queue = shared.queue
        self._logger = log.bind(conversation_id=shared.record.id)
        self._nursery: trio.Nursery | None = None
        self._handler: Handler | None = None
        self._lock = trio.Lock()
        self._changed: dict[str, Any] = {}
        """Changes of the agent's configuration since its plan was made."""
        self._concealed: set[str] | None = None
        """Secrets added during a start whose mask may already exist; None without a start."""
        self._not_before = -math.inf
        self._budget = RestartBudget(shared.context.restart)
        self._used_at = 0.0
        self._crashes = 0
        self._last: Words | None = None
        self._last_mask = NOTHING
        self._process = 0
        self._earlier: deque[tuple[int, Trace, Masker]] = deque(maxlen=TRACES_EARLIER)
        """The traces of earlier processes, each with its number and its masker."""
        self.ready: Incarnation | None = None
        """The incarnation that can take a prompt."""
        self.current: Incarnation | None = None
        """The incarnation that has a process, ready or not."""
        self.phase = AgentPhase.NONE
        self.restarts = 0
        self.watch_terminal: Callable[[str], OutputWatch] | None = None
        """Returns the watch that receives the output of an agent's terminal."""
        self._borrowed = 0
        self._came_back = trio.Event()
        self._coming_back = trio.CancelScope()
        self.restarting = False
        """Whether it restarts by itself after a crash."""
        self.last_exit: str | None = None
        self.started_at: float | None = None
        self.rss_bytes = self.processes = 0
        self.cpu_seconds = 0.0

    def enter(self, nursery: trio.Nursery, handler: Handler) -> None:
        """Allow starts: agents live in `nursery`, and `handler` gets their messages."""
        self._nursery, self._handler = nursery, handler

    def leave(self) -> None:
        """Note that the nursery has ended, and every process with it."""
        self._nursery = self._handler = None

    @property
    def live(self) -> bool:
        """Whether there is a process, ready or not."""
        return self.current is not None

    def side_of(self, params: Any) -> SideSession | None:
        """The side session that a message of the agent is about, if any."""
        return None if self.current is None else self.current.side_of(params)

    @property
    def pid(self) -> int | None:
        """Process id of the agent, ready or not."""
        return None if self.current is None else self.current.pid

    @property
    def descriptor(self) -> Descriptor:
        """The descriptor of this kind of agent."""
        return self._context.launcher.descriptor(self._record)

    def set_phase(self, phase: AgentPhase) -> None:
        """Set the agent's phase, and publish it."""
        if self.phase is not phase:
            self.phase = phase
            self._reports.phase(phase)

    # -- for admission ----------------------------------------------------------------------------------

    @property
    def idle_since(self) -> float | None:
        """The time since which it is idle (Trio's clock): the end of its last turn, side question, terminal
        or start. None while it is in use."""
        run = self.ready
        if run is None or self.phase is not AgentPhase.READY or self._queue.busy or run.serves_terminals:
            return None
        if run.sides or self._borrowed:
            return None
        return max(self._used_at, run.services.released_at)

    @asynccontextmanager
    async def borrowed(self) -> AsyncIterator[Incarnation]:
        """An agent for work outside turns; it is not hibernated while the block runs.

        A live agent is used as it is, also in a turn; else `ensure` starts one. Raises as `ensure`.
        """
        self._borrowed += 1
        try:
            async with self._lock:  # it may be hibernating
                run = self.ready
            if run is None or not run.usable:
                run = await self.ensure()
            yield run
        finally:
            self._borrowed -= 1
            self.touch()

    def touch(self) -> None:
        """Note that it was in use until now."""
        self._used_at = trio.current_time()

    async def measure(self, seen: Snapshot | None = None) -> None:
        """Measure memory and CPU time of the process tree, in the snapshot `seen` or in a new one."""
        run = self.current
        if run is not None and not run.process.exited.is_set():
            usage = await run.process.usage(seen)
            self.rss_bytes, self.cpu_seconds, self.processes = (
                usage.rss_bytes,
                usage.cpu_seconds,
                usage.processes,
            )

    async def hibernate(self, reason: str) -> None:
        """Close the session and stop the process, if idle; the next message restores both.

        `reason` is logged.
        """
        async with self._lock:
            if self.idle_since is not None:
                self._logger.info("hibernating an idle agent", reason=reason)
                await self.stop(AgentPhase.HIBERNATED)

    @asynccontextmanager
    async def at_rest(self) -> AsyncIterator[bool]:
        """Hibernate an idle agent, and keep it from starting while the block runs. Yields False, and does
        nothing, if the agent is in use."""
        async with self._lock:
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
        while self.restarting:
            await self._came_back.wait()
        return await self._ensure()

    async def _ensure(self) -> Incarnation:
        # Without a writable journal, backpressure would block the agent during its start.
        journal = self._context.journal
        if journal.trouble is not None or journal.failure is not None:
            await journal.writable()
        async with self._lock:
            run = self.ready
            if run is not None and run.usable:
                if run.plan.descriptor.resumes_calls and may_repeat(self._record, run.plan.descriptor):
                    self._logger.info("restarting agent: it would run what was cut off")
                elif await self._outdated(run):
                    self._logger.info("restarting agent: its secrets changed")
                else:
                    return run
                await self.stop(AgentPhase.RESTARTING)
            if self.current is not None:
                # Only one process may hold a session: the old one must be gone before the new one starts.
                self.current.scope.cancel()
                await self.current.gone.wait()
            if self._budget.parked(trio.current_time()):
                raise _parked(self.last_exit)
            await trio.sleep_until(self._not_before)
            by_minute = self.descriptor.sessions_by_minute
            wait = wait_to_restore(self._record, by_minute=by_minute, now=time.time())
            if wait:
                self.set_phase(AgentPhase.RESTARTING)
                await trio.sleep(wait)
            if self._nursery is None:
                raise ConversationClosing
            return await self._start()

    async def changed_secrets(self, current: Mapping[str, str] | None) -> tuple[str, ...]:
        """The names of secrets that changed since the live agent started.

        `current`: the launcher's `global_secrets`.

        Changes apply from the agent's next start: before the next turn if its session can be restored and no
        side question is open, else when an operator restarts it.
        """
        run = self.current
        if run is None:
            return ()
        return await self._context.launcher.changed_secrets(self._record, run.plan, current)

    async def _outdated(self, run: Incarnation) -> bool:
        """Whether changed secrets require a restart, and a restart loses nothing, not even a side
        question."""
        assert run.initialized is not None
        restorable = not self._record.now.session_used or any(
            method_offered(run.initialized, method) for method in ("session/resume", "session/load")
        )
        if not restorable or run.serves_terminals or run.sides or self._borrowed:
            return False
        return bool(await self.changed_secrets(await self._context.launcher.global_secrets()))

    async def _start(self) -> Incarnation:
        ready = False
        run: Incarnation | None = None
        try:
            self.set_phase(AgentPhase.STARTING)
            self._concealed = set()
            install = self._context.deadlines.install
            plan = await self._plan(install)
            spare = None if self._nursery is None else await self._context.spares.take(plan)
            if spare is not None:
                run = await self._begin(plan, spare)
                if not await self._make_ready_untried(run):
                    run, plan = None, await self._plan(install)
            if run is None:
                run = await self._begin(plan)
                await self._make_ready(run)
            self._context.spares.used(self._record, run.plan)
            ready = True
        finally:
            self._concealed = None
            if not ready:
                if run is not None:
                    run.asked = run.asked or AgentPhase.STOPPED
                    run.scope.cancel()
                elif self.phase is not AgentPhase.PARKED:
                    self.set_phase(AgentPhase.STOPPED)
        return run

    async def _begin(self, plan: Plan, spare: Spare | None = None) -> Incarnation:
        """Start the task of an incarnation. If that fails, end the spare, which has no other owner.

        Raises ConversationClosing if the conversation was closed meanwhile: the caller need not be a task of
        the runner.
        """
        run: Incarnation | None = None
        try:
            if self._nursery is None or self._handler is None:
                with trio.CancelScope(shield=True):
                    await plan.ended()
                raise ConversationClosing
            run = await self._nursery.start(self._own, plan, self._handler, spare)
            assert run is not None
            return run
        finally:
            if run is None and spare is not None:
                spare.scope.cancel()

    async def _make_ready_untried(self, run: Incarnation) -> bool:
        """Open the session of a process that was a spare. False if it ended or did not answer; it is gone
        then. This does not count as a crash, since an idle spare may have broken unnoticed."""
        try:
            await self._make_ready(run)
        except (AgentFailure, ConnectionLost) as error:
            if not isinstance(error, ConnectionLost) and error.code != STARTUP_TIMEOUT:
                raise
            self._logger.warning("a spare agent did not become ready; starting a process", error=str(error))
            run.asked = AgentPhase.STARTING
            run.scope.cancel()
            await run.gone.wait()
            return False
        return True

    async def _plan(self, install: float) -> Plan:
        self._changed = {}
        with bound_contextvars(conversation_id=self._record.id):  # for logs of files and installations
            plan = await self._context.launcher.plan(self._record, self._progress, install)
        return await self._recall(plan)

    async def _recall(self, plan: Plan) -> Plan:
        return await self._kind.recall(plan, self._recorder.log, self._voice)

    async def _make_ready(self, run: Incarnation) -> None:
        limit = self._record.agent.acp_startup_timeout
        try:
            async with self._context.admission.start():
                self.set_phase(AgentPhase.STARTING)
                with trio.fail_after(limit):
                    started = await open_agent(run, self._record, self._context.deadlines)
                    await self._catch_up(run)
        except trio.TooSlowError as error:
            raise _with_words(startup_timeout("get ready", limit), run) from error
        except AgentFailure as failure:
            raise _with_words(failure, run) from failure
        except ConnectionLost as error:
            if run.untried:
                raise
            if run.initialized is not None and self._record.now.session_used:
                self._recorder.apply(RestoreFailed())
            self._note_crash(str(error))
            ended = lost(error, "ACPInitError")
            if run.initialized is None and run.process.exited.is_set():
                status = await run.process.wait()
                if status.code == 0:
                    # It exited deliberately before any request: so will the next one.
                    ended.kind, ended.retryable, ended.user_action = "config", False, "settings"
            raise ended from error
        run.untried = False
        self._context.counters.starts += 1
        self.started_at = trio.current_time()
        self._opened(run, started)
        self.ready = run
        self.set_phase(AgentPhase.READY)

    def _opened(self, run: Incarnation, started: Started) -> None:
        """Record an open session, in the record and in events."""
        self.touch()
        self._recorder.mask = self._translator.mask = run.plan.mask
        self._voice.new_mask(run.plan.mask)
        session = started.session
        self._recorder.apply(
            SessionOpened(
                session.memory,
                session.session_id,
                cwd=self._record.start.working_dir,
                at=time.time(),
                reason=session.reason,
            )
        )
        note_session(self._record, run, started)
        self._translator.new_session(self._record.now.sessions - 1)
        self._reports.session(started.session.memory, started.session.reason, self._kind.system_prompt)
        self._reports.refused(started.refused)
        for key, value in started.states():
            self._recorder.emit(self._translator.state(key, value))

    def _progress(self, line: str) -> None:
        if self.phase is not AgentPhase.INSTALLING:
            # Clients that do not know this phase would show a thinking agent for minutes.
            self._reports.said(f"{line}. Your message is answered when it is installed.")
        self.set_phase(AgentPhase.INSTALLING)
        self._logger.info("installing agent", step=line)

    async def _own(
        self,
        plan: Plan,
        handler: Handler,
        spare: Spare | None,
        task_status: trio.TaskStatus[Incarnation] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """The task of one incarnation, from its admission to the end of its process tree. `spare`: the
        process to use instead of starting one."""
        # A task inherits the log context of its starter, which may be an operator's request.
        bind_contextvars(conversation_id=self._record.id)
        run: Incarnation | None = None
        ours = False
        waits = self._context.deadlines
        stop = StopPolicy(stdin_grace=waits.stop_stdin, term_grace=waits.stop_term, kill=waits.stop_kill)
        try:
            admission, watch = self._context.admission, self.watch_terminal
            if spare is None:
                place = admission.tenancy(self, lambda: self.set_phase(AgentPhase.QUEUED))
                by = self._context.spares.forker(plan)
                begun = run_agent(plan, handler, stop, waits.spawn, admission.terminals, watch, by)
            else:
                self.rss_bytes, self.cpu_seconds = spare.rss_bytes, spare.cpu_seconds
                place = admission.succession(spare, self)
                begun = spare.take_over(plan, handler, admission.terminals, watch)
            async with place, begun as run:
                self._note_words(run)
                self.current = run
                if self._concealed:
                    await trio.to_thread.run_sync(run.plan.mask.add, tuple(self._concealed))
                task_status.started(run)
                await run.process.exited.wait()
                run.turn = run.turn or self._queue.turn  # the waiter for its answer ends it now
                with trio.move_on_after(LAST_WORDS_SECONDS):
                    await run.connection.closed.wait()  # pending requests fail with the reason
        except trio.Cancelled:
            ours = True  # the server or the conversation is closing
            raise
        finally:
            if run is not None:
                with trio.CancelScope(shield=True):
                    status = await run.process.wait()
                self._gone(run, status, ours=ours)
            self._queue.look_again()

    def _gone(self, run: Incarnation, status: ExitStatus, *, ours: bool) -> None:
        was_ready = self.ready is run
        self.ready = self.current = None
        run.words.ended()
        self.last_exit = str(status)
        if run.asked is None and not ours and not run.untried:
            self._reports.exited(status, run.words.lines(), run.turn)
        self.rss_bytes = self.processes = 0
        run.gone.set()
        if ours or run.asked is not None:
            if self.phase is not AgentPhase.PARKED and not self.restarting:
                self.set_phase(run.asked or AgentPhase.STOPPED)
        elif was_ready and (status.signal is not None or status.code):
            if not self._note_crash(str(run.connection.reason or status)):
                return
            if self._nursery is None:
                self.set_phase(AgentPhase.STOPPED)
            else:
                self.restarting = True
                self._came_back = trio.Event()
                # Made before its task runs, so that an immediate stop cancels it.
                self._coming_back = trio.CancelScope()
                self.set_phase(AgentPhase.RESTARTING)
                self._nursery.start_soon(self._restart)
        elif was_ready:
            self.set_phase(AgentPhase.EXITED)

    def _note_crash(self, words: str) -> bool:
        """Count a crash. False when the budget is spent and the agent is parked."""
        self._crashes += 1
        self._context.counters.crashes += 1
        now = trio.current_time()
        decision = self._budget.crashed(now, random.random())  # noqa: S311 - no secret, a pause
        if isinstance(decision, Parked):
            self._logger.warning("agent is parked", crashes=decision.crashes)
            self.set_phase(AgentPhase.PARKED)
            # If the crash cut off a turn, the waiter for the turn reports that first.
            if not self._queue.busy:
                self._reports.run_failed(_parked(words))
            return False
        self._not_before = now + decision.pause
        return True

    async def _restart(self) -> None:
        """Restart a crashed agent, so that the next message finds it ready. OTP's `transient`."""
        try:
            await self._try_until_back()
        finally:
            self.restarting = False
            self._came_back.set()
            if self.phase is AgentPhase.RESTARTING:
                self.set_phase(AgentPhase.STOPPED)
            self._queue.look_again()

    async def _try_until_back(self) -> None:
        with self._coming_back:
            while True:
                before = self._crashes
                try:
                    await self._ensure()
                except AgentFailure as failure:
                    self._logger.info("agent not restarted", code=failure.code)
                    # A crash during the start was counted: try again. Other failures are final.
                    if self.phase is AgentPhase.PARKED or self._crashes == before:
                        return
                    self.set_phase(AgentPhase.RESTARTING)
                else:
                    self.note_restart()
                    return

    def note_restart(self) -> None:
        """Count a restart, after a crash or at an operator's request."""
        self.restarts += 1
        self._context.counters.restarts += 1

    async def switch_model(self, model: str) -> None:
        """Choose another model: at once if the agent lives, else at its next start.

        Raises NotAccepted, AgentTimeout, AgentFailure; then nothing changed.

        Cancellation may leave the agent changed, but not the record.
        """
        async with self._lock:
            record, run = self._record, self.ready
            if run is not None and run.usable and run.session is not None:
                await set_model(run, model, self._context.deadlines)
            else:
                check_model(record, model)
            record.agent = attrs.evolve(record.agent, acp_model=model)
            record.reported.current_model = model
            if record.reported.agent_state:
                record.reported.agent_state["acp_current_model_id"] = model

    async def choose(self, run: Incarnation, option_id: str | None, value: str | bool) -> None:
        """Set an option of the open session, or its mode (`option_id` None), and keep it for later sessions.

        Raises NotAccepted, AgentTimeout, AgentFailure; then nothing is kept.

        Cancellation may leave the agent changed, but not the record.
        """
        async with self._lock:
            record, deadlines = self._record, self._context.deadlines
            if run.session is None or not run.usable:
                raise AgentFailure("ACPAgentExited", "The agent has ended.", retryable=True)
            if option_id is None:
                session = await set_mode(run, str(value), deadlines)
                note_mode(record, session, str(value))
            else:
                check_room(record, option_id)
                session = await set_option(run, option_id, value, deadlines)
                note_option(record, session, option_id, value)
            for key, state in session_states(session):
                self._recorder.emit(self._translator.state(key, state))

    async def configure(self, change: Mapping[str, Any], note: Callable[[], None]) -> None:
        """Send a change to the agent if it runs and accepts changes; an agent that is starting or opening its
        session gets it before its first prompt. `note` writes the change to the record, without a checkpoint
        in between.

        Raises NotAccepted, AgentFailure; then nothing changed.

        Cancellation may leave the agent changed, but not the record.
        """
        runs = self.ready is not None and self._kind.takes_changes
        if not runs:
            self._note_change(change, note)
            return
        async with self._lock:
            run = self.ready
            if run is not None and run.usable and run.session is not None:
                await self._kind.configure(run, change, self._context.deadlines.option)
            self._note_change(change, note)

    def _note_change(self, change: Mapping[str, Any], note: Callable[[], None]) -> None:
        self._changed = {**self._changed, **change}
        note()

    async def _catch_up(self, run: Incarnation) -> None:
        """Send the agent the changes since its plan was made. Raises AgentFailure."""
        told: dict[str, Any] = {}
        while told != self._changed:
            told = self._changed
            try:
                await self._kind.configure(run, told, self._context.deadlines.option)
            except NotAccepted as error:
                raise AgentFailure(
                    "ACPInitError", str(error), kind="config", user_action="settings"
                ) from error

    async def move(
        self,
        run: Incarnation,
        ask: Callable[[Incarnation], Awaitable[object]],
        refuse: Callable[[], None],
    ) -> None:
        """Move the agent to another event (`ask`); it gets no turn meanwhile.

        `refuse` raises if the conversation must not be moved now; it is called before and after. If the move
        fails halfway, the agent is ended, and the next one gets a transcript, since the agent may remember
        another branch.

        Raises NotAccepted, AgentFailure, what `refuse` raises; then it has not moved.

        Cancellation ends the agent in this way, too.
        """
        async with self._lock:
            refuse()
            try:
                await ask(run)
                refuse()
            except NotAccepted:
                raise
            except BaseException:
                self.forgotten(run, "the agent moved to another event")
                raise

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
        counts as a crash."""
        if not run.process.exited.is_set():
            run.asked = phase
        run.scope.cancel()

    async def stop(self, phase: AgentPhase = AgentPhase.STOPPED) -> None:
        """Stop the agent: close the session, close its input, SIGTERM, SIGKILL, reap; each step has a
        deadline.

        Returns when no process of the agent is left.

        After a cancellation, the owner of the process does the rest.
        """
        if self.restarting:
            self._coming_back.cancel()
            await self._came_back.wait()
        run = self.current
        if run is None:
            if self.phase is not AgentPhase.NONE:
                self.set_phase(phase)
            return
        run.asked = phase
        await self.close_session(run)
        run.scope.cancel()
        await run.gone.wait()

    async def close_session(self, run: Incarnation, seconds: float | None = None) -> bool:
        """Send `session/close` if the agent offers it, and wait `seconds` (`Deadlines.close`) at most. Best
        effort; returns whether the agent agreed."""
        if run.session is None or not run.usable or not run.closes_sessions:
            return False
        try:
            await run.connection.request(
                "session/close",
                {"sessionId": run.session.session_id},
                timeout=self._context.deadlines.close if seconds is None else seconds,
            )
        except AcpError as error:
            self._logger.info("agent did not close its session", error=str(error))
            return False
        return True

    async def free_session(
        self, run: Incarnation, turn: Turn, turn_ends: Callable[[float], Awaitable[bool]]
    ) -> None:
        """Free a session whose turn does not end: close and reopen it, else end the process.

        `ensure` does not return the agent before this is done, even if the turn ends first: a prompt in a
        closed session is lost. `turn_ends` waits for the given seconds and returns whether the turn ended.

        Cancellation may leave the session closed; the canceller stops the agent.
        """
        async with self._lock:
            if self._queue.turn is not turn:
                return  # it has just ended; the session can take the next turn
            seconds = self._context.deadlines.cancel_close
            end = trio.current_time() + seconds
            closed = await self.close_session(run, seconds)
            if not (closed and await turn_ends(end - trio.current_time()) and await self.reopen(run)):
                self._logger.warning("cannot close the agent's session; ending its process", pid=run.pid)
                self.drop(run)

    async def load_again(self, run: Incarnation) -> None:
        """Load the session again if the agent no longer finds it (its helper ended, for example). Raises
        AgentFailure, ConnectionLost.

        Cancellation leaves the agent without its session; the canceller stops it.
        """
        async with self._lock:
            self._logger.info("agent does not find its session; loading it again")
            run.plan = await self._recall(run.plan)
            started = await load_agent(run, self._record, self._context.deadlines)
            await self._catch_up(run)
            self._recorder.emit(self._translator.release())
            self._reports.refused(started.refused)

    def forgotten(self, run: Incarnation, why: str = "the agent does not find its session") -> None:
        """End an incarnation that still does not find its session after loading it again.

        The next one gets a new session and a transcript.
        """
        if self._record.now.remembers:
            self._recorder.apply(MemoryLost(why))
            self._recorder.save()
        self.drop(run)

    async def reopen(self, run: Incarnation) -> bool:
        """Open the closed session again in the same process. Returns whether that worked."""
        try:
            with trio.fail_after(self._record.agent.acp_startup_timeout):
                run.plan = await self._recall(run.plan)
                started = await open_agent(run, self._record, self._context.deadlines)
                await self._catch_up(run)
        except (AgentFailure, ConnectionLost, JournalError, trio.TooSlowError) as error:
            self._logger.info("agent did not open its session again", error=str(error))
            return False
        self._opened(run, started)
        return True

    def words(self, since: float = -math.inf) -> list[tuple[float, str]]:
        """The agent's last output lines since `since`, masked, each with its arrival time (Trio's clock)."""
        return [] if self._last is None else self._last.timed(since)

    def stderr_tail(self) -> list[str]:
        """The last lines of the agent's standard error, masked; without a process, those of the previous
        incarnation."""
        if self._last is None:
            return []
        mask, session_id = self._last_mask, self._record.now.session_id
        return [shorten_session_id(mask.text(line), session_id) for _, line in self._last.errors()]

    def _note_words(self, run: Incarnation) -> None:
        """Track the output of a new process, and keep the end of the previous one's trace."""
        if self._last is not None:
            self._last.trace.shrink(FRAMES_EARLIER)
            self._earlier.append((self._process, self._last.trace, self._last_mask))
        self._process += 1
        self._last, self._last_mask = run.words, run.plan.mask

    def trace(self) -> list[TraceLine]:
        """The last frames, masked, oldest first: those of the newest process, preceded by the last ones of up
        to TRACES_EARLIER earlier processes."""
        traces = [*self._earlier]
        if self._last is not None:
            traces.append((self._process, self._last.trace, self._last_mask))
        return [line for number, each, mask in traces for line in each.render(mask.beginning, number)]

    def forgive(self) -> None:
        """Reset the crash budget, since an operator restarts the agent."""
        self._budget.forgive()
        self._not_before = -math.inf
        if self.phase is AgentPhase.PARKED:
            self.set_phase(AgentPhase.STOPPED)


def _parked(words: str | None) -> AgentFailure:
    return AgentFailure(
        "AgentParked",
        "The agent crashed too often and is parked. Restart it with `ostler restart` to continue. "
        f"Last exit: {words}",
        kind="internal",
        retryable=False,
        user_action="none",
    )


def _with_words(failure: AgentFailure, run: Incarnation) -> AgentFailure:
    """Add the agent's last output to a start failure that is a timeout or has no known cause; leave others
    unchanged.

    The agent may have asked for something on its standard error.
    """
    if failure.code == STARTUP_TIMEOUT or failure.unexplained:
        failure.add_words(run.words.lines())
    return failure
