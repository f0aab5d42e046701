"""What is written of events that come together."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.conversations.recording import recorder
from supervisor.conversations.recording.outs import Out
from supervisor.conversations.recording.tool_call_events import Draft, Recorded
from supervisor.events import PauseEvent
from tests.conversations.world import World


def call(event_id: str, title: Any = "a call") -> Out:
    return Recorded(None, (), Draft(event_id, {"kind": "ACPToolCallEvent", "id": event_id, "title": title}))


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
