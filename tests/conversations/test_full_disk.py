"""Conversations while nothing can be stored: what is refused, what waits, that nothing is lost or doubled."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio

from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.start import StartRequest
from supervisor.journal import trouble
from supervisor.journal.errors import JournalUnavailable
from supervisor.journal.storage import writer
from tests.conversations.harness import (
    PATIENCE_SECONDS,
    answer,
    calling,
    events,
    kinds,
    open_harness,
    ready_pid,
    say,
    settled,
    speaking,
    states,
    turn,
    until,
)
from tests.support.scripted import ScriptedLog

HASTY = Deadlines(interrupt_answer=0.5, cancel_grace=0.5, durable=0.3, shown=0.3)


class Disk:
    """Full, or slow, while a test wants that."""

    def __init__(self) -> None:
        self.full = False
        self.gate = threading.Event()
        self.gate.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk()
    real = writer._write

    def write(store: object, ops: object) -> None:
        found.gate.wait(PATIENCE_SECONDS)
        if found.full:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        real(store, ops)  # type: ignore[arg-type]

    def probe(store: object) -> None:
        write(store, [])

    monkeypatch.setattr(writer, "_write", write)
    monkeypatch.setattr("supervisor.journal.storage.store.Store.probe", probe)
    monkeypatch.setattr(trouble, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(writer, "LONGEST_PAUSE", 0.05)
    yield found
    found.full = False
    found.gate.set()


def users(found: list[dict]) -> list[str]:  # type: ignore[type-arg]
    return [
        e["llm_message"]["content"][0]["text"]
        for e in found
        if e["kind"] == "MessageEvent" and e["source"] == "user"
    ]


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_what_comes_too_late_is_refused_and_leaves_nothing(tmp_path: Path, disk: Disk) -> None:
    async with open_harness(tmp_path, deadlines=HASTY) as harness:
        conversation = await harness.start()
        await turn(conversation, "first")
        before = conversation.info()
        disk.full = True
        conversation.recorder.save()
        await until(lambda: conversation.log.trouble)
        for use in (
            lambda: conversation.send(say("refused"), run=True),
            lambda: conversation.changes.set_title("refused"),
            lambda: conversation.changes.set_tags({"refused": "1"}),
            lambda: conversation.changes.set_confirmation_policy({"kind": "AlwaysConfirm"}),
            lambda: conversation.changes.set_secrets({"refused": "1"}),
            conversation.run,
            lambda: harness.supervisor.create(StartRequest(working_dir=str(tmp_path), agent=harness.agent())),
            lambda: harness.supervisor.restart_agent(conversation.id),
        ):
            with pytest.raises(JournalUnavailable, match="nothing was stored"):
                await use()
        # Reading goes on, also of one that is not loaded.
        assert (await harness.supervisor.get(conversation.id)) is conversation
        assert (await conversation.durable_info())["execution_status"] == "finished"
        listed = await harness.listed()
        assert [item["id"] for item in listed] == [conversation.id]
        disk.full = False
        await until(lambda: not conversation.log.trouble)
        assert {**conversation.info(), "updated_at": ""} == {**before, "updated_at": ""}
        found = await turn(conversation, "second")
        assert answer(found) == "echo: second "
        assert users(await events(conversation)) == harness.log.prompts() == ["first", "second"]


@pytest.mark.guarantee(name="nothing-is-lost")
@pytest.mark.parametrize("gone", [False, True])
async def test_a_message_that_meets_the_full_disk_is_prompted_once(
    tmp_path: Path, disk: Disk, gone: bool
) -> None:
    """Its sender is told that it is queued, or has gone away; and sends it again, as clients do."""
    async with open_harness(tmp_path, deadlines=HASTY) as harness:
        conversation = await harness.start()
        await turn(conversation, "first")
        disk.full = True
        if gone:
            with trio.move_on_after(0.1):
                await conversation.send(say("second"), run=True)
        else:
            with pytest.raises(JournalUnavailable, match="The message is queued"):
                await conversation.send(say("second"), run=True)
        for _ in range(2):
            with pytest.raises(JournalUnavailable, match="The message is queued"):
                await conversation.send(say("second"), run=True)
        with pytest.raises(JournalUnavailable, match="nothing was stored"):
            await conversation.send(say("another"), run=True)
        assert harness.log.prompts() == ["first"]  # no agent works on what could be lost
        disk.full = False
        await until(lambda: not conversation.log.trouble)
        with trio.fail_after(PATIENCE_SECONDS):
            event_id = await conversation.send(say("second"), run=True)  # and once more, when all is well
        await settled(conversation)
        found = await events(conversation)
        assert users(found) == harness.log.prompts() == ["first", "second"]
        assert event_id in {e["id"] for e in found}
        # Written once more by a person it is meant.
        assert answer(await turn(conversation, "second")) == "echo: second "
        assert users(await events(conversation)) == ["first", "second", "second"]


@pytest.mark.guarantee(name="control-always-returns")
async def test_control_returns_while_nothing_can_be_stored(tmp_path: Path, disk: Disk) -> None:
    async with open_harness(tmp_path, deadlines=HASTY) as harness:
        conversation = await harness.start()
        await turn(conversation, "warm up")
        pid = ready_pid(conversation)
        await conversation.send(say("!opentool\n!slow 2000 5"), run=True)
        await calling(conversation)
        await speaking(conversation)
        disk.full = True
        conversation.recorder.save()
        await until(lambda: conversation.log.trouble)
        with trio.fail_after(30):
            await conversation.interrupt()
            await settled_in_trouble(conversation)
            await conversation.interrupt()
            await conversation.pause()
        assert ready_pid(conversation) == pid  # its answer to the cancel was heard
        durable = await conversation.durable_info()
        assert durable["execution_status"] == "running"
        with trio.fail_after(30):
            await harness.supervisor.stop_agent(conversation.id)
        assert ready_pid(conversation) is None
        disk.full = False
        found = await events(conversation)
        assert kinds(found).count("InterruptEvent") == 1
        assert (await conversation.durable_info())["execution_status"] == "paused"
        assert answer(await turn(conversation, "next")) == "echo: next "


async def settled_in_trouble(conversation: object) -> None:
    await until(lambda: not conversation.busy, "the end of the turn")  # type: ignore[attr-defined]


async def test_an_agent_at_work_is_held_back_and_goes_on(tmp_path: Path, disk: Disk) -> None:
    async with open_harness(tmp_path, deadlines=HASTY) as harness:
        conversation = await harness.start()
        await turn(conversation, "warm up")
        seen: list[int] = []

        async def follow() -> None:
            cursor = conversation.log.subscribe(-1)
            while True:
                seen.extend(item.seq for item in await cursor.next() if hasattr(item, "seq"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            lines = "\n".join(f"!text piece {n}\n!tool" for n in range(200))
            await conversation.send(say(lines), run=True)
            await until(lambda: conversation.log.last_seq > 60)
            disk.full = True
            await until(lambda: conversation.log.trouble)
            await trio.sleep(2 * HASTY.hold)  # what is held back for more of it comes now
            reached = -1
            while reached != conversation.log.last_seq:  # what was on its way comes, too, on a busy machine
                reached = conversation.log.last_seq
                await trio.sleep(0.5)
            assert conversation.busy  # the agent has more to say, and is not heard
            shown = conversation.log.high_water
            assert shown < reached
            disk.full = False
            assert await settled(conversation) == "finished"
            await until(lambda: len(seen) > conversation.log.high_water)
            nursery.cancel_scope.cancel()
        found = await events(conversation)
        assert seen[: len(found)] == list(range(len(found)))
        assert kinds(found).count("ActionEvent") >= 200 or kinds(found).count("ACPToolCallEvent") >= 200
        assert states(found, "agent_silent") == []


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_nothing_is_shown_that_a_crash_could_take_back(tmp_path: Path, disk: Disk) -> None:
    """With a disk that is slow, not full: nobody knows of trouble."""
    async with open_harness(tmp_path, deadlines=Deadlines(shown=0.3)) as harness:
        conversation = await harness.start()
        await turn(conversation, "first")
        disk.gate.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(conversation.changes.set_tags, {"new": "1"})
            await until(lambda: conversation.record.tags)
            assert conversation.info()["tags"] == {"new": "1"}
            with trio.fail_after(30):
                assert (await conversation.durable_info())["tags"] == {}
                assert b'"tags":{}' in await conversation.durable_state()
            listed = await harness.listed()
            assert [item["tags"] for item in listed] == [{}]
            shown: list[dict[str, str]] = []

            async def look() -> None:
                shown.append((await conversation.durable_info())["tags"])

            nursery.start_soon(look)
            await trio.sleep(0.05)
            assert shown == []
            disk.gate.set()
        assert shown == [{"new": "1"}]
        listed = await harness.listed()
        assert [item["tags"] for item in listed] == [{"new": "1"}]


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_figures_are_on_the_disk_before_they_are_shown(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("!usage\n!hang"), run=True)
        await until(lambda: conversation.recorder.unsaved)
        info = await conversation.durable_info()
        (record,) = await harness.supervisor.journal.get_records([conversation.id])
        assert record is not None
        assert info["stats"] == conversation.info()["stats"]
        assert not conversation.recorder.unsaved
        await conversation.interrupt()


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_what_is_too_large_costs_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "warm up")
        monkeypatch.setattr("supervisor.journal.log.MAX_VALUE_BYTES", 10_000)
        found = await turn(conversation, "!flood 2000")
        action, observation = states(found, "acp_dropped")  # the answer, which is in both
        assert action["kind"] == observation["kind"] == "too_large"
        assert "(ActionEvent) of" in action["detail"]
        assert "(ObservationEvent) of" in observation["detail"]
        assert "is too large for the journal" in action["detail"]
        assert answer(await turn(conversation, "next")) == "echo: next "


async def test_a_start_in_trouble_recovers_later(tmp_path: Path, disk: Disk) -> None:
    async with open_harness(tmp_path, deadlines=HASTY) as harness:
        conversation = await harness.start()
        await conversation.send(say("!hang"), run=True)
        await conversation.send(say("behind it"), run=True)
        await until(lambda: harness.log.prompts())
        await conversation.log.flushed()
        (tmp_path / "next").mkdir()
        with (
            closing(sqlite3.connect(tmp_path / "journal.sqlite3")) as source,
            closing(sqlite3.connect(tmp_path / "next" / "journal.sqlite3")) as copy,
        ):
            source.backup(copy)
    disk.full = True
    async with open_harness(tmp_path / "next", deadlines=HASTY) as harness:
        await until(lambda: harness.supervisor.journal.trouble)
        conversation = await harness.supervisor.get(conversation.id)
        assert (await conversation.durable_info())["execution_status"] == "running"
        disk.full = False
        told = ScriptedLog(tmp_path / "scripted.log")
        await until(lambda: told.prompts() == ["!hang", "behind it"])
        assert await harness.supervisor.get(conversation.id) is conversation
        await settled(conversation)
        found = await events(conversation)
        assert kinds(found).count("ConversationErrorEvent") == 1
        assert users(found) == ["!hang", "behind it"]
