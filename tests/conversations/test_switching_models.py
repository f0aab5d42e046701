"""Switching the model of a conversation's agent: at once, or at its next start."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from supervisor.conversations.state.errors import AgentTimeout, NotAccepted
from tests.conversations.harness import (
    QUICK,
    events,
    open_harness,
    say,
    settled,
    speaking,
    states,
    turn,
    until,
)

METHODS = {"": "session/set_config_option", "legacy-models": "session/set_model"}


@pytest.mark.parametrize("mode", METHODS)
async def test_a_live_agent_gets_it_at_once_also_in_a_turn(tmp_path: Path, mode: str) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(*filter(None, [mode]))
        await turn(conversation, "hello")
        await conversation.send(say("!slow 20 20"), run=True)
        await speaking(conversation)
        await conversation.changes.switch_model("large")
        await settled(conversation)
        (asked,) = harness.log.received(METHODS[mode])
        assert "large" in asked["params"].values()
        info = conversation.info()
        assert info["current_model_id"] == "large"
        assert info["agent"]["acp_model"] == "large"
        assert info["agent_state"]["acp_current_model_id"] == "large"
        found = await events(conversation)
        assert states(found, "agent")[-1]["acp_model"] == "large"
        # It is kept: the next agent starts with it.
        await conversation.stop_agent()
        await turn(conversation, "again")
        assert len(harness.log.received(METHODS[mode])) == 2
        assert conversation.info()["current_model_id"] == "large"


async def test_before_the_first_run_it_is_kept_for_the_start(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.changes.switch_model("large")
        assert harness.log.pids() == []
        await turn(conversation, "hello")
        (asked,) = harness.log.received("session/set_config_option")
        assert asked["params"]["value"] == "large"


async def test_an_unknown_model_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        for _ in range(2):
            with pytest.raises(NotAccepted, match=r"'enormous'.*small, large"):
                await conversation.changes.switch_model("enormous")
            await conversation.stop_agent()
        assert conversation.info()["current_model_id"] == "small"
        assert harness.log.received("session/set_config_option") == []


async def test_an_agent_without_a_choice_and_one_that_refuses(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        without = await harness.start("without=config")
        await turn(without, "hello")
        for _ in range(2):
            with pytest.raises(NotAccepted, match="does not let its model be chosen"):
                await without.changes.switch_model("large")
            await without.stop_agent()
        refusing = await harness.start("error=config:-32603:not for you")
        await turn(refusing, "hello")
        with pytest.raises(NotAccepted, match="not for you"):
            await refusing.changes.switch_model("large")
        assert refusing.info()["current_model_id"] == "small"


async def test_an_agent_that_does_not_answer_in_time(tmp_path: Path, mock_clock: MockClock) -> None:
    deadlines = attrs.evolve(QUICK, option=10.0)
    async with open_harness(tmp_path, deadlines=deadlines, clock=mock_clock) as harness:
        conversation = await harness.start("hang=config")
        await turn(conversation, "hello")
        failed: list[Exception] = []

        async def switch() -> None:
            try:
                await conversation.changes.switch_model("large")
            except AgentTimeout as error:
                failed.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(switch)
            await until(lambda: harness.log.received("session/set_config_option"))
            mock_clock.jump(11)
        assert "within 10 s" in str(failed[0])
        assert conversation.info()["current_model_id"] == "small"
