"""The Python SDK talks with a real agent, whose model is a script on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.interop.model_api.server import ModelApi
from tests.interop.peer_environment import PeerEnvironment
from tests.interop.real_agents import CODEX, install
from tests.support.server import running_server

pytestmark = pytest.mark.clients

SCRIPT = Path(__file__).resolve().parent / "python" / "real.py"


async def test_the_sdk_with_codex(
    peer: PeerEnvironment, agents_prefix: Path, model_api: ModelApi, tmp_path: Path
) -> None:
    await install(CODEX, agents_prefix)
    state = tmp_path / "state"
    state.mkdir()
    (state / "agents").symlink_to(agents_prefix)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with running_server(tmp_path) as server:
        await server.rest.put_secrets(CODEX.secrets(model_api.url))
        info = await server.rest.create(workspace, CODEX.agent_settings())

        def run() -> list[dict[str, object]]:
            arguments = (server.url, str(workspace), info["id"], "say one please", "say two please")
            return peer.run(SCRIPT, *arguments, home=tmp_path / "client-home")

        (result,) = await trio.to_thread.run_sync(run)
    answers = result["answers"]
    assert isinstance(answers, list)
    assert ["ECHO: say one please" in answers[0], "ECHO: say two please" in answers[1]] == [True, True], (
        answers
    )
    assert result["status"] == "finished"
