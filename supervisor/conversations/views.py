"""The operator's view of the agents, and the metrics of the whole server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import attrs
import trio

from supervisor.agents.containment.marker import Snapshot
from supervisor.conversations.agent.admission import Admission
from supervisor.conversations.agent.warm.fork_parent import ForkParent
from supervisor.conversations.agent.warm.process import WarmProcess
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.recording.usage import spent
from supervisor.conversations.state.counters import Counters
from supervisor.conversations.state.status import AgentPhase, ExecutionStatus


@attrs.frozen(kw_only=True)
class AgentView:
    """The agent of one conversation. Times in seconds, memory in bytes; None: unknown or not applicable.

    `state` is the agent's phase, or what it does in a turn. `memory` is what it remembers of the
    conversation. `changed_secrets` are names of secrets that changed since its start. `restorable`: its next
    process can resume its session at once.
    """

    conversation_id: str
    title: str | None
    provider: str
    name: str | None
    version: str | None
    pid: int | None
    state: AgentPhase
    execution_status: ExecutionStatus
    memory: str | None
    uptime: float | None
    restarts: int
    last_exit: str | None
    idle: float | None
    rss_bytes: int | None
    cpu_seconds: float | None
    processes: int | None
    containment: str
    walls: str | None
    walls_mechanism: str | None
    """What it can reach of the machine; None: it does not run."""
    queue: int
    changed_secrets: list[str] = attrs.field(factory=list)
    restorable: bool = False
    usage: Mapping[str, Any] | None = None
    """See `usage.spent`."""


@attrs.frozen(kw_only=True)
class WarmProcessView:
    """An agent that waits for a conversation, or the program that forks such agents (`kind` `parent`). Times
    in seconds, memory in bytes; None: unknown."""

    kind: str
    """`warm` or `parent`."""
    provider: str
    name: str | None
    version: str | None
    pid: int | None
    ready: bool
    """Whether it is initialized, or can fork."""
    uptime: float
    rss_bytes: int
    cpu_seconds: float
    processes: int
    containment: str


@attrs.frozen(kw_only=True)
class Figures:
    """Counters of the server since its start, and its limits."""

    live_agents: int
    starting: int
    queued: int
    hibernated: int
    parked: int
    turns_running: int
    conversations_loaded: int
    starts_total: int
    restarts_total: int
    crashes_total: int
    turns_total: dict[str, int]
    rss_bytes: int
    limit_agents: int | None
    limit_memory_bytes: int | None
    terminals: int = 0
    warm_processes: int = 0
    warm_used_total: int = 0
    warm_lost_total: int = 0
    hooks_total: dict[str, int] = attrs.field(factory=dict)
    usage: Mapping[str, Any] = attrs.field(factory=partial(spent, ()))
    """What the loaded conversations used."""


def agent_state(conversation: Conversation) -> AgentPhase:
    """The agent's state, in one word."""
    phase = conversation.agent_phase
    if phase is not AgentPhase.READY:
        return phase
    if conversation.waiting:
        return AgentPhase.WAITING
    if conversation.cancelling:
        return AgentPhase.CANCELLING
    return AgentPhase.RUNNING if conversation.busy else phase


async def view(
    conversation: Conversation, containment: str, seen: Snapshot, secrets: Mapping[str, str] | None
) -> AgentView:
    """View an agent as it is now, measured in the snapshot `seen`.

    `secrets`: the launcher's `global_secrets`. The measurement runs in a thread; cancellation waits for it.
    """
    agent, record = conversation.agent, conversation.record
    await agent.measure(seen)
    changed = await agent.changed_secrets(secrets)
    now = trio.current_time()
    live = agent.live
    idle_since = agent.idle_since
    return AgentView(
        conversation_id=conversation.id,
        title=record.title,
        provider=agent.descriptor.key,
        name=record.reported.agent_state.get("acp_agent_name"),
        version=record.reported.agent_state.get("acp_agent_version"),
        pid=agent.pid,
        state=agent_state(conversation),
        execution_status=record.now.execution_status,
        memory=record.reported.agent_state.get("memory"),
        uptime=now - agent.started_at if live and agent.started_at is not None else None,
        restarts=agent.restarts.count,
        last_exit=agent.last_exit,
        idle=None if idle_since is None else now - idle_since,
        rss_bytes=agent.rss_bytes if live else None,
        cpu_seconds=agent.cpu_seconds if live else None,
        processes=agent.processes if live else None,
        containment=containment,
        walls=agent.walls if live else None,
        walls_mechanism=agent.walls_mechanism if live else None,
        queue=len(conversation.queued),
        changed_secrets=list(changed),
        restorable=agent.restorable,
        usage=spent([conversation.kind.usage()]),
    )


async def view_warm(warm: WarmProcess | ForkParent, containment: str, seen: Snapshot) -> WarmProcessView:
    """View an agent that waits for a conversation, or who forks such agents, measured in the snapshot `seen`.

    The measurement runs in a thread; cancellation waits for it.
    """
    await warm.measure(seen)
    if isinstance(warm, ForkParent):
        kind, process, info = "parent", warm.forker.process if warm.forker else None, None
    else:
        kind, process, info = "spare", warm.process, warm.initialized.agent if warm.initialized else None
    return WarmProcessView(
        kind=kind,
        provider=warm.agent,
        name=info.name if info else None,
        version=info.version if info else None,
        pid=process.pid if process else None,
        ready=warm.usable,
        uptime=trio.current_time() - warm.born,
        rss_bytes=warm.rss_bytes,
        cpu_seconds=warm.cpu_seconds,
        processes=warm.processes,
        containment=containment,
    )


def figures(conversations: list[Conversation], admission: Admission, counters: Counters) -> Figures:
    """The figures of the server."""
    phases = Counter(conversation.agent_phase for conversation in conversations)
    return Figures(
        live_agents=admission.live,
        starting=admission.starting,
        queued=admission.queued,
        hibernated=phases[AgentPhase.HIBERNATED],
        parked=phases[AgentPhase.PARKED],
        turns_running=sum(conversation.busy for conversation in conversations),
        conversations_loaded=len(conversations),
        starts_total=counters.starts,
        restarts_total=counters.restarts,
        crashes_total=counters.crashes,
        turns_total=dict(counters.turns),
        rss_bytes=admission.rss_bytes,
        limit_agents=admission.limits.agents,
        limit_memory_bytes=admission.limits.memory_bytes,
        terminals=admission.terminals.taken,
        warm_processes=admission.warm_processes,
        warm_used_total=counters.warm_used,
        warm_lost_total=counters.warm_lost,
        hooks_total=dict(counters.hooks),
        usage=spent(conversation.kind.usage() for conversation in conversations),
    )
