"""What the tests must know about each real agent: how it is pointed at the model API, how it asks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.agents.catalog import load_catalog
from supervisor.agents.install.install import ensure_installed
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
    files: Callable[[str], dict[str, str]] = lambda url: {}  # of a user of this agent, by their place in HOME
    streams: bool = True  # whether it asks its model for an answer in pieces
    asks: bool = True  # whether it asks before it runs a command
    slow: bool = False  # whether its start takes long
    deviates: frozenset[str] = frozenset()  # checks of `ostler agents probe` that it fails
    at_times: frozenset[str] = frozenset()  # those that it fails or passes, as time will have it

    def agent_settings(self) -> dict[str, Any]:
        return {"acp_server": self.key, **self.settings}

    def put_files(self, url: str, home: Path) -> None:
        """Write the user's files."""
        for place, content in self.files(url).items():
            path = home / place
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_text(content)


async def install(agent: RealAgent, prefix: Path) -> None:
    """Install it as a server would, unless it is there. A custom one is there already."""
    if agent.settings.get("acp_server") == "custom":
        return
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


def _opencode_files(_: str) -> dict[str, str]:
    """As of a second start: at its first one it gets its package for plugins from npm, tens of megabytes and
    two seconds of the processor, into an empty home. It looks only whether the lock names the package."""
    locked = {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}
    place = ".config/opencode"
    return {
        f"{place}/package-lock.json": json.dumps(locked),
        f"{place}/node_modules/.package-lock.json": "{}",
    }


CLAUDE_CODE = RealAgent(
    "claude-code",
    lambda url: {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url},
    settings={"acp_session_mode": "default"},
    keyless=lambda url: {"ANTHROPIC_BASE_URL": url},
    at_times=frozenset({"exit"}),  # a helper outlives it, for a moment on a busy machine
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
    at_times=frozenset({"session/load"}),  # unless a minute has just begun
)
OPENCODE = RealAgent(
    "opencode",
    _opencode,
    settings={"acp_model": "local/test-model"},
    keyless=lambda url: _opencode(url, None),  # the model API refuses: the agent itself needs no key
    files=_opencode_files,
)

REAL_AGENTS = {agent.key: agent for agent in (CLAUDE_CODE, CODEX, GEMINI_CLI, OPENCODE)}


def _vibe(url: str) -> dict[str, str]:
    provider = {
        "name": "local",
        "api_base": f"{url}/v1",
        "api_key_env_var": "MISTRAL_API_KEY",
        "backend": "generic",
    }
    return {
        "MISTRAL_API_KEY": KEY,
        "VIBE_PROVIDERS": json.dumps([provider]),
        "VIBE_MODELS": json.dumps([{"name": "test-model", "provider": "local", "alias": "test-model"}]),
        "VIBE_ACTIVE_MODEL": "test-model",
    }


def _cline(url: str) -> dict[str, str]:
    settings = {"provider": "openai-compatible", "model": "test-model", "baseUrl": f"{url}/v1", "apiKey": KEY}
    entry = {"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
    providers = {"version": 1, "modes": {}, "providers": {"openai-compatible": entry}}
    return {
        "CLINE_API_KEY": KEY,
        "CLINE_PROVIDER": "openai-compatible",
        "CLINE_MODEL": "test-model",
        "CLINE_PROVIDERS_JSON": json.dumps(providers),
    }


def _openhands_cli(url: str) -> dict[str, str]:
    llm = {"model": "openai/test-model", "api_key": KEY, "base_url": f"{url}/v1", "usage_id": "agent"}
    settings = {"kind": "Agent", "llm": {**llm, "num_retries": 1}, "tools": [{"name": "terminal"}]}
    return {"OPENHANDS_AGENT_SETTINGS_JSON": json.dumps(settings)}


def _copilot(url: str) -> dict[str, str]:
    return {
        "COPILOT_PROVIDER_BASE_URL": f"{url}/v1",
        "COPILOT_PROVIDER_API_KEY": KEY,
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_MODEL": "test-model",
        "COPILOT_OFFLINE": "true",
    }


QWEN_CODE = RealAgent(
    "qwen-code",
    lambda url: {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": "test-model"},
)
KIMI_CODE = RealAgent("kimi-code", lambda url: {"KIMI_API_KEY": KEY, "KIMI_BASE_URL": f"{url}/v1"})
MISTRAL_VIBE = RealAgent(
    "mistral-vibe",
    _vibe,
    # It goes on streaming for seconds after a cancel, and is busy.
    at_times=frozenset({"session/cancel", "after a cancel", "exit"}),
)
FAST_AGENT = RealAgent(
    "fast-agent",
    lambda url: {
        "GENERIC_API_KEY": KEY,
        "GENERIC_BASE_URL": f"{url}/v1",
        "FAST_AGENT_MODEL": "generic.test-model",
    },
    asks=False,
)
CLINE = RealAgent("cline", _cline, deviates=frozenset({"exit"}))  # its hub stays
COPILOT = RealAgent("copilot", _copilot)
OPENHANDS_CLI = RealAgent(
    "openhands-cli",
    _openhands_cli,
    slow=True,
    streams=False,
    deviates=frozenset({"cut-off call", "exit"}),  # its tmux server stays
    # A cancel does not end what its model is asked: the turn ends in time, or too late.
    at_times=frozenset({"session/cancel", "after a cancel"}),
)


def _pi_files(url: str) -> dict[str, str]:
    provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": KEY}
    models = {"providers": {"local": {**provider, "models": [{"id": "test-model"}]}}}
    settings = {"defaultProvider": "local", "defaultModel": "test-model"}
    return {".pi/agent/models.json": json.dumps(models), ".pi/agent/settings.json": json.dumps(settings)}


PI = RealAgent(
    "pi",
    lambda url: {},
    files=_pi_files,
    asks=False,
    at_times=frozenset({"exit"}),  # the agent behind the adapter stays, or ends with it
)

MORE_AGENTS = {
    agent.key: agent
    for agent in (QWEN_CODE, KIMI_CODE, MISTRAL_VIBE, FAST_AGENT, CLINE, COPILOT, OPENHANDS_CLI, PI)
}

BUILT_IN = RealAgent("openhands", lambda url: {})
"""Only what tests of all agents need: `test_builtin` starts it in its own way."""

AUGGIE = RealAgent("auggie", lambda url: {}, deviates=frozenset({"session/new"}))

WITHOUT_A_MODEL = {AUGGIE.key: AUGGIE}
"""Those that speak to their maker's service alone: they can be started, and no more."""
