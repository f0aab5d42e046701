"""Nulls, vocabularies, defaults and the frames that today's servers send."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from supervisor.events import (
    ACPToolCallEvent,
    Action,
    ActionEvent,
    AgentErrorEvent,
    ConversationErrorEvent,
    ConversationStateUpdateEvent,
    CriticResult,
    ErrorClassification,
    Event,
    InterruptEvent,
    MCPToolAction,
    MCPToolObservation,
    Message,
    MessageEvent,
    MessageToolCall,
    Observation,
    ObservationEvent,
    ReasoningItemModel,
    SecurityRisk,
    StreamingDeltaEvent,
    SystemPromptEvent,
    TextContent,
    Vocabulary,
    completed,
    decode_event,
    dump_event,
    dumps,
    json_schema,
    new_event_id,
    timestamp_now,
    with_nulls,
)
from supervisor.events import ids as ids_module
from supervisor.events.families import ToolDefinition
from supervisor.events.vocabulary import members_of
from supervisor.reading.model import Model
from supervisor.reading.shapes import member_of, properties_of

WORKFLOW_TOOL = member_of(ToolDefinition, "WorkflowTool")

CALL = MessageToolCall(id="c1", name="x", arguments="{}", origin="completion", responses_item_id="ri")


def action(**more: Any) -> ActionEvent:
    return ActionEvent(
        id="e1",
        timestamp="t",
        parent_id="p",
        thought=(),
        tool_name="x",
        tool_call_id="c1",
        tool_call=CALL,
        llm_response_id="r",
        **more,
    )


BASE = {"id", "timestamp", "source", "kind"}
CORE_PROPERTIES: dict[str, set[str]] = {
    "Condensation": {"llm_response_id", "forgotten_event_ids", "summary", "summary_offset"},
    "CondensationRequest": set(),
    "CondensationSummaryEvent": {"summary"},
    "ConversationErrorEvent": {"code", "detail"},
    "ConversationStateUpdateEvent": {"key", "value"},
    "LLMCompletionLogEvent": {"filename", "log_data", "model_name", "usage_id"},
    "ActionEvent": {
        "thought", "tool_name", "tool_call_id", "tool_call", "llm_response_id", "reasoning_content",
        "thinking_blocks", "responses_reasoning_item", "action", "security_risk", "critic_result", "summary",
    },
    "MessageEvent": {
        "llm_message", "llm_response_id", "activated_skills", "extended_content", "sender", "critic_result",
    },
    "AgentErrorEvent": {"tool_name", "tool_call_id", "error"},
    "ObservationEvent": {"tool_name", "tool_call_id", "observation", "action_id"},
    "UserRejectObservation": {
        "tool_name", "tool_call_id", "action_id", "rejection_reason", "rejection_source",
    },
    "SystemPromptEvent": {"system_prompt", "tools", "dynamic_context"},
    "TokenEvent": {"prompt_token_ids", "response_token_ids"},
    "PauseEvent": set(),
}  # fmt: skip
CORE_PARTS: dict[str, set[str]] = {
    "TextContent": {"text", "type", "cache_prompt"},
    "ThinkingBlock": {"thinking", "type", "signature"},
    "RedactedThinkingBlock": {"data", "type"},
    "ReasoningItemModel": {"id", "summary", "content", "encrypted_content", "status"},
    "MessageToolCall": {"id", "name", "arguments", "origin"},
    "CriticResult": {"score", "message", "metadata"},
    "Message": {
        "role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "thinking_blocks",
        "responses_reasoning_item",
    },
    "ValidationError": {"loc", "msg", "type"},
    "HTTPValidationError": {"detail"},
}  # fmt: skip
DEFAULT_SOURCES = {
    "Condensation": "environment",
    "CondensationRequest": "environment",
    "CondensationSummaryEvent": "environment",
    "ConversationErrorEvent": None,
    "ConversationStateUpdateEvent": "environment",
    "LLMCompletionLogEvent": "environment",
    "ActionEvent": "agent",
    "MessageEvent": None,
    "AgentErrorEvent": "agent",
    "ObservationEvent": "environment",
    "UserRejectObservation": "environment",
    "SystemPromptEvent": "agent",
    "TokenEvent": None,
    "PauseEvent": "user",
    "ACPToolCallEvent": "agent",
    "StreamingDeltaEvent": "agent",
    "ServerErrorEvent": None,
    "InterruptEvent": "user",
    "HookExecutionEvent": "hook",
    "SecurityAnalysisEvent": "environment",
}


def test_the_core_schema_has_the_kinds_and_properties_of_the_interface_and_no_others() -> None:
    schema = json_schema(Vocabulary.CORE)
    kinds = {each["$ref"].rpartition("/")[2] for each in schema["Event"]["oneOf"]}
    assert kinds == set(CORE_PROPERTIES)
    for kind, names in CORE_PROPERTIES.items():
        assert set(schema[kind]["properties"]) == names | BASE
        assert schema[kind]["additionalProperties"] is False
        assert schema[kind]["properties"]["kind"]["const"] == kind
        assert not {"id", "timestamp"} & set(schema[kind]["required"])
    for part, names in CORE_PARTS.items():
        assert set(schema[part]["properties"]) == names
    assert len(schema["Action"]["oneOf"]) == 28
    assert len(schema["Observation"]["oneOf"]) == 14
    assert len(schema["ToolDefinition"]["oneOf"]) == 28


def test_schemas_refer_to_nothing_that_is_missing() -> None:
    for vocabulary in Vocabulary:
        schema = json_schema(vocabulary)
        referred = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(schema)))
        assert referred <= set(schema)
        assert set(schema) - referred <= {"Event", "HTTPValidationError"}


def test_limits_and_defaults_are_in_the_schema() -> None:
    schema = json_schema()
    assert schema["CriticResult"]["properties"]["score"] == {"type": "number", "minimum": 0, "maximum": 1}
    assert schema["BrowserCloseTabAction"]["properties"]["tab_id"] == {
        "type": "string", "minLength": 4, "maxLength": 4,
    }  # fmt: skip
    offset = schema["Condensation"]["properties"]["summary_offset"]
    assert offset == {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]}
    assert (
        schema["UserRejectObservation"]["properties"]["rejection_reason"]["default"]
        == "User rejected the action"
    )
    assert schema["SecurityRisk"] == {"type": "string", "enum": ["UNKNOWN", "LOW", "MEDIUM", "HIGH"]}


@pytest.mark.parametrize("kind", DEFAULT_SOURCES)
def test_default_sources(kind: str) -> None:
    source = next(each for each in properties_of(members_of(Event)[kind]) if each.name == "source")
    assert source.required == (DEFAULT_SOURCES[kind] is None)
    if not source.required:
        assert source.default == DEFAULT_SOURCES[kind]


DEFAULTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"kind": "ConversationStateUpdateEvent"}, {"value": {}}),
    (
        {"kind": "LLMCompletionLogEvent", "filename": "f", "log_data": "{}"},
        {"model_name": "unknown", "usage_id": "default"},
    ),
    ({"kind": "Condensation", "llm_response_id": "r"}, {"forgotten_event_ids": [], "source": "environment"}),
    (
        {"kind": "UserRejectObservation", "tool_name": "x", "tool_call_id": "c", "action_id": "a"},
        {"rejection_reason": "User rejected the action", "rejection_source": "user"},
    ),
    ({"kind": "ACPToolCallEvent", "tool_call_id": "c", "title": "t"}, {"is_error": False}),
    (
        {
            "kind": "MessageEvent",
            "source": "user",
            "llm_message": {"role": "user", "content": [{"text": "hi"}]},
        },
        {
            "llm_message": {
                "role": "user",
                "content": [{"cache_prompt": False, "type": "text", "text": "hi"}],
                "thinking_blocks": [],
            },
            "activated_skills": [],
            "extended_content": [],
        },
    ),
]


@pytest.mark.parametrize(("given", "filled_in"), DEFAULTS)
def test_defaults(given: dict[str, Any], filled_in: dict[str, Any]) -> None:
    event = decode_event(given)
    written = orjson.loads(dump_event(event))
    assert written.items() >= filled_in.items()
    assert event.id != decode_event(given).id


def test_core_leaves_out_what_only_extended_has() -> None:
    event = action(action=MCPToolAction(data={"parent_id": None}))
    core = orjson.loads(dump_event(event, Vocabulary.CORE))
    assert core["tool_call"] == {"id": "c1", "name": "x", "arguments": "{}", "origin": "completion"}
    assert core["action"] == {"kind": "MCPToolAction", "data": {"parent_id": None}}
    assert "parent_id" not in core
    extended = orjson.loads(dump_event(event))
    assert extended["parent_id"] == "p"
    assert extended["tool_call"]["responses_item_id"] == "ri"
    classified = ErrorClassification(kind="auth", retryable=False)
    for event_ in (
        ConversationErrorEvent(source="agent", code="c", detail="d", classification=classified),
        AgentErrorEvent(tool_name="x", tool_call_id="c", error="e", classification=classified),
    ):
        assert b"classification" not in dump_event(event_, Vocabulary.CORE)
        assert b"classification" in dump_event(event_)


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (ACPToolCallEvent(tool_call_id="c", title="t"), "ACPToolCallEvent"),
        (InterruptEvent(), "InterruptEvent"),
        (StreamingDeltaEvent(content="x"), "StreamingDeltaEvent"),
        (action(action=members_of(Action)["AskOracleAction"](question="?")), "AskOracleAction"),
        (
            SystemPromptEvent(
                system_prompt=TextContent(text=""),
                tools=(WORKFLOW_TOOL(description="", action_type="WorkflowAction", title=""),),
            ),
            "WorkflowTool",
        ),
    ],
)
def test_core_refuses_kinds_that_it_has_not(event: Event, name: str) -> None:
    with pytest.raises(ValueError, match=f"core vocabulary has no {name}"):
        dump_event(event, Vocabulary.CORE)
    dump_event(event)


def test_nulls_are_left_out_of_what_is_typed_and_kept_in_what_is_not() -> None:
    event = ACPToolCallEvent(
        tool_call_id="c", title="t", raw_input={"a": None, "b": [None]}, content=({"old_text": None},)
    )
    written = orjson.loads(dump_event(event))
    assert written["raw_input"] == {"a": None, "b": [None]}
    assert written["content"] == [{"old_text": None}]
    assert not {"raw_output", "status", "tool_kind", "parent_id"} & set(written)


def test_a_null_state_value_is_a_value() -> None:
    written = orjson.loads(dump_event(ConversationStateUpdateEvent(key="security_analyzer", value=None)))
    assert written["value"] is None


def test_a_required_property_is_written_even_when_null() -> None:
    event = action(critic_result=CriticResult(score=0.5, message=None))
    assert orjson.loads(dump_event(event))["critic_result"] == {"score": 0.5, "message": None}
    seen = ObservationEvent(
        tool_name="x",
        tool_call_id="c",
        action_id="a",
        observation=members_of(Observation)["TerminalObservation"](command=None),
    )
    assert orjson.loads(dump_event(seen))["observation"]["command"] is None
    assert decode_event(orjson.loads(dump_event(seen))) == seen


def test_with_nulls_fills_in_every_typed_null_and_no_other() -> None:
    event = action(
        action=MCPToolAction(data={"a": None}),
        responses_reasoning_item=ReasoningItemModel(id="i"),
        critic_result=CriticResult(score=1, message="m", metadata={"n": None}),
    )
    assert with_nulls(orjson.loads(dump_event(event))) == {
        "id": "e1", "timestamp": "t", "source": "agent", "parent_id": "p", "kind": "ActionEvent",
        "thought": [], "reasoning_content": None, "thinking_blocks": [],
        "responses_reasoning_item": {
            "id": "i", "summary": [], "content": None, "encrypted_content": None, "status": None,
        },
        "action": {"data": {"a": None}, "kind": "MCPToolAction"},
        "tool_name": "x", "tool_call_id": "c1",
        "tool_call": {
            "id": "c1", "responses_item_id": "ri", "name": "x", "arguments": "{}", "origin": "completion",
        },
        "llm_response_id": "r", "security_risk": "UNKNOWN",
        "critic_result": {"score": 1, "message": "m", "metadata": {"n": None}},
        "summary": None,
    }  # fmt: skip


def test_with_nulls_keeps_to_the_vocabulary_and_leaves_its_argument_alone() -> None:
    event = MessageEvent(id="e", timestamp="t", source="user", llm_message=Message(role="user"))
    stored = orjson.loads(dump_event(event, Vocabulary.CORE))
    before = orjson.dumps(stored)
    full = with_nulls(stored, Vocabulary.CORE)
    assert orjson.dumps(stored) == before
    assert set(full) == CORE_PROPERTIES["MessageEvent"] | BASE
    assert full["llm_message"] == {
        "role": "user", "content": [], "tool_calls": None, "tool_call_id": None, "name": None,
        "reasoning_content": None, "thinking_blocks": [], "responses_reasoning_item": None,
    }  # fmt: skip
    assert "parent_id" in with_nulls(stored)


def test_with_nulls_reaches_into_unions() -> None:
    document = {
        "kind": "ObservationEvent", "id": "e", "timestamp": "t", "source": "environment",
        "tool_name": "x", "tool_call_id": "c", "action_id": "a", "extended_content": [],
        "observation": {"kind": "BrowserObservation", "content": [{"type": "text"}], "is_error": False},
    }  # fmt: skip
    full = with_nulls(document)
    assert full["observation"]["screenshot_data"] is None
    assert full["observation"]["full_output_save_dir"] is None
    thinking = {
        **orjson.loads(dump_event(action())),
        "thinking_blocks": [{"type": "thinking", "thinking": "x"}],
    }
    assert with_nulls(thinking)["thinking_blocks"] == [
        {"type": "thinking", "thinking": "x", "signature": None}
    ]


def test_with_nulls_returns_what_it_does_not_know() -> None:
    assert with_nulls({"kind": "FutureEvent", "x": {}}) == {"kind": "FutureEvent", "x": {}}
    assert with_nulls({}) == {}
    assert completed(b'{"kind":"FutureEvent","x":{}}') == b'{"kind":"FutureEvent","x":{}}'
    assert completed(b"{}") == b"{}"


def test_nulls_go_to_the_end_of_the_stored_bytes_however_these_were_written() -> None:
    """What is stored stays as it is. Names in a payload are not taken for the event's."""
    stored = b'{ "kind": "PauseEvent", "id":"e", "x": {"parent_id": 1.50}, "y": "\\"parent_id\\":"}'
    assert completed(stored) == stored[:-1] + b',"parent_id":null}'
    assert orjson.loads(completed(stored + b"\n")) == with_nulls(orjson.loads(stored))


RECORDED = Path(__file__).with_name("recorded.jsonl").read_text(encoding="utf-8").splitlines()
"""Frames of a current agent server, ids and texts shortened."""


@pytest.mark.parametrize("frame", RECORDED)
def test_recorded_frames_come_out_as_they_went_in(frame: str) -> None:
    document = orjson.loads(frame)
    assert orjson.loads(dump_event(decode_event(document))) == document


def nested(levels: int) -> Any:
    deep: Any = 0
    for _ in range(levels):
        deep = {"a": [deep]}
    return deep


def test_strange_payloads_do_not_lose_an_event() -> None:
    strange = {
        "big": 2**70,
        "huge": 10**400,
        "least": -(2**63),
        "most": 2**64 - 1,
        1: {"\udc80": ["\ud800x", None]},
    }
    event = ACPToolCallEvent(tool_call_id="c", title="\udc80", raw_input=strange)
    written = orjson.loads(dump_event(event))
    assert written["title"] == "?"
    assert written["raw_input"] == {
        "big": float(2**70), "huge": "...", "least": -(2**63), "most": 2**64 - 1, "1": {"?": ["?x", None]},
    }  # fmt: skip


@pytest.mark.parametrize("levels", [50, 130, 400])
def test_deep_payloads_stay_readable(levels: int) -> None:
    event = ACPToolCallEvent(tool_call_id="c", title="t", raw_input=nested(levels), raw_output=[1])
    written = orjson.loads(dump_event(event))
    assert written["raw_output"] == [1]
    assert (written["raw_input"] == nested(levels)) == (levels == 50)
    assert with_nulls(written)["status"] is None


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError):
        dumps({"a": object()})


def test_dumped_json_is_one_line() -> None:
    assert b"\n" not in dumps({"text": "a\nb\u2028", "odd": "\udc80"})


@pytest.mark.guarantee(name="secrets-stay-in")
def test_encrypted_content_is_not_in_the_repr_of_anything_that_holds_it() -> None:
    item = ReasoningItemModel(id="i", encrypted_content="hunter2")
    message = Message(role="assistant", responses_reasoning_item=item)
    for holder in (item, message, MessageEvent(source="agent", llm_message=message)):
        assert "hunter2" not in repr(holder)
        assert "hunter2" not in str(holder)


def test_security_risks_are_ordered() -> None:
    ordered = [SecurityRisk.UNKNOWN, SecurityRisk.LOW, SecurityRisk.MEDIUM, SecurityRisk.HIGH]
    assert sorted([ordered[2], ordered[3], ordered[0], ordered[1]]) == ordered
    for lower, higher in pairwise(ordered):
        assert lower < higher
        assert lower <= higher
        assert higher > lower
        assert higher >= lower
        assert not higher < lower
    assert SecurityRisk.HIGH >= SecurityRisk.HIGH
    with pytest.raises(TypeError):
        _ = SecurityRisk.LOW < 3  # type: ignore[operator]


def test_ids_and_timestamps() -> None:
    assert len({new_event_id() for _ in range(1000)}) == 1000
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", new_event_id())
    first = timestamp_now()
    time.sleep(0.001)
    assert first < timestamp_now()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", first)


def test_ids_grow_and_are_ids_of_version_7() -> None:
    ids = [new_event_id() for _ in range(10_000)]
    assert ids == sorted(ids)
    assert {(uuid.UUID(each).version, uuid.UUID(each).variant) for each in ids} == {(7, uuid.RFC_4122)}


def test_threads_do_not_share_ids() -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: [new_event_id() for _ in range(5_000)], range(8)))
    assert len({each for ids in made for each in ids}) == 8 * 5_000


def test_a_forked_process_does_not_go_on_with_our_ids() -> None:
    new_event_id()
    ours = ids_module._current
    ids_module._forget()
    new_event_id()
    assert ids_module._current[1] != ours[1]


def test_every_kind_of_an_external_agent_is_exported_by_name() -> None:
    import supervisor.events as room

    for base in (Event, room.Action, room.Observation, room.ToolDefinition):
        for name, kind in members_of(base).items():
            assert issubclass(kind, Model)
            assert kind.__module__ in base.ELSEWHERE or getattr(room, name) is kind
    assert MCPToolObservation.kind == "MCPToolObservation"


def test_kinds_of_the_built_in_agent_are_imported_when_one_is_met() -> None:
    code = """
import sys
from supervisor.events import decode_event, with_nulls
action = lambda kind: {"kind": "ActionEvent", "source": "agent", "tool_name": "t", "tool_call_id": "c",
    "llm_response_id": "r", "thought": [],
    "tool_call": {"id": "c", "name": "t", "arguments": "{}", "origin": "completion"},
    "action": {"kind": kind, "message": "m"} if kind == "FinishAction" else {"kind": kind, "command": "ls"}}
known = lambda: "supervisor.events.builtin_actions" in sys.modules
print(known())
with_nulls(action("FinishAction")), decode_event(action("FinishAction"))
print(known())
print(with_nulls(action("TerminalAction"))["action"]["timeout"], known())
print(type(decode_event(action("TerminalAction")).action).__name__)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False", "None", "True", "TerminalAction"]
