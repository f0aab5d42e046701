"""The services that routes use: opened by the server and handed to the application."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs
import trio

from gateway.api.known_directories import KnownDirectories
from gateway.api.metrics import History
from gateway.configuration.config import Config
from gateway.http.connection_limits import ConnectionLimits
from supervisor.documents.files import FileDocuments
from supervisor.documents.port import Documents
from supervisor.state_directory import TEMPORARY_DIR
from supervisor.workspace.access import PathAccess
from supervisor.workspace.pins import Pins

if TYPE_CHECKING:
    from gateway.api.contract import Machines, Supervisor
    from gateway.api.files.downloads import Downloads
    from gateway.api.forwarding.owners import Owners
    from gateway.api.mcp_jobs import McpJobs
    from gateway.api.provisioning.provisioner import Provisioner
    from gateway.api.requests.timestamps import Clock
    from gateway.api.usable_tools import UsableTools
    from gateway.api.webhooks.service import Webhooks
    from supervisor.conversations.agent.launch.launcher import Launcher
    from supervisor.credentials.store import SecretStore
    from supervisor.settings.profiles.profiles import AgentProfileStore
    from supervisor.settings.storage.store import SettingsStore
    from supervisor.workspace.commands.bash import Bash
    from supervisor.workspace.git.command import Git
    from supervisor.workspace.saved import SavedWorkspaces


class Subscribers:
    """The number of WebSockets of each conversation."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """All of them."""
        return self._count.total()

    @contextmanager
    def joined(self, conversation_id: str) -> Iterator[bool]:
        """Hold a slot while the block runs; yields False if none is free."""
        if self._count[conversation_id] >= self._limit:
            yield False
            return
        self._count[conversation_id] += 1
        try:
            yield True
        finally:
            self._count[conversation_id] -= 1
            if not self._count[conversation_id]:
                del self._count[conversation_id]


class Activity:
    """The server's uptime, and the time since its last request, in seconds; how often the warden has started
    it again (None without one)."""

    def __init__(self) -> None:
        self.warden_restarts: int | None = None
        self._started = self._touched = time.monotonic()

    def touch(self) -> None:
        """Note a request."""
        self._touched = time.monotonic()

    def uptime(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def idle(self) -> float:
        """Seconds since the last request."""
        return time.monotonic() - self._touched


@attrs.frozen(kw_only=True)
class Services:
    """Everything that a route may use.

    The caller that opened the parts closes them, and sets `closing` before. `machines` are the servers over
    one database (None: this one is alone), `server_key` the key that they trust each other by, and
    `lease_seconds` how long one that has died counts as alive. `provisioner` starts one for each
    conversation.
    """

    config: Config
    supervisor: Supervisor
    launcher: Launcher
    settings: SettingsStore
    profiles: AgentProfileStore
    secrets: SecretStore
    documents: Documents = attrs.field(
        default=attrs.Factory(lambda self: FileDocuments(self.config.state), takes_self=True)
    )
    mcp: McpJobs | None = None
    webhooks: Webhooks | None = None
    bash: Bash | None = None
    machines: Machines | None = None
    server_key: str | None = attrs.field(default=None, repr=False)
    lease_seconds: float = 15.0
    provisioner: Provisioner | None = None
    emptied: trio.Event = attrs.field(factory=trio.Event)
    """Set when other servers have the conversations of this one."""
    closing: trio.Event = attrs.field(factory=trio.Event)
    known: KnownDirectories = attrs.field(
        default=attrs.Factory(lambda self: KnownDirectories(self.supervisor), takes_self=True)
    )
    access: PathAccess = attrs.field(
        default=attrs.Factory(
            lambda self: PathAccess(self.config.workspace_access, self.known, Pins(self.config.state)),
            takes_self=True,
        )
    )
    activity: Activity = attrs.field(factory=Activity)
    history: History = attrs.field(factory=History)
    connection_limits: ConnectionLimits = attrs.field(
        default=attrs.Factory(lambda self: ConnectionLimits(self.config.max_connections), takes_self=True)
    )
    subscribers: Subscribers = attrs.field(
        default=attrs.Factory(lambda self: Subscribers(self.config.max_subscribers), takes_self=True)
    )

    def tell(self, info: Mapping[str, Any]) -> None:
        """Send the state of a new conversation to the webhooks."""
        if self.webhooks is not None:
            self.webhooks.tell(info)

    # What follows is imported with the first route.

    @cached_property
    def clock(self) -> Clock:
        """Dates the frames between server and agents."""
        from gateway.api.requests.timestamps import Clock

        return Clock()

    @cached_property
    def owners(self) -> Owners:
        """The connections to other servers, where there are `machines`. The caller of `Services` closes
        them."""
        from gateway.api.forwarding.owners import Owners

        assert self.machines is not None
        return Owners(self.machines, self.server_key or "")

    @cached_property
    def saved(self) -> SavedWorkspaces:
        """The workspaces that people keep in their pickers."""
        from supervisor.workspace.saved import SavedWorkspaces

        return SavedWorkspaces(self.documents)

    @cached_property
    def usable_tools(self) -> UsableTools:
        """The tools of the built-in agent."""
        from gateway.api.usable_tools import UsableTools

        return UsableTools(self.launcher.server_environment)

    @cached_property
    def git(self) -> Git:
        """Runs git in workspaces."""
        from supervisor.workspace.git.command import Git

        temporary = self.config.state / TEMPORARY_DIR
        return Git(self.access, self.launcher.server_environment, temporary=temporary)

    @cached_property
    def downloads(self) -> Downloads:
        """The slots for streamed downloads."""
        from gateway.api.files.downloads import Downloads

        return Downloads(self.config.descriptors.downloads, keyed=bool(self.config.session_api_keys))
