"""Terminals of all agents together, and what becomes of one for which there is no descriptor."""

from __future__ import annotations

import os

import pytest
import trio

from supervisor.acp import Jail, RpcError, Services
from supervisor.conversations.agent.admission import Slots
from tests.support.starting import start_process


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_beyond_the_servers_share_there_is_an_error_and_places_come_back(tmp_path):
    slots = Slots(2)
    words = "file descriptors for as many others at most"
    async with trio.open_nursery() as nursery:
        one, other = (Services(Jail(tmp_path), nursery, start=start_process, slots=slots) for _ in range(2))
        sleeping = {"command": "sleep", "args": ["60"]}
        first = await one.handle("terminal/create", sleeping)
        await other.handle("terminal/create", sleeping)
        for services in (one, other):
            with pytest.raises(RpcError, match=words):
                await services.handle("terminal/create", sleeping)
        await one.handle("terminal/release", first)
        with pytest.raises(RpcError, match="cannot be started"):
            await one.handle("terminal/create", {"command": str(tmp_path / "nothing"), "args": ["x"]})
        # One never takes the last place, also where it has another one.
        with pytest.raises(RpcError, match=words):
            await other.handle("terminal/create", sleeping)
        await one.handle("terminal/create", sleeping)
        assert slots.taken == 2
        await one.close()
        await other.close()
    assert slots.taken == 0


async def test_no_agent_takes_all_places_of_a_small_server(tmp_path):
    slots = Slots(43)
    sleeping = {"command": "sleep", "args": ["60"]}

    async def fill(services: Services) -> int:
        for taken in range(43):
            try:
                await services.handle("terminal/create", sleeping)
            except RpcError:
                return taken
        return 43

    async with trio.open_nursery() as nursery:
        agents = [Services(Jail(tmp_path), nursery, start=start_process, slots=slots) for _ in range(4)]
        # Each has as many as it leaves to all others, and clients' commands have a place, too.
        assert [await fill(services) for services in agents] == [22, 11, 5, 3]
        assert slots.take()
        slots.give()
        for services in agents:
            await services.close()
    assert slots.taken == 0


@pytest.mark.parametrize("missing", ["pipe", "pidfd_open"])
async def test_without_a_descriptor_nothing_is_left(tmp_path, monkeypatch, missing):
    slots = Slots(1)
    before = len(os.listdir("/proc/self/fd"))

    def none(*_args):
        raise OSError(24, "Too many open files")

    async with trio.open_nursery() as nursery:
        services = Services(Jail(tmp_path), nursery, start=start_process, slots=slots)
        with monkeypatch.context() as patch:
            patch.setattr(os, missing, none)
            with pytest.raises(RpcError, match="cannot be started now"):
                await services.handle("terminal/create", {"command": "sleep", "args": ["60"]})
        assert slots.taken == 0
        made = await services.handle("terminal/create", {"command": "true"})
        await services.handle("terminal/wait_for_exit", made)
        await services.close()
    assert len(os.listdir("/proc/self/fd")) <= before + 1
