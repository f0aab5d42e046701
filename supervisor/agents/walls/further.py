"""Further paths for one agent: those that its settings name, of those that the operator allows. It looks at
the machine, and blocks: call it in a thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import attrs

from supervisor.agents.walls.mounts import PROC, Needs, Outside
from supervisor.agents.walls.wall import WallUnavailable

READ_SETTING: Final = "acp_walls_read"
WRITE_SETTING: Final = "acp_walls_write"
READ_VARIABLE: Final = "OSTLER_WALLS_ALLOW_READ"
WRITE_VARIABLE: Final = "OSTLER_WALLS_ALLOW_WRITE"


@attrs.frozen(kw_only=True)
class Paths:
    """Absolute paths. `writes` may be read, too."""

    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()

    def resolved(self) -> Paths:
        """The same with their links followed, as far as they exist. Blocks."""
        return Paths(
            reads=tuple(path.resolve() for path in self.reads),
            writes=tuple(path.resolve() for path in self.writes),
        )


NO_PATHS: Final = Paths()


def with_further(needs: Needs, further: Paths, allowed: Paths, outside: Outside) -> Needs:
    """What an agent needs, with further paths. `further`: as its settings name them. `allowed`: resolved.
    Blocks.

    Raises WallUnavailable for a path that does not exist, that is not within what is allowed, and that is,
    holds or is inside of what is kept from agents.
    """
    # What an agent must not see is not shown by another name of it either, such as /proc/PID/root.
    kept = (
        *(*outside.hidden, *outside.hidden_files, *outside.names, *needs.hidden, PROC),
        *(path for path, _ in outside.private),
        *(path for path, _ in outside.logins),
    )
    may_write, may_read = allowed.writes, (*allowed.reads, *allowed.writes)
    reads = {path: _found(READ_SETTING, READ_VARIABLE, path, may_read, kept) for path in further.reads}
    writes = {path: _found(WRITE_SETTING, WRITE_VARIABLE, path, may_write, kept) for path in further.writes}
    needs = attrs.evolve(
        needs, reads=(*needs.reads, *reads.values()), writes=(*needs.writes, *writes.values())
    )
    names = tuple(_names({**reads, **writes}.items(), needs, outside))
    return attrs.evolve(needs, aliases=(*needs.aliases, *names))


def _found(setting: str, variable: str, path: Path, allowed: Iterable[Path], kept: Iterable[Path]) -> Path:
    """Where a path leads to. Raises WallUnavailable."""
    try:
        found = path.resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError):
        raise WallUnavailable(f"{setting}: {path} does not exist. Make it, or leave it out") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise WallUnavailable(f"{setting}: {path} cannot be used: {reason}. Leave it out") from None
    for each in kept:
        if any(one.is_relative_to(each) for one in (path, found)):
            raise WallUnavailable(
                f"{setting}: {path} leads into {each}, which is kept from agents. Leave it out"
            )
        if each.is_relative_to(found):
            raise WallUnavailable(
                f"{setting}: {path} holds {each}, which is kept from agents. Name parts of it instead"
            )
    if not any(found.is_relative_to(each) for each in allowed):
        led = "" if found == path else f" leads to {found}, which"
        raise WallUnavailable(
            f"{setting}: {path}{led} is not allowed for agents. Leave it out, or start the server with "
            f"{variable}={found}"
        )
    return found


def _names(found: Iterable[tuple[Path, Path]], needs: Needs, outside: Outside) -> Iterator[tuple[Path, Path]]:
    """Links that settings name, where an agent would not see them as they are."""
    given = (needs.workspace, *needs.own, *needs.programs, *needs.reads, *needs.writes)
    shown = (*outside.system, *outside.runtime, *given)
    for path, directory in found:
        seen = any(path.is_relative_to(each) for each in shown)
        if not seen and path.is_symlink() and path.parent.resolve() == path.parent:
            yield path, directory
