"""The MCP servers of one conversation: gathered when its agent is started, and what became of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import attrs
import trio

from supervisor.mcp import Forwarded
from supervisor.mcp.configured import Configured, Server, configured, resolve, without_secrets
from supervisor.mcp.file import FILE, McpFile, McpFileError

_limiter: Final = trio.CapacityLimiter(2)
"""Threads that read the file at a time: it takes less than a millisecond."""


@attrs.frozen
class Mounting:
    """What there is to mount. `entries` are the servers by name with the secrets in them; `dropped` are
    (name, reason) of those that cannot be mounted. Equal `wanted` means that nothing was changed since."""

    wanted: Configured = attrs.field(factory=Configured)
    entries: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    dropped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def servers(self) -> tuple[Server, ...]:
        """Those that can be mounted as far as is known without the agent."""
        return tuple(server for server in self.wanted.servers if server.name in self.entries)


async def gather(
    file: McpFile | None,
    own: Mapping[str, Any],
    secrets: Mapping[str, str],
    only: Collection[str] | None = None,
) -> Mounting:
    """Read the file (in a thread, which cancelling waits for) and put together what counts.

    A file that cannot be read drops its own servers alone.
    """
    entries: dict[str, Any] = {}
    dropped: list[tuple[str, str]] = []
    notes: tuple[str, ...] = ()
    found: Mapping[str, Any] = {}
    if file is not None:
        try:
            found = (await trio.to_thread.run_sync(file.read, limiter=_limiter)).servers
        except McpFileError as error:
            dropped.append((FILE, str(error)))
        old = await trio.to_thread.run_sync(file.old_configuration, limiter=_limiter)
        notes = () if old is None else (old,)
    wanted = configured(found, own, only=only)
    dropped += wanted.dropped
    for server in wanted.servers:
        entry, missing = resolve(server, secrets)
        if missing:
            dropped.append((server.name, without_secrets(missing)))
        else:
            entries[server.name] = entry
    return Mounting(wanted, entries, tuple(dropped), notes)


@attrs.frozen
class Mounted:
    """What an agent was given: servers, (name, reason) of those that it was not, and (name, reason) of those
    that it got without something. Names and reasons alone, so that it can be shown."""

    servers: tuple[Server, ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, mounting: Mounting, forwarded: Forwarded) -> Mounted:
        """After `session/new` and its like were told."""
        given = {server["name"] for server in forwarded.servers}
        return cls(
            tuple(server for server in mounting.servers if server.name in given),
            (*mounting.dropped, *forwarded.dropped),
            tuple(forwarded.notes),
        )

    def __bool__(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.servers or self.dropped or self.notes)

    def dump(self) -> dict[str, Any]:
        """As a state that clients see."""
        return {
            "active": [
                {"name": server.name, "transport": server.transport, "source": server.source}
                for server in self.servers
            ],
            "dropped": [{"name": name, "reason": reason} for name, reason in self.dropped],
            "notes": [{"name": name, "reason": reason} for name, reason in self.notes],
        }


# -- the message /mcp -----------------------------------------------------------------------------------

COMMAND: Final = "/mcp"


def overview(running: tuple[Mounting, Mounted] | None, now: Mounting) -> str:
    """The answer to `/mcp`: what the running agent has (None: there is none), and what it will have."""
    lines: list[str] = []
    if running is None:
        lines.append("No agent is running. When it starts, these MCP servers are mounted:")
        lines += _listed(now.servers)
        lines += _reasons("They cannot be mounted:", now.dropped)
    else:
        mounting, mounted = running
        lines.append("Active MCP servers:")
        lines += _listed(mounted.servers)
        lines += _reasons("Left out:", mounted.dropped)
        lines += _reasons("Notes:", mounted.notes)
        changes = _changes(mounting, now)
        if changes:
            lines += ["", "The configuration has changed since. When the agent is restarted:", *changes]
    lines += [f"\n{note}" for note in now.notes]
    lines += ["", "`ostler mcp` changes the servers; changes count from the next start of the agent."]
    return "\n".join(lines)


def _listed(servers: tuple[Server, ...]) -> list[str]:
    return [f"- {server.name} ({server.transport}, {_source(server)})" for server in servers] or ["- none"]


def _source(server: Server) -> str:
    return "mcp.json" if server.source == "file" else "settings or start request"


def _reasons(head: str, reasons: tuple[tuple[str, str], ...]) -> list[str]:
    return ["", head, *(f"- {name}: {reason}" for name, reason in reasons)] if reasons else []


def _changes(before: Mounting, now: Mounting) -> list[str]:
    """What a restart would do, line by line; none where it would do nothing."""
    old = {server.name: server for server in before.wanted.servers}
    new = {server.name: server for server in now.servers}
    could = {server.name for server in before.servers}
    dropped = {name: reason for name, reason in now.dropped if (name, reason) not in before.dropped}
    lines = []
    for name, server in new.items():
        if name not in could:
            lines.append(f"- {name} ({server.transport}, {_source(server)}) will be mounted")
        elif server != old[name]:
            lines.append(
                f"- {name} ({server.transport}, {_source(server)}) will be mounted with its new settings"
            )
    lines += [f"- {name} will be left out: {reason}" for name, reason in dropped.items()]
    lines += [
        f"- {name} will be gone" for name in old if name not in new and name not in dropped and name in could
    ]
    return lines
