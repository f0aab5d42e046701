"""What an agent's processes see of the file system, as a list of mounts. Pure: paths are resolved before."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs

from supervisor.agents.walls.wall import Wall


class Kind(enum.StrEnum):
    """How a place is filled."""

    WRITABLE = "bind"
    READ_ONLY = "ro-bind"
    DEVICES = "dev-bind"
    """As `bind`, with working device files."""
    LINK = "symlink"
    """A symbolic link with the text `source`."""
    EMPTY = "tmpfs"
    """An empty directory in memory."""
    NEW_DEVICES = "dev"
    """`/dev` with the harmless devices alone."""
    NEW_PROC = "proc"
    """`/proc` of the processes inside."""
    SEALED = "remount-ro"
    """What is mounted there becomes read-only, without what is mounted below it."""


@attrs.frozen
class Mount:
    """One step. `source`: what is shown at `target`, where the kind needs one."""

    kind: Kind
    target: Path
    source: Path | None = None


@attrs.frozen(kw_only=True)
class Outside:
    """What the machine has, and what is to be kept from agents, for all agents of one server. All paths exist
    and are resolved."""

    system: tuple[Path, ...]
    """Directories that every program may need."""
    private: tuple[tuple[Path, bool], ...] = ()
    """Of the system, what is open to root alone, where root runs Ostler; whether it is a directory."""
    links: tuple[tuple[Path, str], ...] = ()
    """Links at the root, each with its text."""
    hidden: tuple[Path, ...] = ()
    """Directories whose content no agent sees, but for its own part."""
    hidden_files: tuple[Path, ...] = ()
    """Files whose content no agent sees, as long as they are not replaced: that ends a mount on a file."""
    pinned: tuple[Path, ...] = ()
    """Directories above these that an agent could rename, and so take what is below out of hiding."""
    names: tuple[Path, ...] = ()
    """Other names of these."""
    home: Path | None = None
    """Of the user who runs Ostler."""
    logins: tuple[tuple[Path, frozenset[str]], ...] = ()
    """Directories in which agents keep logins, each with the keys of the agents that do."""
    runtime: tuple[Path, ...] = ()
    """What programs need of `/run`."""
    devices: tuple[Path, ...] = ()
    """What the user can use of `/dev` besides the harmless devices; none of the terminals."""
    groups: tuple[Path, ...] = ()
    """Where control groups are mounted."""


@attrs.frozen(kw_only=True)
class Needs:
    """What one agent needs. All paths exist and are resolved."""

    agent: str
    workspace: Path
    asked: Path | None = None
    """The workspace as its client named it."""
    own: tuple[Path, ...] = ()
    """Files and directories that it may write: its home, its temporary files, logins that it was given."""
    programs: tuple[Path, ...] = ()
    """Its install, and the interpreters that run it."""
    servers: tuple[tuple[Path, Path], ...] = ()
    """What its MCP servers are started with: (name, file or directory). Seen unless it is kept from the
    agent, or holds what is."""
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    """Further paths that the operator allows."""
    hidden: tuple[Path, ...] = ()
    """Directories of this server that are hidden as `Outside.hidden` are."""
    aliases: tuple[tuple[Path, Path], ...] = ()
    """Other names of these directories: (name, directory)."""
    kept: tuple[Path, ...] = ()
    """Places in the workspace whose content runs outside of the walls later: read-only inside."""


ROOT: Final = Path("/")
DEV: Final = Path("/dev")
PROC: Final = Path("/proc")
SETTINGS: Final = Path("/proc/sys")
NOTHING: Final = Path("/dev/null")
RUN: Final = Path("/run")
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - of the agent alone
TEMPORARY: Final = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - of the agent alone


def mounts(wall: Wall, outside: Outside, needs: Needs) -> list[Mount]:
    """The mounts of a wall, in the order in which they are made. Raises ValueError for OFF."""
    match wall:
        case Wall.GUARD:
            return [*_guard(outside, needs)]
        case Wall.STRICT:
            return [*_strict(outside, needs)]
        case _:
            raise ValueError("without walls nothing is mounted")


def _guard(outside: Outside, needs: Needs) -> Iterator[Mount]:
    yield Mount(Kind.DEVICES, ROOT, ROOT)
    # A delegated group is the user's: a write there raises the agent's limits, or kills what is in another.
    for path in outside.groups:
        yield Mount(Kind.READ_ONLY, path, path)
    yield from _processes()
    # With terminals of its own: what is written to the user's may be commands for their emulator.
    yield Mount(Kind.NEW_DEVICES, DEV)
    for path in outside.devices:
        yield Mount(Kind.DEVICES, path, path)
    # Sockets of services that start processes outside of the walls for the user: systemd, D-Bus, containers.
    yield from _emptied(RUN, outside.runtime)
    hidden = (*outside.hidden, *needs.hidden, *_others(outside, needs))
    pinned = [Mount(Kind.WRITABLE, path, path) for path in outside.pinned]
    # The rest is seen as it is.
    given = [each for each in _given(needs) if _held(each.target, hidden) or each.target in _later(needs)]
    yield from _outer_first([*pinned, *_hiding(hidden, outside.hidden_files), *given])
    yield from _sealing(hidden)


def _strict(outside: Outside, needs: Needs) -> Iterator[Mount]:
    for path in outside.system:
        yield Mount(Kind.READ_ONLY, path, path)
    for link, text in outside.links:
        yield Mount(Kind.LINK, link, Path(text))
    for path, directory in outside.private:
        yield Mount(Kind.EMPTY, path) if directory else Mount(Kind.READ_ONLY, path, NOTHING)
    yield from _processes()
    yield Mount(Kind.NEW_DEVICES, DEV)
    yield Mount(Kind.EMPTY, SHARED_MEMORY)
    for path in TEMPORARY:
        yield Mount(Kind.EMPTY, path)
    for path in outside.runtime:
        yield Mount(Kind.READ_ONLY, path, path)
    if outside.home is not None:
        # Writable: agents keep caches there, too.
        yield Mount(Kind.EMPTY, outside.home)
    servers = [*seen_servers(outside, needs)]
    started = [each.target for each in servers]
    shown = (*outside.system, *needs.programs, *started, *needs.reads, *needs.writes)
    hidden = [path for path in (*outside.hidden, *needs.hidden) if _held(path, shown)]
    files = [path for path in outside.hidden_files if _held(path, (*shown, needs.workspace))]
    yield from _outer_first([*servers, *_hiding(hidden, files), *_given(needs)])
    yield from _sealing(hidden)
    yield Mount(Kind.SEALED, ROOT)


def _others(outside: Outside, needs: Needs) -> list[Path]:
    """Where other agents keep logins."""
    return [path for path, agents in outside.logins if needs.agent not in agents]


def seen_servers(outside: Outside, needs: Needs) -> Iterator[Mount]:
    """What an agent behind `strict` sees for the sake of its MCP servers, besides what it has."""
    secret = [*outside.hidden, *outside.hidden_files, *needs.hidden, *_others(outside, needs)]
    whole = secret if outside.home is None else [*secret, outside.home]
    inner = (*secret, needs.workspace, *needs.own, *needs.writes)
    for name, source in needs.servers:
        for path in (name, source):
            if _held(path, inner) or any(each.is_relative_to(path) for each in whole):
                break
        else:
            yield Mount(Kind.READ_ONLY, name, source)


def _hiding(directories: Iterable[Path], files: Iterable[Path]) -> Iterator[Mount]:
    for path in directories:
        yield Mount(Kind.EMPTY, path)
    for path in files:
        yield Mount(Kind.READ_ONLY, path, NOTHING)


def _sealing(directories: Iterable[Path]) -> Iterator[Mount]:
    for path in directories:
        yield Mount(Kind.SEALED, path)


def _outer_first(steps: Iterable[Mount]) -> list[Mount]:
    """So that no step covers an inner one. Of one place the last step counts."""
    return sorted(steps, key=lambda step: len(step.target.parts))


def _processes() -> Iterator[Mount]:
    yield Mount(Kind.NEW_PROC, PROC)
    # Its files belong to root, to whom the kernel lets change them also without capabilities.
    yield Mount(Kind.READ_ONLY, SETTINGS, SETTINGS)


def _emptied(directory: Path, kept: Sequence[Path]) -> Iterator[Mount]:
    yield Mount(Kind.EMPTY, directory)
    for path in kept:
        yield Mount(Kind.READ_ONLY, path, path)
    yield Mount(Kind.SEALED, directory)


def _given(needs: Needs) -> Iterator[Mount]:
    """What the agent has."""
    found = dict.fromkeys((*needs.programs, *needs.reads), Kind.READ_ONLY)
    found |= dict.fromkeys((needs.workspace, *needs.own, *needs.writes), Kind.WRITABLE)
    for path, kind in found.items():
        yield Mount(kind, path, path)
    for name, directory in needs.aliases:
        ours = _held(directory, (needs.workspace, *needs.own, *needs.writes))
        yield Mount(Kind.WRITABLE if ours else Kind.READ_ONLY, name, directory)
    for path, kind in _later(needs).items():
        yield Mount(kind, path, path)


def _later(needs: Needs) -> dict[Path, Kind]:
    """What runs outside later, and the directories of it: what is mounted cannot be renamed, nor another one
    be put in its place."""
    kept = [path for path in needs.kept if not _held(path, needs.writes)]
    pinned = {path.parent for path in kept} - {needs.workspace}
    return dict.fromkeys(sorted(pinned), Kind.WRITABLE) | dict.fromkeys(kept, Kind.READ_ONLY)


def _held(path: Path, outers: Iterable[Path]) -> bool:
    return any(path.is_relative_to(outer) for outer in outers)
