"""Frames as what happens: said once, whatever is lost and sent again; and changes of files as diffs. Pure."""

from __future__ import annotations

import pytest

from gateway.cli.talk.diff import MOST_CHARS, Edit, edits, lines
from gateway.cli.talk.track import Called, CallEnded, Failed, Planned, Said, State, Track

NOW = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:00:02.500000Z"


class Frames:
    """Feeds a track; numbers events."""

    def __init__(self):
        self.track = Track()
        self.seq = -1

    def event(self, kind, **fields):
        self.seq += 1
        event = {"id": f"e{self.seq}", "timestamp": NOW, "kind": kind, **fields}
        return self.track.take({"type": "durable", "seq": self.seq, "event": event})

    def delta(self, item, order, content, kind="text"):
        frame = {"type": "delta", "item_id": item, "order": order, "kind": kind, "content": content}
        return self.track.take(frame)

    def message(self, item, text, thoughts=None):
        message = {
            "role": "assistant",
            "content": [{"type": "text", "text": text}],
            "reasoning_content": thoughts,
        }
        return self.event("MessageEvent", id=item, source="agent", llm_message=message)

    def finish(self, item, text):
        action = {"kind": "FinishAction", "message": text}
        return self.event("ActionEvent", id=item, source="agent", action=action, tool_call_id="finish")

    def state(self, key, value):
        return self.event("ConversationStateUpdateEvent", key=key, value=value)


def text_of(items):
    return "".join(item.text for item in items if isinstance(item, Said) and item.kind == "text")


@pytest.fixture
def frames():
    return Frames()


def test_what_was_streamed_is_not_said_again(frames):
    items = (
        frames.delta("m", 0, "hm ", "reasoning") + frames.delta("m", 1, "one ") + frames.delta("m", 2, "two")
    )
    items += frames.message("m", "one two", "hm ")
    assert text_of(items) == "one two"
    assert items[-1] == Said("text", "", ends=True)
    assert frames.track.answer == "one two"


def test_what_was_not_streamed_is_said(frames):
    assert text_of(frames.message("m", "all of it")) == "all of it"
    assert text_of(frames.delta("n", 0, "half ") + frames.finish("n", "half of it")) == "half of it"


def test_merged_deltas_jump_in_their_order_and_lack_nothing(frames):
    items = frames.delta("m", 0, "a") + frames.delta("m", 3, "bcd") + frames.delta("m", 4, "e")
    assert text_of(items) == "abcde"
    assert text_of(frames.finish("m", "abcde")) == ""


@pytest.mark.guarantee(name="a-reader-that-falls-behind-loses-nothing")
def test_an_item_that_begins_anew_is_said_on(frames):
    begun = {"type": "item_started", "item_id": "m"}
    items = (
        frames.track.take({**begun, "attempt": 0}) + frames.delta("m", 0, "a") + frames.delta("m", 2, "bc")
    )
    items += (
        frames.track.take({**begun, "attempt": 1}) + frames.delta("m", 1, "ab") + frames.delta("m", 4, "cde")
    )
    assert text_of(items) == "abcde"
    assert text_of(frames.finish("m", "abcdef")) == "f"


def test_an_item_that_begins_anew_otherwise_is_said_when_it_is_whole(frames):
    begun = {"type": "item_started", "item_id": "m", "attempt": 1}
    items = frames.delta("m", 0, "abc") + frames.track.take(begun) + frames.delta("m", 5, "[cut]cde")
    assert text_of(items) == "abc"
    assert text_of(frames.finish("m", "abcde")) == "de"


def test_a_delta_or_an_event_that_comes_twice_counts_once(frames):
    assert text_of(frames.delta("m", 0, "a") + frames.delta("m", 0, "a")) == "a"
    frames.message("m", "a")
    frames.seq -= 1
    assert frames.message("m", "a") == []


def test_a_message_that_was_changed_is_said_as_a_whole(frames):
    frames.delta("m", 0, "the key is abc")
    assert text_of(frames.message("m", "the key is ***")) == "\nthe key is ***"


def card(frames, status, **more):
    return frames.event(
        "ACPToolCallEvent", tool_call_id="c", title="ls", status=status, tool_kind="execute", **more
    )


def test_a_call_begins_and_ends_once(frames):
    (begun,) = card(frames, "completed")  # its first event may come after its end
    assert isinstance(begun, Called)
    (ended,) = card(frames, "completed", timestamp=LATER)
    assert isinstance(ended, CallEnded)
    assert (ended.call.status, ended.call.seconds) == ("completed", 2.5)
    assert frames.track.calls == {}


def ask(frames, call_id="c"):
    action = {"kind": "MCPToolAction", "data": {"command": "rm"}}
    return frames.event(
        "ActionEvent", source="agent", action=action, tool_call_id=call_id, tool_name="execute", summary="rm"
    )


def test_what_is_said_of_a_call_beside_its_input_is_kept_apart(frames):
    content = [{"type": "diff", "path": "/w/a", "old_text": None, "new_text": "x"}]
    data = {"path": "a", "permission": {"title": "Write a", "content": content}}
    frames.event(
        "ActionEvent", action={"kind": "MCPToolAction", "data": data}, tool_call_id="c", tool_name="edit"
    )
    (call,) = frames.track.asking
    assert (call.raw_input, call.content) == ({"path": "a"}, content)


def test_each_call_is_asked_about_for_itself(frames):
    for call_id in ("c", "d"):
        ask(frames, call_id)
        frames.state("permission_request", {"tool_call_id": call_id, "status": "waiting"})
    frames.state("permission_request", {"tool_call_id": "c", "status": "allowed"})
    assert [call.id for call in frames.track.asking] == ["d"]
    frames.state("permission_request", {"tool_call_id": "c", "status": "waiting"})
    assert [call.id for call in frames.track.asking] == ["c", "d"]


@pytest.mark.parametrize(
    ("kind", "fields", "status"),
    [
        ("ObservationEvent", {"observation": {"kind": "MCPToolObservation", "content": []}}, "completed"),
        ("AgentErrorEvent", {"error": "no"}, "failed"),
        ("UserRejectObservation", {"rejection_reason": "no"}, "rejected"),
    ],
)
def test_a_call_that_is_asked_about(frames, kind, fields, status):
    ask(frames)
    frames.state("execution_status", "waiting_for_confirmation")
    assert [call.title for call in frames.track.asking] == ["rm"]
    frames.state("execution_status", "running")
    assert frames.track.asking == []  # decided
    (ended,) = frames.event(kind, tool_call_id="c", **fields)
    assert ended.call.status == status
    assert frames.event(kind, tool_call_id="c", **fields) == []


def test_a_card_that_is_asked_about_later_ends_once(frames):
    card(frames, "pending")
    ask(frames)
    assert len(frames.track.asking) == 1
    first = frames.event("UserRejectObservation", tool_call_id="c", rejection_reason="no")
    second = card(frames, "failed")
    assert [type(item) for item in first] == [CallEnded]
    assert not any(isinstance(item, CallEnded) for item in second)


def test_states(frames):
    assert frames.state("execution_status", "running") == [State("execution_status", "running")]
    frames.state("available_commands", [{"name": "plan", "description": "d"}, {"no": "name"}, 3])
    assert frames.track.commands == (("plan", "d"),)
    plan = [{"status": "pending", "content": "look"}]
    assert frames.state("plan", plan) == [Planned((("pending", "look"),))]
    assert frames.state("plan", plan) == []
    assert frames.event("ConversationErrorEvent", code="X", detail="d") == [Failed("X", "d")]


@pytest.mark.parametrize(
    "frame",
    [
        {}, {"type": "durable"}, {"type": "durable", "seq": 0, "event": {}}, {"type": "delta", "item_id": 3},
        {"type": "durable", "seq": 0, "event": {"kind": "NewEvent"}}, {"type": "sync", "from_seq": 0},
        {"type": "durable", "seq": 0, "event": {"kind": "ObservationEvent", "tool_call_id": "unknown"}},
        {"type": "durable", "seq": 0, "event": {"kind": "ConversationStateUpdateEvent", "key": "plan"}},
    ],
)  # fmt: skip
def test_what_is_not_known_means_nothing(frame):
    assert not any(isinstance(item, Said | Called | CallEnded | Planned) for item in Track().take(frame))


# -- diffs


@pytest.mark.parametrize(
    ("content", "raw_input", "wanted"),
    [
        ([{"type": "diff", "path": "p", "old_text": "a", "new_text": "b"}], None, [Edit("p", "a", "b")]),
        (
            [{"type": "diff", "path": "p", "oldText": None, "newText": "b"}],
            {"path": "q"},
            [Edit("p", None, "b")],
        ),
        (None, {"file_path": "p", "old_string": "a", "new_string": "b"}, [Edit("p", "a", "b")]),
        (None, {"path": "p", "content": "b"}, [Edit("p", None, "b")]),
        (None, {"path": "p", "edits": [{"oldText": "a", "newText": "b"}]}, [Edit("p", "a", "b")]),
        (None, {"changes": {"p": {"unified_diff": "@@\n-a\n+b"}}}, [Edit("p", None, "", "@@\n-a\n+b")]),
        (None, {"command": "ls"}, []),
        ("text", "text", []),
        ([3, {"type": "content"}], [1], []),
    ],
)
def test_what_a_call_changes(content, raw_input, wanted):
    assert edits(content, raw_input) == wanted


def test_the_lines_of_a_diff():
    assert lines(Edit("p", None, "a\nb\n")) == ["+a", "+b"]
    changed = lines(Edit("p", "a\nb\nc\n", "a\nB\nc\n"))
    assert changed[1:] == [" a", "-b", "+B", " c"]
    assert lines(Edit("p", "", "x" * (MOST_CHARS + 1))) == [f"  (0 characters become {MOST_CHARS + 1})"]
    assert lines(Edit("p", None, "x\n" * 100))[-1] == "  ... 40 more lines"
    assert lines(Edit("p", None, "\x1b[31mred\x1b[0m")) == ["+red"]
    assert lines(Edit("p", None, "", "--- a\n+++ b\n@@\n-x\n+y")) == ["@@", "-x", "+y"]


def test_what_is_announced_as_lost_ends_there(frames):
    frames.delta("m", 0, "half")
    aborted = {"type": "item_aborted", "item_id": "m", "attempt": 0, "reason": "too_large"}
    assert frames.track.take(aborted) == [Said("text", "", ends=True)]
    assert frames.track.take(aborted) == []
    assert text_of(frames.message("n", "next")) == "next"
