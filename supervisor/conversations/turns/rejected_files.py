"""The files of the calls that were rejected in a turn: whether they have changed since.

What an agent says of a call that was rejected proves little: some report it as completed and did nothing. A
file that is another one by then does prove it.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Final

import structlog
import trio

from supervisor.patience import PathTimeout, in_time

log = structlog.get_logger(__name__)

FILES_MAX: Final = 200
"""Rejected files of one turn that are looked at. An edit names one, and a patch some."""

LOOK_SECONDS: Final = 1.0
"""Seconds for one look at them, which takes milliseconds: the agent waits for its answer."""

_State = tuple[int, int, int] | None
"""Inode, size and modification time of a file; None: there is none."""


class RejectedFiles:
    """The rejected files of one conversation's turn. What cannot be looked at counts as unchanged."""

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._of: dict[str, set[str]] = {}
        """The paths by the id of their call."""
        self._before: dict[str, _State] = {}
        """What was there before the agent got the no, as far as it was looked at."""

    @cached_property
    def _limiter(self) -> trio.CapacityLimiter:
        return trio.CapacityLimiter(1)  # made where it is used: few turns reject an edit

    def clear(self) -> None:
        """Another turn begins."""
        self._of.clear()
        self._before.clear()

    def reject(self, call_id: str, files: Collection[str]) -> None:
        """A call that would change these files was rejected. Call `look` before the agent gets the answer."""
        room = FILES_MAX - sum(map(len, self._of.values()))
        paths = {posixpath.join(self._workspace, each) for each in sorted(files)[:room]}
        if paths:
            self._of.setdefault(call_id, set()).update(paths)

    def allow(self, files: Collection[str]) -> None:
        """A call that changes these files was allowed: they no longer show what came of another one."""
        allowed = {posixpath.join(self._workspace, each) for each in files}
        for paths in self._of.values() if allowed else ():
            paths -= allowed

    def knows(self, call_id: str) -> bool:
        """Whether a file of this call was looked at."""
        return any(path in self._before for path in self._of.get(call_id, ()))

    async def look(self) -> None:
        """Look at the files that were not looked at yet. No checkpoint where there are none.

        Cancellation: these stay unknown.
        """
        new = {path for paths in self._of.values() for path in paths} - self._before.keys()
        if new:
            self._before.update(await self._states(new))

    async def changed(self, call_id: str) -> bool:
        """Whether a file of this call is another one than before the no."""
        paths = [path for path in self._of.get(call_id, ()) if path in self._before]
        now = await self._states(paths)
        return any(now[path] != self._before[path] for path in paths if path in now)

    async def _states(self, paths: Collection[str]) -> dict[str, _State]:
        def look() -> dict[str, _State]:
            return dict(each for each in map(_state_of, paths) if each is not None)

        try:
            return await in_time(
                look, "to look at rejected files", limiter=self._limiter, seconds=LOOK_SECONDS
            )
        except PathTimeout as error:
            log.info("cannot look at rejected files", error=str(error))
            return {}


def _state_of(path: str) -> tuple[str, _State] | None:
    """A path with the state of its file; None where that is no regular file, or cannot be found out."""
    try:
        found = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return path, None
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return path, (found.st_ino, found.st_size, found.st_mtime_ns)
