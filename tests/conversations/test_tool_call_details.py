"""Tool calls in detail: ids, output, what they gave back, and whether they lead out of the workspace."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.conversations.recording import translate
from supervisor.conversations.recording.translate import Close
from supervisor.events import ACPToolCallEvent, ActionEvent, MCPToolObservation, ObservationEvent
from tests.conversations.test_translate import events, feed, text_of, translator


def ended(t: Any, **fields: Any) -> Any:
    """The event that closes the call `c`."""
    return events(feed(t, "tool_call_update", toolCallId="c", status="completed", **fields))[-1]


def run(t: Any, call: str) -> str:
    """The id that a call with the agent's id `call` has in its event, run from begin to end."""
    (end,) = events(feed(t, "tool_call", toolCallId=call, title="ls", status="completed"))[-1:]
    assert isinstance(end, ACPToolCallEvent)
    return end.tool_call_id


def test_an_id_that_is_used_again_is_told_apart_while_it_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(translate, "USED_IDS_MAX", 3)
    t = translator()
    assert [run(t, call) for call in ("a", "b", "c", "b")] == ["a", "b", "c", "b~2"]
    # The fourth and the fifth id push out the oldest ones, not the ones that were used last.
    assert [run(t, call) for call in ("d", "e", "b", "a")] == ["d", "e", "b~3", "a"]


def test_output_that_was_sent_whole_goes_on_in_pieces() -> None:
    t = translator()
    feed(t, "tool_call", toolCallId="c", title="ls", kind="execute", status="in_progress")
    feed(t, "tool_call_update", toolCallId="c", _meta={"terminal_output": {"data": "one\n"}})
    feed(t, "tool_call_update", toolCallId="c", _meta={"terminal_output_delta": {"data": "two\n"}})
    end = ended(t)
    assert isinstance(end, ACPToolCallEvent)
    assert end.content is not None
    assert end.content[0]["content"]["text"] == "one\ntwo\n"


@pytest.mark.parametrize(
    ("raw", "given"), [({"a": 1}, '{"a":1}'), ("plain", "plain"), ([1, 2], "[1,2]"), (None, "")]
)
def test_what_a_call_gave_back_without_content_is_its_raw_output_as_text(raw: Any, given: str) -> None:
    t = translator(core=True)
    feed(t, "tool_call", toolCallId="c", title="ls", kind="execute", status="pending", rawInput={"p": 1})
    end = ended(t, **({} if raw is None else {"rawOutput": raw}))
    assert isinstance(end, ObservationEvent)
    assert isinstance(end.observation, MCPToolObservation)
    assert "".join(part.text for part in end.observation.content) == given  # type: ignore[union-attr]


@pytest.mark.parametrize("first", ["/etc/passwd", "/w/a"])
def test_a_call_that_led_out_of_the_workspace_once_is_judged_so_to_its_end(first: str) -> None:
    t = translator(core=True, workspace="/w")
    for path in (first, "/w/b"):
        feed(t, "tool_call_update", toolCallId="c", title="t", kind="edit", locations=[{"path": path}])
    outs = events(feed(t, "tool_call_update", toolCallId="c", status="completed"))
    (action,) = [event for event in outs if isinstance(event, ActionEvent)]
    assert action.security_risk == ("HIGH" if first == "/etc/passwd" else "MEDIUM")


def test_a_link_is_shown_as_a_link() -> None:
    t = translator()
    link = {"type": "resource_link", "name": "the plan", "uri": "file:///w/plan.md"}
    feed(t, "agent_message_chunk", content=link)
    feed(t, "agent_message_chunk", content={"type": "resource_link", "uri": "file:///w/b"})
    (message,) = events(t.end_turn(Close.MESSAGE))
    assert text_of(message) == "[the plan](file:///w/plan.md)[file:///w/b](file:///w/b)"


def test_names_within_a_block_are_those_of_the_wire() -> None:
    t = translator()
    image = {"type": "image", "mimeType": "image/png", "data": "eA==", "_meta": {"k": 1}}
    embedded = {"type": "resource", "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": "x"}}
    content = [{"type": "content", "content": block} for block in (image, embedded)]
    feed(t, "tool_call", toolCallId="c", title="ls", kind="read", status="in_progress")
    end = ended(t, content=content)
    assert isinstance(end, ACPToolCallEvent)
    assert end.content is not None
    first, second = (block["content"] for block in end.content)
    assert (first["mime_type"], first["field_meta"], first["annotations"]) == ("image/png", {"k": 1}, None)
    assert second["resource"] == {"uri": "file:///a", "mime_type": "text/plain", "text": "x"}
