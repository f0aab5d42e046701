"""The services that routes use: opened by the server and handed to the application."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import trio

from gateway.api.known_directories import KnownDirectories
from gateway.configuration.config import Config
from gateway.http.connection_limits import ConnectionLimits
from supervisor.workspace.access import PathAccess
from supervisor.workspace.pins import Pins

if TYPE_CHECKING:
    from gateway.api.contract import Supervisor
    from gateway.api.files.downloads import Downloads
    from gateway.api.mcp_jobs import McpJobs
    from gateway.api.webhooks.service import Webhooks
    from supervisor.conversations.agent.launch.launcher import Launcher
    from supervisor.credentials.store import SecretStore
    from supervisor.settings.profiles.profiles import AgentProfileStore
    from supervisor.settings.storage.store import SettingsStore
    from supervisor.workspace.commands.bash import Bash


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
    """The server's uptime, and the time since its last request, in seconds."""

    def __init__(self) -> None:
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

    The caller that opened the parts closes them, and sets `closing` before.
    """

    config: Config
    supervisor: Supervisor
    launcher: Launcher
    settings: SettingsStore
    profiles: AgentProfileStore
    secrets: SecretStore
    mcp: McpJobs | None = None
    webhooks: Webhooks | None = None
    bash: Bash | None = None
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
    connection_limits: ConnectionLimits = attrs.field(
        default=attrs.Factory(lambda self: ConnectionLimits(self.config.max_connections), takes_self=True)
    )
    _downloads: list[Downloads] = attrs.field(factory=list, init=False)
    subscribers: Subscribers = attrs.field(
        default=attrs.Factory(lambda self: Subscribers(self.config.max_subscribers), takes_self=True)
    )

    @property
    def downloads(self) -> Downloads:
        """The slots for streamed downloads; imported with the first route."""
        if not self._downloads:
            from gateway.api.files.downloads import Downloads

            keyed = bool(self.config.session_api_keys)
            self._downloads.append(Downloads(self.config.descriptors.downloads, keyed=keyed))
        return self._downloads[0]
