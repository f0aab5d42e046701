"""Runs programs on this machine for their short answers, such as their version."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import trio

from supervisor.agents.endings import StopPolicy
from supervisor.agents.errors import SpawnError
from supervisor.agents.process import spawn
from supervisor.agents.spawning.confinement import MB, MORE_PROCESSES, Confinement
from supervisor.patience import in_time

ANSWER_SECONDS = 10.0
"""Seconds for `node --version` and its like: milliseconds as a rule, seconds on a cold and slow disk."""

ANSWER_STOP = StopPolicy(stdin_grace=0.5, term_grace=0.2)

MOST_SAID = 4096
"""Bytes of an answer: a version is a few characters."""

ANSWER_CONFINEMENT = Confinement(memory_bytes=1024 * MB, file_bytes=64 * MB, more_processes=MORE_PROCESSES)
"""Ten times the memory that Node.js takes to print its version."""

PROBING = trio.CapacityLimiter(2)
"""Threads that look for programs at a time."""

_answers: dict[tuple[tuple[str, ...], int], str | None] = {}
"""Answers by command and the program's modification time: an unchanged program gives the same answer."""


async def answer(argv: Sequence[str]) -> str | None:
    """Return the output of this command, which names a path; each command runs once.

    None where it cannot run, or does not answer within ANSWER_SECONDS. Cancellation ends it.
    """
    try:
        changed = await in_time(lambda: Path(argv[0]).stat().st_mtime_ns, "to look at it", limiter=PROBING)
        key = (tuple(argv), changed)
        if key not in _answers:
            _answers[key] = await _ask(argv)
        return _answers[key]
    except (OSError, SpawnError):
        return None


async def _ask(argv: Sequence[str]) -> str | None:
    said = b""
    # With the server's environment: version managers find their programs by it.
    asking = spawn(argv, cwd=Path("/"), env=os.environ, stop=ANSWER_STOP, confinement=ANSWER_CONFINEMENT)
    with trio.move_on_after(ANSWER_SECONDS):
        async with asking as process:
            await process.stdin.aclose()
            async for data in process.stdout:
                said += bytes(data)
                if len(said) > MOST_SAID:
                    break
            return said.decode(errors="replace")
    return None
