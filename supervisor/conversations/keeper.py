"""One conversation's agent over all its incarnations: started when it is needed, started again after a
crash, hibernated when idle, stopped in order. What an agent says is not the keeper's business.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import structlog
import trio

from supervisor.acp import (
    AcpError,
    ConnectionLost,
    Handler,
    TraceLine,
    method_offered,
    shorten_session_id,
)
from supervisor.agents import ExitStatus, Parked, RestartBudget, StopPolicy
from supervisor.agents.mark import Snapshot

from .agent import AgentRun, run_agent, stderr_words
from .errors import AgentFailure
from .launcher import Plan
from .session import STARTUP_TIMEOUT, lost, startup_timeout
from .starting import Started, open_agent, wait_to_restore

if TYPE_CHECKING:
    from .conversation import Context
    from .record import ConversationRecord

log = structlog.get_logger(__name__)

LAST_WORDS_SECONDS: Final = 1.0
"""After an agent's exit: for the rest of its output and its exit status to reach what waits for them. Its
pipes end a quarter of a second after it at the latest."""


class Host(Protocol):
    """Whose agent it is: the runner. It hears of the agent's comings and goings."""

    @property
    def incoming(self) -> Handler:
        """What is called with all that the agent says."""

    def phase_changed(self, phase: str) -> None:
        """The agent is somewhere else now: one word, for people and programs."""

    def replaying(self, going_on: bool) -> None:
        """What the agent sends now is old, or new again."""

    async def opened(self, run: AgentRun, started: Started) -> None:
        """A session is open."""

    def exited(self, status: ExitStatus, words: list[str]) -> None:
        """The agent's process ended by itself; `words` are its last lines of standard error, masked."""

    def parked(self, failure: AgentFailure) -> None:
        """The agent is given up."""

    def may_sleep(self) -> bool:
        """Whether nobody waits for anything that the agent does."""


class Keeper:
    """Owns the agent's processes in the runner's nursery, one at a time."""

    def __init__(self, context: Context, record: ConversationRecord, host: Host) -> None:
        self._context = context
        self._record = record
        self._host = host
        self._nursery: trio.Nursery | None = None
        self._lock = trio.Lock()
        self._not_before = -math.inf
        self._budget = RestartBudget(context.restart)
        self._used_at = 0.0
        self._crashes = 0
        self._last: AgentRun | None = None
        self.run: AgentRun | None = None
        """The incarnation that can be prompted."""
        self.current: AgentRun | None = None
        """The incarnation that has a process, ready or not."""
        self.phase = "none"
        self.restarts = 0
        self._came_back = trio.Event()
        self._coming_back = trio.CancelScope()
        self.restarting = False
        """Whether it comes back by itself after a crash."""
        self.last_exit: str | None = None
        self.started_at: float | None = None
        self.rss_bytes = self.processes = 0
        self.cpu_seconds = 0.0
        self.wake: Callable[[], None] = lambda: None

    def live_in(self, nursery: trio.Nursery | None) -> None:
        """The nursery for the agent's tasks: the runner's, while that runs."""
        self._nursery = nursery

    def set_phase(self, phase: str) -> None:
        """Say where the agent is."""
        if self.phase != phase:
            self.phase = phase
            self._host.phase_changed(phase)

    # -- for admission ----------------------------------------------------------------------------------

    @property
    def idle_since(self) -> float | None:
        """Since when nobody has needed it, None while somebody does."""
        ready = self.run is not None and self.phase == "ready"
        return self._used_at if ready and self._host.may_sleep() else None

    def touch(self) -> None:
        """It is of use now."""
        self._used_at = trio.current_time()

    async def measure(self, seen: Snapshot | None = None) -> None:
        """Look at memory and CPU time of the tree, in `seen` or, without it, in a look of its own."""
        run = self.current
        if run is not None and not run.process.exited.is_set():
            usage = await run.process.usage(seen)
            self.rss_bytes, self.cpu_seconds, self.processes = (
                usage.rss_bytes,
                usage.cpu_seconds,
                usage.processes,
            )

    async def hibernate(self) -> None:
        """Close the session and stop the process; the next message brings both back."""
        async with self._lock:
            if self.idle_since is not None:
                await self.stop("hibernated")

    # -- starting ---------------------------------------------------------------------------------------

    async def ensure(self) -> AgentRun:
        """The agent, ready to be prompted: the live one, or a new incarnation.

        While it comes back after a crash, its coming back (or being given up) is waited for. Raises
        AgentFailure. Cancelling it stops what it was starting.
        """
        while self.restarting:
            await self._came_back.wait()
        return await self._ensure()

    async def _ensure(self) -> AgentRun:
        # What it says in its start could not be stored, and it would be held back over that.
        await self._context.journal.writable()
        async with self._lock:
            self.touch()
            run = self.run
            if run is not None and run.usable:
                if not await self._outdated(run):
                    return run
                log.info("restarting agent for its changed secrets", conversation=self._record.id)
                await self.stop("restarting")
            if self.current is not None:
                # One process at a time holds a session: the old one is gone before the new one starts.
                self.current.scope.cancel()
                await self.current.gone.wait()
            if self._budget.parked(trio.current_time()):
                raise _parked(self.last_exit)
            await trio.sleep_until(self._not_before)
            by_minute = self._context.launcher.descriptor(self._record).sessions_by_minute
            wait = wait_to_restore(self._record, by_minute=by_minute, now=time.time())
            if wait:
                self.set_phase("restarting")
                await trio.sleep(wait)
            return await self._start()

    async def changed_secrets(self, current: Mapping[str, str] | None) -> tuple[str, ...]:
        """The names of the secrets that the live agent was started with, or without, and that are others now:
        `current` are the launcher's `global_secrets`.

        They count from its next start on: before the next turn where its session can be restored, else when
        an operator restarts it."""
        run = self.current
        if run is None:
            return ()
        return await self._context.launcher.changed_secrets(self._record, run.plan, current)

    async def _outdated(self, run: AgentRun) -> bool:
        """Whether it has to be started again for its secrets, and can be without losing anything."""
        assert run.initialized is not None
        restorable = not self._record.session_used or any(
            method_offered(run.initialized, method) for method in ("session/resume", "session/load")
        )
        if not restorable or run.services.terminals:
            return False
        return bool(await self.changed_secrets(await self._context.launcher.global_secrets()))

    async def _start(self) -> AgentRun:
        assert self._nursery is not None
        ready = False
        run: AgentRun | None = None
        try:
            self.set_phase("installing")
            install = self._context.deadlines.install
            plan = await self._context.launcher.plan(self._record, self._progress, install)
            run = await self._nursery.start(self._own, plan)
            assert run is not None
            await self._make_ready(run)
            ready = True
        finally:
            if not ready:
                if run is not None:
                    run.asked = run.asked or "stopped"
                    run.scope.cancel()
                elif self.phase != "parked":
                    self.set_phase("stopped")
        return run

    async def _make_ready(self, run: AgentRun) -> None:
        limit = self._record.agent.acp_startup_timeout
        try:
            async with self._context.admission.start():
                self.set_phase("starting")
                with trio.fail_after(limit):
                    started = await open_agent(
                        run, self._record, self._context.deadlines, self._host.replaying
                    )
        except trio.TooSlowError as error:
            raise _with_words(startup_timeout("get ready", limit), run) from error
        except AgentFailure as failure:
            raise _with_words(failure, run) from failure
        except ConnectionLost as error:
            if run.initialized is not None and self._record.session_used:
                self._record.failed_restores += 1
            self._note_crash(str(error))
            raise lost(error, "ACPInitError") from error
        self._context.tally.starts += 1
        self.started_at = trio.current_time()
        await self._host.opened(run, started)
        self.run = run
        self.set_phase("ready")

    def _progress(self, line: str) -> None:
        log.info("installing agent", conversation=self._record.id, step=line)

    async def _own(
        self, plan: Plan, task_status: trio.TaskStatus[AgentRun] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """The task of one incarnation, from its place among the living to the end of its process tree."""
        run: AgentRun | None = None
        ours = False
        waits = self._context.deadlines
        stop = StopPolicy(stdin_grace=waits.stop_stdin, term_grace=waits.stop_term, kill=waits.stop_kill)
        try:
            async with (
                self._context.admission.lodging(self, lambda: self.set_phase("queued")),
                run_agent(
                    plan, self._host.incoming, stop, waits.spawn, self._context.admission.terminals
                ) as run,
            ):
                self.current = self._last = run
                task_status.started(run)
                await run.process.exited.wait()
                with trio.move_on_after(LAST_WORDS_SECONDS):
                    await run.connection.closed.wait()  # what waits for an answer is told why there is none
        except trio.Cancelled:
            ours = True  # the server, or the conversation, is at its end
            raise
        finally:
            if run is not None:
                with trio.CancelScope(shield=True):
                    status = await run.process.wait()
                self._gone(run, status, ours=ours)
            self.wake()

    def _gone(self, run: AgentRun, status: ExitStatus, *, ours: bool) -> None:
        was_ready = self.run is run
        self.run = self.current = None
        self.last_exit = str(status)
        if run.asked is None and not ours:
            words = stderr_words(run.process, run.plan.mask)
            self._host.exited(status, words)
        self.rss_bytes = self.processes = 0
        run.gone.set()
        if ours or run.asked is not None:
            if self.phase != "parked" and not self.restarting:
                self.set_phase(run.asked or "stopped")
        elif was_ready and (status.signal is not None or status.code):
            if self._note_crash(str(run.connection.reason or status)) and self._nursery is not None:
                self.restarting = True
                self._came_back = trio.Event()
                # Made before its task runs, so that a stop in this very moment is heard.
                self._coming_back = trio.CancelScope()
                self.set_phase("restarting")
                self._nursery.start_soon(self._restart)
        elif was_ready:
            self.set_phase("exited")

    def _note_crash(self, words: str) -> bool:
        """Count it. False when that was one too many: the agent is parked."""
        self._crashes += 1
        self._context.tally.crashes += 1
        now = trio.current_time()
        decision = self._budget.crashed(now, random.random())  # noqa: S311 - no secret, a pause
        if isinstance(decision, Parked):
            log.warning("agent is parked", conversation=self._record.id, crashes=decision.crashes)
            self.set_phase("parked")
            self._host.parked(_parked(words))
            return False
        self._not_before = now + decision.pause
        return True

    async def _restart(self) -> None:
        """Start a crashed agent again, so that the next message finds it ready. OTP's `transient`."""
        try:
            await self._try_until_back()
        finally:
            self.restarting = False
            self._came_back.set()
            if self.phase == "restarting":
                self.set_phase("stopped")
            self.wake()

    async def _try_until_back(self) -> None:
        with self._coming_back:
            while True:
                before = self._crashes
                try:
                    await self._ensure()
                except AgentFailure as failure:
                    log.info("agent was not restarted", conversation=self._record.id, code=failure.code)
                    # A start that crashed has been counted and is tried again; any other reason stays.
                    if self.phase == "parked" or self._crashes == before:
                        return
                    self.set_phase("restarting")
                else:
                    self.note_restart()
                    return

    def note_restart(self) -> None:
        """It came back after a crash, or because an operator wanted it."""
        self.restarts += 1
        self._context.tally.restarts += 1

    # -- ending -----------------------------------------------------------------------------------------

    def drop(self, run: AgentRun, phase: str = "stopped") -> None:
        """End a run that is of no use any more, without waiting. A process that ended by itself crashed."""
        if not run.process.exited.is_set():
            run.asked = phase
        run.scope.cancel()

    async def stop(self, phase: str = "stopped") -> None:
        """The stop ladder: close the session, close the input, SIGTERM, SIGKILL, sweep; each step bounded.

        Returns when nothing of the agent is left. Cancelling it leaves the rest to the process's owner.
        """
        if self.restarting:
            self._coming_back.cancel()
            await self._came_back.wait()
        run = self.current
        if run is None:
            if self.phase != "none":
                self.set_phase(phase)
            return
        run.asked = phase
        await self.close_session(run)
        run.scope.cancel()
        await run.gone.wait()

    async def close_session(self, run: AgentRun) -> bool:
        """`session/close`, if offered. Best effort; returns whether the agent agreed."""
        if run.session is None or run.initialized is None or not run.usable:
            return False
        if not method_offered(run.initialized, "session/close"):
            return False
        try:
            await run.connection.request(
                "session/close",
                {"sessionId": run.session.session_id},
                timeout=self._context.deadlines.close,
            )
        except AcpError as error:
            log.info("agent did not close its session", conversation=self._record.id, error=str(error))
            return False
        return True

    async def free_session(self, run: AgentRun, turn_ends: Callable[[], Awaitable[bool]]) -> None:
        """Free a session of a turn that does not end: close it and open it again, else end the process.

        Nobody gets the agent from `ensure` before that is through, also when the turn ends first: what is
        prompted in a closed session is lost. `turn_ends` waits a while and tells. Cancelling it may leave
        the session closed; the one who cancels stops the agent.
        """
        async with self._lock:
            if not (await self.close_session(run) and await turn_ends() and await self.reopen(run)):
                log.warning("agent's session could not be freed; ending its process", pid=run.pid)
                self.drop(run)

    async def reopen(self, run: AgentRun) -> bool:
        """Open the session again that was closed, in the same process. False when that did not work."""
        try:
            with trio.fail_after(self._record.agent.acp_startup_timeout):
                started = await open_agent(run, self._record, self._context.deadlines, self._host.replaying)
        except (AgentFailure, ConnectionLost, trio.TooSlowError) as error:
            log.info("agent did not open its session again", conversation=self._record.id, error=str(error))
            return False
        await self._host.opened(run, started)
        return True

    def stderr_tail(self) -> list[str]:
        """The last lines of the agent's standard error, masked; of the one before where there is none."""
        if self._last is None:
            return []
        mask, session_id = self._last.plan.mask, self._record.session_id
        lines = self._last.process.stderr_tail()
        return [shorten_session_id(mask.text(line), session_id) for line in lines]

    def trace(self) -> list[TraceLine]:
        """The last frames, masked; of the incarnation before where there is none."""
        return (
            [] if self._last is None else self._last.connection.trace.render(self._last.plan.mask.beginning)
        )

    def forgive(self) -> None:
        """An operator restarts it: crashes so far do not count, and no pause is kept."""
        self._budget.forgive()
        self._not_before = -math.inf
        if self.phase == "parked":
            self.set_phase("stopped")


def _parked(words: str | None) -> AgentFailure:
    return AgentFailure(
        "AgentParked",
        "The agent crashed too often and is not started again until an operator restarts it. "
        f"Its last end: {words}",
        kind="internal",
        retryable=False,
        user_action="none",
    )


def _with_words(failure: AgentFailure, run: AgentRun) -> AgentFailure:
    """The failure of a start that took too long, with what the agent said meanwhile: it may have asked for
    something where nobody reads it. Other failures as they are."""
    words = stderr_words(run.process, run.plan.mask)
    if failure.code == STARTUP_TIMEOUT and words:
        failure.detail = "\n".join([f"{failure.detail} Its last words:", *words])
    return failure
