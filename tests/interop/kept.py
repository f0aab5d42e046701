"""Real agents that several tests share: to start one takes up to seven seconds of the processor.

A test that is about what an agent does in a turn takes the conversation that is open already, and leaves it
able to go on: the next test sees whether it is. One that fails takes the conversation with it, and its agent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from tests.interop.model_api.server import ModelApi
from tests.interop.real_agents import RealAgent, install
from tests.interop.recording import Recording
from tests.interop.talk import ASK_ME, Talk
from tests.support.client import rest_client
from tests.support.server import ServerProcess
from tests.support.sockets import collect

NEVER = {"kind": "NeverConfirm"}
DELETE_S = 30.0


@attrs.define
class Shelf:
    """A server for one agent, and its conversations by whether they ask."""

    make_directory: Callable[[str], Path]
    agents_prefix: Path
    key: str = ""
    server: ServerProcess | None = None
    open: dict[bool, Talk] = attrs.field(factory=dict)

    async def serve(self, agent: RealAgent) -> ServerProcess:
        """The server of this agent, which takes the place of another one's."""
        if self.server is None or self.key != agent.key:
            await self.close()
            directory = self.make_directory(agent.key)
            (directory / "state").mkdir()
            (directory / "state" / "agents").symlink_to(self.agents_prefix)
            self.key, self.server = agent.key, ServerProcess(directory)
            await self.server.start()
        return self.server

    async def close(self) -> None:
        """End the server in order, and with it its agents."""
        server, self.server = self.server, None
        self.open.clear()
        if server is not None:
            try:
                await server.stop()
            finally:
                server.clean_up()


@contextmanager
def shelf(make_directory: Callable[[str], Path], agents_prefix: Path) -> Iterator[Shelf]:
    """For a whole session; the last server is stopped at its end."""
    one = Shelf(make_directory, agents_prefix)
    try:
        yield one
    finally:
        trio.run(one.close)


@asynccontextmanager
async def kept(
    shelf: Shelf,
    agent: RealAgent,
    model_api: ModelApi,
    recording: Recording,
    name: str,
    *,
    asking: bool = False,
) -> AsyncIterator[Talk]:
    """The agent's conversation, with an empty workspace and a socket that tells what happens from now on."""
    await install(agent, shelf.agents_prefix)
    server = await shelf.serve(agent)
    async with rest_client(server.url) as server.rest:
        one = shelf.open.pop(asking, None)
        if one is None:
            one = await _opened(server, agent, model_api, asking=asking)
        for path in one.workspace.iterdir():
            if path.is_file():
                path.unlink()
        async with _deleted_unless_well(one):
            before = await server.rest.count(one.id)
            async with collect(server.events_socket(one.id, "")) as one.socket:
                yield one
                if one.deleted:
                    return
                await recording.keep(name, server.rest, one.id, one.socket, before=before)
            await server.rest.call(
                "POST",
                f"/api/conversations/{one.id}/confirmation_policy",
                {"policy": ASK_ME if asking else NEVER},
            )
        shelf.open[asking] = one


@asynccontextmanager
async def _deleted_unless_well(one: Talk) -> AsyncIterator[None]:
    """Delete the conversation, and end its agent, if the block raises; it raises on."""
    try:
        yield
    except BaseException as failure:
        try:
            with trio.fail_after(DELETE_S, shield=True):
                await one.rest.call("DELETE", f"/api/conversations/{one.id}", expect=(200, 404))
        except Exception as also:  # what failed first is what the test tells
            failure.add_note(f"Its conversation could not be deleted: {also!r}")
        raise


async def _opened(server: ServerProcess, agent: RealAgent, model_api: ModelApi, *, asking: bool) -> Talk:
    agent.put_files(model_api.url, server.home)
    await server.rest.put_secrets(agent.secrets(model_api.url))
    workspace = server.directory / f"workspace-{'asking' if asking else 'plain'}"
    workspace.mkdir(exist_ok=True)
    fields: dict[str, Any] = {"confirmation_policy": ASK_ME} if asking else {}
    info = await server.rest.create(workspace, agent.agent_settings(), **fields)
    return Talk(server, agent, info["id"], workspace, model_api)
