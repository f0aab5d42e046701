"""What one request of git may take: memory, disk, places, and paths. Repositories that want more."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio
from trio.testing import MockClock

from supervisor.agents.containment import process_tag
from supervisor.agents.containment.containment import open_containment
from supervisor.agents.containment.levels import Level
from supervisor.agents.process import AgentProcess, spawn
from supervisor.agents.spawning.confinement import MB, MORE_PROCESSES, can_wall
from supervisor.workspace.access import Access
from supervisor.workspace.git import command
from supervisor.workspace.git import delta as patches
from supervisor.workspace.git.changes import changes
from supervisor.workspace.git.command import Git, GitProblem, GitTooLarge
from supervisor.workspace.git.delta import delta
from supervisor.workspace.git.repository import (
    Confines,
    NotARepository,
    find,
    make_stand_in,
    remove_stand_in,
)
from supervisor.workspace.git.worktree import _prepare
from supervisor.workspace.problems import Denied, NoRoom
from tests.support.processes import mentioning
from tests.workspace.repositories import ENVIRONMENT, git, place, reader, repository

WAIT_S = 60.0

LIMITED = 96 * MB
"""Of memory: more than git needs for a small repository, less than for those here."""

LITTLE: Final = 32 * MB
"""The same where git is to reach it soon."""

walled = pytest.mark.skipif(not can_wall(), reason="this kernel has no Landlock")


@pytest.fixture(params=["spawner", "thread"])
async def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[None]:
    """With a server's containment, and without."""
    if request.param == "thread" or not process_tag.usable():
        yield
        return
    async with open_containment(tmp_path_factory.mktemp("state"), Level.TREE):
        yield


def expanding(root: Path, depth: int = 9, width: int = 10) -> Path:
    """A repository of some ten small objects whose tree has `width` to the power of `depth` files."""
    repository(root)
    store = ["git", "-C", str(root), "hash-object", "-w", "--stdin"]

    def made(argv: list[str], given: str) -> str:
        done = subprocess.run(argv, input=given.encode(), env=ENVIRONMENT, capture_output=True, check=True)
        return done.stdout.decode().strip()

    entry = f"100644 blob {made(store, 'x')}"
    for _ in range(depth):
        tree = made(["git", "-C", str(root), "mktree"], "".join(f"{entry}\tf{n}\n" for n in range(width)))
        entry = f"040000 tree {tree}"
    head = git(root, "commit-tree", tree, "-m", "Large")
    git(root, "update-ref", "HEAD", head)
    return root


def largest(root: Path) -> int:
    """Bytes that the largest process that mentions the directory has, or had."""
    found = [0]
    ours = Path("/proc/self/cmdline").read_bytes()
    for pid in mentioning(root):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes() == ours:
                continue  # a fork of this process that is not yet another program, and has its memory
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        found += [int(kb) * 1024 for kb in re.findall(r"VmHWM:\s+(\d+)", status)]
    return max(found)


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_small_repository_that_expands_gets_no_gigabytes(started: None, tmp_path: Path) -> None:
    root = expanding(tmp_path / "r")
    assert sum(each.stat().st_size for each in root.rglob("*") if each.is_file()) < 212_000
    most = 0
    own = reader(memory_bytes=LIMITED)
    for request in (changes(own, place(root)), delta(own, place(root), None, ())):
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, largest(root))
                    await trio.sleep(0.02)

            nursery.start_soon(watch)
            with trio.fail_after(WAIT_S):
                try:
                    await request
                except GitTooLarge as error:
                    told = str(error)
                else:
                    told = ""
            nursery.cancel_scope.cancel()
        assert re.match(f"Git needs more than {LIMITED // MB} MB of memory.*exclude or ignore large", told)
    assert 10 * MB < most < LIMITED + 32 * MB  # what is mapped of files does not count
    assert not mentioning(root)


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_what_is_polled_takes_its_memory_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    comparisons = 0

    def counted(argv: Sequence[str], **options: Any) -> AbstractAsyncContextManager[AgentProcess]:
        nonlocal comparisons
        comparisons += "diff" in argv
        return spawn(argv, **options)

    monkeypatch.setattr(command, "spawn", counted)
    root = expanding(tmp_path / "r")
    own = reader(memory_bytes=LITTLE)
    told = set()

    async def asked_again() -> bool:
        """Whether git was run for it. It is refused anyway."""
        before = comparisons
        with pytest.raises(GitTooLarge) as refused:
            await changes(own, place(root))
        told.add(str(refused.value))
        return comparisons > before

    assert await asked_again()
    assert not await asked_again()
    # Below another repository, where failures are not told.
    repository(tmp_path, kept="k")
    before = comparisons
    for _ in range(2):
        assert await changes(own, place(tmp_path)) == []
    assert comparisons == before + 2  # of the upper one
    mock_clock.jump(command.REFUSED_SECONDS + 1)
    assert await asked_again()
    assert not await asked_again()
    (root / ".gitignore").write_text("f1\n")
    assert await asked_again()
    git(root, "update-index", "--add", "--cacheinfo", f"100644,{git(root, 'hash-object', '.gitignore')},x")
    assert await asked_again()
    assert len(told) == 1
    assert "exclude or ignore large files" in told.pop()


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_patch_is_tried_each_time(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", a="1\n")
    (root / "large").write_bytes(b"0123456789\n" * (LITTLE // 11))
    with pytest.raises(GitTooLarge, match="MB of memory"):
        await delta(reader(memory_bytes=LITTLE), place(root), None, ())
    (root / "large").unlink()
    file, _, _ = await delta(reader(memory_bytes=LITTLE), place(root), None, ())
    file.close()


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_no_more_commands_are_remembered_than_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "MOST_REFUSED", 3)
    root = repository(tmp_path / "r", a="1\n")
    async with reader().opened(place(root)) as session:
        for number in range(5):
            with pytest.raises(GitTooLarge, match="more than 0 bytes"):
                await session.output("rev-parse", "HEAD", f"--short={10 + number}", most=0)
        remembered = [arguments[-1] for _, _, arguments in command._refused.get()]
    assert remembered == ["--short=12", "--short=13", "--short=14"]


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_large_text_that_git_does_not_know(started: None, tmp_path: Path) -> None:
    """Git compares it line by line, which takes a multiple of its size."""
    root = repository(tmp_path / "r", a="1\n")
    (root / "large").write_bytes(b"0123456789\n" * (LIMITED // 11))
    with pytest.raises(GitTooLarge, match="MB of memory"):
        await delta(reader(memory_bytes=LIMITED), place(root), None, ())
    file, _, _ = await delta(reader(memory_bytes=LIMITED), place(root), None, ["large"])
    file.close()
    (root / "large").write_bytes(b"0123456789\n" * (LIMITED // 16 // 11))
    file, _, _ = await delta(reader(memory_bytes=LIMITED), place(root), None, ())
    assert file.size > LIMITED // 16
    file.close()


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_patch_stores_no_more_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "MAX_STORED_BYTES", 2 * MB)
    root = repository(tmp_path / "r", a="1\n")
    for number in range(40):
        (root / f"random{number}").write_bytes(os.urandom(MB))
    kept = tmp_path / "kept"
    most = 0
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            nonlocal most
            while True:
                taken = subprocess.run(["du", "-sk", kept], capture_output=True, check=False).stdout
                most = max(most, int(taken.split()[0]) * 1024 if taken else 0)
                await trio.sleep(0.02)

        nursery.start_soon(watch)
        told = ""
        try:
            await delta(attrs.evolve(reader(), temporary=kept), place(root), None, ())
        except GitTooLarge as error:
            told = str(error)
        nursery.cancel_scope.cancel()
    # What git stores between two looks is no more than a disk takes in that time.
    assert 2 * MB < most < 40 * MB
    assert "take more than 2 MB" in told
    assert ".gitignore" in told
    assert list(kept.iterdir()) == []


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_patch_leaves_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path / "r", a="1\n")
    (root / "b").write_text("2\n")
    monkeypatch.setattr(patches, "KEPT_FREE_BYTES", shutil.disk_usage(tmp_path).total)
    with pytest.raises(NoRoom, match="Make room there, or exclude large files"):
        await delta(attrs.evolve(reader(), temporary=tmp_path / "kept"), place(root), None, ())
    assert list((tmp_path / "kept").iterdir()) == []


async def test_a_file_of_git_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "FILE_BYTES", MB)
    root = repository(tmp_path / "r", a="1\n")
    (root / "random").write_bytes(os.urandom(3 * MB))
    with pytest.raises(GitTooLarge, match="a file of more than 1 MB"):
        await delta(reader(), place(root), None, ())


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_one_workspace_leaves_places_for_others(tmp_path: Path) -> None:
    """More requests than there are places, all about repositories that answer nothing."""
    hanging = repository(tmp_path / "hanging", a="1\n")
    os.mkfifo(hanging / ".gitignore")  # git opens it, and waits
    other = repository(tmp_path / "other", a="1\n")
    (other / "b").write_text("b")
    async with trio.open_nursery() as nursery:
        for _ in range(2 * command.AT_ONCE):
            nursery.start_soon(changes, reader(), place(hanging))
        with trio.fail_after(WAIT_S):
            while not mentioning(hanging):
                await trio.sleep(0.05)
        with trio.fail_after(command.GIT_SECONDS / 2):
            assert [each.path for each in await changes(reader(), place(other))] == ["b"]
        nursery.cancel_scope.cancel()
    assert not mentioning(hanging)


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_looks_for_one_repository_leave_places_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks that take long wait for each other, within the time of their requests."""
    slow = repository(tmp_path / "slow", a="1\n")
    other = repository(tmp_path / "other", a="1\n")
    most = running = 0
    real = command.find

    def find(path: Path, confines: Confines) -> command.Repository:
        nonlocal most, running
        if path == slow:
            running += 1
            most = max(most, running)
            time.sleep(0.5)
            running -= 1
        return real(path, confines)

    monkeypatch.setattr(command, "find", find)
    answered = 0

    async def ask() -> None:
        nonlocal answered
        async with reader().opened(place(slow)):
            answered += 1

    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            for _ in range(30):  # 7.5 s of looks: more than the time of one
                nursery.start_soon(ask)
            while not running:
                await trio.sleep(0.01)
            async with reader().opened(place(other)):
                assert answered < 8
    assert (answered, most) == (30, command.OWN_AT_ONCE)


async def test_a_removal_that_hangs_holds_up_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path / "r", a="1\n")
    let_go = threading.Event()
    monkeypatch.setattr(command, "remove_stand_in", lambda place: let_go.wait(WAIT_S))
    try:
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                for _ in range(command.OWN_AT_ONCE):
                    nursery.start_soon(changes, reader(), place(root))
            assert await changes(reader(), place(root)) == []
    finally:
        let_go.set()


async def test_looks_at_the_room_take_half_of_the_time_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = repository(tmp_path / "r", a="1\n")
    looks: list[tuple[float, float]] = []

    def check(directory: Path) -> None:
        began = time.monotonic()
        time.sleep(0.3)
        looks.append((began, time.monotonic()))

    monkeypatch.setattr(patches, "_check_room", check)
    monkeypatch.setattr(patches, "LOOK_SECONDS", 0.01)
    async with reader().opened(place(root)) as session, patches._bounded(session):
        await trio.sleep(2)
    assert len(looks) > 2
    assert all(later[0] - one[1] > 0.25 for one, later in itertools.pairwise(looks))


@pytest.mark.parametrize("by", ["setting", "system"])
async def test_links_in_the_path_of_the_state_directory_are_followed(
    started: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Git's walls know resolved paths alone."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    access = Access.WORKSPACES if can_wall() else Access.ALL
    kept = tmp_path / "link" / "kept" if by == "setting" else None
    if kept is None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "link"))
    root = repository(tmp_path / "r", a="1\n")
    (root / "b").write_text("2\n")
    own = reader(access, temporary=kept)
    assert [each.path for each in await changes(own, place(root, root))] == ["b"]
    file, _, _ = await delta(own, place(root, root), None, ())
    file.close()


# -- clients that are confined to their workspaces


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A repository with what a client must not read."""
    return repository(tmp_path / "outside", file="SECRET\n")


@pytest.mark.guarantee(name="workspace-routes")
@walled
async def test_what_is_exchanged_while_git_reads_leads_nowhere(
    started: None, tmp_path: Path, outside: Path
) -> None:
    """After all looks at links, before git's: that is what an exchange at the right moment comes to."""
    inside = repository(tmp_path / "w", a="1\n")
    (inside / "d").mkdir()
    (inside / "d/file").write_text("ours\n")
    secret = git(outside, "rev-parse", "HEAD:file")
    async with reader(Access.WORKSPACES).opened(place(inside, inside)) as session:
        assert session.confinement.more_processes == MORE_PROCESSES
        own = await session.output("hash-object", "--no-filters", "d/file")
        shutil.rmtree(inside / "d")
        (inside / "d").symlink_to(outside)
        with pytest.raises(GitProblem, match="Permission denied"):
            await session.output("hash-object", "--no-filters", "d/file")
        # What the client would have been told without the wall.
        free = attrs.evolve(session, confinement=attrs.evolve(session.confinement, reach=None))
        assert await free.output("hash-object", "--no-filters", "d/file") == secret.encode() + b"\n" != own
        (inside / ".git/objects").rename(inside / "kept")
        (inside / ".git/objects").symlink_to(outside / ".git/objects")
        assert await free.attempt("cat-file", "blob", secret) == b"SECRET\n"
        assert await session.attempt("cat-file", "blob", secret) is None


@pytest.mark.guarantee(name="workspace-routes")
@pytest.mark.parametrize(
    "name", [".git", ".git/HEAD", ".git/config", ".git/commondir", ".git/objects/info/alternates"]
)
def test_what_is_exchanged_after_a_look_is_not_read(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The directory of a file that was just found to be inside becomes a link: at that moment exactly."""
    inside, there = tmp_path / "w", tmp_path / "there"
    repository(inside / "d", a="1\n")
    there.symlink_to(outside)
    target = inside / "d" / name
    if name == ".git":
        target.rename(inside / "kept")
        target.write_text(f"gitdir: {inside}/kept\n")
        there.unlink()
        there.mkdir()
        (there / ".git").write_text(f"gitdir: {inside}/kept\n")
    elif not target.exists():
        target.parent.mkdir(exist_ok=True)
        target.write_text(".\n" if name == ".git/commondir" else "\n")
        (outside / name).parent.mkdir(exist_ok=True)
        (outside / name).write_text(target.read_text())
    real, read = Confines.require, list[str]()

    def require(self: Confines, path: Path) -> Path:
        resolved = real(self, path)
        if path == target:
            target.parent.rename(inside / "before")
            target.parent.symlink_to((there / name).parent)
        return resolved

    def opened(path: object, flags: int, *rest: Any, **options: Any) -> int:
        descriptor = os_open(path, flags, *rest, **options)  # type: ignore[arg-type]
        read.append(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        return descriptor

    os_open = os.open
    monkeypatch.setattr(Confines, "require", require)
    monkeypatch.setattr(os, "open", opened)
    confines = Confines(inside)
    with contextlib.suppress(Denied, NotARepository, OSError):
        found = find(inside / "d", confines)
        remove_stand_in(make_stand_in(found, confines))
    assert target.parent.is_symlink()
    assert [each for each in read if each.startswith((f"{outside}/", f"{tmp_path}/there/"))] == []


@walled
async def test_a_worktree_is_made_in_no_repository_that_came_meanwhile(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w/d").symlink_to(outside)
    with pytest.raises(OSError, match="Not a directory"):
        _prepare(tmp_path / "w/d/.git", tmp_path / "top", "name")
    assert not (outside / ".git/worktrees").exists()


@walled
async def test_a_confined_git_does_all_that_it_did(started: None, tmp_path: Path) -> None:
    inside = repository(tmp_path / "w", a="1\n", gone="g\n")
    (inside / "a").write_text("2\n")
    (inside / "gone").unlink()
    (inside / "new").write_text("n\n")
    git(inside, "gc", "-q")
    before = {path: path.lstat().st_mtime_ns for path in inside.rglob("*")}
    confined = reader(Access.WORKSPACES)
    assert [each.path for each in await changes(confined, place(inside, inside))] == ["a", "gone", "new"]
    file, _, _ = await delta(confined, place(inside, inside), None, ())
    try:
        made = b"".join(iter(file.read, b""))
    finally:
        file.close()
    assert {b"+2", b"-g", b"+n"} <= set(made.splitlines())
    assert {path: path.lstat().st_mtime_ns for path in inside.rglob("*")} == before


@pytest.mark.guarantee(name="workspace-routes")
async def test_where_the_kernel_has_no_walls_git_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "can_wall", lambda: False)
    inside = repository(tmp_path / "w", a="1\n")
    for at in (inside, tmp_path):  # also where a repository is below
        with pytest.raises(Denied, match=r"Landlock.*Set OSTLER_WORKSPACE_ACCESS to all"):
            await changes(reader(Access.WORKSPACES), place(at, at))
    with pytest.raises(Denied):
        await delta(reader(Access.WORKSPACES), place(inside, inside), None, ())
    assert await changes(reader(), place(inside)) == []


def test_all_of_them_take_half_of_the_memory() -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert machine / 2 >= (command.AT_ONCE + command.LONG_AT_ONCE) * command.MEMORY_BYTES
    assert Git(reader().access, {}).memory_bytes == command.MEMORY_BYTES
