"""Runs OSTLER_PROVISION, bounded in time and output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog
import trio

from supervisor.agents.endings import ExitStatus, StopPolicy
from supervisor.agents.errors import SpawnError
from supervisor.agents.process import AgentProcess, spawn

log = structlog.get_logger(__name__)

OUTPUT_BYTES: Final = 4096
"""Bytes of the end of standard output that are kept; of standard error it is `agents.pipes.TAIL_BYTES`."""

SHOWN: Final = 5
"""Lines of the output in the log."""

LINE_CHARACTERS: Final = 300
"""Of the reason, which clients read."""

STOP: Final = StopPolicy(stdin_grace=0.0, term_grace=1.0)


class CommandFailed(Exception):
    """The command did not do what it was asked for. The message is one line."""


async def run(
    command: Sequence[str], variables: Mapping[str, str], environment: Mapping[str, str], seconds: float
) -> None:
    """Run the command, without a shell, with these variables on top of the environment.

    Raises CommandFailed where it cannot be started, fails, or takes longer; its last line says why.

    Owns the process: when this returns, also by cancellation, its whole tree has ended.
    """
    output = bytearray()
    status: ExitStatus | None = None
    try:
        async with spawn(command, cwd=Path.cwd(), env={**environment, **variables}, stop=STOP) as process:
            with trio.move_on_after(seconds):
                await process.stdin.aclose()
                await _read(process, output)
                status = await process.wait()
    except (SpawnError, OSError) as error:
        raise CommandFailed(str(error)) from None
    key = variables.get("OSTLER_PROVISION_JOIN_KEY", "")
    lines = [*output.decode("utf-8", "replace").splitlines(), *process.stderr_tail()]
    lines = [line.replace(key or "***", "***").strip() for line in lines if line.strip()]
    ended = f"did not end within {seconds:g} s" if status is None else str(status)
    log.info(
        "OSTLER_PROVISION ran",
        action=variables["OSTLER_PROVISION_ACTION"],
        conversation_id=variables["OSTLER_PROVISION_CONVERSATION"],
        ended=ended,
        output=lines[-SHOWN:],
    )
    if status is None or status.code != 0:
        last = f": {lines[-1][:LINE_CHARACTERS]}" if lines else ""
        raise CommandFailed(f"OSTLER_PROVISION {ended}{last}")


async def _read(process: AgentProcess, output: bytearray) -> None:
    """Read standard output to its end, and keep the end of it."""
    while data := await process.stdout.receive_some():
        output += data
        del output[:-OUTPUT_BYTES]
