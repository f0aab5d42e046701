"""A command that was cut off stays cut off: no agent runs it again with the next message.

The command counts itself in a file. It is confirmed where the agent asks, cut off while it runs, and the next
message is sent: the file has one line. A command that a person was still asked about does not run at all.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from supervisor.agents.catalog import load_catalog
from supervisor.agents.errors import PythonMissing
from tests.interop.model_api.server import ModelApi
from tests.interop.real_agents import BUILT_IN, MORE_AGENTS, REAL_AGENTS, RealAgent, install
from tests.interop.talk import ASK_ME, MINUTE_S, TURN_S, Open, Talk
from tests.support.client import summary
from tests.support.processes import alive

pytestmark = [pytest.mark.interop, pytest.mark.guarantee(name="no-blind-retry")]


def lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


async def asked(one: Talk, file: Path) -> int:
    """Have the agent begin the command; where it asks, the question waits. How many events there were."""
    before = await one.begin(f"{one.agent.tool}: echo ran >> {file.name}; sleep 20")
    if one.agent.asks:
        await one.settle(before, "waiting_for_confirmation")
        assert not lines(file)
    return before


async def running(one: Talk, file: Path) -> int:
    """Have the command run, confirmed."""
    before = await asked(one, file)
    if one.agent.asks:
        await one.rest.respond(one.id, accept=True)
    with trio.fail_after(TURN_S):
        while not lines(file):
            await trio.sleep(0.05)
    await trio.sleep(0.5)  # the agent has said that it runs
    return before


async def interrupt(one: Talk, before: int) -> None:
    await one.rest.act(one.id, "interrupt")
    await one.settle(before, "paused")


async def interrupt_twice(one: Talk, before: int) -> None:
    await one.rest.act(one.id, "interrupt")
    await trio.sleep(0.3)
    await interrupt(one, before)


async def interrupt_the_question(one: Talk, before: int) -> None:
    await interrupt(one, before)


async def kill(one: Talk, before: int) -> None:
    pid = await one.pid()
    os.kill(pid, signal.SIGKILL)
    with trio.fail_after(TURN_S):
        while alive(pid):
            await trio.sleep(0.02)
    await one.settle(before, "error")


async def stop(one: Talk, before: int) -> None:
    await one.rest.call("POST", f"/api/agents/{one.id}/stop")
    await one.settle(before, "error", "paused")


async def restart(one: Talk, before: int) -> None:
    await one.rest.call("POST", f"/api/agents/{one.id}/restart", {"force": True})
    await one.settle(before, "error", "paused")


Way = Callable[[Talk, int], Awaitable[None]]
WAYS: tuple[Way, ...] = (interrupt_the_question, interrupt, interrupt_twice, kill, stop, restart)

UNBEGUN: frozenset[Way] = frozenset({interrupt_the_question})
"""Those in which the command has not begun: a person is asked about it."""


def cases() -> Iterator[Any]:
    """All ways in one conversation; each in one of its own where a start takes long."""
    for key, agent in {**REAL_AGENTS, **MORE_AGENTS}.items():
        ways = tuple(way for way in WAYS if agent.asks or way not in UNBEGUN)
        if agent.slow:
            yield from (pytest.param(agent, (way,), id=f"{key}-{way.__name__}") for way in ways)
        else:
            yield pytest.param(agent, ways, id=key)


async def next_message(one: Talk) -> list[Any]:
    minute = MINUTE_S if one.agent.forgets_within_the_minute else 0.0
    before = await one.begin("what else is there")
    return await one.rest.settle(one.id, before, timeout=TURN_S + minute)


async def cut_off(one: Talk, ways: Sequence[Way]) -> None:
    """Have commands cut off in these ways, each followed by a message, and count how often each has run."""
    for way in ways:
        file = one.workspace / f"{way.__name__}.txt"
        await way(one, await (asked if way in UNBEGUN else running)(one, file))
        events = await next_message(one)
        assert lines(file) == int(way not in UNBEGUN), summary(events)
        memory = (await one.rest.info(one.id))["agent_state"]["memory"]
        if load_catalog()[one.agent.key].resumes_calls and way not in UNBEGUN:
            assert memory == "lost", summary(events)


@pytest.mark.parametrize(("agent", "ways"), list(cases()))
async def test_a_command_that_was_cut_off_is_not_run_again(
    talk: Open,
    agent: RealAgent,
    ways: Sequence[Way],
    agents_prefix: Path,
    model_api: ModelApi,
) -> None:
    try:
        await install(agent, agents_prefix)
    except PythonMissing as error:
        pytest.skip(str(error))
    policy = {"confirmation_policy": ASK_ME} if agent.asks else {}
    async with talk(agent, **policy) as one:
        await cut_off(one, ways)


def test_every_agent_that_is_known_was_tried() -> None:
    """What a descriptor says comes from the test above, and for the built-in agent from `test_builtin`."""
    tried = {*REAL_AGENTS, *MORE_AGENTS}
    said = {key for key, each in load_catalog().items() if each.resumes_calls is not None and each.package}
    assert said - {BUILT_IN.key} == tried
