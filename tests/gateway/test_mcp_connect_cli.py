"""`ostler mcp test|login|logout`, against real MCP servers."""

from __future__ import annotations

import http.server
import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import attrs
import httpx2
import pytest
import trio

from supervisor.conversations.mcp.logins import McpLogins
from supervisor.conversations.mcp.probe import McpProbe
from supervisor.credentials.store import SecretStore
from supervisor.documents.files import FileDocuments
from supervisor.mcp.logins import LoginStore
from tests.support.inside import run_inside
from tests.support.mcp_command import mcp_environment, start_mcp
from tests.support.mcp_helper import helpers_inside
from tests.support.mcp_servers import STDIO, TOOLS, RealServer, real_server
from tests.support.processes import mentioning

VALUE = "value-of-a-secret-header"


@attrs.frozen
class Ran:
    status: int
    out: str
    err: str


@attrs.define
class Machine:
    state: Path

    def write(self, servers: Any) -> None:
        self.state.mkdir(exist_ok=True)
        (self.state / "mcp.json").write_text(json.dumps({"mcpServers": servers}))

    def start(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        return start_mcp(self.state, *arguments, **more)

    def process(self, *arguments: str) -> Ran:
        """The command and its helper as processes."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=90)
        assert "Traceback" not in err
        return Ran(process.returncode, out, err)

    def __call__(self, *arguments: str, **variables: str) -> Ran:
        """The command and its helper inside this process, which imports the MCP SDK only once."""
        with helpers_inside():
            done = run_inside(("mcp", *arguments), {**mcp_environment(self.state), **variables})
        assert "Traceback" not in done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def mcp(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "state")


def test_a_server_that_is_started(mcp: Machine, tmp_path: Path) -> None:
    mcp.write({"calc": {**STDIO, "env": {"GIVEN": str(tmp_path)}}})
    done = mcp.process("test", "calc")
    assert (done.status, done.err) == (0, "")
    assert "calc works and has 2 tools" in done.out
    assert [line.split()[0] for line in done.out.splitlines()[2:]] == TOOLS
    assert not mentioning(tmp_path)


@pytest.mark.parametrize("kind", ["http", "sse"])
def test_a_server_that_is_asked(mcp: Machine, tmp_path: Path, kind: str) -> None:
    with real_server(kind, tmp_path, "--key", VALUE) as server:
        entry = {"url": server.url, "transport": kind}
        mcp.write(
            {"calc": {**entry, "headers": {"X-Key": VALUE}}, "wrong": {**entry, "headers": {"X-Key": "no"}}}
        )
        done = mcp("test", "calc")
        assert done.status == 0, done
        assert "2 tools" in done.out
        found = json.loads(mcp("test", "calc", "--json").out)
        assert found["ok"] is True
        assert [tool["name"] for tool in found["tools"]] == TOOLS
        done = mcp("test", "wrong", "--json")
        assert done.status == 1
        found = json.loads(done.out)
        assert (found["ok"], found["error_kind"]) == (False, "connection")
        assert "Authentication" in found["error"]
        assert "401" in found["error"]
        assert VALUE not in done.out + done.err


class Odd(http.server.BaseHTTPRequestHandler):
    """Answers with the status that the path names, or never."""

    def do_POST(self) -> None:
        word = self.path.strip("/")
        if word == "never":
            time.sleep(30)
            return
        self.send_response(int(word))
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"hi")

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def odd_server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"command": "no-such-command", "args": ["x"]}, ["Command not found", "no-such-command"]),
        ({"command": "/bin/false"}, ["The command exited", "by hand"]),
        (
            {"command": "sh", "args": ["-c", "echo the reason >&2; exit 3"]},
            ["The command exited", "the reason"],
        ),
        ({"command": "sh", "args": ["-c", "echo hello; sleep 60"]}, ["Time-out", "2 s"]),
        ({"command": "cat", "cwd": "/no/such/dir"}, ["Directory", "/no/such/dir"]),
        ({"command": "cat", "env": {"A": "${NOT_STORED}"}}, ["Secrets", "NOT_STORED", "ostler secrets set"]),
        ({"url": "ODD/404"}, ["Status", "404", "Check the URL"]),
        ({"url": "ODD/500"}, ["Status", "500"]),
        ({"url": "ODD/403"}, ["Authentication", "403"]),
        ({"url": "ODD/200"}, ["not MCP", "text/html"]),
        ({"url": "ODD/302"}, ["Status", "302", "redirects"]),
        ({"url": "ODD/never"}, ["Time-out", "2 s"]),
        ({"url": "ODD/401", "transport": "sse"}, ["Authentication", "401"]),
        ({"url": "FREE/mcp"}, ["URL", "cannot be reached"]),
        ({"url": "http://name.invalid/mcp"}, ["URL", "cannot be reached"]),
        ({"url": "https://ODDHOST/mcp"}, ["URL", "cannot be reached"]),
        ({"url": "FREE/mcp", "auth": "oauth"}, ["Authentication", "ostler mcp login x"]),
        ({"command": "cat", "enabled": False}, ["is disabled", "ostler mcp enable x"]),
        ({"url": "http://x", "transport": "pigeon"}, ["is not used", "transport"]),
    ],
)
def test_what_to_check_when_it_fails(mcp: Machine, entry: dict[str, Any], words: list[str]) -> None:
    with odd_server() as odd:
        if "url" in entry:
            url = entry["url"].replace("ODDHOST", odd.removeprefix("http://")).replace("ODD", odd)
            entry = {**entry, "url": url.replace("FREE", f"http://127.0.0.1:{free_port()}")}
        mcp.write({"x": entry})
        done = mcp("test", "x", "--timeout", "2")
    assert (done.status, done.out) == (1, "")
    (line,) = [line for line in done.err.splitlines() if line.startswith("ostler: ")]
    for word in words:
        assert word in line, line


@pytest.mark.guarantee(name="malicious-agents")
def test_nothing_is_left_of_a_server_that_does_not_end(mcp: Machine, tmp_path: Path) -> None:
    script = tmp_path / "stubborn.sh"
    script.write_text("trap '' TERM HUP\nsetsid sleep 61.7 &\nwhile :; do sleep 0.1; done\n")
    mcp.write({"x": {"command": "sh", "args": [str(script)]}})
    done = mcp.process("test", "x", "--timeout", "1")
    assert done.status == 1
    assert not mentioning(script)
    assert "sleep\x0061.7" not in "".join(
        path.read_bytes().decode(errors="replace")
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.exists()
    )


def test_a_command_that_is_interrupted_leaves_nothing(mcp: Machine, tmp_path: Path) -> None:
    script = tmp_path / "hanging.sh"
    script.write_text("while :; do sleep 0.1; done\n")
    mcp.write({"x": {"command": "sh", "args": [str(script)]}})
    process = mcp.start("test", "x", "--timeout", "60")
    until = time.monotonic() + 30
    while not [pid for pid in mentioning(script) if pid != process.pid]:
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(2)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert not mentioning(script)


# -- logins -----------------------------------------------------------------------------------------------


def authorization_url(process: subprocess.Popen[str]) -> str:
    """The address that a person is told."""
    assert process.stderr is not None
    while line := process.stderr.readline():
        if match := re.search(r"^ +(http\S+)", line):
            return match[1]
    raise AssertionError("no address")


def browser(url: str) -> str:
    """Where the authorization server sends a browser back to."""
    answer = httpx2.get(url, follow_redirects=False)
    assert answer.status_code == 302, answer.text
    return str(answer.headers["Location"])


def test_a_login_in_a_browser(mcp: Machine, oauth: RealServer) -> None:
    mcp.write({"calc": {"url": oauth.url, "auth": "oauth"}})
    assert "ostler mcp login calc" in mcp("test", "calc").err
    process = mcp.start("login", "calc")
    url = authorization_url(process)
    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    assert query["code_challenge_method"] == "S256"
    assert query["resource"] == oauth.url
    back = browser(url)
    callback = urlsplit(back)
    assert callback.hostname == "127.0.0.1"
    # A page that only guesses is not let in, and ends nothing.
    for wrong in (
        back.replace(f"state={query['state']}", "state=guessed"),
        f"http://{callback.netloc}/callback",
        f"http://{callback.netloc}/",
    ):
        assert httpx2.get(wrong).status_code in (400, 404)
    page = httpx2.get(back)
    assert page.status_code == 200
    assert "logged in" in page.text
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out == "logged in to calc, which has 2 tools\n"
    assert mcp("test", "calc").status == 0
    kept = (mcp.state / "mcp-logins.json").read_text()
    (token,) = {line.split()[1] for line in oauth.lines("took")}
    assert token not in kept + out + err
    assert oauth.url not in kept
    assert (mcp.state / "mcp-logins.json").stat().st_mode & 0o777 == 0o600
    assert oauth.lines("registered") == ["registered"]

    assert "logged out of calc" in mcp("logout", "calc").out
    assert mcp("logout", "calc").status == 1
    assert "ostler mcp login calc" in mcp("test", "calc").err


@pytest.mark.parametrize("form", ["url", "code"])
def test_a_login_that_is_pasted(mcp: Machine, oauth: RealServer, form: str) -> None:
    mcp.write({"calc": {"url": oauth.url, "auth": "oauth"}})
    process = mcp.start("login", "calc", "--no-browser", "--json")
    back = browser(authorization_url(process))
    code = parse_qs(urlsplit(back).query)["code"][0]
    assert process.stdin is not None
    process.stdin.write("\nhttp://127.0.0.1:1/callback?code=x&state=wrong\n")
    process.stdin.write(f"{back if form == 'url' else code}\n")
    process.stdin.flush()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out) == {"name": "calc", "logged_in": True, "tools": TOOLS}
    assert "That is not the answer" in err


def test_a_login_that_is_refused(mcp: Machine, oauth: RealServer) -> None:
    mcp.write({"calc": {"url": oauth.url, "auth": "oauth"}})
    process = mcp.start("login", "calc")
    url = authorization_url(process)
    query = parse_qs(urlsplit(url).query)
    refusal = f"error=access_denied&error_description=no+thanks&state={query['state'][0]}"
    answer = f"{query['redirect_uri'][0]}?{refusal}"
    assert "refused" in httpx2.get(answer).text
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "access_denied no thanks" in err
    assert not (mcp.state / "mcp-logins.json").exists()


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A server that wants no key."""
    with real_server("http", tmp_path_factory.mktemp("open")) as server:
        yield server


def test_a_server_that_asks_for_no_login(mcp: Machine, open_server: RealServer) -> None:
    mcp.write({"calc": {"url": open_server.url, "auth": "oauth"}, "other": {"url": open_server.url}})
    assert mcp("login", "calc").out == "calc requires no login; it has 2 tools\n"
    done = mcp("login", "other")
    assert done.status == 1
    assert "is not configured for a login; remove it, and add it with --auth oauth" in done.err


def test_a_token_is_renewed_before_it_expires(mcp: Machine, oauth: RealServer) -> None:
    log_in(mcp, oauth)
    expires_in(mcp, oauth, 30)
    before = oauth.lines("issued")
    assert mcp("test", "calc").status == 0
    assert mcp("test", "calc").status == 0
    assert oauth.lines("refreshed") == ["refreshed"]
    (renewed,) = oauth.lines("issued")[len(before) :]
    assert oauth.lines("took")[-1].split()[1] == renewed.split()[1]
    assert oauth.lines("refused") == []


def test_a_login_that_cannot_be_renewed_has_ended(mcp: Machine, oauth: RealServer) -> None:
    log_in(mcp, oauth)
    expires_in(mcp, oauth, -1, refresh_token="refresh-of-another-day")
    done = mcp("test", "calc")
    assert done.status == 1
    assert "the login has expired; run `ostler mcp login calc`" in done.err
    assert "refresh-of" not in done.err


def expires_in(mcp: Machine, server: RealServer, seconds: float, **tokens: str) -> None:
    """Change the login that is kept."""

    async def change() -> None:
        secrets = await SecretStore.open(mcp.state, {})
        logins = LoginStore(FileDocuments(mcp.state), secrets.cipher)
        state = logins.get(server.url)
        assert state is not None
        state["token_expires_at"] = time.time() + seconds
        state["tokens"].update(tokens)
        logins.put(server.url, state)

    trio.run(change)


@pytest.mark.guarantee(name="mcp-servers")
def test_another_address_gets_no_token(mcp: Machine, oauth: RealServer) -> None:
    with odd_server() as odd:
        log_in(mcp, oauth)
        mcp.write({"calc": {"url": f"{odd}/200", "auth": "oauth"}})
        assert "ostler mcp login calc" in mcp("test", "calc").err


def log_in(mcp: Machine, server: RealServer) -> None:
    """As `ostler mcp login` does, inside this process."""
    mcp.write({"calc": {"url": server.url, "auth": "oauth"}})
    entry = {"url": server.url, "auth": {"strategy": "oauth2"}}

    async def run() -> None:
        secrets = await SecretStore.open(mcp.state, {})
        store = LoginStore(FileDocuments(mcp.state), secrets.cipher)
        logins = McpLogins(store, mcp_environment(mcp.state), mcp.state)
        async with McpProbe(mcp_environment(mcp.state), mcp.state, logins).login("calc", entry, {}) as login:
            while (event := await login.event())["event"] != "done":
                back = await trio.to_thread.run_sync(browser, event["url"])
                await login.answer(callback_url=back)
        assert event["ok"], event

    with helpers_inside(logins=True):
        trio.run(run)


def test_the_file_of_keys_counts(mcp: Machine, tmp_path: Path, open_server: RealServer) -> None:
    mcp.write({"calc": {"url": open_server.url, "headers": {"X-Given": "${GIVEN_KEY}"}}})
    keys = tmp_path / "keys"
    keys.write_text("OSTLER_MASTER_KEY=a phrase of mine\nOSTLER_SECRET_GIVEN_KEY=x\n")
    keys.chmod(0o600)
    done = mcp("test", "calc", OSTLER_KEYS_FILE=str(keys))
    assert (done.status, done.err) == (0, "")
    assert not (mcp.state / "master.key").exists()
    without = mcp("test", "calc")
    assert without.status == 1
    assert "GIVEN_KEY" in without.err
