"""Spares when the server dies: they are agents' processes like all others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import trio

import supervisor
from supervisor.agents import Level
from tests.support.processes import alive
from tests.support.scripted import ScriptedLog

ROOT = Path(__file__).resolve().parents[2]


async def test_a_killed_server_leaves_no_spare_for_the_next_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.spare_server", str(tmp_path)]
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
            assert await ostler.supervisor.spares() == []
    finally:
        server.kill()
        assert server.stdout is not None
        server.stdout.close()
        await trio.to_thread.run_sync(server.wait)
