"""The MCP servers of one conversation: gathered at the agent's start, and which of them it got."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Final

import attrs
import trio

from supervisor.conversations.mcp.logins import CannotRenew, McpLogins, NotLoggedIn, with_token
from supervisor.credentials.secret import CredentialsFailure
from supervisor.mcp.configured import FROM_FILE, Configured, Server, configured, resolve, without_secrets
from supervisor.mcp.entry import transport_of, uses_oauth
from supervisor.mcp.file import FILE, McpFile, McpFileError
from supervisor.mcp.forward import Forwarded
from supervisor.mcp.proxy import NoToken, Proxy, Target, new_path

_limiter: Final = trio.CapacityLimiter(2)
"""Threads that may read the file at the same time: it takes less than a millisecond."""


@attrs.frozen
class Mounting:
    """The servers to mount.

    `entries` are the servers by name, with the secrets in them. `dropped` are (name, reason) of those that
    cannot be mounted. Equal `wanted` means that nothing has changed.
    """

    wanted: Configured = attrs.field(factory=Configured)
    entries: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    dropped: tuple[tuple[str, str], ...] = ()
    without: tuple[tuple[str, str], ...] = ()
    """(name, reason) of servers that are mounted, but lack something."""
    notes: tuple[str, ...] = ()
    proxied: Mapping[str, tuple[str, Target]] = attrs.field(factory=dict, repr=False)
    """The servers whose token expires, by name: the path of a proxy for each, and its target."""

    @property
    def servers(self) -> tuple[Server, ...]:
        """The servers that can be mounted, as far as is known without the agent."""
        return tuple(server for server in self.wanted.servers if server.name in self.entries)

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """Those by which the agent starts servers of this machine's file. A client widens no wall by naming
        others."""
        ours = [self.entries[each.name] for each in self.servers if each.source == FROM_FILE]
        found = [entry for entry in ours if transport_of(entry) == "stdio"]
        return tuple((str(each["command"]), *map(str, each.get("args") or ())) for each in found)


async def gather(
    file: McpFile | None,
    own: Mapping[str, Any],
    secrets: Mapping[str, str],
    only: Collection[str] | None = None,
    logins: McpLogins | None = None,
    *,
    peek: bool = False,
) -> Mounting:
    """Read the file, and merge the servers that apply.

    A file that cannot be read drops only its own servers. `logins` gives tokens to servers that require them,
    which may send requests to an authorization server; with `peek` it only checks whether there is a login.

    Cancellation waits for the thread that reads the file.
    """
    found = await trio.to_thread.run_sync(_found, file, own, secrets, only, limiter=_limiter)
    entries, dropped = dict(found.entries), list(found.dropped)
    proxied: dict[str, tuple[str, Target]] = {}
    without: list[tuple[str, str]] = []
    for name in [name for name, entry in entries.items() if uses_oauth(entry)]:
        try:
            entries[name] = await _logged_in(logins, name, entries[name], proxied, without, peek=peek)
        except (NotLoggedIn, CredentialsFailure) as error:
            del entries[name]
            dropped.append((name, str(error)))
    return attrs.evolve(
        found, entries=entries, dropped=tuple(dropped), without=tuple(without), proxied=proxied
    )


def _found(
    file: McpFile | None, own: Mapping[str, Any], secrets: Mapping[str, str], only: Collection[str] | None
) -> Mounting:
    """The merged servers, without logins. Blocks on the disk, and parses."""
    entries: dict[str, Any] = {}
    dropped: list[tuple[str, str]] = []
    notes: tuple[str, ...] = ()
    listed: Mapping[str, Any] = {}
    if file is not None:
        try:
            listed = file.read().servers
        except McpFileError as error:
            dropped.append((FILE, str(error)))
        old = file.old_configuration()
        notes = () if old is None else (old,)
    wanted = configured(listed, own, only=only)
    dropped += wanted.dropped
    for server in wanted.servers:
        entry, missing = resolve(server, secrets)
        if missing:
            dropped.append((server.name, without_secrets(missing)))
        else:
            entries[server.name] = entry
    return Mounting(wanted, entries, tuple(dropped), notes=notes)


async def _logged_in(
    logins: McpLogins | None,
    name: str,
    entry: Mapping[str, Any],
    proxied: dict[str, tuple[str, Target]],
    without: list[tuple[str, str]],
    *,
    peek: bool,
) -> dict[str, Any]:
    """Return the entry with its login in it: the token in a header if it does not expire, else by a proxy
    (`proxied`). Raises NotLoggedIn, and what the store of logins raises."""
    if logins is None:
        raise NotLoggedIn("this server stores no logins")
    plain = {key: value for key, value in entry.items() if key != "auth"}
    if peek:
        await logins.check(name, entry)
        return plain
    token = await logins.token(name, entry)
    if token.expires_at is not None and transport_of(entry) == "http":
        proxied[name] = (new_path(), Target(entry["url"], partial(_current, logins, name, entry)))
        return plain
    if token.expires_at is not None:
        without.append(
            (name, "Ostler cannot renew its login while the agent runs, since it uses the sse transport")
        )
    return with_token(entry, token)


async def _current(logins: McpLogins, name: str, entry: Mapping[str, Any], refused: str | None) -> str:
    try:
        return (await logins.token(name, entry, refused=refused)).value
    except CannotRenew as error:
        raise NoToken(str(error), for_now=True) from error
    except (NotLoggedIn, CredentialsFailure) as error:
        raise NoToken(str(error)) from error


async def served(mounting: Mounting, nursery: trio.Nursery) -> Mapping[str, Any]:
    """The entries for the agent. A proxy for those that need one lives in the nursery."""
    if not mounting.proxied:
        return mounting.entries
    proxy = Proxy(dict(mounting.proxied.values()))
    await nursery.start(proxy.serve)
    urls = {name: proxy.url(path) for name, (path, _) in mounting.proxied.items()}
    return {
        name: {**entry, "url": urls[name]} if name in urls else entry
        for name, entry in mounting.entries.items()
    }


@attrs.frozen
class Mounted:
    """The servers that an agent got, (name, reason) of those that it did not get, and of those that lack
    something.

    Names and reasons only, so that it can be shown.
    """

    servers: tuple[Server, ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, mounting: Mounting, forwarded: Forwarded) -> Mounted:
        """The result after `session/new`, `session/load` or `session/resume`."""
        given = {server["name"] for server in forwarded.servers}
        return cls(
            tuple(server for server in mounting.servers if server.name in given),
            (*mounting.dropped, *forwarded.dropped),
            (*mounting.without, *forwarded.notes),
        )

    def __bool__(self) -> bool:
        """Whether there is anything to report."""
        return bool(self.servers or self.dropped or self.notes)

    def dump(self) -> dict[str, Any]:
        """As the state that clients see."""
        return {
            "active": [
                {"name": server.name, "transport": server.transport, "source": server.source}
                for server in self.servers
            ],
            "dropped": [{"name": name, "reason": reason} for name, reason in self.dropped],
            "notes": [{"name": name, "reason": reason} for name, reason in self.notes],
        }


# -- the message /mcp -----------------------------------------------------------------------------------


def overview(running: tuple[Mounting, Mounted] | None, now: Mounting) -> str:
    """The answer to `/mcp`: the servers of the running agent (None: none runs), and those after a restart."""
    lines: list[str] = []
    if running is None:
        lines.append("No agent is running. The next one gets these MCP servers:")
        lines += _listed(now.servers)
        lines += _reasons("Left out:", now.dropped)
    else:
        mounting, mounted = running
        lines.append("Active MCP servers:")
        lines += _listed(mounted.servers)
        lines += _reasons("Left out:", mounted.dropped)
        lines += _reasons("Notes:", mounted.notes)
        changes = _changes(mounting, now)
        if changes:
            lines += ["", "The configuration has changed. After a restart of the agent:", *changes]
    lines += [f"\n{note}" for note in now.notes]
    lines += ["", "`ostler mcp` changes the servers. The agent sees changes at its next start."]
    return "\n".join(lines)


def _listed(servers: tuple[Server, ...]) -> list[str]:
    return [f"- {_named(server)}" for server in servers] or ["- none"]


def _named(server: Server) -> str:
    source = "mcp.json" if server.source == "file" else "settings or start request"
    return f"{server.name} ({server.transport}, {source})"


def _reasons(head: str, reasons: tuple[tuple[str, str], ...]) -> list[str]:
    return ["", head, *(f"- {name}: {reason}" for name, reason in reasons)] if reasons else []


def _changes(before: Mounting, now: Mounting) -> list[str]:
    """The changes that a restart would bring, line by line."""
    old = {server.name: server for server in before.wanted.servers}
    new = {server.name: server for server in now.servers}
    could = {server.name for server in before.servers}
    dropped = {name: reason for name, reason in now.dropped if (name, reason) not in before.dropped}
    lines = []
    for name, server in new.items():
        if name not in could:
            lines.append(f"- {_named(server)} will be added")
        elif server != old[name]:
            lines.append(f"- {_named(server)} will get its new settings")
    lines += [f"- {name} will be left out: {reason}" for name, reason in dropped.items()]
    lines += [
        f"- {name} will be removed"
        for name in old
        if name not in new and name not in dropped and name in could
    ]
    return lines
