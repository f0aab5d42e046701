"""The model API, the installed agents, the peer's environment: made once per test session."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from supervisor.agents.catalog import load_catalog
from supervisor.agents.errors import PythonMissing
from supervisor.agents.install.install import ensure_installed
from supervisor.conversations.state.deadlines import Deadlines
from tests.interop.authorization import Packages
from tests.interop.authorization import install as install_authorization_server
from tests.interop.builtin_program import PYTHON, Program, Session, running
from tests.interop.custom_agents.installed import CustomAgents
from tests.interop.kept import Shelf, kept, shelf
from tests.interop.model_api.server import ModelApi, running_model_api
from tests.interop.peer_environment import PeerEnvironment, find_python
from tests.interop.real_agents import RealAgent, install
from tests.interop.recording import Recording
from tests.interop.talk import Open, Talk
from tests.interop.warm_peer import warm
from tests.support.once import one_at_a_time
from tests.support.server import ServerProcess, running_server
from tests.support.sockets import collect

CACHE = Path(__file__).resolve().parents[2] / ".cache"


@pytest.fixture(scope="session")
def _model_api() -> Iterator[ModelApi]:
    with running_model_api() as api:
        yield api


@pytest.fixture
def model_api(_model_api: ModelApi) -> ModelApi:
    """The session's model API, with nothing forced and nothing recorded."""
    _model_api.key = _model_api.status = None
    _model_api.calls.clear()
    _model_api.answers.clear()
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
    """Everything the scenarios of this session journalled and sent; of several sessions and processes, where
    they are given the same OSTLER_TEST_RECORDING."""
    given = os.environ.get("OSTLER_TEST_RECORDING")
    return Recording(Path(given) if given else tmp_path_factory.mktemp("recording"))


@pytest.fixture(scope="session")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerEnvironment]:
    """An environment of its own with the peer's SDK, imported once."""
    python = find_python()
    if python is None:
        pytest.skip("the peer's SDK needs Python 3.12 or 3.13: none on PATH, none below ~/.pyenv/versions")
    with one_at_a_time(CACHE / "peer"):
        environment = PeerEnvironment.prepare(python, CACHE / "peer")
    with warm(environment, tmp_path_factory.mktemp("peer")) as peer:
        yield peer


@pytest.fixture(scope="session")
def builtin_python(agents_prefix: Path) -> Path:
    """The Python of the built-in agent's environment, installed as a server would; or one that is named."""
    given = os.environ.get(PYTHON)
    if given:
        return Path(given)
    ensure = partial(ensure_installed, progress=print, seconds=Deadlines().install)
    try:
        launch = trio.run(ensure, load_catalog()["openhands"], agents_prefix)
    except PythonMissing as missing:
        pytest.skip(str(missing))
    return Path(launch.argv[0])


@pytest.fixture(scope="session")
def program(builtin_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The built-in agent's program alone, one process for all its tests."""
    with running(builtin_python, tmp_path_factory.mktemp("program")) as one:
        yield one
        assert one.end() == 0


@pytest.fixture
def session(program: Program, tmp_path: Path) -> Iterator[Session]:
    """A session of the built-in agent's program, for one test."""
    one = Session(program, tmp_path)
    yield one
    one.close()


@pytest.fixture
def server_environment() -> dict[str, str]:
    """More variables for the server, where a module says so."""
    return {}


@pytest.fixture
async def agents_server(
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
    agents_server: ServerProcess,
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
        agent.put_files(model_api.url, agents_server.home)
        await agents_server.rest.put_secrets((agent.secrets if with_key else agent.keyless)(model_api.url))
        workspace = tmp_path / f"workspace-{agent.key}"
        workspace.mkdir(exist_ok=True)
        info = await agents_server.rest.create(workspace, agent.agent_settings(), **fields)
        one = Talk(agents_server, agent, info["id"], workspace, model_api)
        async with collect(agents_server.events_socket(one.id)) as one.socket:
            yield one
            if not one.deleted:
                await recording.keep(request.node.name, agents_server.rest, one.id, one.socket)

    return opened


@pytest.fixture(scope="session")
def _shelf(agents_prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    with shelf(tmp_path_factory.mktemp, agents_prefix) as one:
        yield one


@pytest.fixture
def keep(_shelf: Shelf, model_api: ModelApi, recording: Recording, request: pytest.FixtureRequest) -> Open:
    """Gives conversations that several tests share: `async with keep(agent, asking=True) as one`."""

    def given(agent: RealAgent, *, asking: bool = False) -> AbstractAsyncContextManager[Talk]:
        return kept(_shelf, agent, model_api, recording, request.node.name, asking=asking)

    return given


@pytest.fixture
def custom(model_api: ModelApi) -> CustomAgents:
    """Installs agents that are not in the catalogue: `await custom(kimi_cli)`."""
    return CustomAgents(CACHE / "custom-agents", model_api.url)


@pytest.fixture(scope="session")
def authorization_packages() -> Packages:
    """npm's oidc-provider."""
    with one_at_a_time(CACHE / "authorization-server"):
        return install_authorization_server(CACHE / "authorization-server")
