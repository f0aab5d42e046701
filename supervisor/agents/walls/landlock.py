"""The wall `strict` as rules of Landlock, for machines that refuse namespaces, as Docker does by default.

It looks at directories: call it in a thread. Rules allow paths with all that is below, so what is hidden
inside of what is shown is left out by allowing all else. They hold back neither a look at names,
owners and times, nor a change of these, nor sockets with a path; the table in `SECURITY.md` says what that
means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from supervisor.agents.spawning.confinement import Reach
from supervisor.agents.walls.mounts import DEV, PROC, Needs, Outside, seen_servers

DEVICES: Final = tuple(
    DEV / name for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts")
)
"""The harmless ones, and terminals, which are those of the machine."""


def reach(
    outside: Outside, needs: Needs, entries: Callable[[Path], Iterable[Path]] = lambda path: path.iterdir()
) -> Reach:
    """What an agent behind `strict` reaches. `entries`: lists a directory. Raises OSError.

    The workspace holds nothing hidden: the caller has refused that.
    """
    private = [path for path, _ in outside.private]
    hidden = [*outside.hidden, *needs.hidden, *outside.hidden_files]

    def open_below(paths: Iterable[Path]) -> tuple[Path, ...]:
        # What is named inside of what is hidden is meant.
        return tuple(each for path in paths for each in _without([path], _inside(path, hidden), entries))

    return Reach(
        runs=(
            *_without(outside.system, private, entries),
            *outside.runtime,
            *open_below((*needs.programs, *needs.reads)),
            *(each.source for each in seen_servers(outside, needs) if each.source is not None),
        ),
        # Of other processes the kernel shows what it shows to all, since they are not of the agent's domain.
        reads=(PROC,),
        # Their names are no secret, and programs list the directories of the system.
        lists=tuple(dict.fromkeys(path.parent for path in private)),
        writes=DEVICES,
        owns=(needs.workspace, *needs.own, *open_below(needs.writes)),
    )


def _without(
    paths: Iterable[Path], hidden: Sequence[Path], entries: Callable[[Path], Iterable[Path]]
) -> Iterator[Path]:
    """These paths, or where they hold something hidden, all else in it."""
    for path in paths:
        if path in hidden or path.is_symlink():
            continue  # a link leads to a place that has rules of its own, or none
        inside = _inside(path, hidden)
        if inside:
            yield from _without(sorted(entries(path)), inside, entries)
        else:
            yield path


def _inside(path: Path, hidden: Iterable[Path]) -> list[Path]:
    return [each for each in hidden if each != path and each.is_relative_to(path)]
