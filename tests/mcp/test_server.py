"""MCP server entries: what is accepted, and where an error is said to be."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.mcp.server import MCPServer, MCPServerError, decode_server, server_errors


def test_full_stdio_entry() -> None:
    entry = {"command": "npx", "args": ["-y", "pkg"], "env": {"K": "v"}, "cwd": "/w", "transport": "stdio"}
    assert decode_server(entry) == MCPServer(
        command="npx", args=("-y", "pkg"), env={"K": "v"}, cwd="/w", transport="stdio"
    )


def test_nulls_mean_absent() -> None:
    entry = dict.fromkeys(("url", "args", "env", "headers", "auth", "timeout", "transport", "icon"))
    assert decode_server({**entry, "command": "c"}) == MCPServer(command="c")


@pytest.mark.parametrize(
    "auth",
    [
        {"strategy": "none"},
        {"strategy": "api_key"},
        {"strategy": "api_key", "value": None, "header_name": None},
        {"strategy": "bearer", "value": "v"},
        {"strategy": "basic", "username": "", "password": None},
        {"strategy": "header", "headers": {"A": "b"}},
        {"strategy": "oauth2", "authentication": {"type": "oauth"}, "state": None},
    ],
)
def test_auth_strategies(auth: dict[str, Any]) -> None:
    assert decode_server({"url": "https://x", "auth": auth}).auth == auth


U = {"url": "https://x"}
C = {"command": "c"}


@pytest.mark.parametrize(
    ("entry", "loc", "kind"),
    [
        ([], (), "dict_type"),
        ({}, (), "value_error"),
        ({**U, **C}, (), "value_error"),
        ({**C, "extra": 1}, ("extra",), "extra_forbidden"),
        ({"command": ""}, ("command",), "string_too_short"),
        ({"command": ["c"]}, ("command",), "string_type"),
        ({"url": 1}, ("url",), "string_type"),
        ({**C, "args": "a b"}, ("args",), "list_type"),
        ({**C, "args": ["a", 1]}, ("args", 1), "string_type"),
        ({**C, "env": []}, ("env",), "dict_type"),
        ({**C, "env": {"A": None}}, ("env", "A"), "string_type"),
        ({**C, "enabled": None}, ("enabled",), "bool_type"),
        ({**C, "enabled": 1}, ("enabled",), "bool_type"),
        ({**C, "timeout": True}, ("timeout",), "float_type"),
        ({**C, "timeout": float("nan")}, ("timeout",), "finite_number"),
        ({**C, "transport": "pipe"}, ("transport",), "literal_error"),
        ({**C, "transport": []}, ("transport",), "literal_error"),
        ({**C, "transport": "http"}, ("transport",), "value_error"),
        ({**U, "transport": "stdio"}, ("transport",), "value_error"),
        ({**U, "headers": {"A": 1}}, ("headers", "A"), "string_type"),
        ({**U, "auth": "bearer"}, ("auth",), "dict_type"),
        ({**U, "auth": {}}, ("auth", "strategy"), "union_tag_invalid"),
        ({**U, "auth": {"strategy": ["bearer"]}}, ("auth", "strategy"), "union_tag_invalid"),
        ({**U, "auth": {"strategy": "basic"}}, ("auth", "username"), "missing"),
        ({**U, "auth": {"strategy": "bearer", "value": 1}}, ("auth", "value"), "string_type"),
        ({**U, "auth": {"strategy": "header", "headers": {"A": 1}}}, ("auth", "headers", "A"), "string_type"),
        ({**U, "auth": {"strategy": "oauth2", "state": 1}}, ("auth", "state"), "dict_type"),
    ],
)
def test_refused(entry: Any, loc: tuple[str | int, ...], kind: str) -> None:
    prefix = ("body", "mcp_config", "s")
    assert [(error.loc, error.type) for error in server_errors(entry, prefix)] == [((*prefix, *loc), kind)]
    with pytest.raises(MCPServerError):
        decode_server(entry)


def test_all_errors_are_reported_at_once() -> None:
    errors = server_errors({"command": 1, "args": [2, 3], "x": None})
    assert [error.loc for error in errors] == [("command",), ("args", 0), ("args", 1), ("x",)]


def test_no_credential_shows() -> None:
    server = decode_server(
        {
            "url": "https://x/?k=sk-url",
            "headers": {"A": "sk-header"},
            "auth": {"strategy": "bearer", "value": "sk-auth"},
        }
    )
    assert "sk-" not in repr(server)
    assert "sk-" not in repr(
        decode_server({"command": "c", "env": {"A": "sk-env"}, "args": ["--key=sk-arg"]})
    )
    with pytest.raises(MCPServerError) as caught:
        decode_server({"command": "c", "env": "sk-env", "transport": "sk-transport"})
    assert "sk-" not in str(caught.value)
