"""What is streamed becomes an event of the same id, however its turn ends, or is announced as lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
import trio

from supervisor.conversations.conversation import Conversation
from supervisor.conversations.recording.effects import Delta, Opened
from supervisor.conversations.state.stage import Stage
from supervisor.journal.growing import Follower, Growing
from supervisor.journal.rows import Frame, Shown
from tests.conversations.harness import events, open_harness, say, speaking, turn, until
from tests.conversations.test_interrupted_calls import ENDS
from tests.conversations.world import World


def streamed(conversation: Conversation, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The frames that a session socket that keeps up is shown from now on, and that are no events."""
    shown: list[dict[str, Any]] = []
    publish, grow = conversation.log.publish, conversation.log.grow
    followed: dict[str, Follower] = {}

    def see(frames: list[Shown]) -> None:
        shown.extend(orjson.loads(frame.session) for frame in frames if frame.session is not None)

    def spy(frame: Frame) -> None:
        see([frame])
        publish(frame)

    def spy_growing(item: Growing) -> None:
        see(followed.setdefault(item.id, Follower(item, late=False)).take())
        grow(item)

    monkeypatch.setattr(conversation.log, "publish", spy, raising=False)
    monkeypatch.setattr(conversation.log, "grow", spy_growing, raising=False)
    return shown


def items(shown: list[dict[str, Any]], kind: str) -> list[str]:
    return [frame["item_id"] for frame in shown if frame["type"] == kind]


@pytest.mark.guarantee(name="what-began-is-ended")
@pytest.mark.parametrize("name", [name for name in ENDS if name != "silence"])
async def test_what_is_streamed_becomes_an_event_however_its_turn_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    end, modes, deadlines = ENDS[name]
    async with open_harness(tmp_path, deadlines=deadlines) as harness:
        conversation = await harness.start(*modes)
        shown = streamed(conversation, monkeypatch)
        await conversation.send(say("!slow 2000 20"), run=True)
        await speaking(conversation)
        await end(harness, conversation)
        ids = {event["id"] for event in await events(conversation)}
        assert items(shown, "item_started")
        assert set(items(shown, "item_started")) <= ids
        assert items(shown, "item_aborted") == []


@pytest.mark.guarantee(name="what-began-is-ended")
async def test_what_is_streamed_becomes_an_event_when_its_task_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        shown = streamed(conversation, monkeypatch)
        await conversation.send(say("!slow 2000 20"), run=True)
        await speaking(conversation)
        scope = conversation.runner._scope
        assert scope is not None
        scope.cancel()  # as the end of a server does that has waited long enough
        await until(lambda: conversation.runner._stage.now is Stage.STOPPED, "the end of its task")
        ids = {event["id"] for event in await events(conversation)}
        assert set(items(shown, "item_started")) <= ids
        assert not conversation.agent.live
        await trio.lowlevel.checkpoint()


@pytest.mark.guarantee(name="what-began-is-ended")
async def test_what_the_journal_does_not_take_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "warm up")
        shown = streamed(conversation, monkeypatch)
        monkeypatch.setattr("supervisor.journal.log.MAX_VALUE_BYTES", 10_000)
        await turn(conversation, "!flood 2000")
        (lost,) = [frame for frame in shown if frame["type"] == "item_aborted"]
        assert lost == {
            "type": "item_aborted",
            "item_id": items(shown, "item_started")[0],
            "attempt": 0,
            "reason": "too_large",
        }
        monkeypatch.undo()


@pytest.mark.guarantee(name="what-began-is-ended")
def test_a_fault_over_a_fault_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(core=False, confirming=False)
    chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hello"}}
    world.update({"sessionId": "s", "update": chunk})

    def broken(*_: object) -> None:
        raise RuntimeError("no end")

    monkeypatch.setattr(world.turns, "fail", broken)
    world.turns.break_down(RuntimeError("a fault"))
    shown = [orjson.loads(frame.session) for frame in world.log.frames if frame.session is not None]
    assert [frame["type"] for frame in shown] == ["item_started", "delta", "item_aborted"]
    assert shown[-1]["reason"] == "failed"


@pytest.mark.guarantee(name="what-began-is-ended")
def test_what_its_agent_leaves_open_is_ended_before_the_next_begins() -> None:
    world = World(core=False, confirming=False)
    recorder = world.turns._recorder
    for item_id in ("a", "b"):
        recorder.stream(Opened(item_id))
        recorder.stream(Delta(item_id, "text", "hello", 0, 0))
    recorder.stream(Opened("b", 1))  # an attempt more, of the same
    shown = [orjson.loads(frame.session) for frame in world.log.frames if frame.session is not None]
    assert [(frame["type"], frame["item_id"]) for frame in shown] == [
        ("item_started", "a"),
        ("delta", "a"),
        ("item_aborted", "a"),
        ("item_started", "b"),
        ("delta", "b"),
    ]
