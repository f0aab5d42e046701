"""What OSTLER_PROVISION talks to, in place of a cluster: a command that asks, and servers as processes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tests.support.server import ServerProcess

COMMAND = """\
#!{python}
import os, pathlib, sys, time
place = pathlib.Path({place!r})
mode = (place / "mode").read_text()
if mode == "fails":
    print("asking the cluster")
    sys.exit("no room in the cluster")
asked = place / f"{{os.getpid()}}"
text = "\\n".join(f"{{name}}={{value}}" for name, value in os.environ.items())
asked.with_suffix(".new").write_text(text)
asked.with_suffix(".new").rename(asked.with_suffix(".asked"))
while mode == "hangs" or not asked.with_suffix(".done").exists():
    time.sleep(0.02)
"""


class Cloud:
    """The servers that were started, by their conversation, and what was asked."""

    def __init__(self, directory: Path, **more: str) -> None:
        self.directory = directory / "cloud"
        self.directory.mkdir()
        self.command = directory / "provision"
        self.command.write_text(COMMAND.format(python=sys.executable, place=str(self.directory)))
        self.command.chmod(0o700)
        self.mode("works")
        self.asked: list[dict[str, str]] = []
        self.pods: dict[str, ServerProcess] = {}
        self._more = more

    def mode(self, name: str) -> None:
        """Whether the command `works`, `fails` or `hangs`; or `starts nothing`."""
        (self.directory / "mode").write_text(name)

    def actions(self) -> list[tuple[str, str]]:
        return [
            (each["OSTLER_PROVISION_ACTION"], each["OSTLER_PROVISION_CONVERSATION"]) for each in self.asked
        ]

    async def run(self) -> None:
        """Do what is asked; endless."""
        async with trio.open_nursery() as nursery:
            while True:
                for path in self.directory.glob("*.asked"):
                    asked = dict(line.partition("=")[::2] for line in path.read_text().split("\n"))
                    path.unlink()
                    self.asked.append(asked)
                    nursery.start_soon(self._do, asked, path.with_suffix(".done"))
                await trio.sleep(0.02)

    async def _do(self, asked: dict[str, str], done: Path) -> None:
        conversation = asked["OSTLER_PROVISION_CONVERSATION"]
        earlier = self.pods.pop(conversation, None)
        if earlier is not None:
            earlier.clean_up()
        if asked["OSTLER_PROVISION_ACTION"] == "stop":
            done.touch()
        elif (self.directory / "mode").read_text() == "works":
            directory = self.directory / f"pod-{len(self.asked)}"
            directory.mkdir()
            environment = {
                "OSTLER_JOIN": asked["OSTLER_PROVISION_JOIN_URL"],
                "OSTLER_JOIN_KEY": asked["OSTLER_PROVISION_JOIN_KEY"],
                **self._more,
            }
            self.pods[conversation] = ServerProcess(directory, environment)
            done.touch()
            await self.pods[conversation].start()
        done.touch()


@asynccontextmanager
async def cloud(directory: Path, **more: str) -> AsyncIterator[Cloud]:
    """Its servers have these variables, too, and are ended with the block."""
    found = Cloud(directory, **more)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.run)
            yield found
            nursery.cancel_scope.cancel()
    except BaseException:
        for name, pod in found.pods.items():
            print(f"--- output of the server for {name}\n{pod.output_tail()}")
        raise
    finally:
        for pod in found.pods.values():
            pod.clean_up()


def texts_of(pid: int) -> bytes:
    """What others of the user could see of a process."""
    return b"".join(Path(f"/proc/{pid}/{each}").read_bytes() for each in ("environ", "cmdline"))
