"""What is written of events that come together."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from supervisor.conversations.recording import recorder
from supervisor.conversations.recording.effects import Effect, Recorded
from supervisor.events import PauseEvent
from tests.conversations.world import World

BODY: dict[str, Any] = {"kind": "ACPToolCallEvent", "source": "agent"}


def call(event_id: str, title: Any = "a call") -> Effect:
    return Recorded(None, (), {**BODY, "id": event_id, "title": title})


def test_an_event_that_cannot_be_written_takes_no_other_along() -> None:
    world = World(core=False, confirming=False)
    with pytest.raises(TypeError):
        world.recorder.emit([call("a"), call("b", title=object()), call("c")])
    assert [row.id for row in world.log.rows][-2:] == ["a", "c"]
    # The next event goes on behind the last one that there is.
    assert world.recorder.record.leaf_event_id == "c"
    world.recorder.relay([PauseEvent(id="d")])
    assert b'"parent_id":"c"' in world.log.rows[-1].body


def test_a_fault_of_the_last_one_leaves_the_leaf_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(core=False, confirming=False)
    world.recorder.emit([call("a")])

    def broken(_: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(recorder, "dumps", broken)
    with pytest.raises(ZeroDivisionError):
        world.recorder.emit([call("b"), call("c")])
    assert world.recorder.record.leaf_event_id == "a"


PRESENT = "2026-11-23T08:00:{:02d}.000000Z"
FUTURE = "2036-11-23T08:00:00.000000Z"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the clock of recorders shows: the last item."""
    shown = [PRESENT.format(0)]
    monkeypatch.setattr(recorder, "timestamp_now", lambda: shown[-1])
    return shown


@pytest.mark.guarantee(name="nothing-is-lost")
def test_after_a_clock_that_was_wrong_times_grow_and_it_is_told_once(clock: list[str]) -> None:
    world = World(core=False, confirming=False)
    world.recorder.write([PauseEvent(id="a")])
    world.log.rows.clear()
    clock.append(FUTURE)
    world.recorder.write([PauseEvent(id="b")])
    assert world.recorder.record.updated_at == FUTURE
    clock.append(PRESENT.format(5))
    for event_id in ("c", "d", "e"):
        world.recorder.write([PauseEvent(id=event_id)])
        # The list of conversations shows what is so: this one is not above all others for ten years.
        assert world.recorder.record.updated_at == PRESENT.format(5)
    rows = world.log.rows
    times = [row.timestamp for row in rows]
    assert times == sorted(set(times))
    (told,) = (orjson.loads(row.body) for row in rows if b'"clock_behind"' in row.body)
    assert told["value"]["clock"] == PRESENT.format(5)
    assert told["value"]["last_event"] == "2036-11-23T08:00:00.000001Z"
    # No event comes after the one that its writer asked for: that has the number which the writer gets.
    assert [row.id for row in rows] == ["b", "c", told["id"], "d", "e"]


def test_a_clock_that_is_set_back_a_little_is_no_news(clock: list[str]) -> None:
    world = World(core=False, confirming=False)
    clock.append(PRESENT.format(50))
    world.recorder.write([PauseEvent(id="a")])
    clock.append(PRESENT.format(1))
    world.recorder.write([PauseEvent(id="b")])
    world.recorder.relay([PauseEvent(id="c")])
    times = [row.timestamp for row in world.log.rows][-3:]
    assert times == [PRESENT.format(50), *(f"2026-11-23T08:00:50.00000{n}Z" for n in (1, 2))]
