"""Real agents use real MCP servers through Ostler: one that they start, one over http, one behind a login.

The servers are the MCP SDK's (`support/mcp_server.py`). The model is told to call their tool, whose
answer nobody can guess.
"""

from __future__ import annotations

import json
import os
import sysconfig
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
import trio

from tests.interop.model_api.server import ModelApi
from tests.interop.real_agents import CLAUDE_CODE, CODEX, GEMINI_CLI, RealAgent
from tests.interop.talk import Open
from tests.support.client import answer_text, of_kind, summary
from tests.support.mcp_servers import STDIO, RealServer, real_server

pytestmark = pytest.mark.interop

OSTLER = Path(sysconfig.get_path("scripts")) / "ostler"


# Without that it offers the tools of MCP servers only after a search, in a form of its own.
UPFRONT = replace(
    CLAUDE_CODE, secrets=lambda url: {**CLAUDE_CODE.secrets(url), "ENABLE_TOOL_SEARCH": "false"}
)

AGENTS = {agent.key: agent for agent in (UPFRONT, CODEX, GEMINI_CLI)}
each_agent = pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)

CALL = 'MCP: secret_sum {"a": 20, "b": 3}'
PATIENCE_SECONDS = 60.0
ANSWER = "the secret sum is 1023"


def configure(state: Path, **entry: object) -> None:
    (state / "mcp.json").write_text(json.dumps({"mcpServers": {"calc": entry}}))


async def log_in(state: Path) -> None:
    """As a person would, with a browser that follows where it is sent."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(state), "OSTLER_STATE": str(state)}

    async def browse(process: trio.Process) -> None:
        assert process.stderr is not None
        text = ""
        async for piece in process.stderr:
            text += piece.decode()
            for line in text.splitlines(keepends=True):
                if line.startswith("    http") and line.endswith("\n"):
                    async with httpx2.AsyncClient(follow_redirects=True) as client:
                        await client.get(line.strip())
                    text = ""

    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            lambda task_status: trio.run_process(
                [str(OSTLER), "mcp", "login", "calc"],
                stdin=b"",
                stderr=-1,
                capture_stdout=True,
                env={**environment, "OSTLER_KEYRING": "off"},
                task_status=task_status,
            )
        )
        nursery.start_soon(browse, process)


async def uses_the_tool(talk: Open, agent: RealAgent, model_api: ModelApi) -> list[dict[str, object]]:
    async with talk(agent) as one:
        # An agent does not wait for its servers: its first turn may come before their tools are there.
        with trio.fail_after(PATIENCE_SECONDS):
            while ANSWER not in answer_text(events := await one.turn(CALL)):
                assert "NO-SUCH-TOOL" in answer_text(events), summary(events)
                await trio.sleep(1)
        (told,) = [e["value"] for e in await one.rest.events(one.id) if e.get("key") == "mcp_servers"]
        assert [each["name"] for each in told["active"]] == ["calc"]
        assert told["dropped"] == []
        calls = of_kind(events, "ACPToolCallEvent")
        assert calls[-1]["status"] == "completed", summary(events)
        active = answer_text(await one.turn("/mcp"))
        assert "calc" in active
        return events


@pytest.mark.guarantee(name="mcp-servers-are-mounted-or-it-is-said-why-not")
@each_agent
async def test_a_server_that_the_agent_starts(
    talk: Open, agent: RealAgent, model_api: ModelApi, tmp_path: Path
) -> None:
    configure(tmp_path / "state", **STDIO)
    await uses_the_tool(talk, agent, model_api)


@pytest.mark.guarantee(name="mcp-servers-are-mounted-or-it-is-said-why-not")
@each_agent
async def test_a_server_over_http(talk: Open, agent: RealAgent, model_api: ModelApi, tmp_path: Path) -> None:
    with real_server("http", tmp_path, "--key", "value-of-a-key") as server:
        configure(tmp_path / "state", type="http", url=server.url, headers={"X-Key": "value-of-a-key"})
        await uses_the_tool(talk, agent, model_api)
        assert server.lines("called") == ["called 20 3"]


@pytest.mark.guarantee(name="mcp-servers-are-mounted-or-it-is-said-why-not")
@each_agent
async def test_a_server_behind_a_login(
    talk: Open, agent: RealAgent, model_api: ModelApi, tmp_path: Path
) -> None:
    """The token expires, so that the agent speaks to the proxy."""
    with real_server("oauth", tmp_path) as server:
        configure(tmp_path / "state", type="http", url=server.url, auth="oauth")
        await log_in(tmp_path / "state")
        events = await uses_the_tool(talk, agent, model_api)
        assert server.lines("called") == ["called 20 3"]
        assert_no_token(server, events)


def assert_no_token(server: RealServer, events: list[dict[str, object]]) -> None:
    tokens = {line.split()[1] for line in server.lines("took")}
    assert tokens
    assert not [token for token in tokens if token in json.dumps(events)]
