"""Runs the MCP helper process (`supervisor.mcp.helper`), and ends its whole tree."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import orjson
import trio

from supervisor.agents.environment import base_environment
from supervisor.agents.errors import SpawnError
from supervisor.agents.process import AgentProcess, spawn
from supervisor.agents.spawning.confinement import MB, MORE_PROCESSES, Confinement, memory_share
from supervisor.extras import missing

START_SECONDS: Final = 30.0
"""Seconds that a helper may take on top of its own limit: the SDK takes a second to import, or more."""

MAX_LINE: Final = 4 * 1024 * 1024
"""The most bytes of one event: a thousand tools and a result fit into half a megabyte."""

MOST_MEMORY_BYTES: Final = 1024 * MB
FILE_BYTES: Final = 1024 * MB

CONFINEMENT: Final = Confinement(
    memory_bytes=memory_share(MOST_MEMORY_BYTES, 0.25), file_bytes=FILE_BYTES, more_processes=MORE_PROCESSES
)
"""Limits for the helper and for each process of the tested server: the helper takes 150 MB, a Node.js server
100 to 300, also with an installation by npx or uvx. The helper bounds a server's output where it reads it."""

PIECE: Final = 65536


class HelperFailed(Exception):
    """The helper failed. The message is one line."""


@attrs.define
class Helper:
    """A running helper."""

    _process: AgentProcess
    _buffer: bytearray = attrs.field(factory=bytearray)

    async def event(self) -> dict[str, Any]:
        """Return the next event. Raises HelperFailed after the last one."""
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            data = await self._process.stdout.receive_some(PIECE)
            if not data or searched > MAX_LINE:
                raise HelperFailed("the MCP helper process exited early")
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            found: dict[str, Any] = orjson.loads(line)
        except orjson.JSONDecodeError:
            raise HelperFailed("the MCP helper process sent an invalid answer") from None
        return found

    async def done(self) -> dict[str, Any]:
        """Return the last event, and skip the others. Raises HelperFailed."""
        while (event := await self.event()).get("event") != "done":
            pass
        return event

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send an object to the helper. Raises HelperFailed if it has exited."""
        try:
            await self._process.stdin.send_all(orjson.dumps(message) + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise HelperFailed("the MCP helper process exited") from error


@asynccontextmanager
async def run_helper(
    request: Mapping[str, Any], *, environment: Mapping[str, str], cwd: Path
) -> AsyncIterator[Helper]:
    """Run a helper with this request while the block runs.

    `environment`: the caller's whole environment; the helper gets the part that any child may see.

    Raises HelperFailed.

    Owns the process: leaving the block, also by cancellation, ends its whole tree.
    """
    if (advice := missing("mcp", "testing an MCP server or logging in to one")) is not None:
        raise HelperFailed(advice)
    argv = (sys.executable, "-P", "-m", "supervisor.mcp.helper")
    try:
        env = base_environment(environment, isolated=False)
        async with spawn(argv, cwd=cwd, env=env, confinement=CONFINEMENT) as process:
            helper = Helper(process)
            await helper.send(request)
            yield helper
    except SpawnError as error:
        raise HelperFailed(str(error)) from error


async def ask_helper(
    request: Mapping[str, Any], *, environment: Mapping[str, str], cwd: Path, seconds: float
) -> dict[str, Any]:
    """Run a helper and return its last event, within `seconds` plus the time of its start.

    Raises HelperFailed. Cancellation ends the helper.
    """
    answer: dict[str, Any] = {}
    with trio.move_on_after(seconds + START_SECONDS):
        async with run_helper({**request, "timeout": seconds}, environment=environment, cwd=cwd) as helper:
            answer = await helper.done()
    if not answer:
        raise HelperFailed("the MCP helper process did not answer in time")
    return answer
