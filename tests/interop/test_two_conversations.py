"""Two conversations of every agent at once: the end of one does not reach the other."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable

import pytest

from tests.interop.model_api.server import ModelApi
from tests.interop.real_agents import MORE_AGENTS, REAL_AGENTS, RealAgent
from tests.interop.talk import Open, Talk
from tests.support.client import answer_text, of_kind, summary
from tests.support.thorough import THOROUGH

pytestmark = pytest.mark.interop

CHUNKS = 150
EVERY = {**REAL_AGENTS, **MORE_AGENTS}


async def delete(one: Talk) -> None:
    one.deleted = True
    await one.rest.call("DELETE", f"/api/conversations/{one.id}")


async def stop(one: Talk) -> None:
    await one.rest.call("POST", f"/api/agents/{one.id}/stop")


async def crash(one: Talk) -> None:
    os.kill(one.pids()[0], signal.SIGKILL)  # the oldest: the others are its helpers, or the second one's


ENDS = {each.__name__: each for each in (delete, stop, crash)}


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
@pytest.mark.parametrize(
    ("agent", "end"),
    [
        pytest.param(agent, end, id=f"{key}-{name}")
        for key, agent in EVERY.items()
        # Each takes ten seconds of the processor. `conversations/test_homes.py` has all ends every day.
        for name, end in ENDS.items()
        if THOROUGH or end is delete
    ],
)
async def test_the_end_of_one_does_not_reach_the_turn_of_the_other(
    talk: Open,
    agent: RealAgent,
    end: Callable[[Talk], Awaitable[None]],
    model_api: ModelApi,
) -> None:
    async with talk(agent) as first, talk(agent) as second:
        assert "say hello please" in answer_text(await first.turn("say hello please"))
        calls = len(model_api.calls)
        before = await second.begin(f"SLOW {CHUNKS} 40")
        await second.answering(calls)
        await end(first)
        events = await second.settle(before, "finished", "error", "paused")
        assert not of_kind(events, "ConversationErrorEvent"), summary(events)
        assert f"s{CHUNKS - 1}" in answer_text(events)
        assert "still here" in answer_text(await second.turn("still here"))
