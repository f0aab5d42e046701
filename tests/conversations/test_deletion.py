"""Deletions that can be undone for a while."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from supervisor.conversations import deletion
from supervisor.conversations.deletion import DELETIONS_FILE, Deletions
from supervisor.conversations.state.errors import NotPossible, ToBeDeleted, UnknownConversation
from supervisor.documents.files import FileDocument
from supervisor.journal.errors import JournalUnavailable
from supervisor.journal.rows import RecordOrder
from tests.conversations.harness import Harness, answer, open_harness, ready_pid, say, speaking, turn, until
from tests.support.processes import alive

LONG = 300.0


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "GRACE_SECONDS", 0.0)


async def listed(harness: Harness) -> int:
    """How many conversations are listed, which is also how many are counted."""
    found = await harness.supervisor.listing(
        status=None, order=RecordOrder.CREATED_AT_DESC, page=None, limit=10
    )
    number = len(json.loads(b"[%b]" % found.bodies))
    assert number == await harness.supervisor.count()
    return number


class Recorded(list[tuple[float, str]]):
    """Which conversations were deleted, and when on Trio's clock."""

    async def delete(self, conversation_id: str) -> None:
        self.append((trio.current_time(), conversation_id))


async def test_each_is_deleted_at_its_time_and_a_restored_one_never(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    deleted = Recorded()
    deletions = Deletions(FileDocument(tmp_path / DELETIONS_FILE), {})

    async def pass_by(seconds: float) -> list[str]:
        mock_clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked()
        return [each for _, each in deleted]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deletions.carry_out, deleted.delete)
        await deletions.add("late", 300)
        await deletions.add("soon", 60)
        await deletions.add("kept", 90)
        assert (tmp_path / DELETIONS_FILE).stat().st_mode & 0o777 == 0o600
        assert await pass_by(59) == []
        assert await pass_by(2) == ["soon"]
        await until(lambda: "soon" not in deletions.until)
        with pytest.raises(NotPossible):
            await deletions.undo("soon")
        await deletions.undo("kept")
        assert await pass_by(230) == ["soon"]
        assert await pass_by(10) == ["soon", "late"]
        await until(lambda: not deletions.until)
        nursery.cancel_scope.cancel()
    assert json.loads((tmp_path / DELETIONS_FILE).read_bytes()) == {}


@pytest.mark.parametrize(
    ("left", "after"), [(-1000.0, 5.0), (1.0, 5.0), (120.0, 120.0), (1_000_000.0, 300.0)]
)
async def test_after_a_start_at_least_a_grace_and_at_most_the_whole_time_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, left: float, after: float
) -> None:
    monkeypatch.setattr(deletion, "GRACE_SECONDS", 5.0)
    (tmp_path / DELETIONS_FILE).write_text(json.dumps({"one": time.time() + left}))
    begin, deleted = trio.current_time(), Recorded()
    deletions = Deletions(FileDocument(tmp_path / DELETIONS_FILE), {})
    await deletions.load()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deletions.carry_out, deleted.delete)
        await trio.sleep(400)
        nursery.cancel_scope.cancel()
    assert [at - begin for at, _ in deleted] == pytest.approx([after], abs=2)


@pytest.mark.parametrize("jump", [7200.0, -7200.0])
async def test_a_clock_that_jumps_while_a_deletion_is_written_down_moves_it_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, jump: float
) -> None:
    begin, deleted = trio.current_time(), Recorded()
    deletions = Deletions(FileDocument(tmp_path / DELETIONS_FILE), {})
    write, real = deletions._write, time.time

    async def jumping(until: Mapping[str, float]) -> None:
        await write(until)
        monkeypatch.setattr(time, "time", lambda: real() + jump)

    monkeypatch.setattr(deletions, "_write", jumping)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deletions.carry_out, deleted.delete)
        await deletions.add("one", 60)
        await trio.sleep(400)
        nursery.cancel_scope.cancel()
    assert [at - begin for at, _ in deleted] == pytest.approx([60.0], abs=2)


async def test_what_is_being_deleted_is_too_late_to_undo_and_a_number_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "DELETIONS_MAX", 2)
    deletions = Deletions(FileDocument(tmp_path / DELETIONS_FILE), {})
    begun = trio.Event()

    async def never(conversation_id: str) -> None:
        begun.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deletions.carry_out, never)
        async with trio.open_nursery() as adding:  # at the same time: the file has both
            for each, seconds in (("soon", 0.0), ("late", LONG)):
                adding.start_soon(deletions.add, each, seconds)
        assert json.loads((tmp_path / DELETIONS_FILE).read_bytes()).keys() == {"soon", "late"}
        with pytest.raises(NotPossible, match="2 deletions wait already"):
            await deletions.add("another", LONG)
        await begun.wait()
        with pytest.raises(UnknownConversation):
            await deletions.undo("soon")
        nursery.cancel_scope.cancel()


async def gone(harness: Harness, conversation_id: str) -> bool:
    return (await harness.supervisor.journal.get_records([conversation_id])) == [None]


async def until_gone(harness: Harness, conversation_id: str) -> None:
    for _ in range(400):
        if await gone(harness, conversation_id):
            return
        await trio.sleep(0.02)
    raise AssertionError("it is still there")


@pytest.mark.guarantee(name="what-is-deleted-is-gone")
async def test_it_is_stopped_and_hidden_refuses_work_and_comes_back(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation, other = await harness.start(), await harness.start()
        await turn(conversation, "the word is tulip")
        await conversation.send(say("!slow 1000000 50"), run=True)
        await speaking(conversation)
        pid = await until(lambda: ready_pid(conversation))
        moment = await harness.supervisor.delete_later(conversation.id, LONG)
        assert LONG - 10 < moment - time.time() <= LONG
        assert not alive(pid)
        assert await listed(harness) == 1
        again = await harness.supervisor.get(conversation.id)
        for change in (
            again.send(say("hello"), run=True),
            again.run(),
            again.restart_agent(),
            again.changes.set_title("title"),
        ):
            with pytest.raises(ToBeDeleted, match=f"/api/conversations/{conversation.id}/restore"):
                await change
        assert await harness.supervisor.delete_later(conversation.id, 1.0) == moment
        with pytest.raises(ToBeDeleted):  # its id is taken
            await harness.start(conversation_id=conversation.id)
        restored = await harness.supervisor.restore(conversation.id)
        assert await listed(harness) == 2
        assert "tulip" in answer(await turn(restored, "!remember"))
        with pytest.raises(NotPossible, match="not being deleted"):
            await harness.supervisor.restore(other.id)


@pytest.mark.guarantee(name="what-is-deleted-is-gone")
async def test_it_is_deleted_when_its_time_is_over(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        kept = await harness.start()
        await turn(conversation, "hello")
        done: list[str] = []

        async def deleting(conversation_id: str) -> None:
            done.append(conversation_id)
            await harness.supervisor.delete(conversation_id)

        harness.supervisor.deleting = deleting
        await harness.supervisor.delete_later(kept.id, LONG)
        await harness.supervisor.delete_later(conversation.id, 0.05)
        await until_gone(harness, conversation.id)
        with pytest.raises(UnknownConversation):
            await harness.supervisor.restore(conversation.id)
        assert done == [conversation.id]
        await until(lambda: set(json.loads((tmp_path / DELETIONS_FILE).read_bytes())) == {kept.id})
        await harness.supervisor.delete(kept.id)
        assert json.loads((tmp_path / DELETIONS_FILE).read_bytes()) == {}


@pytest.mark.guarantee(name="what-is-deleted-is-gone")
async def test_it_is_deleted_also_by_the_next_server_and_can_be_restored_there(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation, kept, restored = [await harness.start() for _ in range(3)]
        await harness.supervisor.delete_later(conversation.id, 0.2)
        for each in (kept, restored):
            await harness.supervisor.delete_later(each.id, LONG)
    async with open_harness(tmp_path) as harness:
        await until_gone(harness, conversation.id)
        assert await listed(harness) == 0
        with pytest.raises(ToBeDeleted):
            await (await harness.supervisor.get(kept.id)).send(say("hello"), run=True)
        again = await harness.supervisor.restore(restored.id)
        assert "echo: hello" in answer(await turn(again, "hello"))
    async with open_harness(tmp_path) as harness:
        assert await listed(harness) == 1


async def test_a_deletion_that_cannot_be_written_down_leaves_a_conversation_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        with monkeypatch.context() as patched:

            def fails(path: Path, data: bytes) -> None:
                raise OSError(28, "No space left on device")

            patched.setattr("supervisor.documents.files.replace_private", fails)
            with pytest.raises(JournalUnavailable, match="No space left on device"):
                await harness.supervisor.delete_later(conversation.id, LONG)
        assert await listed(harness) == 1
        again = await harness.supervisor.get(conversation.id)
        assert "echo: hello" in answer(await turn(again, "hello"))
        await harness.supervisor.delete_later(conversation.id, LONG)
        with monkeypatch.context() as patched:
            patched.setattr("supervisor.documents.files.replace_private", fails)
            with pytest.raises(JournalUnavailable):
                await harness.supervisor.restore(conversation.id)
        assert await listed(harness) == 0


async def test_what_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "AGAIN_SECONDS", 0.05)
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        tries: list[str] = []

        async def deleting(conversation_id: str) -> None:
            tries.append(conversation_id)
            if len(tries) < 3:
                raise ValueError("a fault") if len(tries) == 1 else NotPossible("not now")
            await harness.supervisor.delete(conversation_id)

        harness.supervisor.deleting = deleting
        await harness.supervisor.delete_later(conversation.id, 0.01)
        await until_gone(harness, conversation.id)
        assert len(tries) == 3


@pytest.mark.parametrize(
    "content", ["[1]", "{", '{"x": "soon"}', '{"0f8f1d0e-0000-4000-8000-000000000001": 1}']
)
async def test_a_broken_file_and_unknown_conversations_delete_nothing(tmp_path: Path, content: str) -> None:
    async with open_harness(tmp_path) as harness:
        await harness.start()
    (tmp_path / DELETIONS_FILE).write_text(content)
    async with open_harness(tmp_path) as harness:
        assert await listed(harness) == 1
        later = await harness.start()
        await harness.supervisor.delete_later(later.id, 0.01)
        await until_gone(harness, later.id)
        assert await listed(harness) == 1


async def test_the_overview_hides_it_and_shows_it_again(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation, other = await harness.start(), await harness.start()
        overview = harness.supervisor.overview

        def ids() -> set[str]:
            return {line.shown["id"] for line in overview.since(-1, None).lines}

        async with overview.following():
            assert ids() == {conversation.id, other.id}
            await harness.supervisor.delete_later(conversation.id, LONG)
            assert ids() == {other.id}
            await harness.supervisor.get(conversation.id)
            overview._look()
            assert ids() == {other.id}
            await harness.supervisor.restore(conversation.id)
            assert ids() == {conversation.id, other.id}
            await harness.supervisor.delete_later(conversation.id, LONG)
        harness.supervisor._overview = None
        overview = harness.supervisor.overview
        async with overview.following():
            assert ids() == {other.id}
