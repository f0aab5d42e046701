"""How each route about a conversation is served where another server has it."""

from __future__ import annotations

import re

import httpx2
import pytest

from gateway.api.forwarding.requests import Asked
from gateway.api.responses import json_response
from tests.gateway.servers import cluster

FORWARDED = "by the owner"
STORED = "here, from what is stored"
CONSTANT = "here: the answer is the same for each"

ONE = "/api/conversations/<conversation_id>"

TABLE = {
    FORWARDED: f"""
        PATCH {ONE}
        DELETE {ONE}
        POST {ONE}/restore
        POST {ONE}/run
        POST {ONE}/pause
        POST {ONE}/interrupt
        POST {ONE}/events/respond_to_confirmation
        POST {ONE}/confirmation_policy
        POST {ONE}/security_analyzer
        POST {ONE}/secrets
        POST {ONE}/fork
        POST {ONE}/navigate
        POST {ONE}/ask_agent
        POST {ONE}/switch_acp_model
        POST {ONE}/switch_acp_mode
        POST {ONE}/set_acp_option
        POST {ONE}/goal
        POST {ONE}/goal/stop
        POST {ONE}/goal/resume
        POST {ONE}/children
        POST {ONE}/runtime/reprovision
        POST {ONE}/condense
        POST {ONE}/switch_llm
        POST {ONE}/switch_profile
        POST {ONE}/load_plugin
        POST {ONE}/events
        GET /api/agents/<conversation_id>
        POST /api/agents/<conversation_id>/restart
        POST /api/agents/<conversation_id>/stop
        GET /api/agents/<conversation_id>/stderr
        GET /api/agents/<conversation_id>/trace
        POST {ONE}/bash/start_bash_command
        POST {ONE}/bash/execute_bash_command
        GET {ONE}/bash/bash_events/search
        GET {ONE}/bash/bash_events/
        GET {ONE}/bash/bash_events/<event_id>
        DELETE {ONE}/bash/bash_events
        POST {ONE}/bash/bash_commands/<command_id>/stop
        POST {ONE}/file/upload
        GET {ONE}/file/download
        POST {ONE}/file/create_directory
        GET {ONE}/file/archive
        GET {ONE}/git/changes
        GET {ONE}/git/diff
        GET {ONE}/git/commits
        GET {ONE}/git/commits/<sha>/changes
        GET {ONE}/workspace
        GET {ONE}/workspace/
        GET {ONE}/workspace/<path:file_path>
    """,
    STORED: f"""
        GET {ONE}
        GET {ONE}/agent_final_response
        GET {ONE}/blobs/<blob_id>
        GET {ONE}/events
        GET {ONE}/events/<event_id>
        GET {ONE}/events/count
        GET {ONE}/events/search
        GET {ONE}/runtime
        GET /api/file/download-trajectory/<conversation_id>
        GET /api/conversations/<runtime_conversation_id>/file/download-trajectory/<conversation_id>
    """,
    CONSTANT: f"""
        GET {ONE}/vscode/status
        GET {ONE}/vscode/url
    """,
}

SERVED = {line.strip(): how for how, lines in TABLE.items() for line in lines.splitlines() if line.strip()}

VALUES = {
    "blob_id": "a",
    "command_id": "01a20170-0000-7000-8000-000000000000",
    "event_id": "01a20170-0000-7000-8000-000000000000",
    "file_path": "a/b",
    "sha": "abcd",
}


@pytest.fixture
async def two(tmp_path):
    async with cluster(tmp_path, 2) as made:
        yield made


async def test_every_route_about_a_conversation(two, monkeypatch):
    rules = [each for each in two.gateways[0].app.url_map.iter_rules() if not each.websocket]
    routes = {each.endpoint for each in rules if "conversation_id>" in each.rule}
    assert routes == SERVED.keys()
    conversation = await two.conversation(1)
    asked = []

    async def of(self, place):
        asked.append(place.name)
        return json_response({"detail": "forwarded"}, 503)

    monkeypatch.setattr(Asked, "of", of)
    async with httpx2.AsyncClient() as client:
        for route in sorted(routes):
            method, _, path = route.partition(" ")
            path = re.sub(r"<(?:runtime_)?conversation_id>", conversation.id, path)
            path = re.sub(r"<(?:path:)?(\w+)>", lambda name: VALUES[name[1]], path)
            asked.clear()
            body = {"content": b"[]" if path.endswith("/events") and method == "GET" else b"{}"}
            await client.request(
                method,
                f"{two.gateways[0].url}{path}?path=a",
                headers={"Content-Type": "application/json"},
                **body,
            )
            assert asked == (["server-1"] if SERVED[route] == FORWARDED else []), route
    assert conversation.calls == []
