"""A real server whose disk is full, or whose database somebody holds, and what its clients see of that."""

from __future__ import annotations

import os
import re
import resource
import sqlite3
import subprocess
import sys
import time
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

import httpx2
import pytest
import trio

from tests.support.processes import kill
from tests.support.scripted import ScriptedLog, scripted_command
from tests.support.server import running_server
from tests.support.sockets import collect

WAIT_S = 30.0

QUICK = {"OSTLER_JOURNAL_BUSY_SECONDS": "0.2", "OSTLER_DEADLINE_DURABLE": "1"}

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read(1)
"""


@pytest.fixture
def directory(tmp_path):
    """With a state directory on a file system of its own, of 64 MB."""
    state = tmp_path / "a" / "state"
    state.mkdir(parents=True, mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs", str(state)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield tmp_path / "a"
    subprocess.run(["umount", "-l", str(state)], check=True)


@contextmanager
def full(server):
    """Take all that is left of the state's disk."""
    filler = server.state / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def held(server):
    """Another process holds the database."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(server.state / "journal.sqlite3")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            process.stdin.write(b"x")
            process.stdin.close()


async def until(look, what, seconds=WAIT_S):
    end = time.monotonic() + seconds
    while True:
        found = await look()
        if found:
            return found
        assert time.monotonic() < end, what
        await trio.sleep(0.05)


@asynccontextmanager
async def listening(server, conversation):
    """What a socket shows from now on."""
    async with collect(server.events_socket(conversation, "")) as socket:
        yield socket.frames


def texts(events):
    found = [e for e in events if e["kind"] == "MessageEvent" and e["source"] == "user"]
    return [e["llm_message"]["content"][0]["text"] for e in found]


async def post(server, conversation, text, *, run=True):
    body = {"role": "user", "content": [{"type": "text", "text": text}], "run": run}
    return await server.rest.http.post(f"/api/conversations/{conversation}/events", json=body)


@pytest.mark.guarantee(name="nothing-is-lost")
@pytest.mark.parametrize("spoil", [full, held])
async def test_all_goes_on_when_the_disk_takes_writes_again(directory, spoil):
    log = ScriptedLog(directory / "agents.jsonl")
    async with running_server(directory, QUICK) as server:
        rest = server.rest
        agent = {"acp_server": "custom", "acp_command": scripted_command(log=log.path)}
        created = await rest.create(directory / "w", agent)
        conversation, one = created["id"], f"/api/conversations/{created['id']}"
        await rest.turn(conversation, "first")
        before = await rest.events(conversation)

        async def ready():
            return (await rest.http.get("/ready")).status_code == 200

        async def not_ready():
            return not await ready()

        async with listening(server, conversation) as seen:
            with spoil(server):
                # The message that meets it: large, so that it fits nowhere.
                text = "second " + "x" * 1_000_000
                answer = await post(server, conversation, text)
                assert answer.status_code == 503
                assert "is queued" in answer.json()["detail"]
                await until(not_ready, "503 of /ready")
                message = (await rest.http.get("/ready")).json()
                assert message["status"] == "degraded"
                assert "the journal cannot be written" in message["message"].lower()
                assert (await rest.http.get("/health")).status_code == 200
                status = await rest.call("GET", "/api/status")
                assert status["status"] == "degraded"
                assert status["journal"]["writable"] is False
                assert status["journal"]["attempts"] >= 1
                shown = subprocess.run(
                    [Path(sys.executable).with_name("ostler"), "status", "--url", server.url],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                assert "NOT WRITABLE since" in shown.stdout
                # Reading goes on, and shows what is durable.
                assert await rest.events(conversation) == before
                assert (await rest.info(conversation))["execution_status"] == "finished"
                assert (await rest.http.get("/api/conversations/search")).status_code == 200
                async with listening(server, conversation) as other:
                    await until(lambda: _soon(other), "the state on a socket")
                    assert other[0]["value"]["execution_status"] == "finished"
                # Further writes are refused at once; the same message is not taken twice.
                for method, path, body in (
                    ("POST", f"{one}/events", {"role": "user", "content": [], "run": False}),
                    ("POST", "/api/conversations", {"workspace": {"working_dir": "/tmp"}}),
                    ("PATCH", one, {"title": "new"}),
                    ("POST", f"{one}/run", {}),
                ):
                    begin = time.monotonic()
                    answer = await rest.http.request(method, path, json=body)
                    assert answer.status_code == 503, (method, path, answer.text)
                    assert "nothing was stored" in answer.json()["detail"]
                    assert int(answer.headers["Retry-After"]) > 0
                    assert time.monotonic() - begin < 5
                assert (await post(server, conversation, text)).status_code == 503
                # Control returns.
                for action in ("interrupt", "pause"):
                    assert (await rest.http.post(f"{one}/{action}", json={})).status_code == 200
                assert log.prompts() == ["first"]
                assert [e for e in seen if e["kind"] == "MessageEvent"] == []
            await until(ready, "200 of /ready")
            assert (await post(server, conversation, text)).status_code == 200
            await rest.wait_status(conversation, "finished", timeout=WAIT_S)
            await rest.turn(conversation, "third")
            assert texts(await rest.events(conversation)) == log.prompts() == ["first", text, "third"]
            events = await rest.events(conversation)
            assert events[: len(before)] == before

            async def caught_up():
                ids = [e["id"] for e in seen]
                return events[-1]["id"] in ids

            await until(caught_up, "the last event on the socket")
            durable = {e["id"] for e in events}
            shown_ids = [e["id"] for e in seen if e["id"] in durable]
            assert shown_ids == [e["id"] for e in events[len(before) :]]
        with closing(sqlite3.connect(server.state / "journal.sqlite3")) as connection:
            rows = connection.execute("SELECT seq FROM events ORDER BY seq").fetchall()
        assert rows == [(seq,) for seq in range(len(events))]
        output = server.output.read_text()
        assert output.count("journal is not writable") == 1
        assert "Traceback" not in output


async def _soon(found):
    return bool(found)


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_log_on_the_full_disk_ends_nothing(tmp_path):
    log = ScriptedLog(tmp_path / "agents.jsonl")
    async with running_server(tmp_path, QUICK | {"OSTLER_ATTACHABLE": "1"}) as server:
        agent = {"acp_server": "custom", "acp_command": scripted_command(log=log.path)}
        conversation = (await server.rest.create(tmp_path / "w", agent))["id"]
        await server.rest.turn(conversation, "first")
        pid = int((server.state / "server.pid").read_text())
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, -1))  # no file becomes longer
        size = server.output.stat().st_size
        kill(log.pids())
        await until(lambda: server.rest.http.get("/ready"), "an answer", seconds=5)
        assert (await post(server, conversation, "second")).status_code == 503
        assert server.output.stat().st_size == size
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

        async def told():
            kill(log.pids())  # which is told in the log
            await server.rest.http.get("/ready")
            return re.search(r"^\d+ lines of the log were lost$", server.output_tail(), re.M)

        await until(told, "a word about what was lost")
        assert int((server.state / "server.pid").read_text()) == pid


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_deleting_makes_room_on_a_full_disk(directory):
    async with running_server(directory, QUICK) as server:
        rest = server.rest
        agent = {"acp_server": "custom", "acp_command": scripted_command()}
        old = (await rest.create(directory / "w", agent))["id"]
        new = (await rest.create(directory / "w", agent))["id"]
        for _ in range(8):
            assert (await post(server, old, "x" * 1_000_000, run=False)).status_code == 200
        with full(server):

            async def refused():
                return (await post(server, new, "y" * 1_000_000, run=False)).status_code == 503

            await until(refused, "a refusal")
            await rest.call("DELETE", f"/api/conversations/{old}")
            await rest.call("GET", f"/api/conversations/{old}", expect=404)

            async def taken():
                return (await post(server, new, "z", run=False)).status_code == 200

            await until(taken, "room for a message")
            assert (await rest.http.get("/ready")).status_code == 200
            assert texts(await rest.events(new))[-1] == "z"
        assert await server.stop() == 0


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_journal_that_is_gone_ends_the_server_and_the_warden_starts_the_next(tmp_path):
    async with running_server(tmp_path / "a") as server:
        rest = server.rest
        agent = {"acp_server": "custom", "acp_command": scripted_command()}
        created = await rest.create(tmp_path / "w", agent)
        await rest.turn(created["id"], "first")
        for name in ("journal.sqlite3", "journal.sqlite3-wal", "journal.sqlite3-shm"):
            os.unlink(server.state / name)
        pid = (server.state / "server.pid").read_text()
        with suppress(httpx2.TransportError):  # the connection may be cut
            assert (await post(server, created["id"], "lost")).status_code == 503

        async def another():
            try:
                return (server.state / "server.pid").read_text() not in ("", pid)
            except FileNotFoundError:
                return False

        await until(another, "another server")
        await until(lambda: _there(rest), "its answer")
        assert await rest.call("GET", "/api/conversations/count") == 0
        output = server.output.read_text()
        assert "journal failed; stopping the server" in output
        assert "was deleted or replaced" in output
        assert "Traceback" not in output


async def _there(rest):
    try:
        return (await rest.http.get("/ready")).status_code == 200
    except Exception:
        return False


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_server_that_is_stopped_on_a_full_disk_ends_and_says_what_is_lost(directory):
    async with running_server(directory, QUICK) as server:
        agent = {"acp_server": "custom", "acp_command": scripted_command()}
        conversation = (await server.rest.create(directory / "w", agent))["id"]
        with held(server):
            assert (await post(server, conversation, "lost")).status_code == 503
            begin = time.monotonic()
            assert await server.stop() == 1
            assert time.monotonic() - begin < 15
        output = server.output.read_text()
        assert "conversations are lost: another process holds the database" in output
        assert "Traceback" not in output
