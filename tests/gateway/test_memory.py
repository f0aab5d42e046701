"""Memory that is given back after a burst of work."""

from __future__ import annotations

import pytest
import trio

from gateway.serving import memory

MEGABYTE = 1024 * 1024


@pytest.fixture
def process(monkeypatch):
    """A process of this size; giving back brings it down to `least`."""

    class Process:
        size = least = 50 * MEGABYTE
        trimmed = 0

        def trim(self, pad):
            assert pad == 0
            self.trimmed += 1
            self.size = self.least

    async def at_once(function, *arguments):
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    made = Process()
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)  # the clock would jump on meanwhile
    monkeypatch.setattr(memory, "_trim", lambda: made.trim)
    monkeypatch.setattr(memory, "_resident", lambda: made.size)
    return made


async def test_growth_is_given_back_once_the_work_is_done(process, autojump_clock):
    work = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.release_freed, lambda: work)
        await trio.sleep(10)
        assert process.trimmed == 0
        process.size += 40 * MEGABYTE
        await trio.sleep(10)
        assert process.trimmed == 0  # it would hold up the work
        work = False
        await trio.sleep(10)
        assert process.trimmed == 1
        process.size += MEGABYTE
        await trio.sleep(100)
        assert process.trimmed == 1
        process.size += 5 * MEGABYTE
        await trio.sleep(10)
        assert process.trimmed == 2
        nursery.cancel_scope.cancel()


async def test_what_is_freed_later_is_given_back_though_the_process_does_not_grow(process, autojump_clock):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.release_freed, lambda: False)
        await trio.sleep(1)
        process.size = process.least = 90 * MEGABYTE  # in use
        await trio.sleep(5)
        assert process.trimmed == 1
        process.least = 50 * MEGABYTE
        await trio.sleep(memory.AGAIN_SECONDS)
        assert (process.trimmed, process.size) == (2, 50 * MEGABYTE)
        await trio.sleep(100)
        assert process.trimmed == 2
        process.size = process.least = 60 * MEGABYTE
        await trio.sleep(10 * memory.AGAIN_SECONDS)
        assert process.trimmed <= 2 + 11  # what stays is not tried at each look
        nursery.cancel_scope.cancel()


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_a_thread_that_cannot_start_is_tried_again(process, monkeypatch, autojump_clock):
    """At a container's limit of threads: the server goes on."""
    failures = 0

    async def fail(*arguments):
        nonlocal failures
        failures += 1
        raise RuntimeError("can't start new thread")

    async with trio.open_nursery() as nursery:
        with monkeypatch.context() as limited:
            limited.setattr(trio.to_thread, "run_sync", fail)
            nursery.start_soon(memory.release_freed, lambda: False)
            await trio.sleep(1)
            process.size += 40 * MEGABYTE
            await trio.sleep(3 * memory.LOOK_SECONDS)
            assert failures == 3
        await trio.sleep(memory.LOOK_SECONDS)
        assert process.trimmed == 1
        nursery.cancel_scope.cancel()


def test_a_c_library_that_cannot_be_opened_is_left_alone(monkeypatch):
    def fail(name):
        raise OSError("a static program")

    monkeypatch.setattr(memory.ctypes, "CDLL", fail)
    assert memory._trim() is None


@pytest.mark.parametrize("missing", ["_trim", "_resident"])
async def test_a_system_that_cannot_do_it_is_left_alone(process, monkeypatch, missing):
    monkeypatch.setattr(memory, missing, lambda: None)
    await memory.release_freed(lambda: False)


def test_this_system_can(monkeypatch):
    size = memory._resident()
    assert size is not None
    assert size > MEGABYTE
    trim = memory._trim()
    if trim is not None:
        trim(0)
