"""What clients and operators are told while the journal cannot be written."""

from __future__ import annotations

import time

import pytest
import trio
import trio.testing

from gateway.api.errors import problem_of
from gateway.cli.operate.status import lines
from gateway.serving.notify import Notifier
from gateway.serving.server import _watch_journal
from supervisor.journal.errors import JournalError, JournalFailed, JournalUnavailable, SearchTooLong, TooLarge
from supervisor.journal.trouble import Trouble

FULL = "the disk is full; free some space, or delete conversations (SQLite: database or disk is full)"


@pytest.fixture
def trouble(gateway):
    """Put the journal into trouble, and out of it, without a disk."""

    def put(reason):
        writer = gateway.supervisor.journal._writer
        writer.trouble = None if reason is None else Trouble(reason, time.time() - 90, 7)
        writer._changes.unpark_all()

    return put


async def test_ready_and_status_tell_it(gateway, trouble):
    assert (await gateway.call("GET", "/ready"))[0] == 200
    status, found = await gateway.call("GET", "/api/status")
    assert (status, found["status"]) == (200, "ready")
    assert found["journal"] == {
        "writable": True,
        "reason": None,
        "since": None,
        "attempts": 0,
        "waiting_bytes": 0,
    }
    trouble(FULL)
    status, answer = await gateway.call("GET", "/ready")
    assert (status, answer["status"]) == (503, "degraded")
    assert FULL in answer["message"]
    assert (await gateway.call("GET", "/health"))[0] == 200
    status, found = await gateway.call("GET", "/api/status")
    assert (status, found["status"]) == (200, "degraded")
    assert (found["journal"]["reason"], found["journal"]["attempts"]) == (FULL, 7)
    assert found["journal"]["since"].endswith("Z")
    (line,) = [text for text in lines("http://x", found, None) if text.startswith("journal")]
    assert "NOT WRITABLE since 20" in line
    assert FULL in line
    metrics = await gateway.app.test_client().get("/metrics")
    assert "\nostler_journal_degraded 1.0\n" in await metrics.get_data(as_text=True)
    trouble(None)
    assert (await gateway.call("GET", "/ready"))[0] == 200


async def test_a_refusal_says_why_and_when_to_come_back(gateway, trouble):
    trouble(FULL)
    client = gateway.app.test_client()
    response = await client.post("/api/conversations", json={"workspace": {"working_dir": "/w"}})
    assert response.status_code == 503
    assert FULL in (await response.get_json())["detail"]
    assert int(response.headers["Retry-After"]) > 0
    assert await gateway.supervisor.count() == 0


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (JournalUnavailable("x"), 503),
        (JournalFailed("x"), 503),
        (SearchTooLong("x"), 503),
        (TooLarge("x"), 413),
    ],
)
def test_statuses(error, status):
    assert problem_of(error) == (status, "x")
    assert problem_of(JournalError("x")) is None


async def test_the_service_manager_is_told_and_a_failure_ends_the_server(gateway, trouble):
    told = []

    class Listener(Notifier):
        async def status(self, status):
            await trio.lowlevel.checkpoint()
            told.append(status)

    journal = gateway.supervisor.journal
    ended = []

    async def watch():
        with pytest.raises(JournalError, match="the journal failed and the server stopped: gone"):
            await _watch_journal(journal, Listener(None, None))
        ended.append(True)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.testing.wait_all_tasks_blocked()
            assert told == []
            trouble(FULL)
            trouble(FULL)
            await trio.testing.wait_all_tasks_blocked()
            trouble(None)
            await trio.testing.wait_all_tasks_blocked()
            assert told == [f"The journal cannot be written: {FULL}", "Running"]
            failure, journal._writer.failure = journal._writer.failure, JournalFailed("gone")
            journal._writer._changes.unpark_all()
            await trio.testing.wait_all_tasks_blocked()
    journal._writer.failure = failure
    assert ended == [True]
