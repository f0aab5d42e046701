"""What an agent needs of the machine: found on a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.agents.catalog import load_catalog
from supervisor.agents.homes import short_path
from supervisor.agents.homes.short_path import short_places
from supervisor.agents.walls import outside as outside_module
from supervisor.agents.walls.outside import OWN_CODE, groups, kept, needs_of, outside, programs, started


@pytest.fixture
def home(tmp_path):
    found = tmp_path / "home"
    (found / ".ostler/agents").mkdir(parents=True)
    return found


def program(path, text="#!/bin/sh\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def installs(home, *argv, path=""):
    prefix = home / ".ostler/agents"
    return set(programs(argv, path, prefix, home)) - {prefix, OWN_CODE}


def test_control_groups_are_found_where_they_are_mounted(tmp_path):
    (tmp_path / "a b").mkdir()
    table = tmp_path / "mountinfo"
    table.write_text(
        f"30 1 0:26 / {tmp_path}/a\\040b rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
        f"31 1 0:27 / {tmp_path} rw - cgroup cgroup rw,pids\n"
        f"32 1 0:28 / {tmp_path}/missing rw - cgroup cgroup rw,cpu\n"
        f"33 1 0:29 / {tmp_path} rw - tmpfs cgroup rw\n"
    )
    assert list(groups(table)) == [tmp_path / "a b", tmp_path]
    assert list(groups(tmp_path / "none")) == []


def test_of_the_system_nothing_more_is_needed(home):
    assert installs(home, "/bin/sh") == set()
    assert installs(home, "sh", path="/bin:/usr/bin") == set()


def test_a_program_brings_the_directory_above_its_bin(home, tmp_path):
    node = program(tmp_path / "srv/node20/bin/node")
    assert installs(home, str(node)) == {tmp_path / "srv/node20"}
    assert installs(home, "node", path=str(node.parent)) == {tmp_path / "srv/node20"}


def test_links_bring_every_place_on_the_way(home, tmp_path):
    node = program(tmp_path / "srv/node20/bin/node")
    link = tmp_path / "tools/current"
    link.parent.mkdir()
    link.symlink_to("../srv/node20/bin/node")
    assert installs(home, str(link)) == {tmp_path / "tools", node.parent.parent}


def test_a_script_brings_its_interpreter(home, tmp_path):
    program(tmp_path / "srv/node20/bin/node")
    script = program(tmp_path / "app/agent.js", "#!/usr/bin/env -S node --no-warnings\n")
    path = str(tmp_path / "srv/node20/bin")
    assert installs(home, str(script), path=path) == {tmp_path / "app", tmp_path / "srv/node20"}


def test_a_script_that_names_itself_ends_the_search(home, tmp_path):
    script = tmp_path / "app/agent"
    program(script, f"#!{script}\n")
    assert installs(home, str(script)) == {tmp_path / "app"}


def test_a_program_in_the_home_never_brings_the_home(home):
    assert installs(home, str(program(home / "agent"))) == {home / "agent"}
    assert installs(home, str(program(home / "bin/agent"))) == {home / "bin"}
    assert installs(home, str(program(home / ".local/bin/agent"))) == {home / ".local/bin"}
    assert installs(home, str(program(home / ".nvm/v20/bin/node"))) == {home / ".nvm/v20"}


def test_a_script_in_the_arguments_is_brought_too(home, tmp_path):
    entry = program(tmp_path / "app/dist/index.js", "")
    assert installs(home, "/bin/sh", str(entry)) == {tmp_path / "app/dist"}


def test_an_mcp_server_brings_its_program_and_the_files_that_it_is_given(home, tmp_path):
    node = program(tmp_path / "srv/node20/bin/node")
    script = program(home / "servers/calc.js", "")
    command = ["node", str(script), "calc.js", str(home), "/missing", "--root=/", "/no path" * 1000]
    assert {*started(command, str(node.parent), home)} == {tmp_path / "srv/node20", script}
    assert {*started(["sh", "/etc/passwd"], "/bin", home)} == set()
    assert {*started(["/no path" * 1000], "/bin", home)} == set()


def test_an_mcp_server_by_a_relative_path_is_one_of_the_workspace(home, tmp_path, monkeypatch):
    program(tmp_path / "server")
    monkeypatch.chdir(tmp_path)
    assert {*started(["./server"], "", home)} == set()


def test_the_link_to_a_program_of_an_mcp_server_is_seen_by_its_name(home, tmp_path):
    program(tmp_path / "python3.13/bin/python")
    (tmp_path / "python").symlink_to("python3.13")
    command = [str(tmp_path / "python/bin/python")]
    found = needs_of("codex", ["/bin/sh"], {}, Path("/w"), home, home / ".ostler/agents", [command])
    assert found.servers == ((tmp_path / "python", tmp_path / "python3.13"),)


def test_logins_are_hidden_by_their_directories(home):
    (home / ".codex").mkdir()
    (home / ".local/share/opencode").mkdir(parents=True)
    found = outside(home / ".ostler", load_catalog(), {"HOME": str(home)})
    assert dict(found.logins) == {
        home / ".codex": frozenset({"codex"}),
        home / ".local/share/opencode": frozenset({"opencode"}),
    }
    assert home / ".ostler" in found.hidden
    assert found.home == home


def test_files_and_directories_with_secrets_are_hidden(home, tmp_path):
    (tmp_path / "secrets").mkdir()
    (tmp_path / "keys").write_text("KEY=1")
    more = (tmp_path / "secrets", tmp_path / "keys", tmp_path / "missing")
    found = outside(home / ".ostler", {}, {}, more)
    assert found.hidden == (home / ".ostler", tmp_path / "secrets")
    assert found.hidden_files == (tmp_path / "keys",)


def test_directories_that_an_agent_could_rename_are_pinned(home, tmp_path):
    deep = home / "a/b/state"
    deep.mkdir(parents=True)
    found = outside(deep, {}, {}).pinned
    assert (home, home / "a", home / "a/b") == tuple(each for each in found if each.is_relative_to(home))
    assert deep not in found


def test_a_login_among_a_persons_own_files_hides_nothing(home):
    (home / "projects").mkdir()
    environment = {"HOME": str(home), "GOOGLE_APPLICATION_CREDENTIALS": str(home / "projects/key.json")}
    assert outside(home / ".ostler", load_catalog(), environment).logins == ()


def test_a_moved_directory_of_logins_is_hidden(home, tmp_path):
    (tmp_path / "codex").mkdir()
    environment = {"HOME": str(home), "CODEX_HOME": str(tmp_path / "codex")}
    found = outside(home / ".ostler", load_catalog(), environment).logins
    assert found == ((tmp_path / "codex", frozenset({"codex"})),)


def test_places_that_run_later_are_kept_if_they_are_there(tmp_path):
    (tmp_path / ".git/hooks").mkdir(parents=True)
    (tmp_path / ".vscode").symlink_to(tmp_path)
    assert kept(tmp_path) == (tmp_path / ".git/hooks",)


def test_a_worktree_keeps_the_name_of_its_repository(tmp_path):
    (tmp_path / ".git").write_text("gitdir: /elsewhere")
    assert kept(tmp_path) == (tmp_path / ".git",)


def test_an_agents_needs_have_its_short_name_and_its_temporary_files(home, tmp_path, monkeypatch):
    monkeypatch.setattr(short_path.tempfile, "gettempdir", lambda: str(tmp_path))
    own = home / ".ostler/data/c1"
    own.mkdir(parents=True)
    place = short_places(own)[0]
    temporary = place / "t"
    temporary.mkdir(parents=True)
    (place / "d").symlink_to(own)
    environment = {"HOME": str(place / "d/codex"), "TMPDIR": str(temporary), "PATH": ""}
    found = needs_of("codex", ["/bin/sh"], environment, Path("/w"), own, home / ".ostler/agents")
    assert found.own == (own, temporary)
    assert found.aliases == ((place / "d", own),)
    assert found.hidden == (place,)


def test_other_names_of_the_workspace_and_of_the_installs_lead_to_them(home, tmp_path):
    own = home / ".ostler/data/c1"
    own.mkdir(parents=True)
    (tmp_path / "real").mkdir()
    (tmp_path / "ws").symlink_to("real")
    (home / ".ostler/agents").rmdir()
    (tmp_path / "installed").mkdir()
    (home / ".ostler/agents").symlink_to(tmp_path / "installed")
    found = needs_of("codex", ["/bin/sh"], {}, tmp_path / "ws", own, home / ".ostler/agents")
    assert found.workspace == tmp_path / "real"
    assert found.aliases == (
        (tmp_path / "ws", tmp_path / "real"),
        (home / ".ostler/agents", tmp_path / "installed"),
    )


@pytest.mark.parametrize("user", [0, 1000])
def test_devices_are_those_that_the_user_can_use_without_terminals(tmp_path, monkeypatch, user):
    for name in ("null", "pts", "dri", "kvm", "disk"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("dri")
    (tmp_path / "disk").chmod(0o700)
    monkeypatch.setattr(outside_module.os, "geteuid", lambda: user)
    monkeypatch.setattr(outside_module.os, "access", lambda path, _: not path.endswith("disk"))
    assert [path.name for path in outside_module._devices(tmp_path)] == ["dri", "kvm"]
