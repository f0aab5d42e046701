"""Spares when the server dies: they are agents' processes like all others."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import attrs
import pytest
import trio

import supervisor
from supervisor import composition
from supervisor.agents import builtin as builtin_package
from supervisor.agents.catalog import AgentHome, load_catalog
from supervisor.agents.containment.levels import Level
from supervisor.conversations.agent.warm import pool as warm_pool
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.start import StartRequest
from supervisor.events import Vocabulary
from supervisor.settings.agent import AgentSettings
from tests.support.processes import alive
from tests.support.scripted import ScriptedLog

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.guarantee(name="nothing-survives")
async def test_a_killed_server_leaves_no_spare_for_the_next_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.warm_server", str(tmp_path)]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        while not (line := await trio.to_thread.run_sync(server.stdout.readline)).startswith(b"pids "):
            assert line  # of the log
        agent, spare = map(int, line.split()[1:])
        log = ScriptedLog(tmp_path / "scripted.log")
        assert log.pids() == [agent, spare]
        everybody = {agent, spare, *log.children()}
        assert len(everybody) == 4
        assert all(map(alive, everybody))
        assert len(list((tmp_path / "state/data").glob("spare-*"))) == 1
        # Stopped, so that no spare can leave by itself at the end of its input.
        for pid in everybody:
            if pid != agent:
                os.kill(pid, signal.SIGSTOP)
        server.send_signal(signal.SIGKILL)
        await trio.to_thread.run_sync(server.wait)
        assert alive(spare)
        # The next server on this state ends what is left before it serves.
        async with supervisor.open(
            tmp_path / "state", environ={"HOME": str(tmp_path)}, containment=Level.TREE, keyring=False
        ) as ostler:
            assert not any(map(alive, everybody))
            with trio.fail_after(20):
                while list((tmp_path / "state/data").glob("spare-*")):
                    await trio.sleep(0.02)
            assert await ostler.supervisor.warm_processes() == []
    finally:
        server.kill()
        assert server.stdout is not None
        server.stdout.close()
        await trio.to_thread.run_sync(server.wait)


PROGRAM = """
import sys

sys.path.insert(0, {fake_agent!r})
QUIET = {{}}


def _import_sdk():
    import scripted


def main():
    import scripted

    return scripted.main()
"""


async def test_warm_processes_and_all_that_start_like_them_are_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.mkdir()
    for name in ("parent.py", "__main__.py"):
        shutil.copy(Path(builtin_package.__file__).with_name(name), program)
    (program / "__init__.py").touch()
    (program / "program.py").write_text(PROGRAM.format(fake_agent=str(ROOT / "tests" / "fake_agent")))
    known = dict(load_catalog())
    known["scripted"] = attrs.evolve(
        known["custom"],
        key="scripted",
        command=("scripted",),
        warm="session",
        forks="parent.py",
        home=AgentHome(kind="shared"),
    )
    monkeypatch.setattr(composition, "load_catalog", lambda: MappingProxyType(known))
    monkeypatch.setattr(warm_pool, "PAUSE_SECONDS", 0.0)
    log = ScriptedLog(tmp_path / "scripted.log")
    modes = ("--log", str(log.path), "--home", str(tmp_path / "home"))
    command = (sys.executable, "-S", str(program), *modes)

    async def begun(ostler: supervisor.Ostler) -> Conversation:
        request = StartRequest(
            working_dir=str(tmp_path / "workspace"),
            agent=AgentSettings(acp_server="scripted", acp_command=command),
            spelled_out=True,
            event_vocabulary=Vocabulary.EXTENDED,
        )
        conversation, _ = await ostler.supervisor.create(request)
        await conversation.ask("hello")
        return conversation

    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    how = supervisor.Supervision(warm_processes={"scripted": 1})
    async with supervisor.open(
        tmp_path / "state", environ=environ, supervision=how, containment=Level.TREE, keyring=False
    ) as ostler:
        pool = ostler.supervisor._context.warm_pool

        async def spare() -> int:
            with trio.fail_after(20):
                while not [each for each in pool.waiting if each.usable]:
                    await trio.sleep(0.02)
            view, parent = await ostler.supervisor.warm_processes()
            assert (view.kind, parent.kind) == ("spare", "parent")
            assert (parent.pid, parent.ready) == (pool.parents[0].forker.process.pid, True)  # type: ignore[union-attr]
            assert parent.rss_bytes > 0
            assert view.pid is not None
            return view.pid

        first = await begun(ostler)
        pid = await spare()
        (parent,) = pool.parents
        assert first.agent.current is not None
        assert not first.agent.current.process.forked
        second = await begun(ostler)
        assert (second.agent.pid, second.agent.current.process.forked) == (pid, True)  # type: ignore[union-attr]
        # Many at once: one has the spare, the others are forked for themselves.
        await spare()
        found: list[Conversation] = []

        async def one() -> None:
            found.append(await begun(ostler))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(one)
        assert len({each.agent.pid for each in found}) == 5
        assert all(each.agent.current.process.forked for each in found)  # type: ignore[union-attr]
        # The end of the parent is nobody's end, and the next spare has another one.
        await spare()
        assert parent.forker is not None
        os.kill(parent.forker.process.pid, signal.SIGKILL)
        await parent.gone.wait()
        assert all(alive(each.agent.pid) for each in (second, *found) if each.agent.pid)
        await begun(ostler)
        await spare()
        with trio.fail_after(20):
            while pool.parents in ([], [parent]) or not pool.parents[0].usable:
                await begun(ostler)
                await trio.sleep(0.05)
        everybody = log.pids()
    assert not any(map(alive, everybody))
