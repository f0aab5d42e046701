"""What of the MCP servers reaches an agent, and what is said about the rest."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from supervisor.mcp.forward import forward_servers, resolver, to_acp_servers

ALL = {"http": True, "sse": True}
URL = "https://mcp.example/v1"


def resolve_known(command: str) -> str | None:
    return {"npx": "/bin/npx"}.get(command)


def remote(capabilities: dict[str, Any] = ALL, **entry: Any) -> dict[str, Any]:
    (server,) = to_acp_servers({"s": {"url": URL, **entry}}, capabilities).servers
    return server


def test_stdio_needs_no_capability() -> None:
    config = {"s": {"command": "npx", "args": ["-y", "pkg"], "env": {"B": "2", "A": "1"}}}
    forwarded = to_acp_servers(config, {}, resolve=resolve_known)
    assert forwarded.servers == [
        {
            "name": "s",
            "command": "/bin/npx",
            "args": ["-y", "pkg"],
            "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}],
        }
    ]
    assert forwarded.dropped == forwarded.notes == []


@pytest.mark.parametrize(
    ("transport", "kind"), [(None, "http"), ("http", "http"), ("streamable-http", "http"), ("sse", "sse")]
)
def test_remote_transport_and_its_capability(transport: str | None, kind: str) -> None:
    assert remote({kind: True}, transport=transport) == {"type": kind, "name": "s", "url": URL, "headers": []}
    for lacking in ({}, {**ALL, kind: False}, {**ALL, kind: "yes"}):
        forwarded = to_acp_servers({"s": {"url": URL, "transport": transport}}, lacking)
        assert forwarded.servers == []
        assert forwarded.dropped == [("s", f"the agent does not offer MCP over {kind}")]


BASIC = "Basic " + base64.b64encode(b"me:p\xc3\xa4ss").decode()


@pytest.mark.parametrize(
    ("headers", "auth", "expected"),
    [
        ({"X": "1"}, None, {"X": "1"}),
        ({"X": "1"}, {"strategy": "none"}, {"X": "1"}),
        ({}, {"strategy": "bearer", "value": "t"}, {"Authorization": "Bearer t"}),
        ({}, {"strategy": "basic", "username": "me", "password": "päss"}, {"Authorization": BASIC}),
        ({}, {"strategy": "api_key", "value": "k"}, {"X-API-Key": "k"}),
        ({}, {"strategy": "api_key", "value": "k", "header_name": "Api"}, {"Api": "k"}),
        ({"X": "1"}, {"strategy": "header", "headers": {"Y": "2", "x": "3"}}, {"X": "1", "Y": "2"}),
        ({"authorization": "mine"}, {"strategy": "bearer", "value": "t"}, {"authorization": "mine"}),
        ({"A": "1", "a": "2"}, None, {"A": "1"}),
    ],
)
def test_headers_and_auth(headers: dict[str, str], auth: Any, expected: dict[str, str]) -> None:
    sent = remote(headers=headers, auth=auth)["headers"]
    assert sent == [{"name": name, "value": value} for name, value in expected.items()]


@pytest.mark.parametrize(
    ("auth", "word"),
    [
        ({"strategy": "oauth2", "state": {"tokens": {"access_token": "sk-1"}}}, "oauth2"),
        ({"strategy": "bearer"}, "bearer"),
        ({"strategy": "api_key", "value": ""}, "api_key"),
    ],
)
def test_what_is_left_out_of_a_forwarded_server_is_noted(auth: dict[str, Any], word: str) -> None:
    forwarded = to_acp_servers({"s": {"url": URL, "auth": auth}}, ALL)
    assert forwarded.servers[0]["headers"] == []
    ((name, note),) = forwarded.notes
    assert name == "s"
    assert word in note


def test_cwd_is_noted() -> None:
    forwarded = to_acp_servers({"s": {"command": "/bin/sh", "cwd": "/w"}}, {})
    assert [name for name, _ in forwarded.notes] == ["s"]


def test_an_agent_of_our_own_gets_what_acp_has_no_field_for() -> None:
    more = {"timeout": 5.0, "keep_alive": False, "sse_read_timeout": 7.0}
    config = {
        "local": {"command": "/bin/sh", "cwd": "/w", **more},
        "far": {"url": URL, **more},
        "plain": {"command": "/bin/sh"},
    }
    forwarded = to_acp_servers(config, ALL, whole=True)
    assert [server.get("_meta") for server in forwarded.servers] == [
        {"ostler": {"cwd": "/w", **more}},
        {"ostler": more},
        None,
    ]
    assert forwarded.notes == []
    assert not any("_meta" in server for server in to_acp_servers(config, ALL).servers)


def test_one_bad_server_does_not_sink_the_others() -> None:
    config = {
        "off": {"command": "npx", "enabled": False},
        "lost": {"command": "no-such", "env": {"K": "sk-1"}},
        "bad": {"command": "npx", "env": "sk-2"},
        "good": {"command": "/opt/tool"},
    }
    forwarded = to_acp_servers(config, ALL, resolve=resolve_known)
    assert [server["name"] for server in forwarded.servers] == ["good"]
    assert [name for name, _ in forwarded.dropped] == ["lost", "bad"]
    assert "env" in forwarded.dropped[1][1]
    assert "sk-" not in repr(forwarded)


async def test_commands_are_found_as_the_agent_would(tmp_path: Path) -> None:
    for place in ("bin", "workspace"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "tool").write_text("#!/bin/sh\n")
        (tmp_path / place / "tool").chmod(0o755)
    (tmp_path / "bin" / "plain").write_text("not executable")
    config = {
        "named": {"command": "tool"},
        "local": {"command": "./tool"},
        "plain": {"command": "plain"},
        "absolute": {"command": "/no/such/tool"},
    }
    forwarded = await forward_servers(
        config, {}, workspace=tmp_path / "workspace", search_path=str(tmp_path / "bin")
    )
    assert {server["name"]: server["command"] for server in forwarded.servers} == {
        "named": str(tmp_path / "bin" / "tool"),
        "local": str(tmp_path / "workspace" / "tool"),
        "absolute": "/no/such/tool",
    }
    assert [name for name, _ in forwarded.dropped] == ["plain"]


def test_relative_search_path_still_gives_an_absolute_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert resolver(tmp_path, ".")("tool") == str(tmp_path / "tool")
