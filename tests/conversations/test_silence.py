"""Telling a hung agent from a quiet one, on a clock that jumps."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from supervisor.conversations.turns.silence import Silence

pytestmark = pytest.mark.guarantee(name="nothing-hangs")


@attrs.define
class Agent:
    """What an agent does, as far as silence is concerned."""

    touched: float = 0.0
    allowed: float = 100.0
    waiting: bool = False
    working: bool = False
    calling: bool = False
    told: float = 1_000.0
    words: list[tuple[float, float]] = attrs.field(factory=list)
    warnings: list[tuple[float, float]] = attrs.field(factory=list)

    def silence(self) -> Silence:
        async def cpu() -> float:
            await trio.lowlevel.checkpoint()
            return trio.current_time() if self.working else 1.0

        return Silence(
            touched=lambda: self.touched,
            allowed=lambda: self.allowed,
            longest=800.0,
            warning=0.8,
            notice=self.told,
            waiting=lambda: self.waiting,
            calling=lambda: self.calling,
            cpu=cpu,
            tell=self.tell,
        )

    def tell(self, silent: float, left: float, last: bool) -> None:
        (self.warnings if last else self.words).append((round(silent), round(left)))


async def test_a_hung_agent_is_warned_of_and_given_up(autojump_clock: MockClock) -> None:
    agent = Agent(touched=trio.current_time())
    assert round(await agent.silence().lasts_too_long()) == 100
    assert agent.warnings == [(80, 20)]


async def test_a_sign_of_life_begins_the_count_anew(autojump_clock: MockClock) -> None:
    begin = trio.current_time()
    agent = Agent(touched=begin)

    async def live() -> None:
        for _ in range(5):
            await trio.sleep(90)
            agent.touched = trio.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(live)
        await agent.silence().lasts_too_long()
    assert round(trio.current_time() - begin) == 5 * 90 + 100


async def test_an_agent_at_work_is_given_time_but_not_for_ever(autojump_clock: MockClock) -> None:
    agent = Agent(touched=trio.current_time(), working=True)
    assert round(await agent.silence().lasts_too_long()) == 800


async def test_a_running_tool_has_its_own_limit(autojump_clock: MockClock) -> None:
    agent = Agent(touched=trio.current_time(), allowed=800.0)
    assert round(await agent.silence().lasts_too_long()) == 800


async def test_waiting_for_a_person_does_not_count(autojump_clock: MockClock) -> None:
    agent = Agent(touched=trio.current_time(), waiting=True)
    with trio.move_on_after(100_000) as scope:
        await agent.silence().lasts_too_long()
    assert scope.cancelled_caught
    assert agent.warnings == []


@pytest.mark.parametrize("at", [85, 99])
async def test_a_word_after_the_warning_counts(autojump_clock: MockClock, at: int) -> None:
    begin = trio.current_time()
    agent = Agent(touched=begin)

    async def live() -> None:
        await trio.sleep(at)
        agent.touched = trio.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(live)
        await agent.silence().lasts_too_long()
    assert round(trio.current_time() - begin) == at + 100


async def test_silence_is_told_early_and_then_at_growing_intervals(autojump_clock: MockClock) -> None:
    agent = Agent(touched=trio.current_time(), allowed=1800.0, told=60.0)
    assert round(await agent.silence().lasts_too_long()) == 1800
    assert agent.words == [(60, 1740), (120, 1680), (240, 1560), (480, 1320), (960, 840)]
    assert agent.warnings == [(1440, 360)]


async def test_after_a_word_of_the_agent_silence_is_told_anew(autojump_clock: MockClock) -> None:
    begin = trio.current_time()
    agent = Agent(touched=begin, allowed=1000.0, told=60.0)

    async def live() -> None:
        await trio.sleep(130)
        agent.touched = trio.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(live)
        await trio.sleep(0)
        await agent.silence().lasts_too_long()
    assert agent.words == [(60, 940), (120, 880), (60, 940), (120, 880), (240, 760), (480, 520)]


@pytest.mark.parametrize("what", ["waiting", "calling"])
async def test_nothing_is_told_while_a_person_is_asked_or_a_tool_runs(
    autojump_clock: MockClock, what: str
) -> None:
    agent = Agent(touched=trio.current_time(), allowed=1800.0, told=60.0, **{what: True})
    with trio.move_on_after(1400):
        await agent.silence().lasts_too_long()
    assert agent.words == agent.warnings == []


async def test_what_a_person_takes_to_answer_is_not_told_afterwards(autojump_clock: MockClock) -> None:
    """Not even where the agent keeps still afterwards: that silence begins with the answer."""
    agent = Agent(touched=trio.current_time(), allowed=1800.0, told=60.0, waiting=True)

    async def answer() -> None:
        await trio.sleep(500)
        agent.waiting, agent.touched = False, trio.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        with trio.move_on_after(590):
            await agent.silence().lasts_too_long()
    assert agent.words == [(60, 1740)]


async def test_a_limit_below_the_first_word_has_its_warning_alone(autojump_clock: MockClock) -> None:
    agent = Agent(touched=trio.current_time(), allowed=50.0, told=60.0)
    assert round(await agent.silence().lasts_too_long()) == 50
    assert (agent.words, agent.warnings) == ([], [(40, 10)])
