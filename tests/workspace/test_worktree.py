"""Worktrees for conversations: whole, of use to git itself, and made without what a repository names."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from supervisor.agents.containment import process_tag
from supervisor.agents.containment.containment import open_containment
from supervisor.agents.containment.levels import Level
from supervisor.agents.spawning.confinement import MB, can_wall
from supervisor.patience import PATH_SECONDS
from supervisor.workspace.access import Access
from supervisor.workspace.git import worktree
from supervisor.workspace.git.worktree import make_worktree
from tests.support.processes import mentioning
from tests.workspace.repositories import commit, git, place, reader, repository
from tests.workspace.test_git import hostile
from tests.workspace.test_git_bounds import expanding

NAME = "0f6c2b1e-1111-4222-8333-444455556666"


@pytest.fixture(params=["spawner", "thread"])
async def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[None]:
    if request.param == "thread" or not process_tag.usable():
        yield
        return
    async with open_containment(tmp_path_factory.mktemp("state"), Level.TREE):
        yield


@pytest.mark.parametrize("access", [Access.ALL, Access.WORKSPACES])
async def test_git_itself_goes_on_with_it(started: None, tmp_path: Path, access: Access) -> None:
    if access is Access.WORKSPACES and not can_wall():
        pytest.skip("this kernel has no Landlock")
    root = repository(tmp_path / "r", a="1\n", run="#!/bin/sh\n")
    (root / "run").chmod(0o755)
    (root / "link").symlink_to("a")
    (root / "sub").mkdir()
    (root / "sub/b").write_text("b\n")
    head = commit(root, "Second")
    (root / "a").write_text("not committed\n")
    made = await make_worktree(reader(access), place(root / "sub", root), tmp_path / "trees", NAME)
    top = tmp_path / "trees" / NAME / "r"
    assert made == top / "sub"
    assert git(top, "status", "--porcelain") == ""
    assert git(top, "branch", "--show-current") == f"openhands/{NAME}"
    assert git(top, "rev-parse", "HEAD") == head
    assert (top / "a").read_text() == "1\n"
    assert os.access(top / "run", os.X_OK)
    assert (top / "link").is_symlink()
    (top / "a").write_text("2\n")
    commit(top, "In the worktree")
    assert git(root, "log", "-1", "--format=%s", f"openhands/{NAME}") == "In the worktree"
    assert git(root, "rev-parse", "HEAD") == head
    assert str(top) in git(root, "worktree", "list")
    git(root, "fsck", "--strict")
    # Of a worktree another one can be made, and git's own removal works.
    again = await make_worktree(reader(access), place(root, root), tmp_path / "trees", f"{NAME}-2")
    assert again is not None
    git(root, "worktree", "remove", str(again))
    assert not again.exists()


@pytest.mark.guarantee(name="workspace-routes")
async def test_a_hostile_repository_runs_nothing(tmp_path: Path) -> None:
    """Filters, hooks, transports and what a missing object would have been fetched by."""
    mark = tmp_path / "mark"
    root = hostile(tmp_path / "r", mark)
    mark.unlink(missing_ok=True)
    made = await make_worktree(reader(), place(root), tmp_path / "trees", NAME)
    assert made is not None
    assert (made / "a").read_text() == "1\n"
    assert not mark.exists(), mark.read_text()
    # Git itself runs what is named there: the test has teeth.
    argv = ["git", "-C", str(root), "worktree", "add", "-q", str(tmp_path / "plain"), "HEAD"]
    subprocess.run(argv, capture_output=True, check=False, timeout=20)
    assert mark.exists()


@pytest.mark.guarantee(name="workspace-routes")
async def test_an_object_that_is_missing_is_not_fetched(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    root = hostile(tmp_path / "r", mark)
    mark.unlink(missing_ok=True)
    (root / ".git/objects" / git_object(root)).unlink()
    with capture_logs() as logs:
        assert await make_worktree(reader(), place(root), tmp_path / "trees", NAME) is None
    assert not mark.exists()
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["cannot make a worktree"]
    nothing_is_left(root, tmp_path)


def git_object(root: Path) -> str:
    """The file of the content of `a`."""
    name = subprocess.run(
        ["git", "hash-object", "--no-filters", "a"], cwd=root, capture_output=True, check=True
    ).stdout.decode()
    return f"{name[:2]}/{name[2:].strip()}"


def nothing_is_left(root: Path, tmp_path: Path) -> None:
    assert not (tmp_path / "trees" / NAME).exists()
    assert not (root / ".git/worktrees" / NAME).exists()
    assert not (root / ".git/refs/heads/openhands" / NAME).exists()
    assert not mentioning(root)


async def test_a_repository_that_expands_makes_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worktree, "MAX_FILES", 20_000)
    root = expanding(tmp_path / "r")
    with capture_logs() as logs, trio.fail_after(60):
        assert await make_worktree(reader(), place(root), tmp_path / "trees", NAME) is None
    (reason,) = (line["reason"] for line in logs if line["event"] == "cannot make a worktree")
    assert "more than 20000 files" in reason
    nothing_is_left(root, tmp_path)


async def test_one_that_is_larger_than_it_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worktree, "MAX_BYTES", MB)
    root = repository(tmp_path / "r", **{f"f{n}": "x" * 300_000 for n in range(4)})
    assert await make_worktree(reader(), place(root), tmp_path / "trees", NAME) is None
    nothing_is_left(root, tmp_path)
    (root / "f0").unlink()
    commit(root, "Smaller")
    assert await make_worktree(reader(), place(root), tmp_path / "trees", NAME) is not None


async def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worktree, "KEPT_FREE_BYTES", shutil.disk_usage(tmp_path).total)
    root = repository(tmp_path / "r", a="1\n")
    with capture_logs() as logs:
        assert await make_worktree(reader(), place(root), tmp_path / "trees", NAME) is None
    assert "Make room, or share the workspace" in logs[-1]["reason"]
    nothing_is_left(root, tmp_path)


@pytest.mark.guarantee(name="workspace-routes")
async def test_links_in_a_repository_lead_nowhere(tmp_path: Path) -> None:
    """In the place of git's directory of worktrees, and committed in that of the workspace."""
    (tmp_path / "outside").mkdir()
    root = repository(tmp_path / "r", a="1\n")
    (root / ".git/worktrees").symlink_to(tmp_path / "outside")
    assert await make_worktree(reader(), place(root), tmp_path / "trees", NAME) is None
    assert list((tmp_path / "outside").iterdir()) == []
    (root / ".git/worktrees").unlink()
    (root / "sub").symlink_to(tmp_path / "outside")
    commit(root, "A link")
    (root / "sub").unlink()
    (root / "sub").mkdir()
    made = await make_worktree(reader(), place(root / "sub"), tmp_path / "trees", NAME)
    assert made == tmp_path / "trees" / NAME / "r"


async def test_where_there_is_none_to_be_made(tmp_path: Path) -> None:
    assert await make_worktree(reader(), place(tmp_path), tmp_path / "trees", NAME) is None
    root = repository(tmp_path / "r")
    assert await make_worktree(reader(), place(root), tmp_path / "trees", NAME) is None
    assert not (tmp_path / "trees").exists()


async def test_a_cancelled_one_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path / "r", a="1\n")
    begun = trio.Event()

    async def hang(*arguments: object) -> None:
        begun.set()
        await trio.sleep_forever()

    real = worktree.Session.output

    async def output(session: worktree.Session, *arguments: str) -> bytes:
        said = await real(session, *arguments)
        if "update-ref" in arguments:
            await hang()
        return said

    monkeypatch.setattr(worktree.Session, "output", output)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(make_worktree, reader(), place(root), tmp_path / "trees", NAME)
        await begun.wait()
        assert (root / ".git/refs/heads/openhands" / NAME).exists()
        nursery.cancel_scope.cancel()
    nothing_is_left(root, tmp_path)


async def test_what_fails_after_the_branch_leaves_none(
    started: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git could not delete it: it may not write to `packed-refs`, and a pipe in its place hangs it."""
    access = Access.WORKSPACES if can_wall() else Access.ALL
    root = repository(tmp_path / "r", a="1\n")
    real = worktree.Session.output

    async def output(session: worktree.Session, *arguments: str) -> bytes:
        said = await real(session, *arguments)
        if "update-ref" in arguments:
            assert (root / ".git/refs/heads/openhands" / NAME).exists()
            (root / ".git/refs/heads/openhands" / f"{NAME}.lock").touch()
            os.mkfifo(root / ".git/packed-refs")
            raise OSError("told by the test")
        return said

    monkeypatch.setattr(worktree.Session, "output", output)
    with trio.fail_after(20), capture_logs() as logs:
        assert await make_worktree(reader(access), place(root, root), tmp_path / "trees", NAME) is None
    assert [line["reason"] for line in logs if "reason" in line] == ["told by the test"]
    nothing_is_left(root, tmp_path)
    assert not (root / ".git/refs/heads/openhands" / f"{NAME}.lock").exists()


async def test_a_branch_of_that_name_stays(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", a="1\n")
    git(root, "branch", f"openhands/{NAME}")
    theirs = git(root, "rev-parse", "HEAD")
    commit(root, "Second")
    assert await make_worktree(reader(), place(root), tmp_path / "trees", NAME) is None
    assert git(root, "rev-parse", f"openhands/{NAME}") == theirs
    assert not (tmp_path / "trees" / NAME).exists()


async def test_a_removal_that_takes_long_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = repository(tmp_path / "r", a="1\n")
    monkeypatch.setattr(worktree, "_same", lambda *arguments: 1 / 0)
    monkeypatch.setattr(shutil, "rmtree", lambda *arguments, **more: time.sleep(PATH_SECONDS + 1))
    with trio.fail_after(30), pytest.raises(ZeroDivisionError):
        await make_worktree(reader(), place(root), tmp_path / "trees", NAME)


async def test_a_path_without_end_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree may name a file with any number of bytes, and git writes them all."""
    root = repository(tmp_path / "r", a="1\n")
    blob = bytes.fromhex(git(root, "hash-object", "a"))
    tree = tmp_path / "tree"
    tree.write_bytes(b"100644 " + b"x" * 20 * MB + b"\0" + blob)
    argv = ("hash-object", "-w", "-t", "tree", "--literally", str(tree))
    head = git(root, "commit-tree", git(root, *argv), "-m", "Long")
    git(root, "update-ref", "HEAD", head)
    with capture_logs() as logs, trio.fail_after(20):
        assert await make_worktree(reader(), place(root), tmp_path / "trees", NAME) is None
    assert [line["reason"] for line in logs if "reason" in line] == [
        "The commit has a path that is too long for a file."
    ]
    nothing_is_left(root, tmp_path)
