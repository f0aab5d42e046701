"""A git worktree for a conversation that is to work apart from its parent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
import trio
from structlog.contextvars import bound_contextvars

from supervisor.agents import SpawnError, StopPolicy, spawn

log = structlog.get_logger(__name__)

GIT_SECONDS: Final = 60.0
"""Seconds for one git command: a checkout of some hundred thousand files takes half of it."""

OUTPUT_BYTES: Final = 64 * 1024
"""The most bytes of its output that are kept."""

INHERITED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
"""What git gets of the server's environment."""

BRANCH: Final = "openhands/"
"""Prefix of the branch's name, as other servers of this wire have it."""

CAREFUL: Final = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")
"""Hooks do not run. Filters of the repository's own configuration do, as at every checkout."""


async def make_worktree(
    workspace: Path, root: Path, conversation_id: str, environment: Mapping[str, str]
) -> Path | None:
    """Make a worktree of the workspace's repository, on a branch of its own, and return the same directory
    in it.

    It is below `root`. None where there is none to be made: no git, no repository, no commit, an error.

    Cancellation ends git; it may leave a worktree that nobody uses.
    """
    given = {name: environment[name] for name in INHERITED if name in environment}
    env = {**given, "GIT_TERMINAL_PROMPT": "0"}
    with bound_contextvars(conversation_id=conversation_id):
        found = await _git(workspace, env, "rev-parse", "--verify", "--show-toplevel", "HEAD")
        if found is None:
            return None
        top = Path(found.splitlines()[0])
        place = root / conversation_id / (top.name or "repository")
        made = await _git(
            workspace, env, "worktree", "add", "-b", f"{BRANCH}{conversation_id}", str(place), "HEAD"
        )
    if made is None:
        return None
    real = await trio.to_thread.run_sync(workspace.resolve)
    return place / real.relative_to(top) if real.is_relative_to(top) else place


async def _git(cwd: Path, env: Mapping[str, str], *arguments: str) -> str | None:
    """The output of a git command that succeeds, else None."""
    said = b""
    code: int | None = None
    with trio.move_on_after(GIT_SECONDS):
        try:
            async with spawn(["git", *CAREFUL, *arguments], cwd=cwd, env=env, stop=StopPolicy()) as process:
                await process.stdin.aclose()
                async for data in process.stdout:
                    said = (said + bytes(data))[:OUTPUT_BYTES]
                code = (await process.wait()).code
                if code != 0:
                    log.info("git failed", arguments=arguments[:2], words=process.stderr_tail()[-3:])
        except (SpawnError, OSError) as error:
            log.info("cannot run git", error=str(error))
    return said.decode("utf-8", "replace") if code == 0 else None
