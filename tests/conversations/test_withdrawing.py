"""A message that is taken back, an agent that starts before a message, and files that an editor reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from tests.conversations.harness import answer, events, killed_now, open_harness, say, settled, states, until


def prompted(harness: Any) -> list[str]:
    return [each["params"]["prompt"][-1]["text"] for each in harness.log.received("session/prompt")]


async def test_a_message_that_waits_is_taken_back_and_the_others_are_prompted(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        one = await harness.start()
        await one.send(say("!hang"), run=True)
        await until(lambda: one.queue.turn, "a turn")
        first, second = [await one.send(say(text), run=True) for text in ("first", "second")]
        await one.withdraw(first)
        assert [item.event_id for item in one.queue.waiting] == [second]
        await one.withdraw(first)  # a second time: nothing is there to be taken back
        current = one.queue.turn
        assert current is not None
        assert not current.cancelling
        await one.withdraw(current.message_id)
        await settled(one)
        assert prompted(harness) == ["!hang", "second"]
        found = await events(one)
        ends = states(found, "turn")
        assert first not in [each["message_id"] for each in ends]
        assert states(found, "message_withdrawn") == [{"message_id": first}]
        assert [each["stop_reason"] for each in ends if each["status"] == "ended"] == [
            "cancelled",
            "end_turn",
        ]


async def test_a_message_whose_agent_is_being_started_is_taken_back(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        one = await harness.start("hang=new")
        message_id = await one.send(say("hello"), run=True)
        await until(lambda: harness.log.received("session/new"), "a start")
        await one.withdraw(message_id)
        assert not one.queue.waiting
        assert await settled(one) == "paused"
        assert prompted(harness) == []


async def test_a_message_that_was_taken_back_stays_so_over_a_kill_of_the_server(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        one = await harness.start()
        first = await one.send(say("first"), run=False)
        second = await one.send(say("second"), run=False)
        await one.withdraw(first)
        root = killed_now(tmp_path)
    async with open_harness(root) as harness:
        again = await harness.supervisor.get(one.id)
        assert [item.event_id for item in again.queue.waiting] == [second]
        await again.run()
        await settled(again)
        assert again.record.now.withdrawn == {}  # the later one was handed over


async def test_a_message_that_was_taken_back_can_be_gone_back_to(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        one = await harness.start()
        first = await one.send(say("first"), run=False)
        await one.withdraw(first)
        await one.send(say("second"), run=False)
        await one.navigate(first)
        assert [item.event_id for item in one.queue.waiting] == [first]
        assert one.record.now.withdrawn == {}


async def test_an_agent_starts_before_there_is_a_message(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        one = await harness.start()
        assert one.offered() == {}
        await one.start_agent()
        await one.start_agent()
        assert len(harness.log.received("session/new")) == 1
        assert one.offered()["modes"]["availableModes"]
        assert one.record.now.execution_status == "idle"
        await one.send(say("hello"), run=True)
        await settled(one)
        assert len(harness.log.received("session/new")) == 1


async def test_a_file_is_read_by_the_editor_that_sent_the_message(tmp_path: Path) -> None:
    asked: list[Mapping[str, Any]] = []

    async def reads(params: Mapping[str, Any]) -> Mapping[str, Any] | None:
        asked.append(params)
        await trio.lowlevel.checkpoint()
        return {"content": "unsaved"} if str(params["path"]).endswith("open.txt") else None

    async with open_harness(tmp_path) as harness:
        one = await harness.start()
        workspace = tmp_path / "workspace"
        workspace.mkdir()
        for name in ("open.txt", "closed.txt"):
            (workspace / name).write_text("saved")
        await one.send(say("!read open.txt\n!read closed.txt\n!read /etc/hostname"), run=True, reads=reads)
        await settled(one)
        said = answer(await events(one))
        assert "unsaved" in said
        assert "saved" in said.replace("unsaved", "")
        assert [Path(each["path"]).name for each in asked] == ["open.txt", "closed.txt"]  # none outside
        await one.send(say("!read open.txt"), run=True)
        await settled(one)
        assert len(asked) == 2  # another client's message
