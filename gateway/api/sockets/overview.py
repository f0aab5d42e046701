"""`/sockets/overview`: a row for each conversation, and the rows that change.

Frames: `rows` with what there is, `sync` with the `epoch` and `version` that they stand for, then `changes`,
or `tick` where nothing changes. A client that comes back with epoch and version gets what changed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import attrs
import orjson
import trio
from quart import Response

from gateway.api.requests.reading import Handshake
from gateway.api.services import Services
from gateway.api.sockets.exchange import Talk
from gateway.api.sockets.handshake import serve_socket
from gateway.api.sockets.serve import grouped
from gateway.api.sockets.websocket import TRY_LATER, Closed, send_text
from gateway.http.client_connection import current
from supervisor.conversations.overview import Line, Overview

COUNTED_AS: Final = "overview"
"""Where its sockets are counted; no conversation has such an id."""

GROUP_BYTES: Final = 64 * 1024
"""About the size of a frame with rows: other tasks have their turn between two frames."""

TICK_SECONDS: Final = 0.5
"""After this time without a change the client gets a `tick`, so that it notices a server that hangs."""

TICK: Final = b'{"type":"tick"}'

QUERY_CHARS: Final = 1000
"""The longest filter."""


@attrs.frozen(kw_only=True)
class Wanted:
    """Which rows a client sees: those of an agent, in a state, below a directory, and with a text in title,
    path, agent or id."""

    agent: str | None = None
    state: str | None = None
    workspace: str | None = None
    text: str | None = None

    @classmethod
    def of(cls, query: Handshake) -> Wanted:
        """Read a query. Raises ValueError for a filter of more than `QUERY_CHARS` characters."""
        found = {name: query.text(name) for name in ("agent", "state", "workspace", "text")}
        for name, value in found.items():
            if value is not None and len(value) > QUERY_CHARS:
                raise ValueError(f"{name} has more than {QUERY_CHARS} characters")
        return cls(**found)

    def shows(self, line: Line) -> bool:
        """Whether a row is one of them."""
        row = line.shown
        if self.agent is not None and row["agent"] != self.agent:
            return False
        if self.state is not None and self.state not in (row["state"], row["execution_status"]):
            return False
        if self.workspace is not None and not _below(row["workspace"], self.workspace):
            return False
        if self.text is None:
            return True
        folded = self.text.casefold()
        names = (row["title"], row["workspace"], row["agent"], row["id"])
        return any(folded in name.casefold() for name in names if name)


def _below(path: str, directory: str) -> bool:
    directory = directory.rstrip("/")
    return path == directory or path.startswith(f"{directory}/")


def frames(overview: Overview, wanted: Wanted, version: int, epoch: str | None) -> tuple[int, list[bytes]]:
    """What a client that has this version gets, and the version that it has then."""
    found = overview.since(version, epoch)
    shown = [line for line in found.lines if wanted.shows(line)]
    if found.all:
        bodies = (line.body for line in shown)
        opening = [
            b'{"type":"rows","rows":[%b]}' % b",".join(group) for group in grouped(bodies, GROUP_BYTES)
        ]
        return found.version, [*opening, sync(overview, found.version, everything=True)]
    # A row that a filter hides now may have been shown before.
    gone = [*found.gone, *(line.shown["id"] for line in found.lines if not wanted.shows(line))]
    groups = list(grouped((line.body for line in reversed(shown)), GROUP_BYTES))
    if gone:
        groups.insert(0, [])
    # The client has the later version with the last frame alone: the connection may break between two.
    versions = [*[version] * (len(groups) - 1), found.version]
    written = [
        changes(each, group, () if group else gone) for each, group in zip(versions, groups, strict=False)
    ]
    return found.version, written


def sync(overview: Overview, version: int, *, everything: bool = False) -> bytes:
    """The frame that ends what there was. `everything`: the client drops the rows that it had before."""
    return orjson.dumps({"type": "sync", "epoch": overview.epoch, "version": version, "all": everything})


def changes(version: int, bodies: Iterable[bytes], gone: Sequence[str] = ()) -> bytes:
    """The frame with rows that changed, and the ids of those that are gone."""
    given = version, b",".join(bodies), orjson.dumps(gone)
    return b'{"type":"changes","version":%d,"rows":[%b],"gone":%b}' % given


async def serve_overview(services: Services) -> Response | None:
    """Serve the current WebSocket; see `serve_socket`."""

    def read(query: Handshake) -> tuple[str, Talk]:
        wanted, (version, epoch) = Wanted.of(query), _position(query)
        return COUNTED_AS, lambda exchange: exchange.run(lambda: _write(services, wanted, version, epoch))

    return await serve_socket(services, read, "Too many connections to the overview")


def _position(query: Handshake) -> tuple[int, str | None]:
    """What the client has. Raises ValueError."""
    version, epoch = query.text("version"), query.text("epoch")
    if version is None or epoch is None:
        return -1, None
    if not (version.isascii() and version.isdigit() and len(version) < 18):
        raise ValueError(f"version {version!r}")
    return int(version), epoch


async def _write(services: Services, wanted: Wanted, version: int, epoch: str | None) -> None:
    async with services.supervisor.overview.following() as overview:
        everything, begun = overview.since(version, epoch).all, overview.epoch
        version, opening = frames(overview, wanted, version, epoch)
        for frame in opening:
            await send_text(frame)
        if not everything:
            await send_text(sync(overview, version))
        while True:
            # On a closed connection this is the only checkpoint.
            with trio.move_on_after(TICK_SECONDS):
                await overview.changed(version)
            if overview.epoch != begun:  # it failed: rows of another numbering would pass for changes
                raise Closed(TRY_LATER, "The overview begins again")
            version, found = frames(overview, wanted, version, overview.epoch)
            async with current.get().gathering(send_text) as (send, _):
                for frame in found or [TICK]:
                    await send((frame,))
