"""Agents that are not in the catalogue: older ones, and those that are given up. They are driven as a user
drives one, by a command of their own; each is locked by hash beside this module, and kept between sessions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.interop.npm import install as install_from_npm
from tests.interop.peer_environment import PeerEnvironment, find_python
from tests.interop.real_agents import KEY, RealAgent
from tests.support.once import one_at_a_time
from tests.support.packages import fill

HERE = Path(__file__).resolve().parent

FAR = 4_102_444_800
"""When the login ends that Kimi CLI wants to see: in 2100."""


def _custom(*command: str, **settings: Any) -> dict[str, Any]:
    return {"acp_server": "custom", "acp_command": list(command), **settings}


# -- Zed's codex-acp: its methods to log in are of type env_var ---------------------------------------------


def codex_of_zed(cache: Path, url: str) -> RealAgent:
    """Its program is called as Codex' adapter in the catalogue is."""
    found = install_from_npm(HERE / "codex-acp-of-zed", cache / "codex-acp-of-zed")
    (program,) = found.directory.glob("node_modules/@zed-industries/codex-acp-*/bin/codex-acp")
    config = {"model": "gpt-5.5", "openai_base_url": f"{url}/v1"}
    options = [word for name, value in config.items() for word in ("-c", f'{name}="{value}"')]
    return RealAgent(
        "codex-acp-of-zed", lambda _: {"OPENAI_API_KEY": KEY}, settings=_custom(str(program), *options)
    )


def claude_of_before(cache: Path, url: str) -> RealAgent:
    """claude-agent-acp 0.49.0."""
    found = install_from_npm(HERE / "claude-agent-acp-of-before", cache / "claude-agent-acp-of-before")
    program = found.directory / "node_modules/@agentclientprotocol/claude-agent-acp/dist/index.js"
    return RealAgent(
        "claude-agent-acp-of-before",
        lambda url: {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url},
        settings=_custom(found.node, str(program), acp_session_mode="default"),
    )


# -- the old Kimi CLI ----------------------------------------------------------------------------------------


def _kimi_files(url: str) -> dict[str, str]:
    login = {
        "access_token": "x",
        "refresh_token": "y",
        "expires_at": FAR,
        "scope": "",
        "token_type": "Bearer",
    }
    config = f"""default_model = "local"
[models.local]
provider = "local"
model = "test-model"
max_context_size = 100000
[providers.local]
type = "kimi"
base_url = "{url}/v1"
api_key = "{KEY}"
"""
    return {".kimi/credentials/kimi-code.json": json.dumps(login), ".kimi/config.toml": config}


def _kimi_environment(cache: Path) -> PeerEnvironment:
    python = find_python(("3.13",))  # it does not start on some versions of 3.12
    if python is None:
        pytest.skip("Kimi CLI needs Python 3.13: none on PATH, none below ~/.pyenv/versions")
    return PeerEnvironment.prepare(python, cache / "kimi-cli", HERE / "kimi-cli" / "requirements.txt")


def kimi_cli(cache: Path, url: str) -> RealAgent:
    """The last version that works. Its program is called as Kimi Code's in the catalogue is."""
    program = _kimi_environment(cache).python.parent / "kimi"
    return RealAgent("kimi-cli", lambda _: {}, settings=_custom(str(program), "acp"), files=_kimi_files)


def kimi_cli_at_its_end(cache: Path, url: str) -> RealAgent:
    """The version after it, which says that it is over, and ends. It has what the other one needs."""
    environment = _kimi_environment(cache)
    target = environment.python.parent.parent / "last"
    if not target.exists():
        fill(environment.python, HERE / "kimi-cli" / "last.txt", "--target", str(target))
    code = f"import sys; sys.path.insert(0, {str(target)!r}); sys.argv[0] = 'kimi'; "
    command = (str(environment.python), "-c", f"{code}from kimi_cli.__main__ import main; main()", "acp")
    return RealAgent("kimi-cli-at-its-end", lambda _: {}, settings=_custom(*command), files=_kimi_files)


def gemini_cli(agents: Path, url: str) -> RealAgent:
    """The catalogue's Gemini CLI, as a user gives it by a command. `agents`: where it is installed."""
    (script,) = agents.glob("gemini-cli/*/node_modules/@google/gemini-cli/bundle/gemini.js")
    return RealAgent(
        "gemini-cli-by-command",
        lambda url: {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": url},
        settings=_custom("node", str(script), "--acp", "--skip-trust", acp_session_mode="default"),
        files=lambda _: {
            ".gemini/settings.json": '{"security": {"auth": {"selectedType": "gemini-api-key"}}}'
        },
        forgets_within_the_minute=True,
    )


# -- agents that ask in ways of their own --------------------------------------------------------------------


def _python_of(name: str, cache: Path) -> Path:
    """The Python of an agent of PyPI, installed."""
    python = find_python(("3.13",))
    if python is None:
        pytest.skip(f"{name} is locked for Python 3.13: none on PATH, none below ~/.pyenv/versions")
    return PeerEnvironment.prepare(python, cache / name, HERE / name / "requirements.txt").python


def hermes(cache: Path, url: str) -> RealAgent:
    """Hermes 0.19.0, the last version of PyPI."""
    program = _python_of("hermes", cache).parent / "hermes-acp"
    model = f"""model:
  default: test-model
  provider: custom
  base_url: {url}/v1
  api_key: {KEY}
  context_length: 200000
"""
    return RealAgent(
        "hermes",
        lambda _: {"OPENAI_API_KEY": KEY},
        settings=_custom(str(program)),
        files=lambda _: {".hermes/config.yaml": model},
    )


def deepagents(cache: Path, url: str) -> RealAgent:
    """Deep Agents' own server with an agent that asks."""
    python = _python_of("deepagents", cache)
    return RealAgent(
        "deepagents",
        lambda url: {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{url}/v1"},
        settings=_custom(str(python), str(HERE / "deepagents" / "agent.py")),
    )


def iac_code(cache: Path, url: str) -> RealAgent:
    """iac-code 0.16.0, which takes any option for a yes."""
    program = _python_of("iac-code", cache).parent / "iac-code"
    return RealAgent(
        "iac-code",
        lambda url: {
            "IAC_CODE_PROVIDER": "openai_compatible",
            "IAC_CODE_API_KEY": KEY,
            "IAC_CODE_MODEL": "test-model",
            "IAC_CODE_BASE_URL": f"{url}/v1",
            "IAC_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        settings=_custom(str(program), "acp"),
    )


# -- agents that greet, and that put the cause of an error apart ---------------------------------------------


def gptme(cache: Path, url: str) -> RealAgent:
    """gptme 0.35.1, which greets in each new session."""
    program = _python_of("gptme", cache).parent / "gptme-acp"
    return RealAgent(
        "gptme",
        lambda url: {
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": f"{url}/v1",
            "GPTME_MODEL": "local/test-model",
            "GPTME_TIKTOKEN_TIMEOUT": "0",  # else it fetches a tokenizer
        },
        settings=_custom(str(program)),
    )


def nooa(cache: Path, url: str) -> RealAgent:
    """NVIDIA's NOOA 0.0.10, whose errors say `Internal error`, and the cause in their data."""
    program = _python_of("nooa", cache).parent / "nooa-acp"
    return RealAgent(
        "nooa",
        lambda url: {
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": f"{url}/v1",
            "NOOA_MODEL": "openai/test-model",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it fetches a price list
        },
        settings=_custom(str(program)),
    )


Make = Callable[[Path, str], RealAgent]
"""From a directory for what is installed, and the model API's URL."""


@attrs.frozen
class CustomAgents:
    """Installs them, one at a time."""

    cache: Path
    url: str

    async def __call__(self, make: Make) -> RealAgent:
        """The agent, installed. In a thread."""
        return await trio.to_thread.run_sync(self._install, make)

    def _install(self, make: Make) -> RealAgent:
        with one_at_a_time(self.cache):
            return make(self.cache, self.url)
