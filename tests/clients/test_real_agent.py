"""The three clients talk with a real agent, whose model is a script on loopback.

Where the agent is not installed they are skipped; in CI it is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from supervisor.agents.catalog import load_catalog
from supervisor.agents.install.install import DONE_FILE
from tests.clients.canvas_package import CanvasPackage
from tests.clients.typescript_script import PACKAGE
from tests.clients.walk import run_walk
from tests.interop.model_api.server import ModelApi
from tests.interop.npm import Packages
from tests.interop.peer_environment import PeerEnvironment
from tests.interop.real_agents import CODEX, install
from tests.interop.test_builtin import llm
from tests.support.server import ServerProcess, running_server

pytestmark = pytest.mark.clients

HERE = Path(__file__).resolve().parent
PROMPTS = ("say one please", "say two please")
TYPESCRIPT_SECONDS = 300  # it takes some seconds


@pytest.fixture
async def server(agents_prefix: Path, model_api: ModelApi, tmp_path: Path) -> AsyncIterator[ServerProcess]:
    """A server that has Codex, and its key."""
    there = any(agents_prefix.glob(f"{CODEX.key}/*/{DONE_FILE}"))
    if not there and os.environ.get("CI") != "true":
        pytest.skip(f"{CODEX.key} is not installed: see OSTLER_TEST_AGENTS in tests/interop/README.md")
    await install(CODEX, agents_prefix)
    state = tmp_path / "state"
    state.mkdir()
    (state / "agents").symlink_to(agents_prefix)
    async with running_server(tmp_path) as running:
        await running.rest.put_secrets(CODEX.secrets(model_api.url))
        yield running


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    directory = tmp_path / "workspace"
    directory.mkdir()
    return directory


def said(answers: object) -> list[str]:
    """What the model's script makes of each prompt, as far as the answers have it."""
    assert isinstance(answers, list)
    assert len(answers) == len(PROMPTS)
    return [
        f"ECHO: {prompt}"
        for prompt, answer in zip(PROMPTS, answers, strict=True)
        if f"ECHO: {prompt}" in answer
    ]


EXPECTED = [f"ECHO: {prompt}" for prompt in PROMPTS]


async def test_the_sdk_with_codex(
    peer: PeerEnvironment, server: ServerProcess, workspace: Path, tmp_path: Path
) -> None:
    info = await server.rest.create(workspace, CODEX.agent_settings())

    def run() -> list[dict[str, object]]:
        arguments = (server.url, str(workspace), info["id"], *PROMPTS)
        return peer.run(HERE / "python" / "real.py", *arguments, home=tmp_path / "client-home")

    (result,) = await trio.to_thread.run_sync(run)
    assert said(result["answers"]) == EXPECTED
    assert result["status"] == "finished"


async def test_the_typescript_client_with_codex(
    typescript_packages: Packages, server: ServerProcess, workspace: Path, tmp_path: Path
) -> None:
    package = typescript_packages.directory / PACKAGE
    script = str(HERE / "typescript" / "real.mjs")
    # This client has to name a command, as it had with the peer: the one by which people start the agent.
    settings = {**CODEX.agent_settings(), "acp_command": load_catalog()[CODEX.key].command}
    arguments = [str(package), server.url, str(workspace), json.dumps(settings), *PROMPTS]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [typescript_packages.node, script, *arguments],
            capture_output=True,
            text=True,
            timeout=TYPESCRIPT_SECONDS,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            check=False,
        )

    done = await trio.to_thread.run_sync(run)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    result = json.loads(done.stdout)
    assert said(result["answers"]) == EXPECTED
    assert result["statuses"] == ["finished", "finished"]
    assert {"ActionEvent", "MessageEvent", "ObservationEvent", "StreamingDeltaEvent"} <= set(result["kinds"])


async def activate(server: ServerProcess, name: str, profile: dict[str, object]) -> None:
    """The UI starts conversations by the active profile."""
    await server.rest.call("POST", f"/api/agent-profiles/{name}", profile)
    listed = await server.rest.call("GET", "/api/agent-profiles")
    (identity,) = [one["id"] for one in listed["profiles"] if one["name"] == name]
    await server.rest.call("POST", f"/api/agent-profiles/{identity}/activate", {})


async def test_the_web_ui_with_codex(
    canvas: CanvasPackage, chromium: str, server: ServerProcess, tmp_path: Path
) -> None:
    await activate(server, CODEX.key, {"agent_kind": "acp", **CODEX.agent_settings()})
    steps = await trio.to_thread.run_sync(
        lambda: run_walk(canvas, chromium, server.url, tmp_path, {}, ["real agent"])
    )
    assert [step["error"] for step in steps] == [None, None, None], steps
    assert [step["value"] for step in steps] == ["finished", "finished", len(PROMPTS)]


BROWSER = (
    "click",
    "close_tab",
    "get_content",
    "get_state",
    "get_storage",
    "go_back",
    "list_tabs",
    "navigate",
    "scroll",
    "set_storage",
    "start_recording",
    "stop_recording",
    "switch_tab",
    "type",
)
OTHERS = (
    "canvas_ui_control",
    "file_editor",
    "finish",
    "launch_child_conversation",
    "switch_llm",
    "task_tracker",
    "terminal",
    "think",
)
"""What the model gets before the peer's server 1.58.2, too, with the same profile."""


async def test_the_web_ui_gives_the_built_in_agent_the_browser(
    canvas: CanvasPackage, chromium: str, agents_prefix: Path, model_api: ModelApi, tmp_path: Path
) -> None:
    """It does so where `usable_tools` says that the server can use one."""
    if not any(agents_prefix.glob(f"openhands/*/{DONE_FILE}")) and os.environ.get("CI") != "true":
        pytest.skip("openhands is not installed: see OSTLER_TEST_AGENTS in tests/interop/README.md")
    async with running_server(tmp_path, {"OSTLER_AGENTS_DIR": str(agents_prefix)}) as server:
        told = await server.rest.call("GET", "/server_info")
        assert "browser_tool_set" in told["usable_tools"]
        model = {"llm": llm(model_api.url), "include_secrets": True}
        await server.rest.call("POST", "/api/profiles/test", model)
        await activate(server, "built-in", {"agent_kind": "openhands", "llm_profile_ref": "test"})
        steps = await trio.to_thread.run_sync(
            lambda: run_walk(canvas, chromium, server.url, tmp_path, {}, ["real agent"])
        )
    assert [step["error"] for step in steps] == [None, None, None], steps
    offered = sorted(tool.name for tool in model_api.last_saying(PROMPTS[0]).request.tools)
    assert offered == sorted([*(f"browser_{each}" for each in BROWSER), *OTHERS])
