"""What an agent's processes see, as mounts: pure."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from supervisor.agents.walls import bubblewrap
from supervisor.agents.walls.mounts import Kind, Mount, Needs, Outside, mounts
from supervisor.agents.walls.wall import Wall, parse

HOME = Path("/home/u")
STATE = HOME / ".ostler"
OWN = STATE / "data/c1"
AGENTS = STATE / "agents"
WORKSPACE = HOME / "project"
SHORT = Path("/tmp/ostler-1000-abcdef")

OUTSIDE = Outside(
    system=(Path("/usr"), Path("/etc")),
    links=((Path("/bin"), "usr/bin"),),
    hidden=(STATE, SHORT),
    home=HOME,
    logins=((HOME / ".codex", frozenset({"codex"})), (HOME / ".claude", frozenset({"claude-code"}))),
    runtime=(Path("/run/systemd/resolve"),),
)


def needs(**more):
    found = {"agent": "codex", "workspace": WORKSPACE, "own": (OWN,), "programs": (AGENTS, Path("/srv/node"))}
    return Needs(**{**found, **more})


def targets(found, kind):
    return [each.target for each in found if each.kind is kind]


def shown(found, path):
    """The mount that decides what is seen at a path: the last one that holds it."""
    return [each for each in found if path.is_relative_to(each.target) and each.kind is not Kind.SEALED][-1]


def test_a_guard_hides_what_is_ostlers_and_shows_the_agents_part_of_it():
    found = mounts(Wall.GUARD, OUTSIDE, needs())
    assert found[0] == Mount(Kind.DEVICES, Path("/"), Path("/"))
    assert shown(found, STATE / "master.key").kind is Kind.EMPTY
    assert shown(found, STATE / "data/c2/home").kind is Kind.EMPTY
    assert shown(found, OWN / "home").kind is Kind.WRITABLE
    assert shown(found, AGENTS / "codex").kind is Kind.READ_ONLY
    assert shown(found, WORKSPACE).kind is Kind.DEVICES  # as the user sees it
    assert shown(found, Path("/srv/node")).kind is Kind.DEVICES
    assert STATE in targets(found, Kind.SEALED)


def test_a_guard_has_terminals_of_its_own_and_the_users_devices():
    devices = (Path("/dev/dri"), Path("/dev/kvm"))
    found = mounts(Wall.GUARD, attrs.evolve(OUTSIDE, devices=devices), needs())
    assert shown(found, Path("/dev/pts/0")).kind is Kind.NEW_DEVICES
    for path in devices:
        assert shown(found, path) == Mount(Kind.DEVICES, path, path)


def test_a_guard_shows_control_groups_and_lets_none_be_changed():
    groups = Path("/sys/fs/cgroup")
    found = mounts(Wall.GUARD, attrs.evolve(OUTSIDE, groups=(groups,)), needs())
    assert shown(found, groups / "user.slice/memory.max") == Mount(Kind.READ_ONLY, groups, groups)
    assert shown(found, Path("/sys/devices")).kind is Kind.DEVICES


def test_a_guard_hides_logins_of_other_agents_alone():
    found = mounts(Wall.GUARD, OUTSIDE, needs())
    assert shown(found, HOME / ".claude/.credentials.json").kind is Kind.EMPTY
    assert shown(found, HOME / ".codex/auth.json").kind is Kind.DEVICES


def test_a_workspace_among_logins_of_another_agent_is_shown_without_them():
    found = mounts(Wall.GUARD, OUTSIDE, needs(workspace=HOME / ".claude/skills"))
    assert shown(found, HOME / ".claude/skills/file").kind is Kind.WRITABLE
    assert shown(found, HOME / ".claude/.credentials.json").kind is Kind.EMPTY


@pytest.mark.parametrize("wall", [Wall.GUARD, Wall.STRICT])
def test_secrets_in_directories_of_the_system_are_hidden(wall):
    secrets, keys = Path("/etc/ostler/secrets"), Path("/etc/ostler/keys")
    outside = attrs.evolve(OUTSIDE, hidden=(STATE, secrets), hidden_files=(keys,))
    found = mounts(wall, outside, needs())
    assert shown(found, secrets / "TOKEN").kind is Kind.EMPTY
    assert shown(found, keys) == Mount(Kind.READ_ONLY, keys, Path("/dev/null"))


def test_a_path_that_the_operator_shows_does_not_show_what_is_hidden_below_it():
    found = mounts(Wall.STRICT, OUTSIDE, needs(reads=(HOME,)))
    assert shown(found, HOME / "notes").kind is Kind.READ_ONLY
    assert shown(found, STATE / "master.key").kind is Kind.EMPTY
    assert shown(found, OWN / "home").kind is Kind.WRITABLE


def test_what_is_hidden_cannot_be_moved_away_with_the_directory_above_it():
    above = HOME / ".local"
    outside = attrs.evolve(OUTSIDE, hidden=(above / "ostler",), pinned=(above,))
    found = mounts(Wall.GUARD, outside, needs())
    assert shown(found, above / "bin") == Mount(Kind.WRITABLE, above, above)
    assert shown(found, above / "ostler/master.key").kind is Kind.EMPTY


def test_a_guard_shows_no_sockets_of_services():
    found = mounts(Wall.GUARD, OUTSIDE, needs())
    assert shown(found, Path("/run/user/1000/bus")).kind is Kind.EMPTY
    assert shown(found, Path("/run/systemd/resolve/stub-resolv.conf")).kind is Kind.READ_ONLY


def test_a_workspace_in_the_state_directory_is_shown():
    inside = STATE / "worktrees/w1"
    for wall in (Wall.GUARD, Wall.STRICT):
        assert shown(mounts(wall, OUTSIDE, needs(workspace=inside)), inside / "file").kind is Kind.WRITABLE


def test_strict_shows_what_it_names_and_nothing_else():
    found = mounts(Wall.STRICT, OUTSIDE, needs())
    assert all(each.target != Path("/") or each.kind is Kind.SEALED for each in found)
    assert found[-1] == Mount(Kind.SEALED, Path("/"))
    assert shown(found, Path("/usr/bin/sh")).kind is Kind.READ_ONLY
    assert Mount(Kind.LINK, Path("/bin"), Path("usr/bin")) in found
    assert shown(found, WORKSPACE / "file").kind is Kind.WRITABLE
    assert shown(found, OWN / "home").kind is Kind.WRITABLE
    assert shown(found, Path("/srv/node")).kind is Kind.READ_ONLY
    assert shown(found, HOME / ".ssh/id").kind is Kind.EMPTY
    assert not [each for each in found if (HOME / ".claude").is_relative_to(each.target) and each.source]


def test_a_workspace_that_is_the_home_stays_writable():
    found = mounts(Wall.STRICT, OUTSIDE, needs(workspace=HOME))
    assert shown(found, HOME / "file").kind is Kind.WRITABLE


@pytest.mark.parametrize("wall", [Wall.GUARD, Wall.STRICT])
def test_what_runs_outside_later_is_read_only_unless_it_is_allowed(wall):
    hooks = WORKSPACE / ".git/hooks"
    assert shown(mounts(wall, OUTSIDE, needs(kept=(hooks,))), hooks / "pre-commit").kind is Kind.READ_ONLY
    found = mounts(wall, OUTSIDE, needs(kept=(hooks,), writes=(WORKSPACE / ".git",)))
    assert shown(found, hooks / "pre-commit").kind in (Kind.WRITABLE, Kind.DEVICES)


@pytest.mark.parametrize("wall", [Wall.GUARD, Wall.STRICT])
def test_a_repository_cannot_be_moved_away_with_its_hooks(wall):
    found = mounts(wall, OUTSIDE, needs(kept=(WORKSPACE / ".git/hooks", WORKSPACE / ".vscode")))
    places = [each.target for each in found]
    assert places.index(WORKSPACE / ".git") < places.index(WORKSPACE / ".git/hooks")
    assert shown(found, WORKSPACE / ".git/index").kind is Kind.WRITABLE


@pytest.mark.parametrize("wall", [Wall.GUARD, Wall.STRICT])
def test_inner_paths_are_mounted_after_outer_ones(wall):
    found = mounts(wall, OUTSIDE, needs(programs=(STATE,), own=(STATE / "data", OWN)))
    assert shown(found, OWN).kind is Kind.WRITABLE
    assert shown(found, STATE / "agents").kind is Kind.READ_ONLY


def test_a_short_name_of_the_agents_directory_leads_to_it():
    name = SHORT / "0123"
    for wall in (Wall.GUARD, Wall.STRICT):
        found = mounts(wall, OUTSIDE, needs(aliases=((name, OWN),)))
        assert shown(found, name / "home") == Mount(Kind.WRITABLE, name, OWN)


def test_the_command_has_its_mounts_in_order_and_ends_with_the_program():
    steps = [Mount(Kind.DEVICES, Path("/"), Path("/")), Mount(Kind.EMPTY, Path("/dev/shm"))]
    words = bubblewrap.command("/usr/bin/bwrap", steps, ["agent", "--acp"], network=False)
    assert words[0] == "/usr/bin/bwrap"
    assert words[-3:] == ["--", "agent", "--acp"]
    text = " ".join(words)
    assert "--dev-bind / / --size 268435456 --tmpfs /dev/shm --" in text
    assert "--unshare-net" in text
    assert "--unshare-net" not in bubblewrap.command("bwrap", steps, ["agent"])


def test_a_wall_is_read_from_its_name():
    assert [parse(text) for text in (None, "", "auto", "off", "strict")] == [
        None, None, None, Wall.OFF, Wall.STRICT,
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"'high' is not one of auto, off, guard, strict"):
        parse("high")
    assert Wall.OFF.strength < Wall.GUARD.strength < Wall.STRICT.strength


def test_a_strict_wall_shows_what_mcp_servers_are_started_with():
    script, venv = HOME / "calc.py", Path("/srv/venv")
    found = mounts(Wall.STRICT, OUTSIDE, needs(servers=((script, script), (venv, Path("/srv/venv-1")))))
    assert shown(found, script) == Mount(Kind.READ_ONLY, script, script)
    assert shown(found, venv / "bin/python") == Mount(Kind.READ_ONLY, venv, Path("/srv/venv-1"))
    assert shown(found, HOME / "other.py").kind is Kind.EMPTY


@pytest.mark.parametrize(
    "path",
    [
        STATE / "master.key",  # Ostler's
        STATE,
        HOME / ".claude/server.py",  # another agent's
        HOME / ".claude",
        HOME,  # holds both
        Path("/srv/keys/one"),
        Path("/srv/keys"),
    ],
    ids=str,
)
def test_what_is_kept_from_an_agent_is_not_shown_for_an_mcp_server(path):
    outside = attrs.evolve(OUTSIDE, hidden_files=(Path("/srv/keys/one"),))
    without = mounts(Wall.STRICT, outside, needs())
    assert mounts(Wall.STRICT, outside, needs(servers=((path, path),))) == without
    assert mounts(Wall.STRICT, outside, needs(servers=((Path("/srv/link"), path),))) == without


def test_an_mcp_server_in_the_workspace_leaves_it_writable():
    venv = WORKSPACE / ".venv"
    found = mounts(Wall.STRICT, OUTSIDE, needs(servers=((venv, venv),)))
    assert shown(found, venv / "bin/python").kind is Kind.WRITABLE
