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
    names: tuple[Path, ...] = ()
    """Other names of these."""
    home: Path | None = None
    """Of the user who runs Ostler."""
    logins: tuple[tuple[Path, frozenset[str]], ...] = ()
    """Directories in which agents keep logins, each with the keys of the agents that do."""
    runtime: tuple[Path, ...] = ()
    """What programs need of `/run`."""


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
    yield from _processes()
    # Sockets of services that start processes outside of the walls for the user: systemd, D-Bus, containers.
    yield from _emptied(RUN, outside.runtime)
    for path, agents in outside.logins:
        if needs.agent not in agents and not _holds(path, (needs.workspace, *needs.own)):
            yield from _covered(path)
    hidden = (*outside.hidden, *needs.hidden)
    for directory in hidden:
        yield Mount(Kind.EMPTY, directory)
    yield from _given(needs, above=hidden)
    for directory in hidden:
        yield Mount(Kind.SEALED, directory)


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
    yield from _given(needs)
    yield Mount(Kind.SEALED, ROOT)


def _processes() -> Iterator[Mount]:
    yield Mount(Kind.NEW_PROC, PROC)
    # Its files belong to root, to whom the kernel lets change them also without capabilities.
    yield Mount(Kind.READ_ONLY, SETTINGS, SETTINGS)


def _emptied(directory: Path, kept: Sequence[Path]) -> Iterator[Mount]:
    yield Mount(Kind.EMPTY, directory)
    for path in kept:
        yield Mount(Kind.READ_ONLY, path, path)
    yield Mount(Kind.SEALED, directory)


def _covered(path: Path) -> Iterator[Mount]:
    """Hide the content of a directory. A file cannot be hidden: when it is replaced outside, a mount on it
    ends."""
    yield Mount(Kind.EMPTY, path)
    yield Mount(Kind.SEALED, path)


def _given(needs: Needs, above: Sequence[Path] = ()) -> Iterator[Mount]:
    """What the agent has, outer paths first, so that an inner one is not covered. With `above`: only below
    these, since the rest is seen as it is."""
    found = dict.fromkeys((*needs.programs, *needs.reads), Kind.READ_ONLY)
    found |= dict.fromkeys((needs.workspace, *needs.own, *needs.writes), Kind.WRITABLE)
    steps = [(path, path, kind) for path, kind in found.items() if not above or _held(path, above)]
    for name, directory in needs.aliases:
        ours = _held(directory, (needs.workspace, *needs.own, *needs.writes))
        if not above or _held(name, above):
            steps.append((name, directory, Kind.WRITABLE if ours else Kind.READ_ONLY))
    kept = [path for path in needs.kept if not _held(path, needs.writes)]
    steps += [(path, path, Kind.READ_ONLY) for path in kept]
    # What is mounted cannot be renamed, nor another one be put in its place.
    pinned = {path.parent for path in kept} - {needs.workspace}
    steps += [(path, path, Kind.WRITABLE) for path in pinned]
    for target, source, kind in sorted(steps, key=lambda step: len(step[0].parts)):
        yield Mount(kind, target, source)


def _holds(outer: Path, paths: Iterable[Path]) -> bool:
    return any(path.is_relative_to(outer) for path in paths)


def _held(path: Path, outers: Iterable[Path]) -> bool:
    return any(path.is_relative_to(outer) for outer in outers)
