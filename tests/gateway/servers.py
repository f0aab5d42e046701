"""Several gateways in one process, on ports of their own, each of which knows where conversations are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from supervisor.machines.errors import Place
from tests.gateway.harness import FakeConversation, Gateway, serving

SERVER_KEY = "the-key-of-the-servers"


@attrs.define(kw_only=True)
class FakeServerView:
    server: int
    name: str
    address: str = ""
    version: str = "0"
    labels: Mapping[str, str] = attrs.field(factory=dict)
    state: str = "alive"
    free_bytes: int | None = 1024
    conversations: int = 0
    lease_seconds: float = 12.0
    started: str = "2026-01-01T00:00:00.000000Z"
    this: bool = False


class FakeMachines:
    """Keeps the gateway's contract for one of the servers of a `Cluster`."""

    def __init__(self, cluster: Cluster, server: int) -> None:
        self.cluster = cluster
        self.server = server
        self.name = f"server-{server}"
        self.failure: Exception | None = None
        self.draining = trio.Event()

    async def servers(self) -> Sequence[FakeServerView]:
        if self.failure is not None:
            raise self.failure
        return [attrs.evolve(each, this=each.server == self.server) for each in self.cluster.views]

    async def place_of(self, conversation_id: str) -> Place | None:
        owner = self.cluster.owners.get(conversation_id)
        return None if owner is None else self.cluster.place(owner)

    async def drain(self, name: str) -> bool:
        self.cluster.drained.append(name)
        return any(each.name == name for each in self.cluster.views)

    def lose(self, why: str) -> None:
        raise NotImplementedError


class Cluster:
    """The gateways, and which of them has which conversation."""

    def __init__(self, count: int) -> None:
        self.machines = [FakeMachines(self, number) for number in range(count)]
        self.views = [FakeServerView(server=each.server, name=each.name) for each in self.machines]
        self.gateways: list[Gateway] = []
        self.owners: dict[str, int] = {}
        self.drained: list[str] = []

    def place(self, server: int) -> Place:
        view = self.views[server]
        return Place(server=server, name=view.name, address=view.address, state=view.state)

    async def conversation(
        self, server: int, working_dir: str = "/w", *, address: str | None = None, **fields: Any
    ) -> FakeConversation:
        """A new conversation of this server, which the others know. `address`: where the server listens now,
        as they see it."""
        from supervisor.conversations.state.start import StartRequest

        made, _ = await self.gateways[server].supervisor.create(
            StartRequest(working_dir=working_dir, **fields)
        )
        if address is not None:
            self.views[server].address = address
        self.move(made, server)
        return made

    def move(self, conversation: FakeConversation, server: int) -> None:
        """Give the conversation, with its log, to this server."""
        self.owners[conversation.id] = server
        for number, each in enumerate(self.gateways):
            each.supervisor.conversations.pop(conversation.id, None)
            each.supervisor.elsewhere.pop(conversation.id, None)
            if number == server:
                each.supervisor.conversations[conversation.id] = conversation
            else:
                each.supervisor.elsewhere[conversation.id] = self.place(server), conversation

    def forget(self, server: int, conversation: FakeConversation) -> None:
        """Have only this server not know that another one has the conversation now."""
        del self.gateways[server].supervisor.conversations[conversation.id]


@asynccontextmanager
async def cluster(state: Path, count: int = 2, **settings: Any) -> AsyncIterator[Cluster]:
    """So many gateways on real ports."""
    made = Cluster(count)
    async with AsyncExitStack() as stack:
        for number, machines in enumerate(made.machines):
            gateway = await stack.enter_async_context(
                serving(state / machines.name, machines=machines, server_key=SERVER_KEY, **settings)
            )
            made.gateways.append(gateway)
            made.views[number].address = gateway.url
        yield made
