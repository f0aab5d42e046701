"""Agents behind a server, as the clients reach them: by `ostler acp`."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx2
import trio

from tests.interop.editors.clients import Agent
from tests.interop.editors.subjects import DEMO, SCRIPTED, Prompts, real
from tests.interop.model_api.server import ModelApi
from tests.interop.real_agents import CLAUDE_CODE, CODEX, GEMINI_CLI, install
from tests.support.scripted import scripted_command
from tests.support.server import ServerProcess, shared_server

REQUEST_SECONDS = 60.0
"""For one request of a test to the server."""

REAL = {
    "claude-code": (CLAUDE_CODE, real("TOOL", "plan")),
    "codex": (CODEX, real("ASK", "read-only", asks=2)),
    "gemini-cli": (GEMINI_CLI, real("TOOL", "plan")),
}
PROMPTS: Mapping[str, Prompts] = {"demo": DEMO, "scripted": SCRIPTED} | {
    key: prompts for key, (_, prompts) in REAL.items()
}


def scripted_settings(directory: Path) -> dict[str, Any]:
    """Of the scripted agent; it writes down what it receives in `scripted.jsonl`."""
    command = scripted_command("usage", home=directory / "sessions", log=directory / "scripted.jsonl")
    return {"acp_server": "custom", "acp_command": command}


@attrs.frozen
class Behind:
    """A server, and an agent that its settings name."""

    key: str
    server: ServerProcess
    prompts: Prompts

    def agent(self, directory: Path) -> Agent:
        """`ostler acp`, for a session in a new directory."""
        cwd = directory / "workspace"
        cwd.mkdir()
        program = Path(sysconfig.get_path("scripts")) / "ostler"
        return Agent([str(program), "acp", "--url", self.server.url], cwd)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """A request to the server; its answer's JSON. A refusal fails the test."""
        with httpx2.Client(base_url=self.server.url, timeout=REQUEST_SECONDS, trust_env=False) as client:
            response = client.request(method, path, json=body)
        assert response.status_code < 300, (method, path, response.status_code, response.text[:2000])
        return response.json() if response.content else None


@contextmanager
def behind(key: str, directory: Path, agents_prefix: Path, model_api: ModelApi) -> Iterator[Behind]:
    """A server of its own for one agent."""
    secrets: Mapping[str, str] = {}
    settings: dict[str, Any] = {"acp_server": "demo"}
    if key == "scripted":
        settings = scripted_settings(directory)
    elif key in REAL:
        agent, _ = REAL[key]
        trio.run(install, agent, agents_prefix)
        secrets, settings = agent.secrets(model_api.url), agent.agent_settings()
        (directory / "state").mkdir()
        (directory / "state" / "agents").symlink_to(agents_prefix)
        agent.put_files(model_api.url, directory / "home")
    with shared_server(directory) as server:
        one = Behind(key, server, PROMPTS[key])
        for name, value in secrets.items():
            one.call("PUT", "/api/settings/secrets", {"name": name, "value": value})
        one.call("PATCH", "/api/settings", {"agent_settings_diff": {"agent_kind": "acp", **settings}})
        yield one
