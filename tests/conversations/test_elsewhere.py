"""What can be read of a conversation of another server, and its row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from supervisor.conversations import creation
from supervisor.conversations import overview as overview_module
from supervisor.conversations.elsewhere import StoredConversation
from supervisor.conversations.kinds import kind_of
from supervisor.conversations.overview import Overview
from supervisor.conversations.recording import recorder
from supervisor.conversations.state.errors import UnknownConversation
from tests.conversations.harness import open_harness, say, settled, until


async def test_what_is_stored_says_the_same(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        supervisor = harness.supervisor
        conversation = await harness.start()
        await conversation.send(say("hello"), run=True)
        await settled(conversation)
        info, response = await conversation.durable_info(), await conversation.final_response()
        assert response
        supervisor.shared = True
        assert await supervisor.view(conversation.id) is conversation
        await conversation.close()
        supervisor._drop(conversation)
        view = await supervisor.view(conversation.id)
        assert isinstance(view, StoredConversation)
        assert conversation.id not in supervisor._loaded
        assert (view.id, view.vocabulary) == (conversation.id, conversation.vocabulary)
        stored = await view.durable_info()
        for name in ("id", "title", "execution_status", "agent", "workspace", "stats", "tags"):
            assert stored[name] == info[name]
        assert await view.final_response() == response
        assert await view.log.count() == view.log.high_water + 1


async def test_after_a_move_to_an_earlier_event(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        supervisor = harness.supervisor
        conversation = await harness.start()
        await conversation.send(say("hello"), run=True)
        await settled(conversation)
        await conversation.navigate(None)
        supervisor.shared = True
        await conversation.close()
        supervisor._drop(conversation)
        assert await (await supervisor.view(conversation.id)).final_response() == ""


async def test_an_unknown_one(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        harness.supervisor.shared = True
        with pytest.raises(UnknownConversation):
            await harness.supervisor.view("00000000-0000-4000-8000-000000000000")


async def test_a_server_alone_has_it_itself(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        harness.supervisor._drop(conversation)
        assert await harness.supervisor.view(conversation.id) is await harness.supervisor.get(conversation.id)


async def prepare() -> None:
    await trio.lowlevel.checkpoint()


def titles(overview: Overview) -> set[str]:
    return {str(line.shown["title"]) for line in overview.since(-1, None).lines}


async def test_rows_of_conversations_of_other_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview_module, "POLL_SECONDS", 0.05)
    async with open_harness(tmp_path) as harness, trio.open_nursery() as nursery:
        # Of a server that has none of them.
        overview = Overview(harness.supervisor.journal, list, kind_of, prepare, nursery, shared=True)

        first = await harness.start(title="first")
        async with overview.following():
            assert titles(overview) == {"first"}
            second = await harness.start(title="second")
            await until(lambda: titles(overview) == {"first", "second"})
            await first.changes.set_title("renamed")
            await until(lambda: titles(overview) == {"renamed", "second"})
            await harness.supervisor.delete(second.id)
            await until(lambda: titles(overview) == {"renamed"})
            assert overview.since(0, overview.epoch).gone == [second.id]
        nursery.cancel_scope.cancel()


async def test_rows_of_a_server_whose_clock_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview_module, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(overview_module, "PAGE", 1)

    def set_clock(ahead: timedelta) -> None:
        def now() -> str:
            return (datetime.now(UTC) + ahead).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

        for module in (creation, recorder):
            monkeypatch.setattr(module, "timestamp_now", now)

    async with open_harness(tmp_path) as harness, trio.open_nursery() as nursery:
        overview = Overview(harness.supervisor.journal, list, kind_of, prepare, nursery, shared=True)

        first, second = await harness.start(title="first"), await harness.start(title="second")
        async with overview.following():
            set_clock(timedelta(hours=1))
            await first.changes.set_title("ahead")
            await until(lambda: titles(overview) == {"ahead", "second"})
            set_clock(timedelta())
            await second.changes.set_title("right again")
            await until(lambda: titles(overview) == {"ahead", "right again"})
            set_clock(timedelta(hours=-1))
            await first.changes.set_title("behind")
            await harness.start(title="new")
            await until(lambda: titles(overview) == {"behind", "right again", "new"})
            await trio.sleep(0.3)
            version = overview.version
            await trio.sleep(0.3)
            assert overview.version == version  # what is read again is not sent again
            await harness.supervisor.delete(first.id)
            await until(lambda: titles(overview) == {"right again", "new"})
            assert overview.since(version, overview.epoch).gone == [first.id]
        nursery.cancel_scope.cancel()


async def test_a_record_that_cannot_be_read_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview_module, "POLL_SECONDS", 0.05)
    async with open_harness(tmp_path) as harness, trio.open_nursery() as nursery:
        journal, now = harness.supervisor.journal, "2026-11-21T09:00:00.000000Z"
        await journal.create("c-1", b"{}", status="idle", created_at=now, updated_at=now)
        overview = Overview(journal, list, kind_of, prepare, nursery, shared=True)
        with capture_logs() as lines:
            async with overview.following():
                await trio.sleep(0.5)
        assert [each["event"] for each in lines].count("conversation is not shown") == 1
        nursery.cancel_scope.cancel()
