"""What warm processes are kept for, and how one is planned without a conversation: with the settings and the
secrets that any conversation would have."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from supervisor.agents.catalog import Descriptor
from supervisor.agents.containment.containment import can_fork
from supervisor.conversations.agent.launch.launcher import Launcher
from supervisor.conversations.agent.launch.plan import Plan
from supervisor.conversations.agent.warm.fork_parent import ForkParent
from supervisor.conversations.state.errors import InvalidStart
from supervisor.conversations.state.record import ConversationRecord, Start
from supervisor.conversations.state.secret_box import SecretBox
from supervisor.credentials.secret import CredentialsFailure
from supervisor.events import Vocabulary, timestamp_now
from supervisor.settings.agent import AgentSettings, agent_settings_to_dict
from supervisor.settings.errors import SettingsFailure

EXPECTED_BYTES: Final = 300 * 1024 * 1024
"""The assumed memory of a warm process, and of a parent, before one has been measured."""

WARM_WORKSPACE: Final = "workspace"


@attrs.define(eq=False)
class WarmKind:
    """The state of one agent for which warm processes are kept."""

    descriptor: Descriptor
    number: int
    settings: AgentSettings
    """The start-relevant part of the last conversation's settings."""
    working_dir: str
    wanted: bytes
    """The key of the last conversation's process."""
    agreed: bytes = b""
    """The key of the last planned warm process."""
    not_before: float = 0.0
    deaths: int = 0
    forked_bytes: int = EXPECTED_BYTES
    """Memory of a forked warm process, without the part shared with its parent."""
    alone_bytes: int = EXPECTED_BYTES
    """Memory of a warm process without a parent."""
    parent_bytes: int = EXPECTED_BYTES
    shortages: int = 0
    """How often warm processes were ended for lack of memory since one was last used."""
    starting: bool = False
    parent: ForkParent | None = None
    """The parent that forks its processes, if its program supports that."""
    refusals: int = 0
    """How many consecutive parents did not become ready."""
    no_parent_before: float = 0.0

    @property
    def forks(self) -> bool:
        """Whether the next warm process would be forked, by a running or a new parent."""
        if self.descriptor.forks is None or not can_fork():
            return False
        return self.has_parent or trio.current_time() >= self.no_parent_before

    @property
    def has_parent(self) -> bool:
        """Whether a parent runs that can fork."""
        return self.parent is not None and self.parent.usable

    @property
    def need(self) -> tuple[int, int]:
        """Memory in bytes, and admission slots, that the next warm process needs, including a new parent."""
        if not self.forks:
            return self.alone_bytes, 1
        return (self.forked_bytes, 1) if self.has_parent else (self.forked_bytes + self.parent_bytes, 2)


@attrs.frozen
class WarmPlanner:
    """Plans processes that belong to no conversation. `install`: seconds for an installation."""

    launcher: Launcher
    secret_box: SecretBox
    default_agent: Callable[[], Awaitable[AgentSettings]]
    install: float

    async def plan(self, name: str, kind: WarmKind, settings: AgentSettings) -> tuple[Plan, bytes]:
        """The plan of a process in the directory `name`, and the key of that process. Raises what
        `Launcher.plan` raises."""
        record = await self._record(name, kind, settings)
        plan = await self.launcher.plan(record, _ignore, self.install)
        return plan, key_of(plan)

    async def candidates(self, kind: WarmKind) -> list[AgentSettings]:
        """The settings that a conversation without its own settings may have: the server's defaults, and the
        bare ones."""
        default = await self._default(kind)
        return [kind.settings] if default is None else [default, kind.settings]

    async def _default(self, kind: WarmKind) -> AgentSettings | None:
        try:
            default = await self.default_agent()
        except (InvalidStart, SettingsFailure, CredentialsFailure, OSError):
            return None
        return _deciding(default) if default.acp_server == kind.descriptor.key else None

    async def _record(self, name: str, kind: WarmKind, settings: AgentSettings) -> ConversationRecord:
        now = timestamp_now()
        own = str(Path(self.launcher.data) / name / WARM_WORKSPACE)
        return ConversationRecord(
            id=name,
            start=Start(
                working_dir=own if kind.descriptor.warm == "session" else kind.working_dir,
                created_at=now,
                vocabulary=Vocabulary.EXTENDED,
                preset_command=tuple(settings.acp_command) == kind.descriptor.command,
                mcp_only=[],
            ),
            updated_at=now,
            agent=await self.secret_box.seal_settings(settings),
        )

    async def fingerprint(self, kind: WarmKind) -> bytes:
        """A digest of the inputs of a warm process that may change: settings and secrets."""
        default = await self._default(kind)
        with_session = kind.descriptor.secrets_with_session
        secrets = None if with_session else await self.launcher.global_secrets()
        facts: list[Any] = [
            None if default is None else sorted(agent_settings_to_dict(default).items()),
            None if secrets is None else sorted(secrets.items()),
        ]
        return hashlib.sha256(repr(facts).encode("utf-8", "backslashreplace")).digest()


def key_of(plan: Plan) -> bytes:
    """What processes that suit the same conversations have in common (`process.key_of`)."""
    # Imported late, since it loads everything that runs agents.
    from supervisor.conversations.agent.warm import process

    return process.key_of(plan)


def _ignore(step: str) -> None:
    """Ignores the progress of an installation."""


def _deciding(settings: AgentSettings) -> AgentSettings:
    """The part of the settings that determines how the process is started."""
    return attrs.evolve(bare(settings), acp_env=settings.acp_env, acp_env_plain=settings.acp_env_plain)


def bare(settings: AgentSettings) -> AgentSettings:
    """The settings without the members that hold a conversation's own values."""
    return AgentSettings(
        acp_server=settings.acp_server,
        acp_command=settings.acp_command,
        acp_args=settings.acp_args,
        acp_isolate_data_dir=settings.acp_isolate_data_dir,
        acp_home=settings.acp_home,
        acp_home_links=settings.acp_home_links,
        acp_home_copies=settings.acp_home_copies,
        acp_client_methods=settings.acp_client_methods,
        acp_limits=settings.acp_limits,
    )
