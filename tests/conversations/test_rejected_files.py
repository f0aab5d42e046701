"""Whether the files of rejected calls have changed since the no."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from supervisor.conversations.turns import rejected_files
from supervisor.conversations.turns.rejected_files import FILES_MAX, RejectedFiles


def rewrite(path: Path) -> None:
    path.write_text("as it was!")


def replace(path: Path) -> None:
    path.with_name("new").write_text("as it was")
    path.with_name("new").replace(path)


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize(
    ("change", "changed"),
    [
        (lambda path: None, False),
        (Path.read_text, False),
        (lambda path: path.chmod(0o600), False),
        (rewrite, True),
        (replace, True),
        (Path.unlink, True),
        (lambda path: os.utime(path, ns=(0, 0)), True),
    ],
    ids=["nothing", "read", "mode", "rewritten", "replaced", "deleted", "touched"],
)
async def test_a_file_that_is_another_one_than_before_the_no(
    tmp_path: Path, change: Callable[[Path], object], changed: bool
) -> None:
    file = tmp_path / "a"
    file.write_text("as it was")
    files = RejectedFiles(str(tmp_path))
    files.reject("c", ["a", "none"])
    await files.look()
    assert files.knows("c")
    change(file)
    await files.look()  # of a later no: what is known stays
    assert await files.changed("c") is changed


async def test_a_file_that_was_not_there_before(tmp_path: Path) -> None:
    files = RejectedFiles("/nowhere")
    files.reject("c", [str(tmp_path / "a")])
    await files.look()
    assert not await files.changed("c")
    (tmp_path / "a").touch()
    assert await files.changed("c")
    assert not await files.changed("d")
    files.clear()
    assert not files.knows("c")


async def test_what_another_call_was_allowed_to_change_shows_nothing(tmp_path: Path) -> None:
    files = RejectedFiles(str(tmp_path))
    files.reject("c", ["a"])
    await files.look()
    files.allow([str(tmp_path / "a")])
    (tmp_path / "a").touch()
    assert not files.knows("c")
    assert not await files.changed("c")


async def test_what_is_no_file_is_not_looked_at(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    files = RejectedFiles(str(tmp_path))
    files.reject("c", [".", "pipe", "loop", "n" * 5_000, "\0"])
    await files.look()
    (tmp_path / "new").touch()
    assert not files.knows("c")
    assert not await files.changed("c")


async def test_the_files_of_a_turn_have_a_bound(tmp_path: Path) -> None:
    files = RejectedFiles(str(tmp_path))
    for number in range(3):
        files.reject(str(number), [f"{number}-{each}" for each in range(FILES_MAX // 2)])
    await files.look()
    assert [files.knows(str(number)) for number in range(3)] == [True, True, False]


async def test_a_file_system_that_hangs_delays_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(rejected_files, "_state_of", lambda _: answers.wait())
    files = RejectedFiles(str(tmp_path))
    files.reject("c", ["a"])
    try:
        await files.look()
        assert not files.knows("c")
    finally:
        answers.set()
