"""Which wall an agent gets, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.agents.catalog import load_catalog
from supervisor.agents.walls import walls as module
from supervisor.agents.walls.mounts import Needs, Outside
from supervisor.agents.walls.wall import Wall, WallUnavailable
from supervisor.agents.walls.walls import Walls, WallsWanted, build

STATE = Path("/srv/state")
OUTSIDE = Outside(
    system=(Path("/usr"),), hidden=(STATE,), names=(Path("/home/u/.ostler"),), home=Path("/home/u")
)
GUARDED = Walls(wall=Wall.GUARD, look=lambda: OUTSIDE)


def test_settings_can_ask_for_a_stronger_wall_and_not_for_a_weaker_one(monkeypatch):
    monkeypatch.setattr(module, "obstacle", lambda wall, _: None)
    assert GUARDED.of(None) is Wall.GUARD
    assert GUARDED.of(Wall.STRICT) is Wall.STRICT
    with pytest.raises(WallUnavailable, match="off is weaker than this server's guard"):
        GUARDED.of(Wall.OFF)


def test_a_wall_is_tried_once_and_refused_with_the_reason(monkeypatch):
    tried = []
    reason = "the program bwrap is not installed. Install bubblewrap"
    monkeypatch.setattr(module, "obstacle", lambda wall, _: tried.append(wall) or reason)
    none = Walls(wall=Wall.OFF, obstacle="OSTLER_WALLS is off", look=lambda: OUTSIDE)
    assert none.of(None) is none.of(Wall.OFF) is Wall.OFF
    for _ in range(2):
        with pytest.raises(WallUnavailable, match="strict is unavailable here: the program bwrap"):
            none.of(Wall.STRICT)
    assert tried == [Wall.STRICT]


@pytest.mark.parametrize("wall", [Wall.GUARD, Wall.STRICT])
@pytest.mark.parametrize(
    ("asked", "workspace", "allowed"),
    [
        ("/home/u/project", "/home/u/project", True),
        ("/srv/state/worktrees/w", "/srv/state/worktrees/w", True),
        ("/home/u/.ostler/worktrees/w", "/srv/state/worktrees/w", True),
        ("/home/u/project", "/srv/state/data/c2", False),  # a link was put there
        ("/home/u/project", "/srv/state", False),
        ("/srv/state", "/srv/state", False),
    ],
)
def test_a_workspace_does_not_lead_to_what_is_hidden(wall, asked, workspace, allowed):
    needs = Needs(agent="x", workspace=Path(workspace), asked=Path(asked))
    if allowed:
        assert GUARDED.enclosure(wall, needs) is not None
    else:
        with pytest.raises(WallUnavailable, match="leads into /srv/state"):
            GUARDED.enclosure(wall, needs)


@pytest.mark.parametrize("wall", [Wall.GUARD, Wall.STRICT])
def test_a_program_in_the_state_directory_does_not_show_it(wall):
    needs = Needs(agent="x", workspace=Path("/w"), programs=(STATE, Path("/srv"), STATE / "agents"))
    enclosure = GUARDED.enclosure(wall, needs)
    assert enclosure is not None
    shown = {each.target for each in enclosure.mounts if each.source == each.target}
    assert STATE / "agents" in shown
    assert not shown & {STATE, Path("/srv")}


@pytest.mark.parametrize("workspace", ["/", "/srv", "/home", "/home/u"])
def test_a_strict_wall_is_not_put_around_what_it_hides(workspace):
    needs = Needs(agent="x", workspace=Path(workspace))
    with pytest.raises(WallUnavailable, match="which a strict wall keeps from agents"):
        GUARDED.enclosure(Wall.STRICT, needs)
    assert GUARDED.enclosure(Wall.GUARD, needs) is not None


def test_a_login_that_was_made_since_the_start_is_hidden(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "obstacle", lambda wall, _: None)
    (tmp_path / "home/.ostler").mkdir(parents=True)
    found = build(
        WallsWanted(wall=Wall.GUARD),
        tmp_path / "home/.ostler",
        load_catalog(),
        {"HOME": str(tmp_path / "home")},
    )
    (tmp_path / "home/.codex").mkdir()
    enclosure = found.enclosure(Wall.GUARD, Needs(agent="claude-code", workspace=tmp_path))
    assert enclosure is not None
    assert tmp_path / "home/.codex" in [each.target for each in enclosure.mounts]


def test_what_is_wanted_by_name_is_refused_with_the_reason_and_never_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "obstacle", lambda wall, _: f"the trial failed: no {wall}. Allow it")
    with pytest.raises(WallUnavailable, match=r"OSTLER_WALLS: strict is unavailable here: the trial failed"):
        build(WallsWanted(wall=Wall.STRICT), tmp_path, {}, {})
    found = build(WallsWanted(wall=None), tmp_path, {}, {})
    assert (found.wall, found.obstacle) == (Wall.OFF, "the trial failed: no guard. Allow it")


def test_root_gets_no_guard(monkeypatch):
    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    assert "Start it as another user" in (module.obstacle(Wall.GUARD, OUTSIDE) or "")
