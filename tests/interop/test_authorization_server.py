"""Logins at a certified authorization server (npm's oidc-provider), by real `ostler` processes.

The MCP server is the MCP SDK's, and takes only tokens that were issued for it: it looks at them with the
provider's keys, or asks the provider about them. A refresh token counts once; one that is used again ends the
whole login.

Both servers are shared by the tests that want them with the same options. A command is a process where its
login is what is tested, where several run at once, and beside a server; elsewhere it runs inside the test's
process.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock
from urllib.parse import parse_qs, urlsplit

import attrs
import httpx2
import pytest
import trio

from gateway.cli.mcp import connect as mcp_connect
from supervisor.credentials.store import SecretStore
from supervisor.documents.files import FileDocuments
from supervisor.mcp.logins import LoginStore
from tests.interop.authorization import (
    RESOURCE_SECRET,
    AuthorizationServer,
    Packages,
    authorization_server,
    pages,
)
from tests.support.inside import run_inside
from tests.support.mcp_command import mcp_environment, start_mcp
from tests.support.mcp_helper import helpers_inside
from tests.support.mcp_servers import RealServer, real_server
from tests.support.scripted import ScriptedLog, scripted_command
from tests.support.server import ServerProcess, running_server

if TYPE_CHECKING:
    from mcp import Client

pytestmark = pytest.mark.interop

SECONDS = 60.0
SHORT = 3
"""Seconds of an access token that a test waits to expire."""

CALL = {"a": 20, "b": 3}
ANSWER = "the secret sum is 1023"


@attrs.frozen
class World:
    """The authorization server, the MCP server behind it, and the state directory of Ostler."""

    authorization: AuthorizationServer
    mcp: RealServer
    state: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return start_mcp(self.state, *arguments)

    def process(self, *arguments: str, status: int = 0) -> str:
        """Run `ostler mcp` as a process; what it said, errors last."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == status, (out, err, self.authorization.events)
        return out + err

    def run(self, *arguments: str, status: int = 0) -> str:
        """The same inside this process, its helper too."""
        with helpers_inside(logins=True):
            done = run_inside(("mcp", *arguments), mcp_environment(self.state))
        assert done.returncode == status, (done, self.authorization.events)
        return done.stdout + done.stderr

    def add(self, how: Callable[..., str] | None = None) -> None:
        (how or self.run)("add", "calc", "--transport", "http", "--auth", "oauth", self.mcp.url)

    def configure(self, **authentication: Any) -> None:
        auth = {"strategy": "oauth2", "authentication": {"type": "oauth", **authentication}}
        entry = {"transport": "http", "url": self.mcp.url, "auth": auth}
        (self.state / "mcp.json").write_text(json.dumps({"mcpServers": {"calc": entry}}))

    def log_in(self) -> str:
        """Log in inside this process; the address at which that began."""
        told: list[str] = []
        pages_seen: list[Future[httpx2.Response]] = []
        say = mcp_connect._say

        def heard(text: str) -> None:
            say(text)
            if address := ADDRESS.search(text):
                told.append(address[1])
                pages_seen.append(browser.submit(lambda: httpx2.get(pages(told[-1]))))

        with ThreadPoolExecutor(1) as browser, mock.patch.object(mcp_connect, "_say", heard):
            out = self.run("login", "calc")
        assert "logged in to calc, which has 2 tools\n" in out
        ((url,), (page,)) = told, [each.result() for each in pages_seen]
        assert (page.status_code, "logged in" in page.text) == (200, True)
        return url

    def log_in_by_process(self) -> str:
        """Log in with the command as people run it; the address at which that began."""
        process = self.start("login", "calc")
        url = told(process)
        page = httpx2.get(pages(url))
        assert (page.status_code, "logged in" in page.text) == (200, True)
        out, err = process.communicate(timeout=SECONDS)
        assert out == "logged in to calc, which has 2 tools\n", (err, self.authorization.events)
        return url

    def kept(self) -> dict[str, Any]:
        """The login as it is kept."""

        async def read() -> dict[str, Any]:
            store = LoginStore(FileDocuments(self.state), (await SecretStore.open(self.state, {})).cipher)
            return store.get(self.mcp.url) or {}

        return trio.run(read)

    def grants(self, kind: str = "refresh_token") -> list[dict[str, Any]]:
        return self.authorization.happened("granted", type=kind)


ADDRESS = re.compile(r"^ +(http\S+)", re.MULTILINE)


def told(process: subprocess.Popen[str]) -> str:
    """The address that a person is told to open."""
    assert process.stderr is not None
    said = ""
    while line := process.stderr.readline():
        said += line
        if match := ADDRESS.search(line):
            return match[1]
    raise AssertionError(said)


Options = dict[str, Any]


@pytest.fixture
def options() -> Options:
    return {}


Serve = Callable[[Options], tuple[AuthorizationServer, RealServer]]


@pytest.fixture(scope="module")
def serve(authorization_packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Both servers with these options, one pair for all who want the same."""
    pairs: dict[str, tuple[AuthorizationServer, RealServer]] = {}
    with ExitStack() as stack:

        def get(options: Options) -> tuple[AuthorizationServer, RealServer]:
            key = json.dumps(options)
            if key not in pairs:
                authorization = stack.enter_context(authorization_server(authorization_packages, **options))
                more = ["--introspect", RESOURCE_SECRET] if options.get("opaque") else []
                directory = tmp_path_factory.mktemp("resource")
                mcp = real_server("resource", directory, "--issuer", authorization.issuer, *more)
                pairs[key] = authorization, stack.enter_context(mcp)
            return pairs[key]

        yield get


@pytest.fixture
def world(serve: Serve, tmp_path: Path, options: Options) -> Iterator[World]:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    authorization, mcp = serve(options)
    mcp.log.unlink(missing_ok=True)
    with authorization.of_one_test():
        yield World(authorization, mcp, state)


def given(**options: Any) -> pytest.MarkDecorator:
    """The authorization server's options."""
    return pytest.mark.parametrize("options", [options], ids=[",".join(options)])


@pytest.mark.parametrize(
    "options",
    [{}, {"opaque": True}, {"path": "/tenant/one"}],
    ids=["keys", "introspection", "issuer with a path"],
)
def test_a_login_in_a_browser(world: World) -> None:
    world.add()
    assert "ostler mcp login calc" in world.run("test", "calc", status=1)
    query = parse_qs(urlsplit(world.log_in_by_process()).query)
    assert query["resource"] == [world.mcp.url]
    assert query["code_challenge_method"] == ["S256"]
    assert set(query["scope"][0].split()) == {"tools", "offline_access"}
    assert world.authorization.happened("registered")[0]["method"] == "none"
    (grant,) = world.grants("authorization_code")
    assert grant["resource"] == world.mcp.url
    assert grant["refresh"]
    assert "2 tools" in world.run("test", "calc")
    assert {line.split()[1] for line in world.mcp.lines("took")} == {grant["access"]}
    kept = (world.state / "mcp-logins.json").read_text()
    assert grant["access"] not in kept
    assert grant["refresh"] not in kept


def test_a_login_that_is_pasted(world: World) -> None:
    """The provider names itself in its answer, so a code without that name is not enough."""
    world.add()
    process = world.start("login", "calc", "--no-browser", "--json")
    back = pages(told(process))
    assert parse_qs(urlsplit(back).query)["iss"] == [world.authorization.issuer]
    assert process.stdin is not None
    process.stdin.write(f"{parse_qs(urlsplit(back).query)['code'][0]}\n{back}\n")
    process.stdin.flush()
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    assert json.loads(out)["logged_in"] is True
    assert "whole address" in err


@pytest.mark.guarantee(name="mcp-servers")
def test_an_answer_in_the_name_of_another_is_none(world: World) -> None:
    world.add()
    process = world.start("login", "calc")
    back = pages(told(process))
    wrong = re.sub("iss=[^&]+", "iss=http%3A%2F%2Fevil.example", back)
    httpx2.get(wrong)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "iss" in err
    assert world.grants("authorization_code") == []


def test_a_login_that_is_refused(world: World) -> None:
    world.add()
    process = world.start("login", "calc")
    assert "refused" in httpx2.get(pages(told(process), consent=False)).text
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "access_denied" in err
    assert not (world.state / "mcp-logins.json").exists()


@pytest.mark.parametrize(
    "options", [{"methods": ["client_secret_basic"]}, {"methods": ["client_secret_post"]}], ids=str
)
def test_a_client_that_has_to_authenticate(world: World, options: Options) -> None:
    """The provider takes no public clients: the client is registered with a secret."""
    world.add()
    world.log_in()
    assert world.authorization.happened("registered")[0]["method"] == options["methods"][0]
    expire(world)
    assert "2 tools" in world.run("test", "calc")
    assert len(world.grants()) == 1
    assert world.authorization.happened("grant refused") == []


def test_scopes_that_are_configured_are_asked_for(world: World) -> None:
    world.configure(scopes=["tools", "other"])
    query = parse_qs(urlsplit(world.log_in()).query)
    assert set(query["scope"][0].split()) == {"tools", "other", "offline_access"}
    assert set(world.grants("authorization_code")[0]["scope"].split()) >= {"tools", "other"}


def test_a_registration_that_the_provider_has_forgotten_is_made_anew(world: World) -> None:
    world.add()
    world.log_in()
    expire(world, client="of-another-day")
    for _ in range(2):
        assert "has expired; run `ostler mcp login calc`" in world.run("test", "calc", status=1)
    assert [each["error"] for each in world.authorization.happened("grant refused")] == ["invalid_client"]
    world.log_in()
    assert len(world.authorization.happened("registered")) == 2
    assert "2 tools" in world.run("test", "calc")


def expire(world: World, client: str | None = None, **tokens: str) -> None:
    """Let the access token that is kept have expired."""
    state = world.kept()
    if client is not None:
        state["client_info"]["client_id"] = client
    state["token_expires_at"] = time.time() - 1
    state["tokens"].update(tokens)

    async def write() -> None:
        LoginStore(FileDocuments(world.state), (await SecretStore.open(world.state, {})).cipher).put(
            world.mcp.url, state
        )

    trio.run(write)


def test_every_renewal_keeps_the_new_refresh_token(world: World) -> None:
    world.add()
    world.log_in()
    for count in (1, 2, 3):
        expire(world)
        assert "2 tools" in world.run("test", "calc")
        assert len(world.grants()) == count
        tokens = world.kept()["tokens"]
        assert (tokens["access_token"], tokens["refresh_token"]) == (
            world.grants()[-1]["access"],
            world.grants()[-1]["refresh"],
        )
        assert world.grants()[-1]["resource"] == world.mcp.url
    assert len({each["refresh"] for each in world.grants()}) == 3
    assert world.authorization.happened("grant refused") == []


def test_commands_at_once_use_a_refresh_token_once(world: World) -> None:
    """A refresh token that is used twice ends the login: two processes must not."""
    world.add()
    world.log_in()
    expire(world)
    processes = [world.start("test", "calc") for _ in range(4)]
    for process in processes:
        _, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, (err, world.authorization.events)
    assert len(world.grants()) == 1
    assert world.authorization.happened("revoked") == []


def test_a_provider_that_is_down_at_a_renewal(world: World) -> None:
    world.add()
    world.log_in()
    expire(world)
    world.authorization.down()
    said = world.run("test", "calc", status=1)
    assert world.authorization.issuer in said
    assert "cannot be reached" in said
    assert "has expired" not in said
    world.authorization.up()
    assert "2 tools" in world.run("test", "calc")


def test_a_provider_that_is_down_at_a_login(world: World) -> None:
    world.add()
    world.authorization.down()
    said = world.run("login", "calc", status=1)
    assert world.authorization.issuer in said
    assert "cannot be reached" in said


@pytest.mark.guarantee(name="mcp-servers")
def test_a_logout_ends_the_login_at_the_provider(world: World) -> None:
    world.add()
    world.log_in()
    access = world.grants("authorization_code")[0]["access"]
    refresh = world.kept()["tokens"]["refresh_token"]
    assert world.run("logout", "calc") == "logged out of calc\n"
    assert world.authorization.happened("revoked")
    assert "ostler mcp login calc" in world.run("test", "calc", status=1)
    world.log_in()
    # What was given out before counts no more.
    expire(world, access_token=access, refresh_token=refresh)
    assert "has expired; run `ostler mcp login calc`" in world.run("test", "calc", status=1)


def test_a_logout_without_the_provider_says_so(world: World) -> None:
    world.add()
    world.log_in()
    world.authorization.down()
    said = world.run("logout", "calc")
    assert "logged out of calc" in said
    assert "could not revoke" in said
    assert world.kept() == {}


# -- through a server -------------------------------------------------------------------------------------


@given(lifetime=SHORT, opaque=True)
async def test_a_token_is_renewed_in_mid_conversation(world: World, tmp_path: Path) -> None:
    """One MCP session of the agent outlives its token, time after time, and the provider's absence."""
    from mcp import Client  # takes most of a second, and every process collects this module

    await trio.to_thread.run_sync(world.add, world.process)
    await trio.to_thread.run_sync(world.log_in_by_process)
    log = ScriptedLog(tmp_path / "agent.jsonl")
    async with running_server(tmp_path, {"OSTLER_KEYRING": "off"}) as server:
        conversation = await opened(server, log, tmp_path)
        ((entry,),) = [each["params"]["mcpServers"] for each in log.received("session/new")]
        assert entry["headers"] == []
        assert entry["url"] != world.mcp.url
        with trio.fail_after(SECONDS):
            async with Client(entry["url"]) as agent:
                for count in (1, 2):
                    assert await called(agent) == ANSWER
                    await trio.sleep(SHORT)
                    assert await called(agent) == ANSWER
                    assert len(world.grants()) >= count
                await trio.to_thread.run_sync(world.authorization.down)
                await trio.sleep(SHORT + 1)
                refused = await asked(entry["url"])
                assert refused.status_code == 503
                assert world.authorization.issuer in refused.text
                await trio.to_thread.run_sync(world.authorization.up)
                assert await called(agent) == ANSWER
        assert world.authorization.happened("grant refused") == []
        assert world.authorization.happened("revoked") == []
        tokens = {each["access"] for each in world.authorization.happened("granted")}
        events = json.dumps(await server.rest.events(conversation))
        assert not [token for token in tokens if token in events + log.path.read_text()]
        kept = await trio.to_thread.run_sync(world.kept)
        assert kept["tokens"]["refresh_token"] == world.grants()[-1]["refresh"]

        # Who logs out beside the server ends it for the agent, too.
        await trio.to_thread.run_sync(world.process, "logout", "calc")
        refused = await asked(entry["url"])
        assert refused.status_code == 401
        assert "ostler mcp login calc" in refused.text


async def opened(server: ServerProcess, log: ScriptedLog, tmp_path: Path) -> str:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    command = scripted_command(log=log.path)
    info = await server.rest.create(workspace, {"acp_server": "custom", "acp_command": command})
    await server.rest.turn(info["id"], "hello", timeout=SECONDS)
    return str(info["id"])


async def called(agent: Client) -> str:
    result = await agent.call_tool("secret_sum", CALL)
    return "".join(part.text for part in result.content if part.type == "text")


async def asked(url: str) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=SECONDS) as client:
        return await client.post(url, json={})


async def test_a_login_over_the_wire(world: World, tmp_path: Path) -> None:
    body = {
        "name": "calc",
        "server": {"type": "http", "url": world.mcp.url, "auth": {"strategy": "oauth2"}},
        "timeout": 30,
    }
    async with running_server(tmp_path, {"OSTLER_KEYRING": "off"}) as server:
        rest = server.rest
        job = await rest.call("POST", "/api/mcp/oauth/start", body)
        assert job["ok"], job
        status = f"/api/mcp/oauth/status/{job['job_id']}"
        assert (await rest.call("GET", status))["status"] == "authorizing"
        back = await trio.to_thread.run_sync(pages, job["authorization_url"])
        done = await rest.call("POST", f"/api/mcp/oauth/callback/{job['job_id']}", {"callback_url": back})
        with trio.fail_after(SECONDS):
            while done["status"] == "authorizing":
                await trio.sleep(0.05)
                done = await rest.call("GET", status)
        assert done["status"] == "succeeded", done
        assert done["tools"] == ["secret_sum", "environment"]
        (grant,) = world.grants("authorization_code")
        assert grant["access"] not in json.dumps(done)
        # The command sees the same login.
        await trio.to_thread.run_sync(world.add, world.process)
        assert "2 tools" in await trio.to_thread.run_sync(world.process, "test", "calc")
