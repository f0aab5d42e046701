"""Every constraint of the references, violated once, and kept exactly."""

from __future__ import annotations

import math
from typing import Any

import jsonschema
import pytest

from supervisor.events import decode_event, json_schema
from supervisor.reading.model import Invalid
from tests.events.examples import ACTION, ANSWERS, CALL, MESSAGE, OBSERVATION, TEXT

PROMPT: dict[str, Any] = {"kind": "SystemPromptEvent", "system_prompt": TEXT, "tools": []}
CONDENSATION: dict[str, Any] = {"kind": "Condensation", "llm_response_id": "r1"}
HOOK: dict[str, Any] = {
    "kind": "HookExecutionEvent",
    "hook_event_type": "Stop",
    "hook_command": "true",
    "success": True,
    "exit_code": 0,
}


def doing(action: dict[str, Any]) -> dict[str, Any]:
    return {**ACTION, "action": action}


def seeing(observation: dict[str, Any]) -> dict[str, Any]:
    return {**OBSERVATION, "observation": observation}


def errors_of(document: Any) -> list[tuple[tuple[str | int, ...], str]]:
    with pytest.raises(Invalid) as caught:
        decode_event(document)
    return [(each.loc, each.type) for each in caught.value.errors]


EDITOR = {"kind": "FileEditorAction", "command": "insert", "path": "/f"}
ENTRY = {"name": "f", "path": "/f", "is_directory": False, "size": 1, "modified_time": "2026-01-01T00:00:00"}
CONSTRAINTS: list[tuple[dict[str, Any], str, str]] = [
    # numbers and lengths
    ({**ACTION, "critic_result": {"score": 1.01, "message": None}}, "critic_result.score", "less_than_equal"),
    (
        {**ACTION, "critic_result": {"score": -0.01, "message": None}},
        "critic_result.score",
        "greater_than_equal",
    ),
    ({**CONDENSATION, "summary_offset": -1}, "summary_offset", "greater_than_equal"),
    (doing({"kind": "BrowserClickAction", "index": -1}), "action.index", "greater_than_equal"),
    (doing({"kind": "BrowserTypeAction", "index": -1, "text": ""}), "action.index", "greater_than_equal"),
    (
        doing({"kind": "BrowserGetContentAction", "start_from_char": -1}),
        "action.start_from_char",
        "greater_than_equal",
    ),
    (doing({"kind": "BrowserCloseTabAction", "tab_id": "abc"}), "action.tab_id", "string_too_short"),
    (doing({"kind": "BrowserCloseTabAction", "tab_id": "abcde"}), "action.tab_id", "string_too_long"),
    (doing({"kind": "BrowserSwitchTabAction", "tab_id": "abc"}), "action.tab_id", "string_too_short"),
    (doing({"kind": "BrowserSwitchTabAction", "tab_id": "abcde"}), "action.tab_id", "string_too_long"),
    (doing({**EDITOR, "insert_line": -1}), "action.insert_line", "greater_than_equal"),
    (
        doing({**EDITOR, "kind": "PlanningFileEditorAction", "insert_line": -1}),
        "action.insert_line",
        "greater_than_equal",
    ),
    (
        doing(
            {
                "kind": "EditAction",
                "file_path": "f",
                "old_string": "",
                "new_string": "",
                "expected_replacements": -1,
            }
        ),
        "action.expected_replacements",
        "greater_than_equal",
    ),
    (
        doing({"kind": "ReadFileAction", "file_path": "f", "offset": -1}),
        "action.offset",
        "greater_than_equal",
    ),
    (doing({"kind": "ReadFileAction", "file_path": "f", "limit": 0}), "action.limit", "greater_than_equal"),
    (
        doing({"kind": "TerminalAction", "command": "ls", "timeout": -0.1}),
        "action.timeout",
        "greater_than_equal",
    ),
    (
        doing({"kind": "VisionInspectAction", "image_index": -1, "question": "?"}),
        "action.image_index",
        "greater_than_equal",
    ),
    (
        doing({"kind": "VisionInspectAction", "image_index": 0, "question": ""}),
        "action.question",
        "string_too_short",
    ),
    (
        doing({"kind": "WorkflowAction", "name": "n", "script": "s", "max_concurrency": 0}),
        "action.max_concurrency",
        "greater_than_equal",
    ),
    (
        doing({"kind": "WorkflowAction", "name": "n", "script": "s", "max_concurrency": 65}),
        "action.max_concurrency",
        "less_than_equal",
    ),
    (
        seeing({"kind": "ReadFileObservation", "file_path": "f", "lines_shown": [1]}),
        "observation.lines_shown",
        "too_short",
    ),
    (
        seeing({"kind": "ReadFileObservation", "file_path": "f", "lines_shown": [1, 2, 3]}),
        "observation.lines_shown",
        "too_long",
    ),
    (
        seeing({"kind": "ListDirectoryObservation", "entries": [{**ENTRY, "modified_time": "noon"}]}),
        "observation.entries.0.modified_time",
        "datetime_parsing",
    ),
    # enums and constants
    ({**ACTION, "source": "hook"}, "source", "literal_error"),
    ({**HOOK, "source": "moon"}, "source", "literal_error"),
    ({**HOOK, "hook_event_type": "Start"}, "hook_event_type", "literal_error"),
    ({**ACTION, "security_risk": "EXTREME"}, "security_risk", "enum"),
    ({**ACTION, "tool_call": {**CALL, "origin": "moon"}}, "tool_call.origin", "literal_error"),
    ({**MESSAGE, "llm_message": {"role": "robot"}}, "llm_message.role", "literal_error"),
    ({**PROMPT, "system_prompt": {**TEXT, "type": "image"}}, "system_prompt.type", "literal_error"),
    ({**ACTION, "thinking_blocks": [{"type": "dream"}]}, "thinking_blocks.0.type", "union_tag_invalid"),
    (
        {"kind": "UserRejectObservation", "action_id": "a", **ANSWERS, "rejection_source": "agent"},
        "rejection_source",
        "literal_error",
    ),
    (doing({"kind": "BrowserScrollAction", "direction": "left"}), "action.direction", "literal_error"),
    (doing({**EDITOR, "command": "delete"}), "action.command", "literal_error"),
    (
        doing({"kind": "TaskTrackerAction", "task_list": [TEXT | {"title": "t", "status": "gone"}]}),
        "action.task_list.0.status",
        "literal_error",
    ),
    (
        {
            "kind": "ConversationErrorEvent",
            "source": "agent",
            "code": "c",
            "detail": "d",
            "classification": {"kind": "bad luck", "retryable": True},
        },
        "classification.kind",
        "literal_error",
    ),
    # what tells objects apart
    ({}, "kind", "missing"),
    ({"kind": "NoSuchEvent"}, "kind", "union_tag_invalid"),
    ({"kind": 3}, "kind", "union_tag_invalid"),
    ({"kind": ["PauseEvent"]}, "kind", "union_tag_invalid"),
    ({"kind": "FinishAction", "message": ""}, "kind", "union_tag_invalid"),
    (doing({}), "action.kind", "missing"),
    (doing({"kind": "CanvasUiControlAction"}), "action.kind", "union_tag_invalid"),
    (doing({"kind": "FinishObservation"}), "action.kind", "union_tag_invalid"),
    (seeing({"kind": "FinishAction"}), "observation.kind", "union_tag_invalid"),
    ({**PROMPT, "tools": [{"kind": "NoTool"}]}, "tools.0.kind", "union_tag_invalid"),
    (
        {**MESSAGE, "llm_message": {"role": "user", "content": [{"type": "audio"}]}},
        "llm_message.content.0.type",
        "union_tag_invalid",
    ),
    ({**MESSAGE, "llm_message": {"role": "user", "content": [{}]}}, "llm_message.content.0.text", "missing"),
    (
        {**MESSAGE, "llm_message": {"role": "user", "content": ["hi"]}},
        "llm_message.content.0",
        "dict_type",
    ),
    # required sources
    ({"kind": "MessageEvent", "llm_message": {"role": "user"}}, "source", "missing"),
    ({"kind": "ConversationErrorEvent", "code": "c", "detail": "d"}, "source", "missing"),
    ({"kind": "TokenEvent", "prompt_token_ids": [], "response_token_ids": []}, "source", "missing"),
    ({"kind": "ServerErrorEvent", "code": "c", "detail": "d"}, "source", "missing"),
    # nothing is coerced
    ({**CONDENSATION, "summary_offset": "1"}, "summary_offset", "int_type"),
    ({**CONDENSATION, "summary_offset": True}, "summary_offset", "int_type"),
    ({**CONDENSATION, "summary_offset": 1.5}, "summary_offset", "int_type"),
    ({**CONDENSATION, "llm_response_id": None}, "llm_response_id", "string_type"),
    ({**CONDENSATION, "forgotten_event_ids": "abc"}, "forgotten_event_ids", "list_type"),
    ({**CONDENSATION, "forgotten_event_ids": ["a", 1]}, "forgotten_event_ids.1", "string_type"),
    ({**HOOK, "success": 1}, "success", "bool_type"),
    ({**ACTION, "critic_result": {"score": True, "message": None}}, "critic_result.score", "float_type"),
    (
        {**ACTION, "critic_result": {"score": math.nan, "message": None}},
        "critic_result.score",
        "finite_number",
    ),
    (doing({"kind": "MCPToolAction", "data": []}), "action.data", "dict_type"),
    (doing("FinishAction"), "action", "dict_type"),  # type: ignore[arg-type]
    # unknown properties
    ({"kind": "PauseEvent", "why": 1}, "why", "extra_forbidden"),
    (doing({"kind": "ThinkAction", "thought": "", "why": 1}), "action.why", "extra_forbidden"),
    (seeing({"kind": "FinishObservation", "why": 1}), "observation.why", "extra_forbidden"),
    ({**PROMPT, "system_prompt": {**TEXT, "why": 1}}, "system_prompt.why", "extra_forbidden"),
]


@pytest.mark.guarantee(name="every-event-can-be-read")
@pytest.mark.parametrize(("document", "path", "kind"), CONSTRAINTS)
def test_constraint(document: dict[str, Any], path: str, kind: str) -> None:
    loc = tuple(int(each) if each.isdecimal() else each for each in path.split("."))
    assert errors_of(document) == [(loc, kind)]


SCHEMA = jsonschema.Draft202012Validator(
    {"$ref": "#/components/schemas/Event", "components": {"schemas": json_schema()}}
)


@pytest.mark.parametrize(("document", "path", "kind"), CONSTRAINTS)
def test_the_schema_says_so_too(document: dict[str, Any], path: str, kind: str) -> None:
    # JSON has no NaN, and `format` is an annotation to validators.
    assert SCHEMA.is_valid(document) == (kind in {"finite_number", "datetime_parsing"})


@pytest.mark.parametrize("document", [ACTION, MESSAGE, PROMPT, CONDENSATION, HOOK, doing(EDITOR)])
def test_the_documents_that_the_table_spoils_are_valid(document: dict[str, Any]) -> None:
    assert decode_event(document).kind == document["kind"]


@pytest.mark.parametrize(
    "document",
    [
        {**ACTION, "critic_result": {"score": 0, "message": None}},
        {**ACTION, "critic_result": {"score": 1, "message": None}},
        {**CONDENSATION, "summary_offset": 0},
        doing({**EDITOR, "insert_line": 0}),
        doing({"kind": "BrowserClickAction", "index": 0}),
        doing({"kind": "BrowserCloseTabAction", "tab_id": "abcd"}),
        {**HOOK, "source": "hook"},
    ],
)
def test_the_limits_themselves_are_allowed(document: dict[str, Any]) -> None:
    decode_event(document)
