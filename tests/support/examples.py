"""The clients of docs/examples at work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import trio

from supervisor.agents.install.programs import find_node

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
WAIT_S = 50.0


async def command(name: str, *arguments: str) -> list[str]:
    if name.endswith(".py"):
        return [sys.executable, str(EXAMPLES / name), *arguments]
    node = await find_node((20, 10), os.environ)
    return [str(node.path), "--experimental-websocket", str(EXAMPLES / name), *arguments]


class Talk:
    """A client at work. Its lines on standard error name each event with its sequence number."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.said = ""
        self.told = ""

    @property
    def numbers(self) -> list[int]:
        return [int(line.split()[0]) for line in self.told.splitlines() if line[:1].isdigit()]

    async def until(self, words: str) -> None:
        while words not in self.told:
            await trio.sleep(0.01)


@asynccontextmanager
async def talking(
    name: str,
    url: str,
    prompt: str,
    directory: Path,
    key: str,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[Talk]:
    """The client's process; the block's end waits for its own end."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "OSTLER_API_KEY": key, **variables}
    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            process = await trio.lowlevel.open_process(
                await command(name, url, prompt),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                cwd=directory,
            )
            talk = Talk(process)

            async def read(stream: trio.abc.ReceiveStream, field: str) -> None:
                async for piece in stream:
                    setattr(talk, field, getattr(talk, field) + piece.decode())

            assert process.stdout is not None
            assert process.stderr is not None
            nursery.start_soon(read, process.stdout, "said")
            nursery.start_soon(read, process.stderr, "told")
            try:
                yield talk
                await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
