"""Work on paths that hang: given up, counted, and no hindrance to the end of the process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
import trio

from supervisor import patience
from supervisor.patience import KeyedLimiters, PathTimeout, in_time, read_regular
from tests.support.lease import leased

WAIT_S = 20.0
HANG_S = 0.05


class Hanging:
    """Work that hangs until it is told not to."""

    def __init__(self):
        self.go = threading.Event()
        self.begun = 0

    def __call__(self):
        self.begun += 1
        assert self.go.wait(WAIT_S)
        return 7


@pytest.fixture
def hanging():
    work = Hanging()
    yield work
    work.go.set()
    until = time.monotonic() + WAIT_S
    while patience._left_behind.number and time.monotonic() < until:
        time.sleep(0.01)
    assert patience._left_behind.number == 0


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_what_hangs_is_given_up_and_keeps_its_place(hanging):
    lanes = KeyedLimiters(1)
    with pytest.raises(PathTimeout, match=r"longer than 0\.05 s to look: the file system does not answer"):
        await in_time(hanging, "to look", limiter=lanes.of("a"), seconds=HANG_S)
    # Its own lane is taken until it ends, others are free.
    with pytest.raises(PathTimeout):
        await in_time(lambda: 1, "to look", limiter=lanes.of("a"), seconds=HANG_S)
    assert await in_time(lambda: 2, "to look", limiter=lanes.of("b")) == 2
    assert patience._left_behind.number == hanging.begun == 1
    hanging.go.set()
    assert await in_time(lambda: 3, "to look", limiter=lanes.of("a")) == 3


async def test_cancelling_gives_up_at_once_and_a_shield_waits(hanging):
    lanes = KeyedLimiters(4)
    with trio.fail_after(WAIT_S):
        with trio.move_on_after(HANG_S):
            await in_time(hanging, "to look", limiter=lanes.of("a"))
        with trio.move_on_after(HANG_S) as scope:
            assert await in_time(lambda: time.sleep(4 * HANG_S) or 5, "", limiter=lanes.of("a"), shield=True)
        assert not scope.cancelled_caught
        with trio.CancelScope() as scope:
            scope.cancel()
            await in_time(hanging, "to look", limiter=lanes.of("a"), shield=True)
        assert scope.cancelled_caught
        with pytest.raises(PathTimeout):
            await in_time(hanging, "to look", limiter=lanes.of("a"), seconds=HANG_S, shield=True)
    assert hanging.begun == 2


async def test_what_work_brings_after_all_is_not_lost(hanging):
    brought: list[int] = []
    limiter = KeyedLimiters(1).of("a")
    with pytest.raises(PathTimeout):
        await in_time(hanging, "", limiter=limiter, seconds=HANG_S, wasted=brought.append)
    assert brought == []
    hanging.go.set()
    with trio.fail_after(WAIT_S):
        while not brought:
            await trio.sleep(0.005)
    assert brought == [7]


async def test_threads_that_are_left_behind_are_bounded_in_number(hanging, monkeypatch):
    monkeypatch.setattr(patience, "MOST_LEFT_BEHIND", 3)
    lanes = KeyedLimiters(1)
    for number in range(6):
        with pytest.raises(PathTimeout):
            await in_time(hanging, "to look", limiter=lanes.of(str(number)), seconds=HANG_S)
    assert hanging.begun == 3
    with pytest.raises(PathTimeout, match="too many file operations hang; Ostler did not try to look"):
        await in_time(lambda: 1, "to look", limiter=lanes.of("another"))


async def test_an_exception_is_the_works_own():
    with pytest.raises(FileNotFoundError):
        await in_time(lambda: os.stat("/no/such"), "to look", limiter=KeyedLimiters(1).of("a"))


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
def test_a_process_ends_without_the_threads_that_were_left_behind(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    code = f"""
import sys, trio
sys.path[:0] = {sys.path!r}
from supervisor.patience import KeyedLimiters, PathTimeout, in_time
async def main():
    for _ in range(3):
        try:
            limiter = KeyedLimiters(1).of("")
            await in_time(lambda: open({str(tmp_path / "pipe")!r}), "", limiter=limiter, seconds=0.1)
        except PathTimeout:
            print("given up")
trio.run(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    assert (done.stdout, done.stderr) == ("given up\n" * 3, "")


def test_only_plain_files_are_read_and_nothing_is_waited_for(tmp_path):
    plain = tmp_path / "plain"
    plain.write_bytes(b"0123456789")
    assert read_regular(plain, 4) == b"0123"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match=r"regular file|directory"):
            read_regular(path, 4)
    with leased(plain):
        before = time.monotonic()
        with pytest.raises(BlockingIOError):
            read_regular(plain, 4)
        assert time.monotonic() - before < WAIT_S
