"""The pool of warm processes: started and initialized before a conversation needs them.

Some agents take seconds to start. Once an agent that supports it (`Descriptor.warm`) has been used, its next
process is started in advance. It is an agent like every other - planned, admitted, contained, measured - but
belongs to no conversation, and gets no conversation's data. A conversation gets it only if its own plan would
start the same process (`process.key_of`); otherwise it starts a new one.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import structlog
import trio

from supervisor.acp import AcpError
from supervisor.agents.containment.containment import can_fork
from supervisor.agents.endings import StopPolicy
from supervisor.agents.errors import SpawnError
from supervisor.agents.spawning.forker import Forker
from supervisor.conversations.agent.admission import DEFAULT_WARM, Admission, memory_left
from supervisor.conversations.agent.launch.files import WARM_PREFIX
from supervisor.conversations.agent.launch.launcher import Launcher
from supervisor.conversations.agent.launch.plan import Plan
from supervisor.conversations.agent.warm.fork_parent import ForkParent, parent_command
from supervisor.conversations.agent.warm.planning import WarmKind, WarmPlanner, bare, key_of
from supervisor.conversations.state.counters import Counters
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.secret_box import SecretBox
from supervisor.credentials.secret import CredentialsFailure
from supervisor.settings.agent import AgentSettings
from supervisor.settings.errors import SettingsFailure

if TYPE_CHECKING:
    from supervisor.conversations.agent.warm.process import WarmProcess

log = structlog.get_logger(__name__)

PAUSE_SECONDS: Final = 2.0
"""Seconds between the start of an agent and that of the next warm process, so that they do not
compete for the CPU."""

LOOK_SECONDS: Final = 10.0
"""Seconds between two checks whether settings, secrets, age and memory still allow the warm processes."""

AGE_SECONDS: Final = 3600.0
"""Seconds after which a warm process is replaced, since its startup state (files, addresses, clocks) becomes
stale."""

DEATHS_MAX: Final = 5
"""After so many consecutive crashes of warm processes, no more are started until the agent is used again."""

DEATH_PAUSE_SECONDS: Final = 2.0
"""Seconds before the next warm process after such a crash; doubled with each."""

REFUSAL_PAUSE_SECONDS: Final = 60.0
"""Seconds before the next parent after one that did not become ready; doubled with each, up to `AGE_SECONDS`.
Warm processes are started without a parent meanwhile."""

DOUBLED_MAX: Final = 10
"""How often a pause is doubled at most; it is capped at `AGE_SECONDS`."""

LEFT_BYTES: Final = 256 * 1024 * 1024
"""Bytes of the machine's (or the cgroup's) memory that warm processes leave free; with less, they
are ended."""

STRANGE_MAX: Final = 64
"""How many keys of processes that suit only one conversation are remembered."""


class WarmPool:
    """The warm processes of one server. `watch` is the pool's task; they live in `nursery`.

    `numbers`: how many to keep, by the agent's key.
    """

    def __init__(
        self,
        *,
        launcher: Launcher,
        admission: Admission,
        deadlines: Deadlines,
        secret_box: SecretBox,
        counters: Counters,
        nursery: trio.Nursery,
        default_agent: Callable[[], Awaitable[AgentSettings]],
        numbers: Mapping[str, int] = DEFAULT_WARM,
    ) -> None:
        self._launcher = launcher
        self._admission = admission
        self._deadlines = deadlines
        self._counters = counters
        self._nursery = nursery
        self._planner = WarmPlanner(launcher, secret_box, default_agent, deadlines.install)
        self._numbers = numbers
        self._kinds: dict[str, WarmKind] = {}
        self._warm: list[WarmProcess] = []
        self._strange: OrderedDict[bytes, None] = OrderedDict()
        self._changed = trio.Event()
        self._closed = False

    @property
    def waiting(self) -> list[WarmProcess]:
        """The unused warm processes, ready or not; the oldest first."""
        return [warm for warm in self._warm if warm.idle_since is not None]

    @property
    def parents(self) -> list[ForkParent]:
        """The programs that fork agents' processes."""
        return [kind.parent for kind in self._kinds.values() if kind.parent is not None]

    def forker(self, plan: Plan) -> Forker | None:
        """The forker for the process that the plan would start; None if there is none."""
        for parent in self.parents if _is_for(plan) else ():
            if parent.agent == plan.descriptor.key and parent.usable and parent.key == key_of(plan):
                return parent.forker
        return None

    # -- for conversations ------------------------------------------------------------------------------

    async def take(self, plan: Plan) -> WarmProcess | None:
        """Take a warm process that matches the plan; None if there is none.

        The caller owns it, and must enter `WarmProcess.take_over` or cancel its scope.
        """
        if not _is_for(plan) or not self._warm:
            return None
        key = key_of(plan)
        for warm in self.waiting:
            if warm.idle_since is None or warm.key != key or not warm.usable:
                continue  # taken meanwhile, or another process
            # Before the await below, or two conversations could take it.
            warm.taken = True
            fit = False
            try:
                fit = await warm.runs()
            finally:
                if not fit:
                    warm.scope.cancel()
            if fit:
                self._counters.warm_used += 1
                kind = self._kinds.get(warm.agent)
                if kind is not None:
                    kind.deaths = kind.shortages = 0
                    kind.not_before = trio.current_time() + PAUSE_SECONDS
                self._look_again()
                return warm
            log.warning("a warm process is stopped or dead; it is not used", agent=warm.agent)
        return None

    def used(self, record: ConversationRecord, plan: Plan) -> None:
        """Note that an agent of this plan became ready: warm processes are kept for it from now on."""
        descriptor = plan.descriptor
        number = self._numbers.get(descriptor.key, 0)
        if not _is_for(plan) or number <= 0 or self._closed:
            return
        key = key_of(plan)
        # No other conversation could use such a process.
        if key in self._strange:
            return
        kind = self._kinds.get(descriptor.key)
        settings = bare(record.agent)
        if kind is None:
            kind = self._kinds[descriptor.key] = WarmKind(
                descriptor, number, settings, record.start.working_dir, key
            )
        kind.settings, kind.working_dir, kind.wanted, kind.deaths = settings, record.start.working_dir, key, 0
        kind.not_before = max(kind.not_before, trio.current_time() + PAUSE_SECONDS)
        self._look_again()

    # -- keeping ----------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Start, replace and end warm processes until cancelled. Runs as a task of the supervisor."""
        await self._launcher.files.forget_warm()
        while True:
            with trio.move_on_after(self._pause()):
                await self._changed.wait()
            self._changed = trio.Event()
            try:
                await self._look()
            except Exception:
                # All warm processes depend on this task: a fault with one of them must not end it.
                log.exception("cannot look after warm processes")

    def _pause(self) -> float:
        """Seconds to the next check; without a used agent there is nothing to check."""
        if not self._kinds or self._closed:
            return float("inf")
        now = trio.current_time()
        due = [kind.not_before - now for kind in self._kinds.values() if kind.not_before > now]
        return min(LOOK_SECONDS, *due) if due else LOOK_SECONDS

    def _look_again(self) -> None:
        self._changed.set()

    async def _look(self) -> None:
        if self._closed:
            return
        now = trio.current_time()
        living: list[WarmProcess | ForkParent] = [*self.waiting]
        living += [each for each in self.parents if not each.scope.cancel_called]
        # Speculation yields first: real agents must not be ended for it.
        if living and await self._short_of_memory():
            self._give_up(living, "memory is short")
            for kind in self._kinds.values():
                pause = _pause_after(kind.shortages, LOOK_SECONDS)
                kind.not_before = max(kind.not_before, now + pause)
                kind.shortages += any(each.agent == kind.descriptor.key for each in living)
            return
        for kind in list(self._kinds.values()):
            mine: list[WarmProcess | ForkParent] = [s for s in self.waiting if s.agent == kind.descriptor.key]
            mine += [] if kind.parent is None else [kind.parent]
            if mine:
                fingerprint = await self._planner.fingerprint(kind)
                self._give_up([s for s in mine if now - s.born >= AGE_SECONDS], "it waited for too long")
                other = [s for s in mine if s.fingerprint != fingerprint]
                self._give_up(other, "settings or secrets changed")
            fit = [s for s in self.waiting if s.agent == kind.descriptor.key and s.key in (b"", kind.wanted)]
            if (
                len(fit) < kind.number
                and not kind.starting
                and now >= kind.not_before
                and await self._has_room(kind)
            ):
                # One start at a time for each agent: a start takes a processor for seconds.
                kind.starting = True
                self._nursery.start_soon(self._start, kind)

    def _give_up(self, warm_processes: Sequence[WarmProcess | ForkParent], reason: str) -> None:
        for warm in warm_processes:
            log.info("ending a warm process", agent=warm.agent, reason=reason)
            warm.scope.cancel()

    async def _short_of_memory(self) -> bool:
        left = await trio.to_thread.run_sync(memory_left)
        return self._admission.over_memory or (left is not None and left < LEFT_BYTES)

    async def _has_room(self, kind: WarmKind) -> bool:
        need, slots = kind.need
        if kind.deaths >= DEATHS_MAX or not self._admission.warm_room(need, slots):
            return False
        left = await trio.to_thread.run_sync(memory_left)
        return left is None or left >= need + LEFT_BYTES

    async def _start(self, kind: WarmKind) -> None:
        """The task of one warm process, from its plan to the end of its process."""
        from supervisor.conversations.agent.warm.process import WarmProcess

        warm = WarmProcess(f"{WARM_PREFIX}{uuid.uuid4()}", kind.descriptor.key, b"")
        self._warm.append(warm)
        try:
            with warm.scope:
                if self._closed:
                    return
                await self._keep(warm, kind)
                if not warm.taken and not warm.scope.cancel_called:
                    tail = warm.stderr_tail.lines() if warm.stderr_tail is not None else []
                    self._died(kind, "it ended by itself", tail)
        except (AgentFailure, AcpError, SpawnError, CredentialsFailure, SettingsFailure, OSError) as error:
            if not warm.fail(error):
                self._died(kind, str(error), warm.stderr_tail.lines() if warm.stderr_tail is not None else [])
        except Exception as error:
            if not warm.fail(error):
                log.exception("a warm process failed", agent=warm.agent)
                self._died(kind, str(error), [])
        finally:
            if warm.rss_bytes and not warm.taken:
                if warm.forked:
                    kind.forked_bytes = warm.rss_bytes
                else:
                    kind.alone_bytes = warm.rss_bytes
            if warm in self._warm:
                self._warm.remove(warm)
            if warm.initialized is None:
                kind.starting = False
            warm.gone.set()
            await self._forget(warm.name)
            self._look_again()

    async def _forget(self, name: str) -> None:
        """Remove the directory of a warm process or a parent, shielded, as the last step of its task. Raises
        nothing, since an exception would end the server's nursery."""
        with trio.CancelScope(shield=True):
            try:
                await self._launcher.files.forget(name)
            except Exception:
                log.exception("cannot remove what a warm process left", name=name)

    def _died(self, kind: WarmKind, reason: str, tail: list[str]) -> None:
        self._counters.warm_lost += 1
        kind.deaths += 1
        kind.not_before = trio.current_time() + DEATH_PAUSE_SECONDS * 2 ** (kind.deaths - 1)
        log.warning("lost a warm process", agent=kind.descriptor.key, reason=reason, words=tail)

    async def _keep(self, warm: WarmProcess, kind: WarmKind) -> None:
        plan = await self._planned(warm, kind)
        if plan is None:
            warm.scope.cancel()
            return
        waits = self._deadlines
        stop = StopPolicy(stdin_grace=waits.stop_stdin, term_grace=waits.stop_term, kill=waits.stop_kill)

        def ready() -> None:
            kind.starting = False
            pid = None if warm.process is None else warm.process.pid
            log.info("a warm process waits", agent=warm.agent, pid=pid)
            mine = [each for each in self.waiting if each.agent == warm.agent]
            self._give_up([each for each in mine if each.key != warm.key], "another process is needed")
            self._look_again()

        with self._admission.count_warm(warm):
            by = await self._parent(kind, warm, plan)
            warm.forked = by is not None
            await warm.wait(plan, stop, waits, self._admission, ready, by)

    async def _parent(self, kind: WarmKind, warm: WarmProcess, plan: Plan) -> Forker | None:
        """The forker for the warm process, started if necessary. None if there is none."""
        command = await trio.to_thread.run_sync(parent_command, plan)
        if command is None or not can_fork():
            return None
        parent = kind.parent
        if parent is None and not kind.forks:
            return None
        if parent is None or parent.key != warm.key or parent.scope.cancel_called:
            if parent is not None:
                parent.scope.cancel()
            name = f"{WARM_PREFIX}{uuid.uuid4()}"
            parent = ForkParent(name, warm.agent, warm.fingerprint, warm.key)
            kind.parent = parent
            self._nursery.start_soon(self._run_parent, kind, parent, command)
        # The import takes seconds; several warm processes wait for one parent.
        await parent.decided.wait()
        if not parent.usable:
            return None
        kind.refusals = 0
        return parent.forker

    async def _run_parent(self, kind: WarmKind, parent: ForkParent, command: Sequence[str]) -> None:
        """The task of a parent, from its plan to the end of its process."""
        waits = self._deadlines
        stop = StopPolicy(stdin_grace=waits.stop_stdin, term_grace=waits.stop_term, kill=waits.stop_kill)
        try:
            with parent.scope:
                candidates = await self._planner.candidates(kind)
                for settings in candidates:
                    plan, key = await self._planner.plan(parent.name, kind, settings)
                    if key == parent.key:
                        break
                    await plan.ended()
                else:
                    return
                try:
                    with self._admission.count_warm(parent):
                        await parent.run(plan, command, stop, waits.spawn)
                finally:
                    with trio.CancelScope(shield=True):
                        await plan.ended()
        except (AgentFailure, SpawnError, CredentialsFailure, SettingsFailure, OSError) as error:
            log.warning("agents are not forked", agent=parent.agent, reason=str(error))
            if isinstance(error, SpawnError):
                pause = _pause_after(kind.refusals, REFUSAL_PAUSE_SECONDS)
                kind.no_parent_before = trio.current_time() + pause
                kind.refusals += 1
        except Exception:
            log.exception("agents are not forked", agent=parent.agent)
        finally:
            kind.parent_bytes = parent.rss_bytes or kind.parent_bytes
            if kind.parent is parent:
                kind.parent = None
            parent.decided.set()
            parent.gone.set()
            await self._forget(parent.name)

    async def _planned(self, warm: WarmProcess, kind: WarmKind) -> Plan | None:
        """Plan a process without a conversation that has the wanted key; None if that is impossible."""
        wanted, known = kind.wanted, kind.wanted == kind.agreed
        warm.fingerprint = await self._planner.fingerprint(kind)
        candidates = await self._planner.candidates(kind)
        for settings in candidates:
            plan, warm.key = await self._planner.plan(warm.name, kind, settings)
            if warm.key == wanted:
                kind.agreed = wanted
                return plan
            await plan.ended()
        if known:
            # Settings or secrets have changed since: the next conversation will need this process.
            plan, warm.key = await self._planner.plan(warm.name, kind, candidates[0])
            kind.wanted = kind.agreed = warm.key
            return plan
        # The process depends on its conversation's own secrets, variables or directories.
        self._strange[wanted] = None
        if len(self._strange) > STRANGE_MAX:
            self._strange.popitem(last=False)
        kind.wanted = kind.agreed
        if not kind.agreed:
            self._kinds.pop(kind.descriptor.key, None)
        return None

    # -- the end ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all warm processes, and start no more, since the server stops. Their nursery waits for them."""
        self._closed = True
        self._give_up([*self.waiting, *self.parents], "the server stops")


def _pause_after(failures: int, first: float) -> float:
    return min(AGE_SECONDS, first * 2.0 ** min(failures, DOUBLED_MAX))


def _is_for(plan: Plan) -> bool:
    """Whether a process that was started before its conversation can be used: no wall is around it."""
    return plan.descriptor.warm is not None and plan.enclosure is None
