"""Every message that an agent can send, with every field that is read of it filled in.

`test_bounds` makes each field enormous in its turn, and checks that no field that the code reads is missing
here.
"""

from __future__ import annotations

from typing import Any

KEPT_AS_THEY_CAME = {"notice", "compaction_update", "compaction_summary_chunk"}
"""Kinds of updates in the protocol that Ostler records without reading their members."""

EXITED = {"exit_code": 0, "exitCode": 0, "returncode": 0}
META = {
    "terminal_output": {"terminal_id": "t", "data": "shown"},
    "terminal_output_delta": {"terminal_id": "t", "data": "more"},
    "terminal_exit": {"terminal_id": "t", **EXITED},
    "note": "n",
}
TOKENS = {
    "inputTokens": 1,
    "outputTokens": 2,
    "cachedReadTokens": 3,
    "cachedWriteTokens": 4,
    "thoughtTokens": 5,
    "totalTokens": 6,
}
SNAKE_TOKENS = {
    "input_tokens": 1,
    "output_tokens": 2,
    "cached_read_tokens": 3,
    "cached_write_tokens": 4,
    "thought_tokens": 5,
    "total_tokens": 6,
}
ALL_TOKENS = {**TOKENS, **SNAKE_TOKENS}
MARKS = {"a": "b"}
NOTES = {"audience": ["user"], "priority": 0.5}
CONTENT = {"type": "text", "text": "words", "annotations": NOTES, "_meta": MARKS}
BLOCKS = [
    {"type": "content", "content": {"type": "text", "text": "out", "_meta": {"x": "y"}}, "_meta": {"x": "y"}},
    {
        "type": "content",
        "content": {"type": "image", "data": "AAAA", "mimeType": "image/png", "mime_type": "m", "uri": "u"},
    },
    {"type": "content", "content": {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}},
    {
        "type": "content",
        "content": {
            "type": "resource",
            "resource": {"uri": "u", "text": "t", "mimeType": "m", "blob": "b", "blob_uri": "x"},
        },
    },
    {
        "type": "content",
        "content": {
            "type": "resource",
            "resource": {"uri": "u", "mime_type": "m", "blob": "b", "blob_uri": "x"},
        },
    },
    {"type": "content", "content": {"type": "resource_link", "name": "n", "uri": "u", "size": 3}},
    {"type": "diff", "path": "/w/a", "oldText": "a", "newText": "b", "_meta": {"x": "y"}},
    {"type": "terminal", "terminalId": "t1", "_meta": {"x": "y"}},
    {"type": "text", "text": "bare"},
]
CALL = {
    "toolCallId": "call",
    "title": "ls",
    "name": "shell",
    "kind": "execute",
    "status": "in_progress",
    "content": BLOCKS,
    "locations": [{"path": "/w/a", "line": 3}],
    "rawInput": {"command": "ls", "nested": [{"deep": ["x"]}]},
    "rawOutput": {"output": "a", "nested": [{"deep": ["x"]}], **EXITED},
    "_meta": META,
}
SUMMARY = {"compactionId": "c", "status": "failed", "summary": {"text": "s"}, "error": {"message": "e"}}
COMMANDS = [{"name": "plan", "description": "d", "input": {"hint": "h"}}]
CHOICES = [
    {"value": "small", "name": "Small", "description": "d"},
    {"group": "g", "name": "G", "options": [{"value": "large", "name": "Large", "description": "d"}]},
]
OPTIONS = [
    {
        "id": "model",
        "name": "Model",
        "description": "d",
        "category": "model",
        "type": "select",
        "currentValue": "small",
        "options": CHOICES,
    },
    {
        "id": "mode",
        "name": "Mode",
        "description": "d",
        "category": "mode",
        "type": "select",
        "currentValue": "default",
        "options": CHOICES,
    },
    {"id": "brave", "name": "Brave", "type": "boolean", "currentValue": True},
]


def _update(kind: str, /, **fields: Any) -> dict[str, Any]:
    return {"sessionId": "s", "update": {"sessionUpdate": kind, **fields}}


UPDATES: dict[str, list[dict[str, Any]]] = {
    "user_message_chunk": [_update("user_message_chunk", content=CONTENT, messageId="m")],
    "agent_message_chunk": [
        *(
            _update("agent_message_chunk", content=content, messageId="m", _meta={"usage": ALL_TOKENS})
            for content in (
                CONTENT,
                "bare",
                {
                    "type": "resource_link",
                    "name": "n",
                    "uri": "u",
                    "title": "t",
                    "size": 3,
                    "annotations": NOTES,
                },
                {"type": "resource", "resource": {"uri": "u", "text": "t"}, "_meta": MARKS},
                {
                    "type": "resource",
                    "resource": {
                        "uri": "u",
                        "blob": "AAAA",
                        "blob_uri": "x",
                        "text": "",
                        "mimeType": "m",
                        "mime_type": "m",
                    },
                },
                {"type": "resource", "resource": {"uri": "u"}},
                {"type": "image", "data": "AAAA", "mimeType": "image/png", "mime_type": "m", "uri": "u"},
                {"type": "image", "uri": "https://example.org/a.png"},
                {"type": "audio", "data": "AAAA", "mimeType": "audio/wav", "uri": "u", "annotations": NOTES},
                {"type": "hologram", "data": "AAAA"},
            )
        ),
    ],
    "agent_thought_chunk": [
        _update("agent_thought_chunk", content=content, messageId="m", _meta={"usage": ALL_TOKENS})
        for content in (
            CONTENT,
            {"type": "image", "data": "AAAA", "mimeType": "image/png", "mime_type": "m", "uri": "u"},
            {
                "type": "resource",
                "resource": {
                    "uri": "u",
                    "blob": "AAAA",
                    "blob_uri": "x",
                    "text": "",
                    "mimeType": "m",
                    "mime_type": "m",
                },
            },
            {"type": "resource_link", "name": "n", "uri": "u", "annotations": NOTES},
        )
    ],
    "tool_call": [_update("tool_call", **CALL)],
    "tool_call_update": [
        _update("tool_call_update", **{**CALL, "status": "completed"}),
        _update("tool_call_update", **{**CALL, "status": "failed"}),
        _update(
            "tool_call_update",
            toolCallId="call",
            _meta={"terminal_output_delta": {"terminal_id": "t", "data": "more"}},
        ),
    ],
    "plan": [
        _update("plan", entries=[{"content": "c", "priority": "high", "status": "pending"}], _meta=MARKS)
    ],
    "available_commands_update": [
        _update("available_commands_update", availableCommands=COMMANDS, _meta=MARKS)
    ],
    "current_mode_update": [
        _update("current_mode_update", currentModeId="default", modeId="default", _meta=MARKS),
        _update("current_mode_update", modeId="default"),
    ],
    "config_option_update": [_update("config_option_update", configOptions=OPTIONS, _meta=MARKS)],
    "session_info_update": [_update("session_info_update", title="T", updatedAt="2026", _meta=MARKS)],
    "usage_update": [
        _update("usage_update", used=1, size=2, cost={"amount": 0.5, "currency": "USD"}, _meta=MARKS)
    ],
    "notice": [_update("notice", severity="info", title="T", description="d")],
    "compaction_update": [_update("compaction_update", **SUMMARY)],
    "compaction_summary_chunk": [_update("compaction_summary_chunk", compactionId="c", content=CONTENT)],
    "nobody_knows": [_update("nobody_knows", depth={"x": ["y"]})],
}
"""Parameters of `session/update`, by the kind of the update."""

PERMISSIONS: list[dict[str, Any]] = [
    {
        "sessionId": "s",
        "toolCall": CALL,
        "options": [
            {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
            {"optionId": "no", "name": "No", "kind": "reject_once"},
        ],
    }
]

REQUESTS: dict[str, list[dict[str, Any]]] = {
    "fs/read_text_file": [{"sessionId": "s", "path": "/none/a", "line": 1, "limit": 2}],
    "fs/write_text_file": [{"sessionId": "s", "path": "/none/a", "content": "c"}],
    "terminal/create": [
        {
            "sessionId": "s",
            "command": "true",
            "args": ["a"],
            "env": [{"name": "N", "value": "v"}],
            "cwd": "/none",
            "outputByteLimit": 10,
        }
    ],
    "terminal/output": [{"sessionId": "s", "terminalId": "t"}],
    "terminal/wait_for_exit": [{"sessionId": "s", "terminalId": "t"}],
    "terminal/kill": [{"sessionId": "s", "terminalId": "t"}],
    "terminal/release": [{"sessionId": "s", "terminalId": "t"}],
}
"""Parameters of the requests that are served, by method."""

NOT_OFFERED = {"elicitation/create", "elicitation/complete", "$/cancel_request"}
"""What an agent can send that is not read: not offered, or dealt with by the connection."""

INITIALIZE: dict[str, Any] = {
    "protocolVersion": 1,
    "agentInfo": {"name": "agent", "title": "Agent", "version": "1"},
    "agentCapabilities": {
        "loadSession": True,
        "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
        "mcpCapabilities": {"http": True, "sse": True},
        "sessionCapabilities": {"resume": {}, "close": {}, "list": {}, "_meta": {}},
        "auth": {"logout": {}},
    },
    "authMethods": [
        {"id": "key", "name": "Key", "description": "d", "type": "agent", "_meta": {"type": "terminal"}},
        {"id": "login", "name": "Login", "description": "d", "_meta": {"type": "terminal"}},
        {
            "id": "env",
            "name": "Env",
            "type": "env_var",
            "vars": [{"name": "A"}, {"name": "B", "optional": True}],
        },
        {"id": "old", "name": "Old", "type": "env_var", "varName": "A"},
    ],
    "_meta": {"steering": {"supported": True}},
}
SESSION: dict[str, Any] = {
    "sessionId": "session-1",
    "modes": {
        "currentModeId": "default",
        "availableModes": [{"id": "default", "name": "Default", "description": "d"}],
    },
    "models": {
        "currentModelId": "small",
        "availableModels": [{"modelId": "small", "name": "Small", "description": "d"}],
    },
    "configOptions": OPTIONS,
}
OLDER_SESSION = {key: value for key, value in SESSION.items() if key != "configOptions"}

RESPONSES: dict[str, list[dict[str, Any]]] = {
    "initialize": [INITIALIZE],
    "authenticate": [{"_meta": {"a": "b"}}],
    "session/new": [SESSION, OLDER_SESSION],
    "session/load": [SESSION],
    "session/resume": [SESSION],
    "session/set_model": [{"_meta": {"a": "b"}}],
    "session/set_mode": [{"_meta": {"a": "b"}}],
    "session/set_config_option": [{"configOptions": OPTIONS}],
    "session/close": [{"_meta": {"a": "b"}}],
    "session/prompt": [
        {
            "stopReason": "end_turn",
            "usage": ALL_TOKENS,
            "_meta": {"quota": {"token_count": ALL_TOKENS}, "usage": ALL_TOKENS},
        },
        {
            "stopReason": "tired",
            "_meta": {"quota": {"token_count": ALL_TOKENS}, "usage": {}},
        },
    ],
}
"""Results of our requests, by method."""

NEVER_ASKED = {"logout", "session/list", "session/delete", "session/fork", "session/cancel"}
"""Methods of ours that have no answer, or that are never called."""

ERROR: dict[str, Any] = {
    "code": -32603,
    "message": "it went wrong",
    "data": {
        "details": "d",
        "message": "m",
        "detail": "d",
        "error": {"message": "m"},
        "errorKind": "k",
        "errorName": "n",
        "codexErrorInfo": {"http_connection_failed": {"http_status_code": 429}},
        "codex_error_info": "c",
        "type": "t",
        "status": 500,
        "authMethods": [{"id": "key"}],
    },
}
ERROR_CODES = (-32603, -32000, -32602)
"""The codes that lead somewhere else: a failure, a login, another rung of the ladder."""
