"""A program that supervises scripted agents with spares, contained, until it is killed: `DIRECTORY`.

The catalogue has no agent that can wait and that needs no library, so a server of its own has one here. It
runs one turn, then tells the process ids of the conversation's agent and of the spare on its standard output,
after the word "pids".
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import MappingProxyType

import attrs
import trio

import supervisor
from supervisor import composition
from supervisor.agents.catalog import AgentHome, load_catalog
from supervisor.agents.containment.levels import Level
from supervisor.conversations.agent.warm import pool as warm_pool
from supervisor.conversations.state.start import StartRequest
from supervisor.events import Vocabulary
from supervisor.settings.agent import AgentSettings
from tests.support.scripted import scripted_command

KEY = "scripted"


async def main(root: Path) -> None:
    """Serve. Ends only by being killed."""
    known = dict(load_catalog())
    known[KEY] = attrs.evolve(
        known["custom"], key=KEY, command=(KEY,), warm="session", home=AgentHome(kind="shared")
    )
    composition.load_catalog = lambda: MappingProxyType(known)
    warm_pool.PAUSE_SECONDS = 0.0  # type: ignore[misc]
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(root)}
    how = supervisor.Supervision(warm_processes={KEY: 1})
    async with supervisor.open(
        root / "state", environ=environ, supervision=how, containment=Level.TREE, keyring=False
    ) as ostler:
        command = scripted_command("grandchild=session", log=root / "scripted.log", home=root / "home")
        request = StartRequest(
            working_dir=str(root / "workspace"),
            agent=AgentSettings(acp_server=KEY, acp_command=tuple(command)),
            spelled_out=True,
            event_vocabulary=Vocabulary.EXTENDED,
        )
        conversation, _ = await ostler.supervisor.create(request)
        await conversation.ask("hello")
        while not [spare for spare in await ostler.supervisor.warm_processes() if spare.ready]:
            await trio.sleep(0.02)
        (spare,) = await ostler.supervisor.warm_processes()
        print("pids", conversation.agent.pid, spare.pid, flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
