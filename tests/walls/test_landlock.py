"""What Landlock's rules allow behind `strict`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from supervisor.agents.spawning.confinement import Confinement, Reach, can_scope
from supervisor.agents.walls import landlock
from supervisor.agents.walls.mounts import Needs, Outside


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("system/secret/more", "system/open/secret", "system/shown", "reads/hidden", "reads/shown"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("workspace", "own", "writes/hidden", "writes/shown", "runtime"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "system/link").symlink_to("secret")
    return tmp_path


def reach_of(place: Path) -> Reach:
    outside = Outside(
        system=(place / "system",),
        private=((place / "system/secret", True), (place / "system/open/secret", True)),
        hidden=(place / "reads/hidden", place / "writes/hidden", place / "elsewhere"),
        runtime=(place / "runtime",),
    )
    needs = Needs(
        agent="x",
        workspace=place / "workspace",
        own=(place / "own",),
        reads=(place / "reads",),
        writes=(place / "writes",),
        programs=(place / "elsewhere/agents",),
    )
    return landlock.reach(outside, needs)


def test_what_is_hidden_is_left_out_and_everything_beside_it_is_not(place: Path) -> None:
    found = reach_of(place)
    shown = ["system/shown", "runtime", "elsewhere/agents", "reads/shown"]
    assert found.runs == tuple(place / each for each in shown)
    assert found.owns == tuple(place / each for each in ("workspace", "own", "writes/shown"))
    assert found.lists == (place / "system", place / "system/open")
    assert found.writes == landlock.DEVICES


@pytest.mark.skipif(not can_scope(), reason="Landlock is older than Linux 6.12")
def test_the_kernel_allows_that_and_nothing_else(place: Path) -> None:
    reach = reach_of(place)
    system = [Path(each) for each in ("/usr", "/bin", "/lib", "/lib64", "/etc") if Path(each).exists()]
    confined = Confinement(
        reach=Reach(runs=(*reach.runs, *system), lists=reach.lists, writes=reach.writes, owns=reach.owns),
        scoped=True,
        unprivileged=os.geteuid() == 0,
    )

    def works(*words: str) -> bool:
        command = confined.command(["/bin/sh", "-c", " ".join(words)])
        return subprocess.run(command, cwd=place, capture_output=True, check=False).returncode == 0

    for name in ("workspace", "own", "writes/shown"):
        assert works("echo 'exit 0' >", f"{name}/made", "&& chmod +x", f"{name}/made", "&&", f"{name}/made")
    for name in ("reads/shown", "system/shown"):
        assert works("ls", name)
        assert not works("touch", f"{name}/made")
    assert works("ls", "system")
    for name in ("reads/hidden", "writes/hidden", "reads", "."):
        assert not works("ls", name)
    (place / "system/secret/file").write_text("secret")
    assert not works("cat", "system/secret/file")
    assert not works("touch", "writes/hidden/made")
    assert works("echo x > /dev/null")
    assert not works("kill -0", str(os.getpid()))
