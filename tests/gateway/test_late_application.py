"""The start of the server: what it loads before anybody needs it, and the application that comes later."""

from __future__ import annotations

import json
import subprocess
import sys

import attrs
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from gateway.serving import late_application
from gateway.serving.late_application import LateApplication
from supervisor.journal.errors import JournalUnavailable
from tests.gateway.harness import open_gateway
from tests.gateway.test_cli import environment

LATER = (
    # of others
    "asyncio",
    "cattrs",
    "flask",
    "h2",
    "hpack",
    "jinja2",
    "keyring",
    "cryptography",
    "httpx2",
    "mcp",
    "multiprocessing",
    "priority",
    "prometheus_client",
    "prompt_toolkit",
    "pydantic",
    "quart",
    "rich",
    "werkzeug",
    "yaml",
    # ours
    "gateway.api.app",
    "gateway.api.requests.bodies",
    "gateway.api.openapi",
    "gateway.api.routes",
    "gateway.api.sockets",
    "gateway.api.webhooks.service",
    "supervisor.acp.connection",
    "supervisor.acp.schema.updates",
    "supervisor.conversations.agent.lifecycle",
    "supervisor.conversations.conversation",
    "supervisor.conversations.forking",
    "supervisor.conversations.recording.translate",
    "supervisor.conversations.turns",
    "supervisor.events.types",
    "supervisor.workspace.git",
)
"""What a server that has no conversation, and that only watchers have asked, does without."""

ASK = """
import http.client, json, os, re, sys, threading
from gateway.cli import main
from gateway.serving.start import import_hypercorn, import_structlog

import_structlog()  # as the command does in its own process
import_hypercorn()
from gateway.serving import logs

def say(line):
    threading.Thread(target=ask, args=(int(re.search(r":([0-9]+)$", line)[1]),), daemon=True).start()

def ask(port):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/health")
    answer = connection.getresponse()
    print(json.dumps([answer.status, answer.read().decode(), sorted(sys.modules)]), flush=True)
    os._exit(0)

logs.say = say
main(["serve", "--no-warden", "--port", "0", "--state", sys.argv[1]])
"""


def last_line(program, tmp_path):
    """What a program with a server in it told last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "state")],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_a_server_that_is_asked_whether_it_lives_has_loaded_little(tmp_path):
    status, body, modules = last_line(ASK, tmp_path)
    assert (status, body) == (200, '{"status":"ok"}')
    assert "gateway.serving.late_application" in modules
    found = [each for each in modules if any(each == name or each.startswith(f"{name}.") for name in LATER)]
    assert found == []


@attrs.define
class Answer:
    status: int = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""


async def ask(application, path, *headers, method="GET"):
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [(b"host", b"localhost"), *headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "extensions": {},
    }
    answer = Answer()

    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive():
        if not messages:
            await trio.sleep_forever()
        return messages.pop()

    async def send(message):
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            pairs = message["headers"]
            answer.headers = tuple(sorted((bytes(name).lower(), bytes(value)) for name, value in pairs))
        elif message["type"] == "http.response.body":
            answer.body += bytes(message["body"])

    await application(scope, receive, send)
    return answer


@pytest.fixture
async def services(tmp_path):
    async with open_gateway(tmp_path) as gateway:
        yield gateway.services


@pytest.fixture
def made(monkeypatch):
    """How often the application was made."""
    times = []
    make = LateApplication._make

    def count(self):
        times.append(1)
        return make(self)

    monkeypatch.setattr(LateApplication, "_make", count)
    return times


@pytest.mark.parametrize("path", ["/health", "/alive"])
async def test_a_probe_has_the_same_answer_before_and_after(services, made, path):
    application = LateApplication(services)
    before = await ask(application, path)
    assert made == []
    assert (before.status, before.body) == (200, b'{"status":"ok"}')
    assert (await ask(application, "/ready")).status == 200
    assert len(made) == 1
    assert await ask(application, path) == before


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/health", [(b"origin", b"http://localhost:3000")]),
        ("GET", "/health", [(b"content-length", b"0")]),
        ("GET", "/alive", [(b"transfer-encoding", b"chunked")]),
        ("POST", "/health", []),
        ("HEAD", "/health", []),
        (
            "OPTIONS",
            "/health",
            [(b"origin", b"http://localhost"), (b"access-control-request-method", b"GET")],
        ),
        ("GET", "/health/", []),
        ("GET", "/ready", []),
        ("GET", "/api/conversations/count", []),
    ],
)
async def test_whatever_is_more_than_a_probe_is_the_applications(services, made, method, path, headers):
    application = LateApplication(services)
    answer = await ask(application, path, *headers, method=method)
    assert len(made) == 1
    assert answer == await ask(application, path, *headers, method=method)


async def test_a_malformed_probe_is_refused(services, made):
    application = LateApplication(services)
    assert (await ask(application, "/health", (b"host", b"a..b"))).status == 400
    assert made == []


async def test_many_first_requests_load_it_once(services, made):
    application = LateApplication(services)
    found = []

    async def one():
        found.append((await ask(application, "/server_info")).status)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(one)
    assert found == [200] * 20
    assert len(made) == 1


async def test_probes_are_answered_while_it_is_loaded(services, monkeypatch):
    application = LateApplication(services)
    go_on = trio.Event()

    def wait(self):
        trio.from_thread.run(go_on.wait)
        return make(self)

    make = LateApplication._make
    monkeypatch.setattr(LateApplication, "_make", wait)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, application, "/server_info")
        await trio.testing.wait_all_tasks_blocked()
        assert (await ask(application, "/health")).status == 200
        go_on.set()


async def test_a_failed_import_is_tried_again(services, monkeypatch):
    application = LateApplication(services)
    imported = late_application.import_module

    def fail(name):
        monkeypatch.setattr(late_application, "import_module", imported)
        raise MemoryError

    monkeypatch.setattr(late_application, "import_module", fail)
    with pytest.raises(MemoryError):
        await ask(application, "/server_info")
    assert (await ask(application, "/server_info")).status == 200


async def test_conversations_are_prepared_once_somebody_has_come(services, monkeypatch):
    prepared = []

    async def prepare():
        prepared.append(1)
        raise OSError("no more descriptors")  # which must not end the server

    monkeypatch.setattr(services.supervisor, "prepare", prepare)
    application = LateApplication(services)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(application.prepare)
        assert (await ask(application, "/health")).status == 200
        await trio.testing.wait_all_tasks_blocked()
        assert prepared == []
        assert (await ask(application, "/server_info")).status == 200
    assert prepared == [1]


async def test_they_are_prepared_right_after_a_first_request_that_is_no_probe(
    services, monkeypatch, mock_clock
):
    prepared = []

    async def prepare():
        prepared.append(1)
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(services.supervisor, "prepare", prepare)
    application = LateApplication(services)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(application.prepare)
        assert (await ask(application, "/server_info")).status == 200
        await trio.testing.wait_all_tasks_blocked()
        assert prepared == [1]  # on a clock that stands still
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("probed", [True, False])
async def test_a_server_with_conversations_loads_it_before_somebody_waits_for_it(
    services, made, probed, autojump_clock
):
    await services.supervisor.journal.create(
        "c-1", b"{}", status="idle", created_at="2026-11-21", updated_at="2026-11-21"
    )
    application = LateApplication(services)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(application.prepare)
        await trio.testing.wait_all_tasks_blocked()
        assert made == []  # who watches the start is answered first
        if probed:
            assert (await ask(application, "/health")).status == 200
    assert made == [1]
    assert (await ask(application, "/server_info")).status == 200
    assert made == [1]


async def test_a_database_that_is_away_then_is_said_in_a_line(services, made, monkeypatch, autojump_clock):
    async def away(**_):
        await trio.lowlevel.checkpoint()
        raise JournalUnavailable("The journal cannot be read now.")

    monkeypatch.setattr(services.supervisor.journal, "search_records", away)
    application = LateApplication(services)
    with capture_logs() as lines, trio.move_on_after(60):
        await application.prepare()
    (line,) = lines
    assert (line["log_level"], line["reason"]) == ("warning", "The journal cannot be read now.")
    assert "exc_info" not in line
    assert made == []
    assert (await ask(application, "/server_info")).status == 200


async def test_a_server_without_conversations_does_not(services, made, autojump_clock):
    application = LateApplication(services)
    with trio.move_on_after(60):
        await application.prepare()
    assert made == []


STAND_INS = """
import sys
from gateway.serving.start import import_hypercorn, import_structlog

import_structlog()
import_hypercorn()
import asyncio, multiprocessing.synchronize
import h2.events, hypercorn.protocol.h2, hypercorn.typing, structlog

assert structlog.stdlib.asyncio.get_running_loop is asyncio.get_running_loop
assert hypercorn.typing.h2.events.RequestReceived is h2.events.RequestReceived
assert issubclass(hypercorn.protocol.h2.H2Protocol, object)
assert multiprocessing.synchronize.Event is not object
"""


def test_who_imports_it_later_gets_the_module_itself():
    done = subprocess.run([sys.executable, "-c", STAND_INS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


COLLECTING = """
import gc
from gateway.serving import start

before = gc.get_threshold()
start.collect_rarely()
assert gc.isenabled()
assert gc.get_threshold() > before
start.collect_as_usual()
assert gc.get_threshold() == before
"""


def test_the_collector_is_as_before_once_the_server_listens():
    """In a process of its own: `collect_as_usual` freezes, which would be for all tests after it."""
    done = subprocess.run([sys.executable, "-c", COLLECTING], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
