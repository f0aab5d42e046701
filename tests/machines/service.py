"""Several real servers over one real database, as processes on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from supervisor.database.address import Database
from tests.support.client import Rest, rest_client
from tests.support.processes import alive
from tests.support.scripted import ScriptedLog, scripted_command
from tests.support.server import ServerProcess

MASTER_KEY = "one phrase for all servers"
LEASE_S = 3.0  # a busy machine keeps it; a takeover may take two seconds more
TAKEOVER_S = LEASE_S + 2.0


class Machine:
    """One of several servers, with a state directory and a client of its own."""

    def __init__(self, process: ServerProcess, name: str) -> None:
        self.process = process
        self.name = name
        self.rest: Rest

    @property
    def url(self) -> str:
        return self.process.url

    @property
    def pid(self) -> int:
        """Of the server itself, below its warden."""
        return int((self.process.state / "server.pid").read_text())


class Service:
    """Servers over one database. `log`: what their scripted agents wrote down."""

    def __init__(self, directory: Path, database: Database, nursery_stack: list[Any]) -> None:
        self.directory = directory
        self.database = database
        self.machines: dict[str, Machine] = {}
        self.log = ScriptedLog(directory / "agents.jsonl")
        self._clients = nursery_stack

    def environment(self, name: str, **more: str) -> dict[str, str]:
        """The variables of a server of this service."""
        return {
            "OSTLER_DATABASE": self.database.conninfo,
            "OSTLER_SERVER_NAME": name,
            "OSTLER_MASTER_KEY": MASTER_KEY,
            "OSTLER_LEASE_SECONDS": str(LEASE_S),
            "OSTLER_GRACE_SECONDS": "1",
            "OSTLER_ATTACHABLE": "1",
            **more,
        }

    async def start(self, name: str, **more: str) -> Machine:
        """Start a server, or start it again in its state directory."""
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        if name in self.machines:
            self.machines[name].process.clean_up()
        machine = Machine(ServerProcess(directory, self.environment(name, **more)), name)
        self.machines[name] = machine
        await machine.process.start()
        client = rest_client(machine.url)
        machine.rest = await client.__aenter__()
        self._clients.append(client)
        return machine

    async def pair(self, *names: str) -> tuple[Machine, Machine]:
        """Start two servers, a and b, that see the same volumes: these, or all."""
        shared = volumes(self.directory, *names)
        return await self.start("a", **shared), await self.start("b", **shared)

    async def converse(self, machine: Machine, name: str = "work", *modes: str, **fields: Any) -> str:
        """A new conversation with a scripted agent; its id. All servers see its workspace: they are on one
        disk."""
        workspace = self.directory / name
        workspace.mkdir(exist_ok=True)
        command = scripted_command(*modes, log=self.log.path, home=self.directory / "agent-homes")
        agent = {"acp_server": "custom", "acp_command": command}
        created = await machine.rest.create(workspace, agent, **fields)
        return str(created["id"])

    def living_agents(self) -> list[int]:
        return [pid for pid in self.log.pids() if alive(pid)]


@asynccontextmanager
async def service(directory: Path, database: Database) -> AsyncIterator[Service]:
    """Servers that are ended with the block, however it ends."""
    clients: list[Any] = []
    found = Service(directory, database, clients)
    try:
        yield found
    except BaseException:
        for machine in found.machines.values():
            print(f"--- output of {machine.name}\n{machine.process.output_tail()}")
        raise
    finally:
        with trio.CancelScope(shield=True):
            for client in clients:
                await client.__aexit__(None, None, None)
        for machine in found.machines.values():
            machine.process.clean_up()


def volumes(directory: Path, *names: str) -> dict[str, str]:
    """These volumes, or one for workspaces and one for agents' data, which all servers of a test see."""
    found = {name: directory / f"volume-{name}" for name in names or ("work", "data")}
    for path in found.values():
        path.mkdir(exist_ok=True)
    return {"OSTLER_VOLUMES": ",".join(f"{name}={path}" for name, path in found.items())}
