"""A conversation with a real agent on a real server, as the tests here speak to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import trio

from supervisor.agents.walls.wall import Wall
from tests.interop.model_api.server import ModelApi
from tests.interop.real_agents import RealAgent
from tests.support.client import Rest
from tests.support.processes import environment
from tests.support.server import ServerProcess
from tests.support.sockets import Collector

TURN_S = 60.0  # the slowest agent needs about five seconds for its first turn on a busy machine
MINUTE_S = 60.0
SPARE_S = 20.0
ASK_ME = {"kind": "AlwaysConfirm"}
MARKER = "OSTLER_AGENT"  # in the environment of every process of an agent


class Talk:
    """One conversation with a real agent, and what arrives on its socket."""

    def __init__(
        self,
        server: ServerProcess,
        agent: RealAgent,
        conversation: str,
        workspace: Path,
        model_api: ModelApi,
    ) -> None:
        self.server, self.agent, self.workspace = server, agent, workspace
        self.model_api = model_api
        self.id = conversation
        self.deleted = False
        self.socket: Collector

    @property
    def rest(self) -> Rest:
        return self.server.rest

    async def turn(self, text: str, *, timeout: float = TURN_S, **options: Any) -> list[Any]:
        return await self.rest.turn(self.id, text, timeout=timeout, **options)

    async def turn_after_a_kill(self, text: str) -> list[Any]:
        """A turn for which the agent starts again. Some are given their session only in the next minute."""
        minute = MINUTE_S if self.agent.forgets_within_the_minute else 0.0
        return await self.turn(text, timeout=TURN_S + minute)

    async def begin(self, text: str) -> int:
        """Send without waiting; how many events there were before."""
        before = len(await self.rest.events(self.id))
        await self.rest.send(self.id, text)
        return before

    async def settle(self, before: int, *wanted: str) -> list[Any]:
        return await self.rest.settle(self.id, before, wanted=wanted, timeout=TURN_S)

    async def wait_delta(self, text: str) -> None:
        """Until `text` has been streamed."""
        start = len(self.socket.frames)
        said = ""

        def heard(frame: dict[str, Any]) -> bool:
            nonlocal said
            if frame.get("kind") == "StreamingDeltaEvent":
                said += frame.get("content") or ""
            return text in said

        await self.socket.wait_for(heard, timeout=TURN_S, start=start)

    async def answering(self, before: int) -> None:
        """Until the model is in the middle of its answer to a `SLOW` prompt; `before` calls of it ago there
        was none. What an agent does not stream is told when it is over."""
        if self.agent.streams:
            await self.wait_delta("s3")
            return
        with trio.fail_after(TURN_S):
            while not any(
                call.request.last_line.startswith("SLOW") for call in self.model_api.calls[before:]
            ):
                await trio.sleep(0.02)

    def pids(self) -> list[int]:
        """The agents' own processes: marked ones whose parent is not."""
        tree = self.server.tree()
        marked = {process.pid: process.ppid for process in tree if MARKER in environment(process.pid)}
        return sorted(pid for pid, parent in marked.items() if parent not in marked)

    async def pid(self) -> int:
        """The agent's own process, where the server has other conversations, too."""
        with trio.fail_after(TURN_S):
            while not (pid := (await self.rest.call("GET", f"/api/agents/{self.id}"))["pid"]):
                await trio.sleep(0.05)  # it starts
        assert pid in self.pids()
        return int(pid)

    async def members(self) -> list[int]:
        """Living processes of this conversation's agent."""
        mark = environment(await self.pid())[MARKER]
        tree = [process.pid for process in self.server.tree()]
        return [pid for pid in tree if environment(pid).get(MARKER) == mark]


async def wait_for_spare(rest: Rest) -> None:
    """Until a process of the built-in agent waits for the next conversation, which else would import the
    library by itself: five seconds of the processor. Gives up after a while, as nothing depends on it. Behind
    walls no process waits."""
    if os.environ.get("OSTLER_WALLS", Wall.OFF) != Wall.OFF:
        return
    with trio.move_on_after(SPARE_S):
        while True:
            spares = (await rest.call("GET", "/api/agents"))["spares"]
            if any(each["ready"] for each in spares if each["kind"] == "spare"):
                return
            await trio.sleep(0.1)


Open = Callable[..., AbstractAsyncContextManager[Talk]]
