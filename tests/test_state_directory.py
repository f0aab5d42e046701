"""The state directory: what is in it is ours alone."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest
import structlog

from supervisor import state_directory as state_module
from supervisor.state_directory import StateRefused, make_private, remove_temporary
from tests.support.server import running_server
from tests.support.thorough import everyday
from tests.support.user import AS_USER, NEEDS_USER, USER, give

PROGRAM = Path(sysconfig.get_path("scripts")) / "ostler"

WAIT_S = 20.0


def mode(path):
    return path.lstat().st_mode & 0o7777


@pytest.fixture
def umask():
    before = os.umask(0)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o277, 0o777])
def test_what_is_missing_is_made_private(tmp_path, umask, mask):
    state = tmp_path / "a" / "b" / "state"
    umask(mask)
    make_private(state)
    assert [mode(each) for each in (state, state.parent, state.parent.parent)] == [0o700] * 3


@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize("before", [0o755, 0o777, 0o701, 0o1777, 0o2770])
def test_what_is_open_to_others_is_closed(tmp_path, monkeypatch, before):
    logger = structlog.testing.CapturingLogger()
    monkeypatch.setattr(state_module, "log", logger)
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(before)
    make_private(state)
    assert mode(state) & 0o777 == 0o700
    (call,) = logger.calls
    assert (call.method_name, call.kwargs) == (
        "warning",
        {"directory": str(state), "mode": f"{before:04o}"},
    )
    make_private(state)
    assert len(logger.calls) == 1


def test_a_link_to_a_place_of_our_own_will_do(tmp_path):
    (tmp_path / "there").mkdir(mode=0o755)
    (tmp_path / "state").symlink_to("there")
    make_private(tmp_path / "state")
    assert mode(tmp_path / "there") == 0o700


def somebody_elses(path):
    path.mkdir(mode=0o755)
    os.chown(path, 65533, 65533)
    return path


def link_to(path):
    link = path.with_name("link")
    link.symlink_to(path)
    return link


def link_of_another(path):
    path.mkdir()
    link = link_to(path)
    os.lchown(link, 65533, 65533)
    return link


def below_an_open_one(path):
    path.mkdir()
    path.chmod(0o777)
    (path / "state").mkdir()
    return path / "state"


ANOTHERS = "belongs to another user (uid 65533)"
ONLY_ROOT_GIVES = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.mark.guarantee(name="other-users-of-the-machine")
@pytest.mark.guarantee(name="secrets-stay-in")
@ONLY_ROOT_GIVES
@NEEDS_USER
@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (somebody_elses, ANOTHERS),
        (lambda path: link_to(somebody_elses(path)), ANOTHERS),
        (link_of_another, "is a symbolic link of another user (uid 65533)"),
    ],
)
def test_what_cannot_be_private_is_refused_in_one_line(tmp_path, monkeypatch, make, complaint):
    state = make(tmp_path / "x")
    monkeypatch.setattr(os, "geteuid", lambda: USER)
    with pytest.raises(StateRefused) as info:
        make_private(state)
    assert complaint in str(info.value)
    assert "--state" in str(info.value)
    done = subprocess.run(
        [*AS_USER, PROGRAM, "serve", "--port", "0", "--state", state],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"ostler: {info.value}\n"


@pytest.mark.guarantee(name="other-users-of-the-machine")
@pytest.mark.parametrize(
    ("make", "warning"),
    [
        pytest.param(somebody_elses, "state directory belongs to another user", marks=ONLY_ROOT_GIVES),
        (below_an_open_one, "everybody can replace"),
        (lambda path: link_to(below_an_open_one(path)), "everybody can replace"),
        (lambda path: below_an_open_one(path) / "new" / "one", "everybody can replace"),
    ],
)
def test_what_may_be_meant_is_warned_of(tmp_path, monkeypatch, make, warning):
    logger = structlog.testing.CapturingLogger()
    monkeypatch.setattr(state_module, "log", logger)
    state = make(tmp_path / "x")
    make_private(state)
    assert mode(state.resolve()) & 0o777 == 0o700
    assert any(call.args[0].startswith(warning) for call in logger.calls)


def open_to_others(state):
    found = [state, *state.rglob("*")]
    assert len(found) > 5
    return {str(each): oct(mode(each)) for each in found if mode(each) & 0o077 and not each.is_symlink()}


def unusable(state):
    """What we cannot read and write ourselves."""
    return {str(each): oct(mode(each)) for each in (state, *state.rglob("*")) if mode(each) & 0o600 != 0o600}


@pytest.mark.guarantee(name="other-users-of-the-machine")
@pytest.mark.guarantee(name="secrets-stay-in")
@NEEDS_USER
@pytest.mark.parametrize("mask", everyday((0o000, 0o777), (0o000, 0o277, 0o777)))
async def test_all_that_a_server_keeps_is_its_own_whatever_the_umask(tmp_path, mask):
    (tmp_path / "work").mkdir()
    for each in (tmp_path, tmp_path / "work"):
        give(each)
    home = tmp_path / "home"
    home.mkdir()
    give(home)
    async with running_server(tmp_path, prefix=AS_USER, umask=mask) as server:
        created = await server.rest.create(tmp_path / "work", {"acp_server": "demo"})
        await server.rest.turn(created["id"], "Hello! Who are you?")
        await server.rest.put_secrets({"A_TOKEN": "s3cr3t-value"})
        await server.rest.call("PATCH", "/api/settings", {"agent_settings_diff": {"acp_server": "demo"}})
        names = {each.name for each in server.state.iterdir()}
        assert names >= {
            "journal.sqlite3", "journal.sqlite3-wal", "journal.sqlite3-shm", "journal.sqlite3.lock",
            "master.key", "secrets.json", "server.pid", "server.url", "settings.json",
        }  # fmt: skip
        assert {each.lstat().st_uid for each in server.state.rglob("*")} == {USER}
        assert (open_to_others(server.state), unusable(server.state)) == ({}, {})
        # It can also read all that it has written.
        await server.stop()
        assert (open_to_others(server.state), unusable(server.state)) == ({}, {})
        await server.start()


def test_only_what_servers_left_is_removed(tmp_path):
    state, others = tmp_path / "state", tmp_path / "others"
    for directory in (
        state / "tmp" / "ostler-git-1" / "info",
        state / "tmp" / "mine",
        others / "ostler-git-2",
    ):
        directory.mkdir(parents=True)
    (others / "kept").write_text("kept")
    (state / "tmp" / "ostler-git-1" / "refs").symlink_to(others)
    (state / "tmp" / "ostler-git-link").symlink_to(others)
    (state / "tmp" / "note").write_text("mine")
    remove_temporary(state)
    assert sorted(os.listdir(state / "tmp")) == ["mine", "note", "ostler-git-link"]
    assert sorted(os.listdir(others)) == ["kept", "ostler-git-2"]


def test_a_link_in_the_place_of_the_temporary_directory_is_not_followed(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "others" / "ostler-git-1").mkdir(parents=True)
    (tmp_path / "state" / "tmp").symlink_to(tmp_path / "others")
    with structlog.testing.capture_logs() as logs:
        remove_temporary(tmp_path / "state")
    assert os.listdir(tmp_path / "others") == ["ostler-git-1"]
    assert [each["log_level"] for each in logs] == ["warning"]
