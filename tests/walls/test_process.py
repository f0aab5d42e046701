"""A program behind a wall, as the process that it is: how it is asked to end."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from supervisor.agents.containment.containment import open_containment
from supervisor.agents.containment.levels import Level
from supervisor.agents.endings import StopPolicy, StopStep
from supervisor.agents.process import spawn
from supervisor.agents.walls.mounts import Needs
from supervisor.agents.walls.wall import Mechanism, Wall
from supervisor.agents.walls.walls import WallsWanted, build

WAITS = 'trap "exit 7" TERM; echo up; while :; do sleep 0.02; done'
PATIENT = StopPolicy(stdin_grace=0.1, term_grace=20.0)


async def test_sigterm_reaches_the_program_and_not_bubblewrap_which_would_kill_it(tmp_path: Path) -> None:
    state, workspace = tmp_path / "state", tmp_path / "workspace"
    for each in (state, workspace):
        each.mkdir()
    walls = build(WallsWanted(wall=Wall.OFF), state, {}, {})
    if walls.find(Wall.STRICT) not in (Mechanism.NAMESPACES, Mechanism.USER_ID):
        pytest.skip("no namespaces here")
    enclosure = walls.enclosure(Wall.STRICT, Needs(agent="", workspace=workspace))
    async with open_containment(state, Level.TREE):
        running = spawn(["/bin/sh", "-c", WAITS], cwd=workspace, env={}, stop=PATIENT, enclosure=enclosure)
        async with running as process:
            with trio.fail_after(20):
                assert await process.stdout.receive_some(10) == b"up\n"
        status = await process.wait()
        assert process.stop_report is not None
        assert (process.stop_report.step, status.code, status.signal) == (StopStep.TERM, 7, None)
