"""Which wall an agent gets, and what is refused."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from supervisor.agents.catalog import load_catalog
from supervisor.agents.walls import walls as module
from supervisor.agents.walls.mounts import Needs, Outside
from supervisor.agents.walls.wall import Mechanism, Wall, WallUnavailable
from supervisor.agents.walls.walls import Walls, WallsWanted, build, enclosure
from supervisor.agents.walls.walls import find as found_here

STATE = Path("/srv/state")
OUTSIDE = Outside(
    system=(Path("/usr"),), hidden=(STATE,), names=(Path("/home/u/.ostler"),), home=Path("/home/u")
)
GUARDED = Walls(wall=Wall.GUARD, look=lambda: OUTSIDE)


@pytest.fixture(autouse=True)
def made_of(monkeypatch):
    """Every wall is possible here, and made of namespaces. Returns what sets something else."""

    def make(found, tried=None):
        def find(wall, outside, *, network=True):
            if tried is not None:
                tried.append(wall)
            return found

        monkeypatch.setattr(module, "find", find)
        GUARDED._found.clear()

    make(Mechanism.NAMESPACES)
    return make


def test_settings_can_ask_for_a_stronger_wall_and_not_for_a_weaker_one():
    assert GUARDED.of(None) is Wall.GUARD
    assert GUARDED.of(Wall.STRICT) is Wall.STRICT
    with pytest.raises(WallUnavailable, match="off is weaker than this server's guard"):
        GUARDED.of(Wall.OFF)


def test_a_wall_is_tried_once_and_refused_with_the_reason(made_of):
    tried = []
    made_of("the program bwrap is not installed. Install bubblewrap", tried)
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


def test_a_login_that_was_made_since_the_start_is_hidden(tmp_path):
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


def test_what_is_wanted_by_name_is_refused_with_the_reason_and_never_replaced(tmp_path, made_of):
    made_of("the trial failed: no. Allow it")
    with pytest.raises(WallUnavailable, match=r"OSTLER_WALLS: strict is unavailable here: the trial failed"):
        build(WallsWanted(wall=Wall.STRICT), tmp_path, {}, {})
    found = build(WallsWanted(wall=None), tmp_path, {}, {})
    assert (found.wall, found.mechanism) == (Wall.OFF, None)
    assert found.obstacle == "the trial failed: no. Allow it"


def test_what_the_walls_are_made_of_is_known(tmp_path, made_of):
    made_of(Mechanism.USER_ID)
    found = build(WallsWanted(wall=None), tmp_path, {}, {})
    assert (found.wall, found.mechanism, found.obstacle) == (Wall.GUARD, Mechanism.USER_ID, None)


# -- what a wall is made of -----------------------------------------------------------------------------

ROOT, USER = 0, 1000
IDS, NAMESPACES, LANDLOCK = Mechanism.USER_ID, Mechanism.NAMESPACES, Mechanism.LANDLOCK


@pytest.mark.parametrize(
    ("user", "wall", "network", "tried"),
    [
        (USER, Wall.GUARD, True, [NAMESPACES]),
        (USER, Wall.STRICT, True, [NAMESPACES, LANDLOCK]),
        (USER, Wall.STRICT, False, [NAMESPACES]),  # a rule of Landlock takes no network away
        (ROOT, Wall.GUARD, True, [IDS]),
        (ROOT, Wall.STRICT, True, [IDS, NAMESPACES, LANDLOCK]),
        (ROOT, Wall.STRICT, False, [IDS, NAMESPACES]),
    ],
)
def test_each_mechanism_is_tried_in_its_turn(monkeypatch, user, wall, network, tried):
    seen = []

    def refused(asked, mechanism, outside):
        assert (asked, outside) == (wall, OUTSIDE)
        seen.append(mechanism)
        return f"no {mechanism}"

    monkeypatch.setattr(module.os, "geteuid", lambda: user)
    monkeypatch.setattr(module, "_obstacle", refused)
    assert found_here(wall, OUTSIDE, network=network) == f"no {tried[0]}"
    assert seen == tried
    monkeypatch.setattr(module, "_obstacle", lambda *_: None)
    assert found_here(wall, OUTSIDE, network=network) is tried[0]


def test_without_bubblewrap_and_a_new_kernel_the_reason_says_what_to_install(monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.setattr(module, "can_scope", lambda: False)
    assert "Install bubblewrap" in str(found_here(Wall.STRICT, OUTSIDE))


def test_landlock_makes_no_guard(tmp_path):
    needs = Needs(agent="x", workspace=tmp_path)
    with pytest.raises(ValueError, match="they make no guard, which shows all but a part"):
        enclosure(Wall.GUARD, LANDLOCK, OUTSIDE, needs)


def test_landlock_refuses_a_workspace_with_a_file_that_it_cannot_hide(made_of):
    made_of(LANDLOCK)
    key = Path("/home/u/project/key")
    walls = Walls(wall=Wall.STRICT, look=lambda: attrs.evolve(OUTSIDE, hidden_files=(key,)))
    with pytest.raises(
        WallUnavailable, match=r"holds /home/u/project/key, which Landlock cannot keep .* Move"
    ):
        walls.enclosure(Wall.STRICT, Needs(agent="x", workspace=key.parent))
