"""What the tests must know about each real agent: how it is pointed at the model API, how it asks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.agents import ensure_installed, load_catalog
from supervisor.conversations.state.deadlines import Deadlines

KEY = "sk-test-0123456789abcdef"


@dataclass(frozen=True)
class RealAgent:
    """`secrets` takes the model API's URL and gives the secrets that a user of this agent would set."""

    key: str
    secrets: Callable[[str], dict[str, str]]
    settings: dict[str, Any] = field(default_factory=dict)  # ACP agent settings, acp_server is added
    tool: str = "TOOL"  # the script verb that makes it ask for a permission
    keyless: Callable[[str], dict[str, str]] = lambda url: {}  # secrets of a user who forgot the key
    # Its session files are named by the minute in which they were opened: a session/load in the minute of the
    # session/new opens the same file anew, and the memory is gone before it is read.
    forgets_within_the_minute: bool = False

    def agent_settings(self) -> dict[str, Any]:
        return {"acp_server": self.key, **self.settings}


async def install(agent: RealAgent, prefix: Path) -> None:
    """Install it as a server would, unless it is there."""
    await ensure_installed(load_catalog()[agent.key], prefix, progress=print, seconds=Deadlines().install)


def _codex(url: str) -> dict[str, str]:
    provider = {
        "name": "local",
        "base_url": f"{url}/v1",
        "wire_api": "responses",
        "env_key": "OPENAI_API_KEY",
        "request_max_retries": 1,
        "stream_max_retries": 1,
    }
    config = {
        "model": "gpt-5.5",
        "model_provider": "local",
        "model_providers": {"local": provider},
        "check_for_update_on_startup": False,
        "analytics": {"enabled": False},
    }
    return {
        "OPENAI_API_KEY": KEY,
        "MODEL_PROVIDER": "local",
        "CODEX_CONFIG": json.dumps(config),
        # In its default mode, "agent", a model decides on requests in place of a person.
        "INITIAL_AGENT_MODE": "workspace-write",
    }


def _opencode(url: str, key: str | None = KEY) -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Local",
        "options": {"baseURL": f"{url}/v1"} | ({"apiKey": key} if key else {}),
        "models": {"test-model": {"name": "Test", "limit": {"context": 200_000, "output": 32_000}}},
    }
    config = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "model": "local/test-model",
        "small_model": "local/test-model",
        "permission": {"edit": "ask", "bash": "ask"},
        "enabled_providers": ["local"],
        "provider": {"local": provider},
    }
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}


CLAUDE_CODE = RealAgent(
    "claude-code",
    lambda url: {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url},
    settings={"acp_session_mode": "default"},
    keyless=lambda url: {"ANTHROPIC_BASE_URL": url},
)
CODEX = RealAgent(
    "codex",
    _codex,
    settings={"acp_session_mode": "workspace-write"},
    tool="ASK",  # it asks only for a command that wants out of its sandbox
)
GEMINI_CLI = RealAgent(
    "gemini-cli",
    lambda url: {"GEMINI_API_KEY": KEY, "GEMINI_BASE_URL": url},
    settings={"acp_session_mode": "default", "acp_isolate_data_dir": True},
    keyless=lambda url: {"GEMINI_BASE_URL": url},
    forgets_within_the_minute=True,
)
OPENCODE = RealAgent(
    "opencode",
    _opencode,
    settings={"acp_model": "local/test-model"},
    keyless=lambda url: _opencode(url, None),  # the model API refuses: the agent itself needs no key
)

REAL_AGENTS = {agent.key: agent for agent in (CLAUDE_CODE, CODEX, GEMINI_CLI, OPENCODE)}
