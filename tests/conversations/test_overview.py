"""The rows of all conversations, and the feed of what changes in them."""

from __future__ import annotations

import gc
import signal
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
from werkzeug.datastructures import MultiDict

from gateway.api.requests.reading import Handshake
from gateway.api.sockets import overview as socket
from gateway.api.sockets.overview import Wanted, frames
from supervisor.conversations import overview as module
from supervisor.conversations import registry
from supervisor.conversations.kinds import kind_of
from supervisor.conversations.overview import Overview
from supervisor.journal.errors import JournalUnavailable
from tests.conversations.harness import Harness, killed_now, open_harness, say, settled, until


def shown(overview: Overview) -> dict[str, Any]:
    """All rows by title."""
    return {line.shown["title"]: line.shown for line in overview.since(-1, None).lines}


async def one(overview: Overview, **wanted: Any) -> dict[str, Any]:
    """The only row, once it has these members."""

    def found() -> bool:
        rows = list(shown(overview).values())
        return len(rows) == 1 and wanted.items() <= rows[0].items()

    await until(found)
    (row,) = shown(overview).values()
    return row


async def test_a_row_says_what_its_agent_does(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        overview = harness.supervisor.overview
        async with overview.following():
            assert shown(overview) == {}
            conversation = await harness.start()
            await one(overview, id=conversation.id, state="none", queue=0)
            await conversation.send(say("!slow 400 20"), run=True)
            await conversation.send(say("next"), run=True)
            row = await one(overview, state="running", queue=1, execution_status="running")
            assert (row["agent"], row["workspace"]) == ("custom", conversation.record.start.working_dir)
            measured = await one(overview, processes=1)
            assert measured["rss_bytes"] > 1_000_000
            await conversation.interrupt()
            await settled(conversation)
            row = await one(overview, state="ready")
            assert row["last_event_at"] == conversation.recorder.last_timestamp


async def test_a_permission_that_waits_is_in_the_row_with_its_options(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        overview = harness.supervisor.overview
        conversation = await harness.start(confirmation_policy={"kind": "AlwaysConfirm"})
        async with overview.following():
            await conversation.send(say("!perm"), run=True)
            row = await one(overview, state="waiting")
            waits = row["waits"]
            assert waits["number"] == 1
            assert {each["kind"] for each in waits["options"]} >= {"allow_once", "reject_once"}
            await conversation.respond(True, "", waits["request_id"], waits["options"][0]["id"])
            await one(overview, waits=None)


async def test_a_follower_gets_what_changed_since_its_version(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        overview = harness.supervisor.overview
        first, second = await harness.start(), await harness.start()
        async with overview.following():
            known = overview.version
            assert {line.shown["id"] for line in overview.since(-1, None).lines} == {first.id, second.id}
            await second.changes.set_title("changed")
            with trio.fail_after(10):
                await overview.changed(known)
            found = overview.since(known, overview.epoch)
            assert not found.all
            assert [line.shown["title"] for line in found.lines] == ["changed"]
            await harness.supervisor.delete(first.id)
            later = overview.since(found.version, overview.epoch)
            assert (later.lines, later.gone) == ([], [first.id])
            assert overview.since(known, "another epoch").all
            assert overview.since(later.version + 1, overview.epoch).all


async def test_deletions_that_are_forgotten_cost_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GONE_MAX", 1)
    async with open_harness(tmp_path) as harness:
        overview = harness.supervisor.overview
        for _ in range(3):
            await harness.start()
        async with overview.following():
            known = overview.version
            ids = [line.shown["id"] for line in overview.since(-1, None).lines]
            for each in ids[:2]:
                await harness.supervisor.delete(each)
            assert overview.since(known, overview.epoch).all
            assert not overview.since(overview.version - 1, overview.epoch).all


async def test_rows_of_conversations_that_are_not_loaded_come_from_the_journal(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("hello"), run=True)
        await settled(conversation)
        await conversation.changes.set_title("kept")
        root = killed_now(tmp_path)
    async with open_harness(root) as harness:
        overview = harness.supervisor.overview
        async with overview.following():
            row = shown(overview)["kept"]
            assert (row["state"], row["execution_status"], row["rss_bytes"]) == ("none", "finished", None)


async def test_nothing_is_kept_when_nobody_has_followed_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_SECONDS", 0.1)
    async with open_harness(tmp_path) as harness:
        await harness.start()
        overview = harness.supervisor.overview
        async with overview.following():
            epoch = overview.epoch
        await until(lambda: overview.epoch != epoch)
        assert overview.since(-1, None).lines == []
        async with overview.following():  # and comes back with all of them
            assert len(overview.since(-1, None).lines) == 1


async def test_a_crash_is_in_the_row(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        overview = harness.supervisor.overview
        conversation = await harness.start()
        async with overview.following():
            await conversation.send(say("!crash SIGKILL"), run=True)
            # The turn ends with the connection, the row when the last process is gone.
            await one(overview, execution_status="error")
            await until(lambda: next(iter(shown(overview).values()))["last_exit"] is not None)
            (row,) = shown(overview).values()
            assert signal.SIGKILL.name in row["last_exit"]


# What a client's query chooses.


def query(**values: str) -> Handshake:
    return Handshake(MultiDict(values))


async def two(harness: Harness) -> tuple[str, str]:
    one, other = await harness.start(), await harness.start()
    await one.changes.set_title("Fix the SHOP")
    await other.changes.set_title("Write a page")
    return one.id, other.id


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"Fix the SHOP", "Write a page"}),
        ({"text": "shop"}, {"Fix the SHOP"}),
        ({"agent": "custom"}, {"Fix the SHOP", "Write a page"}),
        ({"agent": "codex"}, set()),
        ({"state": "idle"}, {"Fix the SHOP", "Write a page"}),
        ({"state": "running"}, set()),
        ({"workspace": "/"}, {"Fix the SHOP", "Write a page"}),
        ({"workspace": "/nowhere"}, set()),
    ],
)
async def test_a_query_chooses_rows(tmp_path: Path, asked: dict[str, str], expected: set[str]) -> None:
    async with open_harness(tmp_path) as harness:
        await two(harness)
        async with harness.supervisor.overview.following() as overview:
            await until(lambda: None not in shown(overview))
            _, written = frames(overview, Wanted.of(query(**asked)), -1, None)
            *rows, sync = map(orjson.loads, written)
            assert {row["title"] for frame in rows for row in frame["rows"]} == expected
            assert sync == {
                "type": "sync", "epoch": overview.epoch, "version": overview.version, "all": True,
            }  # fmt: skip


async def test_a_row_that_no_longer_matches_is_gone_for_its_follower(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        first, _ = await two(harness)
        async with harness.supervisor.overview.following() as overview:
            await until(lambda: None not in shown(overview))
            wanted = Wanted.of(query(text="shop"))
            version, _ = frames(overview, wanted, -1, None)
            await (await harness.supervisor.get(first)).changes.set_title("Something else")
            await until(lambda: "Something else" in shown(overview))
            _, written = frames(overview, wanted, version, overview.epoch)
            (change,) = map(orjson.loads, written)
            assert (change["rows"], change["gone"]) == ([], [first])


def test_a_filter_has_a_bound() -> None:
    with pytest.raises(ValueError, match="more than 1000 characters"):
        Wanted.of(query(text="x" * 1001))


# What must not be missed.


async def test_a_connection_that_breaks_between_frames_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "GROUP_BYTES", 1)  # a row in each frame
    async with open_harness(tmp_path) as harness:
        ids = [(await harness.start()).id for _ in range(3)]
        async with harness.supervisor.overview.following() as overview:
            version, epoch = overview.version, overview.epoch
            for each in ids[:2]:
                await (await harness.supervisor.get(each)).changes.set_title("changed")
            await harness.supervisor.delete(ids[2])
            await until(lambda: list(shown(overview)) == ["changed"])
            _, written = frames(overview, Wanted(), version, epoch)
            changes = list(map(orjson.loads, written))
            assert len(changes) == 3
            for taken in range(4):
                seen = changes[:taken]
                version = seen[-1]["version"] if seen else version
                _, rest = frames(overview, Wanted(), version, epoch)
                seen += map(orjson.loads, rest)
                assert {row["id"] for frame in seen for row in frame["rows"]} == set(ids[:2])
                assert {each for frame in seen for each in frame["gone"]} == {ids[2]}


async def test_one_that_is_made_again_under_its_id_has_a_row(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        wanted = str(uuid.uuid4())
        overview = harness.supervisor.overview
        async with overview.following():
            for _ in range(2):
                await harness.start(conversation_id=wanted)
                await one(overview, id=wanted)
                await harness.supervisor.delete(wanted)
                assert shown(overview) == {}


async def test_one_that_is_deleted_while_the_rows_are_read_has_none(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        overview, journal = harness.supervisor.overview, harness.supervisor.journal
        search = journal.search_records

        async def search_records(**asked: Any) -> Any:
            found = await search(**asked)
            await harness.supervisor.delete(conversation.id)
            return found

        journal.search_records = search_records  # type: ignore[method-assign]
        async with overview.following():
            assert shown(overview) == {}


async def test_a_journal_that_cannot_be_read_is_an_error_and_no_wait(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        await harness.start()
        overview, journal = harness.supervisor.overview, harness.supervisor.journal
        search = journal.search_records

        async def search_records(**asked: Any) -> Any:
            raise JournalUnavailable("the disk is away")

        journal.search_records = search_records  # type: ignore[method-assign]
        with pytest.raises(JournalUnavailable):
            async with overview.following():
                raise AssertionError
        journal.search_records = search  # type: ignore[method-assign]
        async with overview.following():
            assert len(shown(overview)) == 1


async def test_what_leaves_the_memory_has_a_row_that_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "RECENT_MAX", 1)
    async with open_harness(tmp_path) as harness:
        first = await harness.start()
        async with harness.supervisor.overview.following() as overview:
            await first.changes.set_title("kept in mind")
            wanted = first.id
            del first
            await harness.start()  # takes its place
            gc.collect()

            def renamed() -> bool:
                return any(row["id"] == wanted for row in shown(overview).values() if row["title"])

            await until(renamed)


async def test_a_row_stays_while_its_record_cannot_be_read(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness, trio.open_nursery() as nursery:
        conversation, journal = await harness.start(), harness.supervisor.journal
        loaded, read, failed = [conversation], journal.get_records, trio.Event()

        async def fails(ids: Sequence[str]) -> Any:
            failed.set()
            raise JournalUnavailable("the disk is away")

        overview = Overview(journal, lambda: loaded, kind_of, harness.supervisor.prepare, nursery)
        async with overview.following():
            epoch = overview.epoch
            journal.get_records = fails  # type: ignore[method-assign]
            loaded.clear()  # it left the memory, with what follows
            await conversation.changes.set_title("kept in mind")
            await failed.wait()
            assert list(shown(overview)) == [None]
            journal.get_records = read  # type: ignore[method-assign]
            await until(lambda: list(shown(overview)) == ["kept in mind"])
            assert overview.epoch == epoch
        nursery.cancel_scope.cancel()


async def test_options_of_any_size_do_not_make_a_large_row(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        options = [{"id": "x" * 900, "name": "y" * 200, "kind": "allow_once"}] * 30
        asked = {
            "id": "1", "title": "t" * 1000, "tool_kind": None, "security_risk": "LOW", "options": options,
            "status": "waiting",
        }  # fmt: skip
        conversation.record.reported.agent_state["permissions"] = [asked]
        made = module.row(conversation.kind, conversation.record)
        assert made["waits"]["options"] == []
        assert len(orjson.dumps(made)) < module.ROW_BYTES
