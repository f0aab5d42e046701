"""What an operator sees of the agents, and the figures of the whole server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs
import trio

from supervisor.agents.mark import Snapshot

if TYPE_CHECKING:
    from .admission import Admission
    from .conversation import Conversation


FAILED: Final = "failed"
"""The ending of a turn that came to nothing."""

OTHER_ENDING: Final = "other"

ENDINGS: Final = frozenset(
    {"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled", FAILED, OTHER_ENDING}
)
"""Endings of turns that are counted by their names: the protocol's stop reasons, and ours."""


@attrs.frozen(kw_only=True)
class AgentView:
    """One conversation's agent. Times in seconds, memory in bytes; None: there is nothing to tell.

    `state` is where the agent is: none, queued, installing, starting, ready, running, waiting, cancelling,
    restarting, parked, hibernated, stopped, exited. `memory` is what it remembers of the conversation.
    `changed_secrets` are names of secrets that are others now than when it was started.
    """

    conversation_id: str
    title: str | None
    provider: str
    name: str | None
    version: str | None
    pid: int | None
    state: str
    execution_status: str
    memory: str | None
    uptime: float | None
    restarts: int
    last_exit: str | None
    idle: float | None
    rss_bytes: int | None
    cpu_seconds: float | None
    processes: int | None
    containment: str
    queue: int
    changed_secrets: list[str] = attrs.field(factory=list)


@attrs.frozen(kw_only=True)
class Figures:
    """Counts of the server since its start, and its limits."""

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


@attrs.define
class Tally:
    """What is counted as it happens; one per server."""

    starts: int = 0
    restarts: int = 0
    crashes: int = 0
    turns: Counter[str] = attrs.field(factory=Counter)

    def count_turn(self, ending: str) -> None:
        """A turn ended, with a stop reason of the protocol or FAILED. Others, which agents can make up, are
        one kind: these are names of figures."""
        self.turns[ending if ending in ENDINGS else OTHER_ENDING] += 1


def agent_state(conversation: Conversation) -> str:
    """Where the agent is, in one word."""
    runner = conversation.runner
    if runner.keeper.phase != "ready":
        return runner.keeper.phase
    if runner.waiting:
        return "waiting"
    if runner.cancelling:
        return "cancelling"
    return "running" if runner.busy else "ready"


async def view(
    conversation: Conversation, containment: str, seen: Snapshot, secrets: Mapping[str, str] | None
) -> AgentView:
    """An agent as it is now; its tree is measured in `seen`, in a thread, which cancelling waits for.
    `secrets` are the launcher's `global_secrets`."""
    keeper, record = conversation.runner.keeper, conversation.record
    await keeper.measure(seen)
    changed = await keeper.changed_secrets(secrets)
    now = trio.current_time()
    live = keeper.current is not None
    idle_since = keeper.idle_since
    return AgentView(
        conversation_id=conversation.id,
        title=record.title,
        provider=conversation.context.launcher.descriptor(record).key,
        name=record.agent_state.get("acp_agent_name"),
        version=record.agent_state.get("acp_agent_version"),
        pid=keeper.current.pid if keeper.current is not None else None,
        state=agent_state(conversation),
        execution_status=record.execution_status,
        memory=record.agent_state.get("memory"),
        uptime=now - keeper.started_at if live and keeper.started_at is not None else None,
        restarts=keeper.restarts,
        last_exit=keeper.last_exit,
        idle=None if idle_since is None else now - idle_since,
        rss_bytes=keeper.rss_bytes if live else None,
        cpu_seconds=keeper.cpu_seconds if live else None,
        processes=keeper.processes if live else None,
        containment=containment,
        queue=len(conversation.inbox),
        changed_secrets=list(changed),
    )


def figures(conversations: list[Conversation], admission: Admission, tally: Tally) -> Figures:
    """The figures of the server."""
    phases = Counter(conversation.runner.keeper.phase for conversation in conversations)
    return Figures(
        live_agents=admission.live,
        starting=admission.starting,
        queued=admission.queued,
        hibernated=phases["hibernated"],
        parked=phases["parked"],
        turns_running=sum(conversation.runner.busy for conversation in conversations),
        conversations_loaded=len(conversations),
        starts_total=tally.starts,
        restarts_total=tally.restarts,
        crashes_total=tally.crashes,
        turns_total=dict(tally.turns),
        rss_bytes=admission.rss_bytes,
        limit_agents=admission.limits.agents,
        limit_memory_bytes=admission.limits.memory_bytes,
        terminals=admission.terminals.taken,
    )
