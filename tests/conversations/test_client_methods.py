"""Which of the client's methods an agent is offered: what is set, else what it is known for, by its command
or by the name that it introduces itself with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.settings.agent import decode_agent_settings
from supervisor.settings.errors import SettingsError
from tests.conversations.harness import Harness, answer, open_harness, turn


def offered(harness: Harness) -> list[tuple[bool, bool]]:
    """What each `initialize` offered: files, and terminals."""
    said = [each["params"]["clientCapabilities"] for each in harness.log.received("initialize")]
    return [(each["fs"]["writeTextFile"], each["terminal"]) for each in said]


SETTINGS = {"none": (False, False), "fs": (True, False), "terminal": (False, True), "both": (True, True)}


@pytest.mark.parametrize("methods", SETTINGS)
@pytest.mark.parametrize("name", ["scripted-agent", "qwen-code"])
async def test_a_setting_says_which_methods_are_offered(tmp_path: Path, methods: str, name: str) -> None:
    async with open_harness(tmp_path) as harness:
        one = await harness.start(f"name={name}", settings={"acp_client_methods": methods})
        said = answer(await turn(one, "!fswrite made.txt text\n!request terminal/create"))
        assert offered(harness) == [SETTINGS[methods]]
        fs, terminal = SETTINGS[methods]
        assert (tmp_path / "workspace" / "made.txt").exists() is fs
        assert ("terminal/create -> error -32602 command is required" in said) is terminal
        assert ("terminal/create -> error -32601" in said) is not terminal


async def test_an_unknown_command_is_offered_both(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        await turn(await harness.start(), "hello")
        assert offered(harness) == [(True, True)]


async def test_a_command_is_offered_what_the_agent_is_known_for_that_it_introduces_itself_as(
    tmp_path: Path,
) -> None:
    async with open_harness(tmp_path) as harness:
        one = await harness.start("name=qwen-code")
        said = answer(await turn(one, "!fswrite made.txt text"))
        assert offered(harness) == [(True, True), (False, False)]
        assert "error -32601" in said  # nor is it served
        await one.stop_agent()
        await turn(one, "hello")
        assert offered(harness)[2:] == [(False, False)]  # known from the first start on


async def test_one_that_refuses_a_second_offer_keeps_the_first(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        one = await harness.start("name=qwen-code", "initialize-once")
        await turn(one, "!fswrite made.txt text")
        assert offered(harness) == [(True, True), (False, False)]
        assert (tmp_path / "workspace" / "made.txt").read_text() == "text"


async def test_a_command_is_restored_as_the_agent_that_it_is(tmp_path: Path) -> None:
    """Gemini CLI overwrites a session that is restored in the minute of its last start."""
    async with open_harness(tmp_path) as harness:
        one = await harness.start("name=gemini-cli")
        await turn(one, "hello")
        assert one.agent.descriptor.sessions_by_minute
        other = await harness.start()
        await turn(other, "hello")
        assert not other.agent.descriptor.sessions_by_minute


@pytest.mark.parametrize("value", ["all", "", 1, ["fs"]])
async def test_other_values_are_refused(value: Any) -> None:
    given = {"agent_kind": "acp", "acp_command": ["agent"], "acp_client_methods": value}
    with pytest.raises(SettingsError):
        decode_agent_settings(given, {})
