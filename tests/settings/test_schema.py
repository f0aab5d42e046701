"""The descriptions of settings pages: every field is one that can be set, with its true default."""

from __future__ import annotations

from typing import Any

from supervisor.mcp.server import server_errors
from supervisor.settings.document import Rules, apply_change, first_document
from supervisor.settings.schema import agent_schema, conversation_schema

PRESETS = {"demo": ("demo",), "claude-code": ("npx", "claude@1")}


def fields_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [field for section in schema["sections"] for field in section["fields"]]


def test_agent_schema_names_settable_fields() -> None:
    schema = agent_schema(PRESETS)
    assert schema["model_name"] == "AgentSettings"
    acp = schema["sections"][-1]
    assert (acp["key"], acp["variant"]) == ("acp", "acp")
    settings = first_document(PRESETS).agent_settings
    assert {field["key"] for field in acp["fields"]} < set(settings)
    assert acp["fields"][0]["choices"] == [
        {"value": "claude-code", "label": "claude-code"},
        {"value": "custom", "label": "Custom"},
    ]
    by_key = {field["key"]: field for field in fields_of(schema)}
    assert by_key["acp_server"]["prominence"] == by_key["acp_model"]["prominence"] == "critical"
    assert by_key["acp_command"]["value_type"] == "array"


def test_conversation_schema_is_what_a_change_accepts() -> None:
    schema = conversation_schema()
    sizes = [(section["key"], len(section["fields"])) for section in schema["sections"]]
    assert sizes == [("general", 1), ("verification", 2), ("runtime", 7)]
    document = first_document(PRESETS)
    for field in fields_of(schema):
        assert field["default"] == document.conversation_settings[field["key"]]
        for choice in field["choices"]:
            body = {"conversation_settings_diff": {field["key"]: choice["value"]}}
            changed = apply_change(document, body, Rules(PRESETS, server_errors))
            assert changed.conversation_settings[field["key"]] == choice["value"]
