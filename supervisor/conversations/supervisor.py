"""The supervisor: owns the nursery of all conversations of a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import trio

from supervisor.agents.containment.containment import containment_level
from supervisor.agents.containment.marker import take_snapshot
from supervisor.agents.restart import RestartPolicy
from supervisor.conversations.agent.admission import DEFAULT_WARM, Admission, Limits, Slots
from supervisor.conversations.agent.context import Context
from supervisor.conversations.agent.warm.pool import WarmPool
from supervisor.conversations.creation import Creation
from supervisor.conversations.kinds import kind_of
from supervisor.conversations.recording.bounds.attachments import Allowance
from supervisor.conversations.shutdown import Shutdown
from supervisor.conversations.state.counters import Counters
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.secret_box import SecretBox
from supervisor.conversations.state.status import AgentPhase
from supervisor.documents.port import Documents
from supervisor.events import Vocabulary
from supervisor.hooks.config import HookSource
from supervisor.journal.journal import Journal
from supervisor.settings.agent import AgentSettings

if TYPE_CHECKING:
    from supervisor.acp import TraceLine
    from supervisor.conversations.agent.launch.launcher import Launcher
    from supervisor.conversations.agent.lifecycle.last_output import Fresh, Mark
    from supervisor.conversations.agent.side.model_discovery import ModelDiscovery
    from supervisor.conversations.agent.warm.fork_parent import ForkParent
    from supervisor.conversations.agent.warm.process import WarmProcess
    from supervisor.conversations.conversation import Conversation
    from supervisor.conversations.views import AgentView, Figures, WarmProcessView
    from supervisor.machines.machines import Machines

NOT_LISTED: Final = frozenset({AgentPhase.NONE, AgentPhase.STOPPED, AgentPhase.EXITED})
"""Phases of agents that are not listed: no process, no waiting start, no fault."""


class Supervisor(Creation):
    """The conversations of one server, and what operators see of them and of their agents."""

    @cached_property
    def _shutdown(self) -> Shutdown:
        return Shutdown(self._context, self._loaded)

    @cached_property
    def _discovery(self) -> ModelDiscovery:
        from supervisor.conversations.agent.side.model_discovery import ModelDiscovery

        return ModelDiscovery(self._context)

    async def models(
        self, agent: AgentSettings, secrets: Mapping[str, str], *, refresh: bool = False
    ) -> dict[str, Any]:
        """The models that an agent offers, as clients read them; see `ModelDiscovery.models`."""
        return await self._discovery.models(agent, secrets, refresh=refresh)

    async def try_model(self, llm: Mapping[str, Any]) -> dict[str, Any]:
        """Whether a language model answers, as clients read it; see `ModelDiscovery.try_model`."""
        return await self._discovery.try_model(llm)

    async def agents(self) -> list[AgentView]:
        """List the agents that run, wait to start, or are parked; measured now."""
        known = [found for found in self._loaded.values() if found.agent_phase not in NOT_LISTED]
        known.sort(key=lambda each: each.record.start.created_at)
        return await self._views(known)

    async def _views(self, conversations: Iterable[Conversation]) -> list[AgentView]:
        """Views of the agents of these conversations, from one snapshot of the processes and of the
        secrets."""
        from supervisor.conversations.views import view

        level, seen = containment_level(), await take_snapshot()
        secrets = await self._context.launcher.global_secrets()
        return [await view(each, level, seen, secrets) for each in conversations]

    async def warm_processes(self) -> list[WarmProcessView]:
        """List the warm processes, and after them the parents that fork them; measured now."""
        pool = self._context.warm_pool
        waiting: list[WarmProcess | ForkParent] = [*pool.waiting, *pool.parents]
        if not waiting:
            return []
        from supervisor.conversations.views import view_warm

        level, seen = containment_level(), await take_snapshot()
        return [await view_warm(each, level, seen) for each in waiting]

    async def agent(self, conversation_id: str) -> AgentView:
        """Return the agent of one conversation, in any state. Raises UnknownConversation."""
        (found,) = await self._views([await self.get(conversation_id)])
        return found

    async def restart_agent(self, conversation_id: str, *, force: bool = False) -> None:
        """Restart an agent with its session. Its turn is cancelled cleanly or, with `force`, at once.

        Earlier crashes no longer count. Raises UnknownConversation, AgentFailure, JournalUnavailable.
        """
        conversation = await self.get(conversation_id)
        await conversation.restart_agent(force=force)

    async def stop_agent(self, conversation_id: str) -> None:
        """Stop an agent in order; the next message starts it again. Raises UnknownConversation."""
        await (await self.get(conversation_id)).stop_agent()

    async def stderr(self, conversation_id: str) -> list[str]:
        """The last lines of an agent's standard error. Raises UnknownConversation."""
        return (await self.get(conversation_id)).agent.output.stderr_tail()

    async def trace(self, conversation_id: str) -> list[TraceLine]:
        """The last frames between server and agent, session ids masked. Raises UnknownConversation."""
        return (await self.get(conversation_id)).agent.output.trace()

    async def stderr_after(self, conversation_id: str, mark: Mark | None) -> Fresh[str]:
        """The lines of an agent's standard error after a mark. Raises UnknownConversation."""
        return (await self.get(conversation_id)).agent.output.stderr_after(mark)

    async def trace_after(self, conversation_id: str, mark: Mark | None) -> Fresh[TraceLine]:
        """The frames between server and agent after a mark. Raises UnknownConversation."""
        return (await self.get(conversation_id)).agent.output.trace_after(mark)

    @property
    def journal(self) -> Journal:
        """The journal of all conversations. The caller that opened it closes it."""
        return self._context.journal

    def figures(self) -> Figures:
        """Counts and limits of the whole server."""
        from supervisor.conversations.views import figures

        context = self._context
        return figures(list(self._loaded.values()), context.admission, context.counters)

    def hurry(self, *, kill: bool = False) -> None:
        """Make `close` stop waiting for turns; see `Shutdown.hurry`."""
        self._shutdown.hurry(kill=kill)

    async def close(self, drain_seconds: float = 0.0) -> None:
        """Let running turns end within a deadline, then stop every agent; see `Shutdown.close`."""
        await self._shutdown.close(drain_seconds)


@asynccontextmanager
async def open_supervisor(
    *,
    journal: Journal,
    launcher: Launcher,
    secret_box: SecretBox,
    documents: Documents,
    default_agent: Callable[[], Awaitable[AgentSettings]],
    deadlines: Deadlines | None = None,
    forced_vocabulary: Vocabulary | None = None,
    restart: RestartPolicy | None = None,
    limits: Limits | None = None,
    terminals: Slots | None = None,
    drain_seconds: float = 0.0,
    allowance: Allowance | None = None,
    hooks: HookSource = HookSource.REQUEST,
    warm_processes: Mapping[str, int] = DEFAULT_WARM,
    machines: Machines | None = None,
) -> AsyncIterator[Supervisor]:
    """Supervise conversations while the block runs.

    `default_agent`: returns the settings' agent, for requests that name none; it may raise InvalidStart.

    `terminals`: places for terminals, where others take of them, too.

    `drain_seconds`: how long running turns may continue at the end before they are interrupted.

    `hooks`: whose hooks run.

    `warm_processes`: how many processes of an agent wait for the next conversation, by its key.

    `machines`: the servers that share the journal, where there are several.

    Owns the nursery of all conversations: leaving the block, also by cancellation, stops every agent.
    """
    async with trio.open_nursery() as nursery:
        admission, counters = Admission(limits or Limits(), terminals), Counters()
        deadlines = deadlines or Deadlines()
        context = Context(
            journal=journal,
            launcher=launcher,
            documents=documents,
            secret_box=secret_box,
            deadlines=deadlines,
            restart=restart or RestartPolicy(),
            admission=admission,
            warm_pool=WarmPool(
                launcher=launcher,
                admission=admission,
                deadlines=deadlines,
                secret_box=secret_box,
                counters=counters,
                nursery=nursery,
                default_agent=default_agent,
                numbers=warm_processes,
            ),
            counters=counters,
            nursery=nursery,
            kinds=kind_of,
            allowance=allowance or Allowance(),
            hooks=hooks is not HookSource.OFF,
            machines=machines,
        )
        supervisor = Supervisor(context, default_agent, forced_vocabulary, hooks)
        await supervisor.deletions.load()
        await supervisor.recover()
        nursery.start_soon(supervisor.deletions.carry_out, lambda each: supervisor.deleting(each))
        nursery.start_soon(supervisor.forget_left)
        nursery.start_soon(context.admission.watch)
        nursery.start_soon(context.warm_pool.watch)
        try:
            yield supervisor
        finally:
            await supervisor.close(drain_seconds)
            nursery.cancel_scope.cancel()
