"""Which paths clients may use: resolved, compared, and opened without leaving."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from supervisor.settings.errors import SettingsCorrupt
from supervisor.workspace.access import (
    Access,
    AccessRefused,
    BadPath,
    OutsideWorkspace,
    PathAccess,
    parse,
)
from supervisor.workspace.pins import FILE, FORMER_FILE, Pins


@pytest.fixture
def place(tmp_path):
    """A workspace, something beside it, and links out of it and within it."""
    (tmp_path / "w" / "sub").mkdir(parents=True)
    (tmp_path / "w" / "file").write_text("in")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("out")
    (tmp_path / "w-beside").mkdir()
    (tmp_path / "w" / "link").symlink_to(tmp_path / "out")
    (tmp_path / "w" / "filelink").symlink_to(tmp_path / "out" / "file")
    (tmp_path / "w" / "inner").symlink_to("sub")
    return tmp_path


def confined(*directories):
    async def known():
        return [str(each) for each in directories]

    return PathAccess(Access.WORKSPACES, known)


def read(admitted):
    descriptor = admitted.open(os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        return file.read().decode()


@pytest.mark.parametrize("word", list(Access))
def test_words(word):
    assert parse(word.value) is word


@pytest.mark.parametrize("text", ["", "ALL", "none", "0", " all"])
def test_other_words_are_refused(text):
    with pytest.raises(ValueError, match="is not one of all, workspaces, off"):
        parse(text)


async def test_everything_may_be_used_by_default(place):
    access = PathAccess()
    access.require()
    access.require_commands()
    admitted = await access.admit(f"{place}/w/filelink")
    assert (admitted.path, admitted.root) == (place / "out" / "file", None)
    assert read(admitted) == "out"


async def test_off_means_off(place):
    access = PathAccess(Access.OFF)
    for refused in (access.require, access.require_commands):
        with pytest.raises(AccessRefused, match="Set OSTLER_WORKSPACE_ACCESS to"):
            refused()
    with pytest.raises(AccessRefused):
        await access.admit(f"{place}/w/file")


def test_workspaces_has_no_commands():
    access = confined()
    access.require()
    with pytest.raises(AccessRefused, match="Set OSTLER_WORKSPACE_ACCESS to all"):
        access.require_commands()


@pytest.mark.parametrize(
    "path", ["w", "w/", "w/file", "w/inner", "w/sub/../file", "w/new/file", "w/./sub//x"]
)
async def test_what_is_in_a_workspace_may_be_used(place, path):
    admitted = await confined(place / "w").admit(f"{place}/{path}")
    assert admitted.root == place / "w"
    assert admitted.path.is_relative_to(place / "w")


@pytest.mark.parametrize(
    "path",
    ["", "out/file", "w-beside", "w/../out/file", "w/link", "w/link/file", "w/filelink", "w/link/../x"],
)
async def test_what_is_elsewhere_may_not(place, path):
    with pytest.raises(AccessRefused, match="outside of the workspaces"):
        await confined(place / "w").admit(f"{place}/{path}")


async def test_without_workspaces_there_is_nothing(place):
    with pytest.raises(AccessRefused):
        await confined().admit(f"{place}/w")


@pytest.mark.parametrize("path", ["", "relative", "/a\0b", "/" + "x" * 5000, "/\ud800", "~/x"])
@pytest.mark.parametrize("access", [Access.ALL, Access.WORKSPACES])
async def test_what_is_no_path_is_told_so(path, access):
    with pytest.raises(BadPath) as error:
        await PathAccess(access).admit(path, loc=("query", "path"))
    assert error.value.loc == ("query", "path")
    assert len(str(error.value)) < 200


async def test_a_workspace_that_is_a_link_is_where_it_led_when_it_was_first_seen(place):
    (place / "alias").symlink_to(place / "w")
    access = confined(place / "alias")
    assert (await access.admit(f"{place}/alias/file")).path == place / "w" / "file"
    # Its agent moves it elsewhere: the root stays.
    (place / "alias").unlink()
    (place / "alias").symlink_to(place / "out")
    with pytest.raises(AccessRefused):
        await access.admit(f"{place}/alias/file")
    with pytest.raises(AccessRefused):
        await access.admit(f"{place}/out/file")


@pytest.mark.guarantee(name="workspace-routes")
async def test_a_workspace_replaced_by_a_link_to_everything_does_not_move_its_root(place):
    access = confined(place / "w")
    await access.admit(f"{place}/w/file")
    os.rename(place / "w", place / "old")
    (place / "w").symlink_to("/")
    with pytest.raises(AccessRefused):
        await access.admit("/etc/passwd")
    with pytest.raises(AccessRefused):
        await access.admit(f"{place}/w/etc/passwd")


async def test_the_root_of_one_that_is_gone_is_forgotten(place):
    known = [str(place / "w")]

    async def directories():
        return known

    access = PathAccess(Access.WORKSPACES, directories)
    await access.admit(f"{place}/w/file")
    known.clear()
    with pytest.raises(AccessRefused):
        await access.admit(f"{place}/w/file")
    assert len(access._pins) == 0


@pytest.mark.parametrize("access", [Access.ALL, Access.WORKSPACES])
async def test_below_a_conversation_only_its_workspace_counts(place, access):
    async def known():
        return [str(place / "w"), str(place / "out")]

    paths = PathAccess(access, known)
    within = str(place / "w")
    admitted = await paths.admit(f"{place}/w/inner/x", within=within)
    assert (admitted.path, admitted.root) == (place / "w" / "sub" / "x", place / "w")
    for path in ("out/file", "w/link/file", "w/../out", "w-beside"):
        with pytest.raises((OutsideWorkspace, AccessRefused)):
            await paths.admit(f"{place}/{path}", within=within)


async def test_links_put_there_after_the_check_lead_nowhere(place):
    access = confined(place / "w")
    admitted = await access.admit(f"{place}/w/sub/new")
    os.rmdir(place / "w" / "sub")
    (place / "w" / "sub").symlink_to(place / "out")
    for use in (admitted.open_parent, admitted.open_directory):
        with pytest.raises(OSError, match="Not a directory"):
            use()
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT):
        with pytest.raises(OSError, match="Not a directory"):
            admitted.open(flags)
    assert os.listdir(place / "out") == ["file"]
    late = await access.admit(f"{place}/w/late")
    (place / "w" / "late").symlink_to(place / "out" / "file")
    with pytest.raises(OSError, match="symbolic links"):
        late.open(os.O_RDONLY)


@pytest.mark.guarantee(name="workspace-routes")
async def test_links_exchanged_all_the_time_lead_nowhere(place):
    access = confined(place / "w")
    (place / "w" / "d").mkdir()
    (place / "w" / "d" / "file").write_text("in")
    (place / "w" / "e").symlink_to(place / "out")
    over = threading.Event()

    def exchange():
        a, b, c = (place / "w" / name for name in "dex")
        while not over.is_set():
            os.rename(a, c), os.rename(b, a), os.rename(c, b)

    thread = threading.Thread(target=exchange)
    thread.start()
    seen = set()
    try:
        for _ in range(500):
            try:
                seen.add(read(await access.admit(f"{place}/w/d/file")))
            except (OSError, AccessRefused, BadPath):
                seen.add(None)
    finally:
        over.set()
        thread.join()
    assert "out" not in seen


async def test_nothing_that_hangs_is_waited_for_and_nothing_of_processes_is_read(place):
    os.mkfifo(place / "w" / "pipe")
    access = PathAccess()
    descriptor = (await access.admit(f"{place}/w/pipe")).open(os.O_RDONLY)
    assert stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    os.close(descriptor)
    with pytest.raises(AccessRefused, match="/proc"):
        (await access.admit("/proc/self/environ")).open(os.O_RDONLY)


async def test_the_workspace_itself_is_neither_made_nor_replaced(place):
    admitted = await confined(place / "w").admit(f"{place}/w")
    with pytest.raises(PermissionError):
        admitted.open_parent()
    descriptor = admitted.open_directory()
    assert os.readlink(f"/proc/self/fd/{descriptor}") == str(place / "w")
    os.close(descriptor)


@pytest.mark.guarantee(name="workspace-routes")
async def test_a_restart_does_not_move_roots(place):
    async def known():
        return [str(place / "w"), str(place / "later")]

    state = place / "state"
    first = PathAccess(Access.WORKSPACES, known, Pins(state))
    assert read(await first.admit(f"{place}/w/file")) == "in"
    os.rename(place / "w", place / "old")
    (place / "w").symlink_to("/")
    (place / "later").symlink_to("/")  # it was seen, too, and was nothing then
    again = PathAccess(Access.WORKSPACES, known, Pins(state))
    for path in (f"{place}/w/etc/passwd", "/etc/passwd", f"{place}/old/file"):
        with pytest.raises(AccessRefused):
            await again.admit(path)
    assert stat.S_IMODE((state / FILE).stat().st_mode) == 0o600
    # What is not known does not open everything.
    (state / FILE).write_text("{")
    with pytest.raises(SettingsCorrupt):
        await PathAccess(Access.WORKSPACES, known, Pins(state)).admit(f"{place}/old/file")
    # Where nobody is confined there are no roots to be stored.
    (state / FILE).unlink()
    await PathAccess(Access.ALL, known, Pins(state)).admit(f"{place}/old/file", within=str(place / "old"))
    assert not (state / FILE).exists()


async def test_roots_that_an_earlier_release_kept_hold(place):
    async def known():
        return [str(place / "w")]

    state = place / "state"
    state.mkdir()
    former = {"version": 1, "walls": {str(place / "w"): str(place / "w")}}
    (state / FORMER_FILE).write_text(json.dumps(former))
    os.rename(place / "w", place / "old")
    (place / "w").symlink_to("/")
    for _ in range(2):
        with pytest.raises(AccessRefused):
            await PathAccess(Access.WORKSPACES, known, Pins(state)).admit("/etc/passwd")
        assert json.loads((state / FILE).read_text()) == {"version": 1, "roots": former["walls"]}
        assert not (state / FORMER_FILE).exists()
    # The present one counts, and of the former nothing is taken that is not ours.
    (state / FORMER_FILE).write_text("{")
    with pytest.raises(AccessRefused):
        await PathAccess(Access.WORKSPACES, known, Pins(state)).admit("/etc/passwd")
    (state / FILE).unlink()
    with pytest.raises(SettingsCorrupt):
        await PathAccess(Access.WORKSPACES, known, Pins(state)).admit("/etc/passwd")


async def test_roots_that_cannot_be_stored_hold_all_the_same(place):
    async def known():
        return [str(place / "w")]

    (place / "state").write_text("in the way")
    access = PathAccess(Access.WORKSPACES, known, Pins(place / "state" / "below"))
    with pytest.raises((SettingsCorrupt, AccessRefused)):
        await access.admit(f"{place}/out/file")


async def test_many_roots_cost_little(place):
    many = [f"{place}/many/{number}" for number in range(5000)]

    async def known():
        return [*many, str(place / "w")]

    access = PathAccess(Access.WORKSPACES, known)
    await access.admit(f"{place}/w/file")  # resolves them all
    path = place / "w" / "sub" / "deeper" / "file"
    roots = [Path(each) for each in many]

    async def admit() -> None:
        await access.admit(str(path))

    async def compare() -> None:
        assert not any(path.is_relative_to(root) for root in roots)

    async def cost(work: Callable[[], Awaitable[None]]) -> float:
        """Seconds of this thread's processor time: the least of some attempts."""
        taken = []
        for _ in range(5):
            started = time.thread_time()
            await work()
            taken.append(time.thread_time() - started)
        return min(taken)

    assert await cost(admit) < await cost(compare) / 3
