from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.acp.errors import RpcError, UnsupportedProtocolVersion
from supervisor.acp.schema import (
    AGENT_METHODS,
    METHODS,
    AgentMessageChunk,
    AgentThoughtChunk,
    AvailableCommands,
    Choice,
    ConfigOptionsUpdate,
    CurrentMode,
    Plan,
    SessionInfo,
    ToolCall,
    ToolCallUpdate,
    UnknownUpdate,
    Usage,
    UsageUpdate,
    UserMessageChunk,
    image_block,
    initialize_params,
    method_offered,
    mode_option,
    model_option,
    modes_block,
    parse_auth_methods,
    parse_initialize,
    parse_permission,
    parse_prompt_result,
    parse_session,
    parse_update,
    resource_link_block,
    set_option_params,
    text_block,
)

# -- initialize --------------------------------------------------------------------------------------------

INITIALIZE = {
    "protocolVersion": 1,
    "agentCapabilities": {
        "_meta": {"x": {}},
        "promptCapabilities": {"image": True, "embeddedContext": True},
        "mcpCapabilities": {"http": True, "sse": False},
        "auth": {"logout": {}},
        "loadSession": True,
        "sessionCapabilities": {"close": {}, "resume": {"any": 1}, "list": None, "fork": False, "_meta": {}},
    },
    "agentInfo": {"name": "an-agent", "title": "An Agent", "version": "1.2.3"},
    "authMethods": [
        {"id": "login", "name": "Log in", "description": "opens a browser"},
        {"id": "tty", "name": "Terminal", "type": "terminal", "args": ["login"]},
        {"id": "vendor", "_meta": {"type": "terminal"}},
        {"name": "no id"},
        "odd",
    ],
    "_meta": {"steering": {"supported": True}},
}


def test_initialize_result() -> None:
    result = parse_initialize(INITIALIZE)
    offered = result.capabilities
    assert (offered.load_session, offered.prompt) == (True, {"image", "embeddedContext"})
    assert (offered.mcp_http, offered.mcp_sse) == (True, False)
    assert offered.session == {"close", "resume"}
    assert result.agent is not None
    assert (result.agent.name, result.agent.version) == ("an-agent", "1.2.3")
    assert [(m.id, m.type) for m in result.auth_methods] == [
        ("login", "agent"),
        ("tty", "terminal"),
        ("vendor", "terminal"),
    ]
    assert result.raw == INITIALIZE
    assert result.lost is None


@pytest.mark.parametrize("result", [{"protocolVersion": 1}, {"protocolVersion": "1", "agentCapabilities": 5}])
def test_an_agent_that_says_little_offers_nothing(result: Any) -> None:
    parsed = parse_initialize(result)
    assert not parsed.capabilities.load_session
    assert parsed.capabilities.session == frozenset()
    assert (parsed.agent, parsed.auth_methods) == (None, ())


@pytest.mark.parametrize("result", [{"protocolVersion": 2}, {}, None, {"protocolVersion": None}, []])
def test_other_versions_are_refused(result: Any) -> None:
    with pytest.raises(UnsupportedProtocolVersion):
        parse_initialize(result)


@pytest.mark.parametrize("offered", [True, False])
def test_we_advertise_what_we_serve(offered: bool) -> None:
    params = initialize_params("9.9", fs=offered, terminal=offered)
    # Both words: with one alone, agents send the output of their shells in other ways.
    assert params["clientCapabilities"]["_meta"] == {"terminal_output": True, "terminal_output_delta": True}
    assert params["protocolVersion"] == 1
    assert params["clientInfo"]["version"] == "9.9"
    capabilities = params["clientCapabilities"]
    assert capabilities["fs"] == {"readTextFile": offered, "writeTextFile": offered}
    assert capabilities["terminal"] is offered
    assert "elicitation" not in capabilities
    assert "auth" not in capabilities
    assert capabilities["session"] == {"configOptions": {"boolean": {}}, "notices": {}, "compaction": {}}


def test_methods_are_gated() -> None:
    agent = parse_initialize(INITIALIZE)
    bare = parse_initialize({"protocolVersion": 1})
    always = {"initialize", "authenticate", "session/new", "session/prompt", "session/cancel"}
    always |= {"session/set_mode", "session/set_config_option", "session/set_model", "$/cancel_request"}
    assert {name for name in METHODS if method_offered(bare, name)} == always
    gated = {"logout", "session/load", "session/resume", "session/close"}
    assert {name for name in METHODS if method_offered(agent, name)} == always | gated
    assert not method_offered(agent, "session/update")
    assert not method_offered(agent, "nope/nope")
    assert "session/update" in AGENT_METHODS


def test_every_method_is_listed() -> None:
    assert len(METHODS) == 27  # the 25 of the stable protocol, session/fork and session/set_model


def test_auth_methods_from_error_data() -> None:
    assert [m.id for m in parse_auth_methods({"authMethods": [{"id": "openai"}]})] == ["openai"]
    assert parse_auth_methods({"authMethods": "none"}) == ()


# -- sessions ----------------------------------------------------------------------------------------------

OPTIONS = [
    {
        "id": "reach",
        "name": "Mode",
        "category": "mode",
        "type": "select",
        "currentValue": "ask",
        "options": [{"value": "ask", "name": "Ask", "description": "asks"}, {"name": "no value"}],
    },
    {"id": "model", "name": "Other", "type": "select", "currentValue": "x", "options": []},
    {
        "id": "llm",
        "category": "model",
        "currentValue": "a",
        "options": [
            {"group": "g1", "name": "Fast", "options": [{"value": "a", "name": "A"}]},
            {"group": "g2", "options": [{"value": "b"}]},
        ],
    },
    {"id": "fast", "name": "Fast", "category": "model_config", "type": "boolean", "currentValue": True},
    {"id": "dial", "type": "slider", "currentValue": 5},
    {"type": "select"},
    None,
]


def test_config_options() -> None:
    options = parse_session({"sessionId": "s", "configOptions": OPTIONS}).config_options
    assert options is not None
    assert [(o.id, o.type, o.current) for o in options] == [
        ("reach", "select", "ask"),
        ("model", "select", "x"),
        ("llm", "select", "a"),
        ("fast", "boolean", True),
    ]
    assert options[0].choices == (Choice("ask", "Ask", "asks"),)
    assert options[2].choices == (Choice("a", "A"), Choice("b", "b"))
    model, mode = model_option(options), mode_option(options)
    assert model is not None
    assert mode is not None
    assert (model.id, mode.id) == ("llm", "reach")
    by_id = model_option(options[:2])
    assert by_id is not None
    assert by_id.id == "model"
    assert model_option(options[:1]) is None


def test_older_modes_and_models() -> None:
    session = parse_session(
        {
            "sessionId": "s",
            "modes": {
                "currentModeId": "default",
                "availableModes": [{"id": "default", "name": "D"}, {"id": "y"}],
            },
            "models": {"currentModelId": "auto", "availableModels": [{"modelId": "auto", "name": "Auto"}]},
        }
    )
    assert session.config_options is None
    assert session.modes is not None
    assert session.modes.available == (Choice("default", "D"), Choice("y", "y"))
    assert modes_block(session.modes) == {
        "currentModeId": "default",
        "availableModes": [
            {"id": "default", "name": "D", "description": None},
            {"id": "y", "name": "y", "description": None},
        ],
    }
    assert session.models is not None
    assert (session.models.current, session.models.available[0].value) == ("auto", "auto")


@pytest.mark.parametrize("result", [None, {}, {"modes": None, "models": None, "configOptions": None}, []])
def test_a_session_that_says_nothing(result: Any) -> None:
    session = parse_session(result)
    assert (session.session_id, session.config_options, session.modes, session.models) == (None,) * 4


def test_no_options_are_not_the_same_as_none_given() -> None:
    assert parse_session({"configOptions": []}).config_options == ()


def test_set_option_params() -> None:
    assert set_option_params("s", "model", "x") == {"sessionId": "s", "configId": "model", "value": "x"}
    assert set_option_params("s", "fast", True)["type"] == "boolean"


# -- prompts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "stop_reason", "usage"),
    [
        ({"stopReason": "cancelled"}, "cancelled", None),
        ({"stopReason": "brand_new"}, "brand_new", None),
        (None, "unknown", None),
        ({"stopReason": 5}, "unknown", None),
        (
            {
                "stopReason": "end_turn",
                "usage": {
                    "inputTokens": 100,
                    "outputTokens": 2.0,
                    "cachedReadTokens": 7,
                    "cachedWriteTokens": -1,
                    "thoughtTokens": "x",
                    "totalTokens": 102,
                },
                "_meta": {"quota": {"token_count": {"input_tokens": 9, "output_tokens": 9}}},
            },
            "end_turn",
            Usage(100, 2, 7, 0, 0, 102),
        ),
        (
            {
                "stopReason": "end_turn",
                "_meta": {"quota": {"token_count": {"input_tokens": 5, "output_tokens": 6}}},
            },
            "end_turn",
            Usage(5, 6),
        ),
        (
            {"stopReason": "end_turn", "_meta": {"quota": {"token_count": {"inputTokens": 5}}}},
            "end_turn",
            Usage(5),
        ),
        (  # as iac-code writes it
            {
                "stopReason": "end_turn",
                "_meta": {"usage": {"input_tokens": 5, "output_tokens": 6, "total_tokens": 11}},
            },
            "end_turn",
            Usage(5, 6, total_tokens=11),
        ),
        ({"stopReason": "end_turn", "_meta": {"usage": {"words": 5}}}, "end_turn", None),
        ({"stopReason": "end_turn", "_meta": {"usage": "much"}}, "end_turn", None),
    ],
)
def test_prompt_results(result: Any, stop_reason: str, usage: Usage | None) -> None:
    parsed = parse_prompt_result(result)
    assert (parsed.stop_reason, parsed.usage) == (stop_reason, usage)


def test_content_blocks() -> None:
    assert text_block("hi") == {"type": "text", "text": "hi"}
    assert image_block("QQ==", "image/png") == {"type": "image", "data": "QQ==", "mimeType": "image/png"}
    assert resource_link_block("file:///a", "a") == {"type": "resource_link", "uri": "file:///a", "name": "a"}
    assert resource_link_block("u", "n", mime_type="text/plain", size=3)["size"] == 3


# -- updates -----------------------------------------------------------------------------------------------


def one(update: dict[str, Any]) -> Any:
    session_id, parsed = parse_update({"sessionId": "s", "update": update})
    assert session_id == "s"
    assert parsed.raw is update
    return parsed


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("user_message_chunk", UserMessageChunk),
        ("agent_message_chunk", AgentMessageChunk),
        ("agent_thought_chunk", AgentThoughtChunk),
    ],
)
def test_chunks(kind: str, cls: type) -> None:
    chunk = one({"sessionUpdate": kind, "content": {"type": "text", "text": "hi "}, "messageId": "m1"})
    assert type(chunk) is cls
    assert (chunk.text, chunk.message_id) == ("hi ", "m1")
    image = one({"sessionUpdate": kind, "content": {"type": "image", "data": "QQ==", "text": "no"}})
    assert (image.text, image.message_id, image.content["data"]) == (None, None, "QQ==")
    assert one({"sessionUpdate": kind, "content": "bare"}).text == "bare"
    assert type(one({"sessionUpdate": kind, "content": None})) is UnknownUpdate


def test_a_tool_call_as_real_agents_send_it() -> None:
    call = one(
        {
            "_meta": {"claudeCode": {"toolName": "Bash"}},
            "toolCallId": "toolu_1",
            "sessionUpdate": "tool_call",
            "name": "Bash",
            "rawInput": {},
            "status": "pending",
            "title": "Terminal",
            "kind": "execute",
            "content": [],
            "locations": [{"path": "/w/a", "line": 3}, {"line": 4}, {"path": "/w/b", "line": "x"}],
        }
    )
    assert type(call) is ToolCall
    assert (call.tool_call_id, call.title, call.kind, call.status) == (
        "toolu_1",
        "Terminal",
        "execute",
        "pending",
    )


def test_a_tool_call_update_changes_only_what_it_says() -> None:
    update = one({"sessionUpdate": "tool_call_update", "toolCallId": 7, "status": "half_done", "title": None})
    assert type(update) is ToolCallUpdate
    assert (update.tool_call_id, update.status) == ("7", "half_done")
    assert (update.title, update.kind) == (None, None)


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (
            {
                "sessionUpdate": "plan",
                "entries": [{"content": "a", "priority": "urgent", "status": "in_progress"}, {}],
            },
            Plan,
        ),
        (
            {
                "sessionUpdate": "available_commands_update",
                "availableCommands": [
                    {"name": "plan", "description": "d", "input": None},
                    {"name": "go", "input": {"hint": "where"}},
                    {"description": "nameless"},
                ],
            },
            AvailableCommands,
        ),
        (
            {"sessionUpdate": "current_mode_update", "currentModeId": "plan"},
            lambda raw: CurrentMode("plan", raw),
        ),
        ({"sessionUpdate": "current_mode_update", "modeId": "plan"}, lambda raw: CurrentMode("plan", raw)),
        (
            {"sessionUpdate": "session_info_update", "title": "T", "updatedAt": "2026"},
            lambda raw: SessionInfo("T", "2026", raw),
        ),
        (
            {"sessionUpdate": "session_info_update", "title": None},
            lambda raw: SessionInfo(None, None, raw),
        ),
        (
            {"sessionUpdate": "session_info_update", "_meta": {"codex": {}}},
            lambda raw: SessionInfo(None, None, raw),
        ),
        (
            {
                "sessionUpdate": "usage_update",
                "used": 10,
                "size": 100,
                "cost": {"amount": 1, "currency": "EUR"},
            },
            lambda raw: UsageUpdate(10, 100, 1.0, "EUR", raw),
        ),
        (
            {"sessionUpdate": "usage_update", "used": True},
            lambda raw: UsageUpdate(None, None, None, None, raw),
        ),
        (
            {"sessionUpdate": "notice", "severity": "warning", "title": "t"},
            UnknownUpdate,
        ),
        (
            {
                "sessionUpdate": "compaction_update",
                "compactionId": "c",
                "status": "failed",
                "error": {"m": 1},
            },
            UnknownUpdate,
        ),
        (
            {
                "sessionUpdate": "compaction_summary_chunk",
                "compactionId": "c",
                "content": {"type": "text", "text": ""},
            },
            UnknownUpdate,
        ),
        (
            {"sessionUpdate": "subagent_update", "sessionId": "x"},
            UnknownUpdate,
        ),
        ({"sessionUpdate": "tool_call", "title": "no id"}, UnknownUpdate),
        ({"sessionUpdate": "plan", "entries": "x"}, UnknownUpdate),
        ({"sessionUpdate": 5}, UnknownUpdate),
    ],
)
def test_other_updates(update: dict[str, Any], expected: Any) -> None:
    assert one(update) == expected(update)


def test_config_option_update() -> None:
    update = one({"sessionUpdate": "config_option_update", "configOptions": OPTIONS})
    assert type(update) is ConfigOptionsUpdate
    assert len(update.options) == 4


@pytest.mark.parametrize("params", [None, [], {}, {"sessionId": "s"}, {"sessionId": 5, "update": "x"}])
def test_updates_without_an_update(params: Any) -> None:
    _, update = parse_update(params)
    assert type(update) is UnknownUpdate


KEYS = st.sampled_from(
    [
        "sessionId",
        "update",
        "sessionUpdate",
        "content",
        "type",
        "text",
        "toolCallId",
        "title",
        "locations",
        "path",
        "entries",
        "availableCommands",
        "name",
        "configOptions",
        "id",
        "options",
        "value",
        "cost",
        "amount",
        "used",
        "compactionId",
        "toolCall",
        "optionId",
        "modes",
        "models",
        "usage",
        "_meta",
        "agentCapabilities",
        "sessionCapabilities",
        "authMethods",
        "protocolVersion",
    ]
)
KINDS = st.sampled_from(
    [
        "tool_call",
        "tool_call_update",
        "plan",
        "usage_update",
        "notice",
        "config_option_update",
        "agent_message_chunk",
        "session_info_update",
        "available_commands_update",
        "compaction_update",
        "select",
        "boolean",
        "text",
    ]
)
SHAPES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | KINDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)


@given(SHAPES, KINDS, SHAPES)
def test_reading_never_raises(value: Any, kind: str, inner: Any) -> None:
    parse_update(value)
    fields = inner if isinstance(inner, dict) else {}
    parse_update({"sessionId": "s", "update": {**fields, "sessionUpdate": kind}})
    parse_session(value)
    parse_prompt_result(value)
    if isinstance(value, dict):
        parse_initialize({**value, "protocolVersion": 1})
        parse_permission({**value, "toolCall": {"toolCallId": "x"}})


# -- permissions -------------------------------------------------------------------------------------------


def test_a_permission_request() -> None:
    request = parse_permission(
        {
            "sessionId": "s",
            "toolCall": {"toolCallId": "t", "status": "pending", "title": "Write", "rawInput": {"a": 1}},
            "options": [
                {"optionId": "proceed_always", "name": "Allow for this session", "kind": "allow_always"},
                {"optionId": "once", "kind": "allow_once"},
                {"name": "no id"},
                {"optionId": 3, "name": "Odd", "kind": None},
            ],
        }
    )
    assert (request.session_id, request.tool_call.tool_call_id, request.tool_call.title) == (
        "s",
        "t",
        "Write",
    )
    assert [(o.option_id, o.name, o.kind) for o in request.options] == [
        ("proceed_always", "Allow for this session", "allow_always"),
        ("once", "once", "allow_once"),
        ("3", "Odd", ""),
    ]


@pytest.mark.parametrize("params", [None, {}, {"toolCall": {"title": "no id"}, "options": []}])
def test_a_permission_for_nothing_is_refused(params: Any) -> None:
    with pytest.raises(RpcError) as caught:
        parse_permission(params)
    assert caught.value.code == -32602
