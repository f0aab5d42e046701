"""Runs the command of one hook as a process tree, bounded in time and output."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import trio

from supervisor.agents.endings import ExitStatus, StopPolicy
from supervisor.agents.errors import SpawnError
from supervisor.agents.process import AgentProcess, spawn
from supervisor.agents.spawning.confinement import MB, MORE_PROCESSES, Confinement, memory_share
from supervisor.fairness import share
from supervisor.hooks.verdict import Ended

SHELL: Final = "/bin/sh"

OUTPUT_BYTES: Final = 1024 * 1024
"""The most bytes of standard output; a hook that writes more is ended. Of standard error the end is kept
(`agents.pipes.TAIL_BYTES`)."""

MOST_MEMORY_BYTES: Final = 4096 * MB
FILE_BYTES: Final = 4096 * MB

CONFINEMENT: Final = Confinement(
    memory_bytes=memory_share(MOST_MEMORY_BYTES), file_bytes=FILE_BYTES, more_processes=MORE_PROCESSES
)
"""Limits for each process of a hook: enough for a linter, a compiler or a test run. A hook may come from a
repository that its user has not reviewed."""

TERM_SECONDS: Final = 0.5
"""Seconds from SIGTERM to SIGKILL, for the whole tree."""


async def run_command(
    command: str,
    given: bytes,
    *,
    cwd: Path,
    environment: Mapping[str, str],
    seconds: float,
    spawn_seconds: float,
) -> Ended:
    """Run `command` in a shell with `given` on its standard input, and return how it ended.

    Raises nothing: errors are in the result.

    Owns the process: when this returns, also by cancellation, its whole tree has ended.
    """
    stop = StopPolicy(stdin_grace=0.0, term_grace=TERM_SECONDS)
    output = bytearray()
    status: ExitStatus | None = None
    flooded = False
    try:
        async with spawn(
            (SHELL, "-c", command),
            cwd=cwd,
            env=environment,
            stop=stop,
            seconds=spawn_seconds,
            confinement=CONFINEMENT,
        ) as process:
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as nursery:
                    # Along with the reading, since a hook may write much before it reads.
                    nursery.start_soon(_feed, process, given)
                    flooded = not await _read(process, output)
                    if not flooded:
                        status = await process.wait()
                    nursery.cancel_scope.cancel()
    except SpawnError as error:
        return Ended(code=None, error=f"The hook is not run: {error}")
    wrong: str | None = None
    if flooded:
        wrong = f"The hook wrote more than {OUTPUT_BYTES} bytes; Ostler ended it."
    elif status is None:
        wrong = f"The hook timed out after {seconds:g} seconds; Ostler ended it."
    return Ended(
        code=None if wrong is not None else _code(status),
        stdout=output.decode("utf-8", "replace"),
        stderr="\n".join(process.stderr_tail()),
        error=wrong,
    )


def _code(status: ExitStatus | None) -> int | None:
    """The exit status in the form of Python's `subprocess`: negative for a signal."""
    if status is None:
        return None
    return status.code if status.signal is None else -status.signal


async def _feed(process: AgentProcess, given: bytes) -> None:
    """Write the input and close it. A hook need not read it."""
    try:
        await process.stdin.send_all(given)
        await process.stdin.aclose()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


async def _read(process: AgentProcess, output: bytearray) -> bool:
    """Read standard output to its end. False if it is too long."""
    relaying = share()
    while data := await process.stdout.receive_some():
        await relaying.turn()
        output += data[: OUTPUT_BYTES - len(output) + 1]
        relaying.rest()
        if len(output) > OUTPUT_BYTES:
            del output[OUTPUT_BYTES:]
            return False
    return True
