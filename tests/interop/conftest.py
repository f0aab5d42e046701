"""The model API, the installed agents, the peer's environment: made once per test session."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
if str(TESTS) not in sys.path:
    sys.path.append(str(TESTS))

from interop.authorization import Packages  # noqa: E402 - the path comes first
from interop.authorization import install as install_authorization_server  # noqa: E402
from interop.model_api.server import ModelApi, running_model_api  # noqa: E402
from interop.peer_environment import PeerEnvironment, find_python  # noqa: E402
from interop.real_agents import RealAgent, install  # noqa: E402
from interop.recording import Recording  # noqa: E402
from interop.talk import Open, Talk  # noqa: E402
from support.server import ServerProcess, running_server  # noqa: E402
from support.sockets import collect  # noqa: E402

CACHE = TESTS.parent / ".cache"


@pytest.fixture(scope="session")
def _model_api() -> Iterator[ModelApi]:
    with running_model_api() as api:
        yield api


@pytest.fixture
def model_api(_model_api: ModelApi) -> ModelApi:
    """The session's model API, with nothing forced and nothing recorded."""
    _model_api.key = _model_api.status = None
    _model_api.calls.clear()
    return _model_api


@pytest.fixture(scope="session")
def agents_prefix() -> Path:
    """Where real agents are installed: OSTLER_TEST_AGENTS, or a cache that later sessions share."""
    given = os.environ.get("OSTLER_TEST_AGENTS")
    prefix = Path(given).resolve() if given else CACHE / "agents"
    prefix.mkdir(parents=True, exist_ok=True)
    return prefix


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Everything the scenarios of this session journalled and sent."""
    return Recording(tmp_path_factory.mktemp("recording") / "events.jsonl")


@pytest.fixture(scope="session")
def peer() -> PeerEnvironment:
    """An environment of its own with the peer's SDK."""
    python = find_python()
    if python is None:
        pytest.skip("the peer's SDK needs Python 3.12 or 3.13: none on PATH, none below ~/.pyenv/versions")
    return PeerEnvironment.prepare(python, CACHE / "peer")


@pytest.fixture
def server_environment() -> dict[str, str]:
    """More variables for the server, where a module says so."""
    return {}


@pytest.fixture
async def server(
    tmp_path: Path, agents_prefix: Path, server_environment: dict[str, str]
) -> AsyncIterator[ServerProcess]:
    """A server of the test's own, which finds the agents installed; its HOME is empty."""
    state = tmp_path / "state"
    state.mkdir()
    (state / "agents").symlink_to(agents_prefix)
    async with running_server(tmp_path, server_environment) as running:
        yield running


@pytest.fixture
def talk(
    server: ServerProcess,
    agents_prefix: Path,
    model_api: ModelApi,
    recording: Recording,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Open:
    """Opens conversations: `async with talk(agent, **fields of the start request) as one`."""

    @asynccontextmanager
    async def opened(agent: RealAgent, *, with_key: bool = True, **fields: Any) -> AsyncIterator[Talk]:
        await install(agent, agents_prefix)
        await server.rest.put_secrets((agent.secrets if with_key else agent.keyless)(model_api.url))
        workspace = tmp_path / f"workspace-{agent.key}"
        workspace.mkdir(exist_ok=True)
        info = await server.rest.create(workspace, agent.agent_settings(), **fields)
        one = Talk(server, agent, info["id"], workspace)
        async with collect(server.events_socket(one.id)) as one.socket:
            yield one
            if not one.deleted:
                await recording.keep(request.node.name, server.rest, one.id, one.socket)

    return opened


@pytest.fixture(scope="session")
def authorization_packages() -> Packages:
    """npm's oidc-provider."""
    return install_authorization_server(CACHE / "authorization-server")
