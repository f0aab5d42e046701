"""The plan of a start: what a process and its session get."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import trio

from supervisor.acp import MAX_FRAME_BYTES, Jail
from supervisor.agents.catalog import Descriptor
from supervisor.agents.limits.values import NO_LIMITS, AgentLimits
from supervisor.agents.walls.enclosure import Enclosure
from supervisor.conversations.agent.launch.login import Login
from supervisor.conversations.mcp.mounting import Mounting
from supervisor.conversations.state.record import ConversationRecord
from supervisor.credentials.masking import Masker

if TYPE_CHECKING:
    from supervisor.agents.walls.door.hosts import AllowList
    from supervisor.agents.walls.door.rewiring import Wiring


@attrs.frozen
class Traits:
    """What a plan has of the agent's kind (`kind.AgentKind`)."""

    record: ConversationRecord
    asks_by_policy: ClassVar[bool] = False
    """Whether it follows the conversation's confirmation policy in every mode."""
    takes_servers_whole: ClassVar[bool] = False
    """Whether it gets the full configuration of its MCP servers, besides ACP's form of them."""

    def among(self, own: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
        """The secrets that it may have: of the conversation's (`own`) and of those for all agents
        (`others`)."""
        return {**others, **own}


@attrs.frozen
class DoorPlan:
    """What the door of an agent's network needs. `parent`: where its directory is made. `connections`: the
    most at a time."""

    wiring: Wiring
    hosts: AllowList
    parent: Path
    connections: int


async def _nothing() -> None:
    await trio.lowlevel.checkpoint()


@attrs.frozen(kw_only=True)
class Plan:
    """Everything a start needs."""

    descriptor: Descriptor
    argv: tuple[str, ...]
    environment: Mapping[str, str] = attrs.field(repr=False)
    secrets: Mapping[str, str] = attrs.field(repr=False)
    """All secrets that the agent may have, by name, whether it gets them or not."""
    fetched: Mapping[str, Any] = attrs.field(repr=False)
    """The sources of those that were fetched (`ConversationRecord.lookups`)."""
    cwd: Path
    jail: Jail
    """The workspace, resolved before the agent can replace it."""
    mounting: Mounting
    mask: Masker = attrs.field(repr=False)
    version: str | None
    login: Login
    max_frame: int = MAX_FRAME_BYTES
    """Longest message of the agent, in bytes."""
    private: bool = False
    """Whether it has a private data directory, which other conversations' agents do not use."""
    checked_out: frozenset[str] = frozenset()
    """Names of the secrets that it uses as files shared with other agents."""
    kind: Traits
    own: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    """The extension parameters of its session."""
    has: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """The secrets that it gets."""
    known_as: Callable[[str | None], Descriptor] | None = attrs.field(default=None, repr=False)
    """The descriptor of an agent that introduces itself by this name (`Launcher.behaving`)."""
    enclosure: Enclosure | None = None
    """The wall around it."""
    door: DoorPlan | None = attrs.field(default=None, repr=False)
    """The door of its network, if it has one."""
    data_disk: str | None = None
    """Where the agent keeps its sessions, among several servers (`machines.disks`)."""
    session_environment: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """The environment variables that the built-in agent gets with its session instead: a warm process
    cannot have the variables of a conversation's home."""
    neutral: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """The values of the same variables in a process without a conversation."""
    limits: AgentLimits = NO_LIMITS
    """The limits of its process tree."""
    own_directories: tuple[Path, ...] = ()
    """The directories of its own that count for its limit of the disk."""
    ended: Callable[[], Awaitable[None]] = _nothing
    """Await it when the agent's processes are gone: it stores the tokens that the agent rotated.

    Raises nothing. Cancellation waits for writes in progress, and may leave the rest to the next start.
    """

    @property
    def start_environment(self) -> Mapping[str, str]:
        """The environment that its process is started with."""
        if not self.session_environment:
            return self.environment
        kept = {
            name: value for name, value in self.environment.items() if name not in self.session_environment
        }
        return {**kept, **self.neutral}
