"""Tool calls in detail: ids, output, what they gave back, and whether they lead out of the workspace."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.conversations.recording.effects import Close
from supervisor.conversations.recording.streamed import _progress
from supervisor.conversations.recording.tool_calls import blocks as tool_call_blocks
from supervisor.conversations.recording.tool_calls import call_ids
from supervisor.conversations.recording.tool_calls import calls as tool_calls
from supervisor.conversations.recording.tool_calls.blocks import change
from supervisor.conversations.recording.tool_calls.calls import ToolCallState
from supervisor.conversations.recording.tool_calls.events import details_of
from supervisor.events import (
    ACPToolCallEvent,
    ActionEvent,
    ConversationStateUpdateEvent,
    MCPToolObservation,
    ObservationEvent,
)
from tests.conversations.test_translate import events, feed, state_of, text_of, translator


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
    monkeypatch.setattr(call_ids, "USED_IDS_MAX", 3)
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
    effects = events(feed(t, "tool_call_update", toolCallId="c", status="completed"))
    (action,) = [event for event in effects if isinstance(event, ActionEvent)]
    assert action.security_risk == ("HIGH" if first == "/etc/passwd" else "MEDIUM")


def test_a_link_is_shown_as_a_link() -> None:
    t = translator()
    link = {"type": "resource_link", "name": "the plan", "uri": "file:///w/plan.md"}
    feed(t, "agent_message_chunk", content=link)
    feed(t, "agent_message_chunk", content={"type": "resource_link", "uri": "file:///w/b"})
    (message,) = events(t.end_turn(Close.MESSAGE))
    assert text_of(message) == "[the plan](file:///w/plan.md)[file:///w/b](file:///w/b)"


def test_what_the_words_for_a_link_lack_is_told_apart() -> None:
    t = translator()
    link = {"type": "resource_link", "name": "plan", "uri": "file:///w/plan.md", "size": 7, "title": "A plan"}
    feed(t, "agent_message_chunk", content=link)
    message, details = events(t.end_turn(Close.MESSAGE))
    assert text_of(message) == "[plan](file:///w/plan.md)"
    assert state_of(details) == ("message_details", {"event_id": message.id, "blocks": [link]})


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


NEW = {"type": "diff", "path": "/w/a", "newText": "x"}


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (NEW, change(NEW)),
        ({"type": "content", "content": {"type": "text", "text": "said"}}, "said"),
        ({"type": "text", "text": "bare"}, "bare"),
        ({"type": "content", "content": {"type": "image"}}, ""),
        ("no block", ""),
        (None, ""),
    ],
)
def test_the_text_of_a_block(block: Any, text: str) -> None:
    assert tool_call_blocks.text_of(block) == text


def test_blocks_have_the_names_of_the_wire() -> None:
    assert tool_call_blocks.text_block("t") == {
        "type": "content",
        "content": {"type": "text", "text": "t", "annotations": None, "field_meta": None},
        "field_meta": None,
    }
    diff = {"type": "diff", "path": "p", "oldText": "a", "newText": "b", "_meta": {"k": 1}}
    assert tool_call_blocks.snake_blocks([diff]) == [
        {"type": "diff", "path": "p", "old_text": "a", "new_text": "b", "field_meta": {"k": 1}}
    ]


@pytest.mark.parametrize("field", ["content", "raw_input", "raw_output"])
def test_a_payload_that_is_folded_stays_in_its_place(field: str) -> None:
    call = ToolCallState("c", "c")
    long = "x" * (2 * tool_calls.FOLDED_BYTES)
    given = [{"type": "text", "text": long}] * 3 if field == "content" else {"a": long, "b": long}
    wire = {"content": "content", "raw_input": "rawInput", "raw_output": "rawOutput"}[field]
    call.merge({"toolCallId": "c", wire: given})
    assert call.fold()
    kept = tool_calls.unpacked(getattr(call, field))
    assert "bytes cut" in str(kept)
    assert len(str(kept)) < 4 * tool_calls.FOLDED_BYTES
    if field == "content":
        assert all(block["type"] in ("text", "content") for block in kept)
        texts = [tool_call_blocks.text_of(block) for block in kept]
        assert any(text.startswith("x") or "xxx" in text for text in texts)


@pytest.mark.parametrize(
    ("status", "title", "again"),
    [
        ("pending", "t", True),
        ("in_progress", "t", True),
        ("completed", "t", False),
        ("pending", None, False),
        (None, "t", False),
    ],
)
def test_an_update_for_a_closed_call_opens_it_again_if_it_says_that_it_runs(
    status: str | None, title: str | None, again: bool
) -> None:
    t = translator()
    feed(t, "tool_call", toolCallId="c", title="first", kind="execute", status="in_progress")
    ended(t)
    said = {"status": status, "title": title}
    late = events(
        feed(t, "tool_call_update", toolCallId="c", **{k: v for k, v in said.items() if v is not None})
    )
    late += events(t.end_turn(Close.MESSAGE))
    opened = [event for event in late if isinstance(event, ACPToolCallEvent) and event.tool_call_id == "c~2"]
    assert bool(opened) is again


@pytest.mark.parametrize(
    ("update", "fields", "key", "value"),
    [
        ("plan", {"entries": [{"content": "p"}]}, "plan", [{"content": "p"}]),
        ("config_option_update", {"configOptions": [{"id": "m"}]}, "config_options", [{"id": "m"}]),
    ],
)
def test_what_an_agent_tells_of_itself_is_state(update: str, fields: Any, key: str, value: Any) -> None:
    (state,) = events(feed(translator(), update, **fields))
    assert isinstance(state, ConversationStateUpdateEvent)
    assert (state.key, state.value) == (key, value)


def test_terminals_are_found_by_their_type() -> None:
    blocks = [
        {"type": "terminal", "terminalId": "t1"},
        {"type": "content", "terminalId": "t2"},
        {"type": "terminal", "terminalId": 3},
        "terminal",
    ]
    assert tool_call_blocks.terminals_of(blocks) == ["t1"]
    assert tool_call_blocks.terminals_of(None) == []


def test_what_an_agent_adds_to_a_call_does_not_take_the_place_of_what_ostler_tells() -> None:
    call = ToolCallState("c.1", "c")
    call.merge({"toolCallId": "c", "title": "make", "tool_call_id": "another", "more": 1})
    assert (details_of(call)["tool_call_id"], _progress(call)["tool_call_id"]) == ("c.1", "c.1")
    assert details_of(call)["more"] == 1
    kept = call.rest
    call.merge({"toolCallId": "c", "more": 1})
    assert call.rest is kept  # and it is not made again
