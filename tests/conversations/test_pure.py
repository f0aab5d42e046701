"""Tables of the small pure rules: turn ends, permissions, usage, prompts, cutting, history, vocabulary."""

from __future__ import annotations

import base64
import time
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.acp import PermissionOption
from supervisor.acp import permission_answers as permissions
from supervisor.acp.schema import Members
from supervisor.acp.schema import Usage as TokenUsage
from supervisor.conversations.agent.opening import wait_to_restore
from supervisor.conversations.history import prompt
from supervisor.conversations.history.history import REPEATED_BYTES, OpenCalls, speech
from supervisor.conversations.recording import usage
from supervisor.conversations.recording.bounds.attachments import BLOB_BYTES, TEXT, pieces
from supervisor.conversations.recording.bounds.truncation import (
    PAYLOAD_BYTES,
    STRING_BYTES,
    TEXT_BYTES,
    Clipped,
    clip_payload,
    clip_text,
)
from supervisor.conversations.recording.effects import Usage
from supervisor.conversations.recording.recorder import later
from supervisor.conversations.recording.tool_calls.blocks import text_block
from supervisor.conversations.recording.tool_calls.events import INTERRUPTED
from supervisor.conversations.state import record as record_module
from supervisor.conversations.state.confirmation import asks_a_person
from supervisor.conversations.state.record import ConversationRecord, Start
from supervisor.conversations.state.start import StartRequest, choose_vocabulary
from supervisor.conversations.state.state import State
from supervisor.conversations.state.turn import Turn, outcome_of
from supervisor.events import Event, ImageContent, Message, SecurityRisk, TextContent, Vocabulary
from supervisor.settings.agent import AgentSettings, agent_settings_to_dict


@pytest.mark.parametrize(
    ("reason", "cancelled", "status", "finish", "code"),
    [
        ("end_turn", False, "finished", True, None),
        ("max_tokens", False, "finished", True, None),
        ("max_turn_requests", False, "error", False, "MaxIterationsReached"),
        ("refusal", False, "error", False, "UsagePolicyRefusal"),
        ("cancelled", False, "finished", True, None),
        ("cancelled", True, "paused", False, None),
        ("end_turn", True, "paused", True, None),
        ("some_new_reason", False, "finished", True, None),
    ],
)
def test_every_stop_reason_has_its_meaning(
    reason: str, cancelled: bool, status: str, finish: bool, code: str | None
) -> None:
    outcome = outcome_of(reason, cancel_requested=cancelled)
    assert (outcome.status, outcome.finish) == (status, finish)
    assert (outcome.error and outcome.error[0]) == code


def test_answers_that_were_cut_short_say_so() -> None:
    notes = {
        reason: outcome_of(reason, cancel_requested=False).note
        for reason in ("end_turn", "max_tokens", "odd")
    }
    assert notes["end_turn"] is None
    assert "token limit" in str(notes["max_tokens"])
    assert "odd" in str(notes["odd"])
    assert outcome_of("x" * 500, cancel_requested=False).note == "Stop reason: " + "x" * 80


def test_a_turn_is_cancelled_once_and_settles_once() -> None:
    turn = Turn(1, 0)
    assert turn.cancel()
    assert not turn.cancel()
    assert turn.settle("cancelled").status == "paused"
    assert not turn.cancel()
    with pytest.raises(RuntimeError):
        turn.settle("end_turn")


def option(kind: str) -> PermissionOption:
    return PermissionOption(f"id-{kind}", kind, kind)


ALWAYS_FIRST = [option("allow_always"), option("allow_once"), option("reject_always"), option("reject_once")]


def test_permissions_go_by_kind_and_never_by_place() -> None:
    assert permissions.once(ALWAYS_FIRST) == option("allow_once")
    assert permissions.matching(ALWAYS_FIRST, True) == option("allow_once")
    assert permissions.matching(ALWAYS_FIRST, False) == option("reject_once")


def test_a_standing_permission_is_never_given_without_a_person() -> None:
    assert permissions.once([option("allow_always")]) is None
    assert permissions.matching([option("allow_always")], False) is None
    assert permissions.matching([option("allow_always")], True) == option("allow_always")


@pytest.mark.parametrize(
    ("policy", "risk", "asks"),
    [
        ({"kind": "NeverConfirm"}, "HIGH", False),
        ({"kind": "AlwaysConfirm"}, "LOW", True),
        ({"kind": "ConfirmRisky"}, "UNKNOWN", True),
        ({"kind": "ConfirmRisky", "confirm_unknown": False}, "UNKNOWN", False),
        ({"kind": "ConfirmRisky", "threshold": "MEDIUM"}, "LOW", False),
        ({"kind": "ConfirmRisky", "threshold": "MEDIUM"}, "MEDIUM", True),
        ({"kind": "ConfirmRisky"}, "MEDIUM", False),
        ({}, "HIGH", False),
    ],
)
def test_who_is_asked(policy: dict[str, Any], risk: str, asks: bool) -> None:
    assert asks_a_person(policy, SecurityRisk(risk)) is asks


def test_cost_is_cumulative_and_a_decrease_is_a_new_count() -> None:
    taken: dict[str, Any] = {}
    for cost in (0.5, 0.75, 0.25):
        taken = usage.with_report(taken, Usage(10, 100, cost))
    assert taken["cost"] == pytest.approx(1.0)
    assert (taken["context_used"], taken["context_window"]) == (10, 100)
    taken = usage.new_session(taken)
    assert (taken["session_cost"], taken["cost"]) == (0.0, pytest.approx(1.0))
    taken = usage.with_report(taken, Usage(None, None, 0.5))
    assert taken["cost"] == pytest.approx(1.5)


def test_tokens_add_up_over_turns() -> None:
    taken: dict[str, Any] = {}
    for _ in range(2):
        taken = usage.with_tokens(taken, TokenUsage(input_tokens=100, output_tokens=2, thought_tokens=1))
    shown = usage.stats(taken)["usage_to_metrics"]["acp-managed"]["accumulated_token_usage"]
    assert (shown["prompt_tokens"], shown["completion_tokens"], shown["reasoning_tokens"]) == (200, 4, 2)


def test_every_figure_has_its_place() -> None:
    taken = usage.with_report({}, Usage(10, 1000, 0.5))
    for _ in range(2):
        taken = usage.with_tokens(taken, TokenUsage(100, 20, 30, 4, 5))
    assert usage.stats(taken) == {
        "usage_to_metrics": {
            "acp-managed": {
                "model_name": "acp-managed",
                "accumulated_cost": 0.5,
                "max_budget_per_task": None,
                "accumulated_token_usage": {
                    "model": "acp-managed",
                    "prompt_tokens": 200,
                    "completion_tokens": 40,
                    "cache_read_tokens": 60,
                    "cache_write_tokens": 8,
                    "reasoning_tokens": 10,
                    "context_window": 1000,
                    "per_turn_token": 10,
                    "response_id": "",
                },
            }
        }
    }


def test_the_client_names_what_its_agent_uses() -> None:
    assert usage.stats({}, "mine")["usage_to_metrics"].keys() == {"mine"}


def test_before_anything_is_used_the_figures_are_zeros() -> None:
    """The web UI offers what it does with a context only where there are figures."""
    (shown,) = usage.stats({})["usage_to_metrics"].values()
    assert (shown["model_name"], shown["accumulated_cost"]) == ("acp-managed", 0.0)
    tokens = shown["accumulated_token_usage"]
    assert (tokens.pop("model"), tokens.pop("response_id")) == ("acp-managed", "")
    assert set(tokens) >= {"prompt_tokens", "completion_tokens", "context_window", "per_turn_token"}
    assert set(tokens.values()) == {0}


@pytest.mark.parametrize(
    ("url", "name"), [("https://h/a/b.png", "b.png"), ("https://h/a/", "picture"), ("b.png", "b.png")]
)
def test_a_picture_elsewhere_is_named_by_its_path(url: str, name: str) -> None:
    message = Message(role="user", content=(ImageContent(image_urls=(url,)),))
    assert prompt.blocks(message, {"image"}) == [{"type": "resource_link", "uri": url, "name": name}]


PNG = "data:image/png;base64," + base64.b64encode(b"png").decode()


@pytest.mark.parametrize(
    ("content", "images", "blocks"),
    [
        ((TextContent(text="hi"),), True, [{"type": "text", "text": "hi"}]),
        ((TextContent(text="  "),), True, [{"type": "text", "text": "(empty message)"}]),
        (
            (ImageContent(image_urls=(PNG,)),),
            True,
            [{"type": "image", "data": base64.b64encode(b"png").decode(), "mimeType": "image/png"}],
        ),
        (
            (ImageContent(image_urls=(PNG,)),),
            False,
            [{"type": "text", "text": "[an image (image/png) that this agent does not support]"}],
        ),
        (
            (ImageContent(image_urls=("data:image/png;base64,%%%",)),),
            True,
            [{"type": "text", "text": "[an image that could not be read]"}],
        ),
        (
            (ImageContent(image_urls=("https://example.org/a.png",)),),
            True,
            [{"type": "resource_link", "uri": "https://example.org/a.png", "name": "a.png"}],
        ),
    ],
)
def test_messages_as_prompts(content: Any, images: bool, blocks: list[dict[str, Any]]) -> None:
    assert prompt.blocks(Message(role="user", content=content), {"image"} if images else ()) == blocks


@pytest.mark.parametrize(
    ("content", "is_it"),
    [
        ((TextContent(text=" /clear\n"),), True),
        ((TextContent(text="/cl"), TextContent(text="ear")), True),
        ((TextContent(text="/clear it"),), False),
        ((TextContent(text="/clear"), ImageContent(image_urls=(PNG,))), False),
        ((), False),
    ],
)
def test_a_command_is_a_message_of_its_own(content: Any, is_it: bool) -> None:
    assert prompt.is_command(Message(role="user", content=content), "/clear") is is_it


def test_a_transcript_may_be_as_long_as_its_limit() -> None:
    lines = [("User", "one"), ("Assistant", "two")]
    assert "left out" not in prompt.transcript(lines, limit=len("User: one\nAssistant: two\n"))
    assert "left out" in prompt.transcript(lines, limit=len("User: one\nAssistant: two\n") - 1)


def test_a_transcript_keeps_the_newest_part() -> None:
    lines = [("User", f"message {n}") for n in range(100)]
    text = prompt.transcript(lines, limit=100)
    assert "message 99" in text
    assert "message 1\n" not in text
    assert "earlier parts left out" in text
    assert "left out" not in prompt.transcript(lines[:2])


@given(st.text(max_size=200), st.integers(64, 400))
def test_cut_text_is_within_its_limit_and_keeps_head_and_tail(text: str, limit: int) -> None:
    clipped = clip_text(text * 20, "b", limit)
    raw = (text * 20).encode()
    if len(raw) <= limit:
        assert clipped.value == text * 20
        assert clipped.attachments == ()
    else:
        (attachment,) = clipped.attachments
        assert attachment.body == raw
        assert len(clipped.value.encode()) <= limit + 100
        assert raw.decode().startswith(clipped.value.split("\n[... ")[0])


def test_a_text_may_be_as_long_as_its_limit() -> None:
    assert clip_text("x" * 400, "b", 400) == Clipped("x" * 400)
    assert clip_text("x" * 401, "b", 400).attachments


def test_a_payload_that_is_cut_keeps_its_shorter_strings() -> None:
    short, longest, longer = ("é" * (size // 2) for size in (20_000, STRING_BYTES, STRING_BYTES + 2))
    value = {"short": short, "longest": longest, "longer": longer, "long": "z" * PAYLOAD_BYTES}
    cut = clip_payload(value, "b").value
    assert (cut["short"], cut["longest"]) == (short, longest)
    assert "2 bytes cut" in cut["longer"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=30,
)


@given(json_values)
def test_small_payloads_pass_untouched(value: Any) -> None:
    assert clip_payload(value, "b").value == value


@pytest.mark.parametrize(
    "value",
    [
        {"output": "y" * 2_000_000},
        {"many": ["z" * 1000] * 2000},
        [[[["w" * 400_000]]]],
        "v" * (TEXT_BYTES * 2),
    ],
)
def test_large_payloads_fit_and_come_back_whole(value: Any) -> None:
    clipped = clip_payload(value, "blob-1")
    assert len(orjson.dumps(clipped.value)) <= PAYLOAD_BYTES * 1.1
    (attachment,) = clipped.attachments
    whole = attachment.body.decode() if isinstance(value, str) else orjson.loads(attachment.body)
    assert whole == value
    assert "blob-1" in orjson.dumps(clipped.value).decode()


@pytest.mark.parametrize("kind", ["image", "audio", "resource"])
def test_the_bytes_of_large_media_are_a_blob_of_their_own(kind: str) -> None:
    raw = bytes(range(256)) * 2048
    data = base64.b64encode(raw).decode()
    plain = {"type": kind, "data": data, "mimeType": "image/webp", "uri": "https://example.org/a"}
    embedded = {"type": kind, "resource": {"uri": "file:///a", "blob": data, "mimeType": "image/webp"}}
    block = embedded if kind == "resource" else plain
    icon = {"type": "image", "data": base64.b64encode(raw[:256]).decode(), "mimeType": "image/png"}
    clipped = clip_payload([{"type": "content", "content": block}, icon], "b")
    (attachment,) = clipped.attachments
    assert (attachment.blob_id, attachment.body, attachment.media_type) == ("b-media-1", raw, "image/webp")
    shown, small = clipped.value
    assert small == icon
    if kind == "resource":
        resource = {
            "uri": "file:///a",
            "blob": "",
            "mimeType": "image/webp",
            "blob_uri": "blob:b-media-1",
        }
        assert shown["content"] == {"type": kind, "resource": resource}
    else:
        assert (shown["content"]["data"], shown["content"]["uri"]) == ("", "blob:b-media-1")
        assert shown["content"]["source_uri"] == "https://example.org/a"


def test_media_that_is_no_base64_is_kept_as_it_came() -> None:
    (attachment,) = clip_payload({"type": "image", "data": "é" * PAYLOAD_BYTES}, "b").attachments
    assert (attachment.body.decode(), attachment.media_type) == ("é" * PAYLOAD_BYTES, TEXT)


def test_bytes_that_are_no_text_are_cut_into_pieces_anywhere() -> None:
    raw = b"\x80" * (2 * BLOB_BYTES + 5)  # every byte looks like the middle of a character
    cut = list(pieces(raw))
    assert b"".join(cut) == raw
    assert max(map(len, cut)) <= BLOB_BYTES
    assert len(cut) == 3


@pytest.mark.parametrize(
    ("spelled_out", "asked", "forced", "chosen"),
    [
        (False, None, None, "core"),
        (True, None, None, "extended"),
        (True, "core", None, "core"),
        (False, "extended", None, "extended"),
        (True, "extended", "core", "core"),
        (False, None, "extended", "extended"),
    ],
)
def test_the_vocabulary_of_a_conversation(
    spelled_out: bool, asked: str | None, forced: str | None, chosen: str
) -> None:
    request = StartRequest(
        working_dir="/w", spelled_out=spelled_out, event_vocabulary=Vocabulary(asked) if asked else None
    )
    assert choose_vocabulary(request, Vocabulary(forced) if forced else None) == chosen


def test_times_never_go_back() -> None:
    first = "2026-11-21T08:10:08.391633Z"
    assert later(first, "2026-11-21T08:10:09.000000Z") == "2026-11-21T08:10:09.000000Z"
    assert later(first, first) == "2026-11-21T08:10:08.391634Z"
    assert later(first, "2026-11-21T07:00:00.000000Z") == "2026-11-21T08:10:08.391634Z"
    assert later("2026-11-21T08:10:08.999999Z", first) == "2026-11-21T08:10:09.000000Z"


def left_open(stored: list[dict[str, Any]]) -> list[Event]:
    calls = OpenCalls()
    for event in stored:
        calls.take(event, len(orjson.dumps(event)))
    return calls.closing()


def test_calls_that_a_crash_left_open_are_found() -> None:
    call = {"tool_name": "t", "title": "t"}
    stored = [
        {"kind": "ACPToolCallEvent", "tool_call_id": "1", "status": "pending", **call},
        {"kind": "ACPToolCallEvent", "tool_call_id": "1", "status": "completed", **call},
        {"kind": "ACPToolCallEvent", "tool_call_id": "2", "status": "pending", **call},
        {"kind": "ActionEvent", "tool_call_id": "3", **call},
        {"kind": "ActionEvent", "tool_call_id": "4", **call},
        {"kind": "ObservationEvent", "tool_call_id": "4", **call},
    ]
    closing = left_open(stored)
    assert [(event.kind, event.tool_call_id) for event in closing] == [  # type: ignore[attr-defined]
        ("AgentErrorEvent", "3"),
        ("ACPToolCallEvent", "2"),
    ]
    assert left_open(stored[:2]) == []


def test_what_a_crash_left_open_is_not_held_whole() -> None:
    large = {"text": "x" * (2 * REPEATED_BYTES)}
    stored = {"kind": "ACPToolCallEvent", "tool_call_id": "1", "status": "pending", "title": "t"}
    (closing,) = left_open([{**stored, "raw_input": large, "content": [large]}])
    assert (closing.raw_input, closing.content) == (None, (text_block(INTERRUPTED),))  # type: ignore[attr-defined]
    (closing,) = left_open([{**stored, "raw_input": {"a": 1}, "tool_kind": "read"}])
    assert (closing.raw_input, closing.tool_kind) == ({"a": 1}, "read")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            {
                "kind": "MessageEvent",
                "source": "user",
                "llm_message": {"content": [{"type": "text", "text": "hi"}]},
            },
            ("User", "hi"),
        ),
        ({"kind": "ActionEvent", "action": {"kind": "FinishAction", "message": "yes"}}, ("Assistant", "yes")),
        ({"kind": "ConversationStateUpdateEvent", "key": "k", "value": 1}, None),
        (
            {"kind": "ACPToolCallEvent", "status": "completed", "title": "ls", "raw_output": "a b"},
            ("Tool call", "ls (completed): a b"),
        ),
        ({"kind": "ACPToolCallEvent", "status": "pending", "title": "ls"}, None),
        ({"kind": "ActionEvent", "summary": "List", "tool_name": "ls"}, ("Tool call", "List")),
        ({"kind": "ActionEvent", "tool_name": "ls"}, ("Tool call", "ls")),
        (
            {"kind": "ObservationEvent", "observation": {"content": [{"text": "a"}, {"text": "b"}, "c"]}},
            ("Tool output", "ab"),
        ),
        ({"kind": "ObservationEvent", "observation": {"kind": "FinishObservation"}}, None),
        ({"kind": "AgentErrorEvent", "error": "broke"}, ("Tool output", "broke")),
        ({"kind": "UserRejectObservation", "rejection_reason": "no"}, ("Tool output", "no")),
    ],
)
def test_what_a_transcript_says(event: dict[str, Any], line: tuple[str, str] | None) -> None:
    assert speech(event) == line


@pytest.mark.parametrize(
    ("by_minute", "used", "opened", "now", "wait"),
    [
        (True, True, 600.0, 610.0, 50.5),
        (True, True, 600.0, 659.9, 0.6),
        (True, True, 600.0, 660.0, 0.0),
        (True, False, 600.0, 610.0, 0.0),
        (False, True, 600.0, 610.0, 0.0),
    ],
)
def test_a_session_named_by_its_minute_is_restored_in_another_one(
    by_minute: bool, used: bool, opened: float, now: float, wait: float
) -> None:
    record = ConversationRecord(
        id="1",
        start=Start(
            working_dir="/w",
            created_at="",
            vocabulary=Vocabulary.CORE,
        ),
        updated_at="",
        agent=AgentSettings(acp_server="custom", acp_command=("x",)),
        now=State(session_used=used, session_opened=opened),
    )
    assert wait_to_restore(record, by_minute=by_minute, now=now) == pytest.approx(wait)


def test_an_agents_json_is_kept_with_its_record_and_goes_with_the_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    def note(agent: AgentSettings) -> dict[str, Any]:
        made.append(agent.acp_model)
        return agent_settings_to_dict(agent)

    monkeypatch.setattr(record_module, "agent_settings_to_dict", note)
    agent = AgentSettings(acp_server="custom", acp_command=("x",))
    records = [
        ConversationRecord(
            id=str(number),
            start=Start(
                working_dir="/w",
                created_at="",
                vocabulary=Vocabulary.CORE,
            ),
            updated_at="",
            agent=attrs.evolve(agent, acp_model=str(number)),
        )
        for number in range(100)
    ]
    for _ in range(2):
        stored = [record.dump() for record in records]
    assert made == [str(number) for number in range(100)]
    again = ConversationRecord.load(stored[3])
    assert again == records[3]
    assert again.dump() == stored[3]
    record = records[3]
    record.agent = attrs.evolve(agent, acp_model="another")
    assert orjson.loads(record.dump())["agent"]["acp_model"] == "another"
    assert orjson.loads(record.dump())["agent"]["acp_model"] == "another"
    assert made[100:] == ["3", "another"]


def test_a_record_of_another_release_is_read() -> None:
    older = {
        "version": 1,
        "id": "x",
        "working_dir": "/w",
        "created_at": "a",
        "updated_at": "b",
        "vocabulary": "core",
        "execution_status": "finished",
        "agent": {"acp_server": "gone", "acp_command": ["x"], "acp_home": "of_later", "later": 1},
        "options": {"one": "text", "two": True},
        "moves": [[1, 2]],
        "told": {"stats": {}},
        "told_messages": ["m"],
        "loss_told": True,
        "later": [1],
    }
    record = ConversationRecord.load(orjson.dumps(older))
    assert (record.reported.native_states, record.reported.native_messages) == ({"stats": {}}, ["m"])
    assert record.now.loss_reported
    again = orjson.loads(record.dump())
    assert {name: again[name] for name in ("told", "told_messages", "loss_told")} == {
        "told": {"stats": {}},
        "told_messages": ["m"],
        "loss_told": True,
    }
    assert (record.start.vocabulary, record.now.execution_status) == ("core", "finished")
    assert (record.agent.acp_command, record.agent.acp_home) == (("x",), "of_later")
    assert (record.options, record.moves) == ({"one": "text", "two": True}, [[1, 2]])
    assert (record.now.cut_off, record.secrets, record.now.prompted_seq) == (None, {}, -1)
    with pytest.raises(record_module.RecordTooNew):
        ConversationRecord.load(orjson.dumps({**older, "version": 2}))


def test_what_one_turn_used() -> None:
    before, after = {"cost": 0.5}, {"cost": 0.75}
    figures = (
        "prompt_tokens",
        "completion_tokens",
        "cache_read_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
    )
    of_tokens = dict(zip(figures, (100, 20, 30, 4, 5), strict=True))
    assert usage.of_turn(before, after, TokenUsage(100, 20, 30, 4, 5)) == {**of_tokens, "cost": 0.25}
    assert usage.of_turn(before, after, None) == {**dict.fromkeys(figures), "cost": 0.25}
    assert usage.of_turn({}, {}, TokenUsage(100, 20, 30, 4, 5)) == {**of_tokens, "cost": None}
    assert usage.of_turn(after, after, None) is None


def test_the_last_word_on_each_member_counts_within_bounds() -> None:
    members = Members(1_000)
    members.take({"a": 1, "b": "x" * 300})
    members.take({"a": 2, "c": {"d": [1]}})
    assert members.values == {"a": 2, "b": "x" * 300, "c": {"d": [1]}}
    members.take({f"k{number}": number for number in range(1_000)})
    assert len(orjson.dumps(members.values)) < 2_000
    kept = dict(members.values)
    members.take({"late": 1})
    assert members.values == kept
    members.take({"a": 3, "b": "y"})  # which makes room
    members.take({"late": 1})
    assert members.values == {**kept, "a": 3, "b": "y", "late": 1}


def test_to_take_one_more_member_takes_no_longer_when_many_are_kept() -> None:
    def seconds(kept: int) -> float:
        members = Members(64 * 1024)
        members.take({f"k{number}": number for number in range(kept)})
        began = time.process_time()
        for number in range(2_000):
            members.take({"last": number})
        return time.process_time() - began

    seconds(1)
    assert seconds(2_000) < 10 * seconds(1) + 0.02
