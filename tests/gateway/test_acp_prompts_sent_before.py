"""Prompts that an editor sent on an earlier connection: their answers come after the updates."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
import trio.testing

from gateway.api.acp import session as sessions
from gateway.api.acp.earlier import Outcome, message_of, outcome_of
from gateway.api.acp.session import Prompt, Session
from supervisor.journal.journal import open_journal
from supervisor.journal.log import Log
from supervisor.journal.rows import Row, Stored
from tests.conversations.harness import open_harness, say, settled
from tests.journal.harness import CREATED, new_log


def joins_nothing(turn: str) -> None:
    raise AssertionError(turn)


class Wire:
    """What a client is sent, held back until `open`."""

    def __init__(self) -> None:
        self.open = trio.Event()
        self.sent: list[bytes] = []

    async def relay(self, frames: Iterable[bytes], _: Any) -> None:
        held = list(frames)
        if held:
            await self.open.wait()
        self.sent += held

    def has(self, text: bytes) -> bool:
        return any(text in each for each in self.sent)


async def test_the_answer_waits_for_the_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire()
    monkeypatch.setattr(sessions, "relay", wire.relay)
    async with open_harness(tmp_path) as harness, trio.open_nursery() as nursery:
        conversation = await harness.start()
        unread: Any = None
        session = Session(
            unread, conversation, conversation.follow_updates(None), lambda frame, _: frame, nursery
        )
        nursery.start_soon(session.follow)
        await conversation.send(say("!text done"), run=True, sender="acp:x:1")
        await settled(conversation)
        message = await message_of(conversation.log, "acp:x:1", 10)
        assert message is not None
        outcome = await outcome_of(conversation.log, message, joins_nothing)
        assert outcome is not None
        own = session.prompts["acp:x:1"] = Prompt("acp:x:1", message.id)
        session.end_after(own, outcome.seq, outcome.result, outcome.error)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not own.over.is_set()
        wire.open.set()
        with trio.fail_after(10):
            await own.over.wait()
        assert wire.has(b"done")
        assert own.result == {"stopReason": "end_turn"}

        late = Prompt("acp:x:1", message.id)
        session.end_after(late, outcome.seq, outcome.result, outcome.error)
        assert late.result == own.result  # all was sent already
        nursery.cancel_scope.cancel()


def state(**value: Any) -> Row:
    body = orjson.dumps({"key": "turn", "value": value})
    return Row(f"s-{len(body)}-{value}", "ConversationStateUpdateEvent", "environment", CREATED, body)


async def messages(log: Log, *rows: Row) -> list[Stored]:
    log.append(rows)
    await log.flushed()
    return [each for each in await log.read(-1, 100) if each.kind == "MessageEvent"]


def message(name: str) -> Row:
    body = orjson.dumps({"id": name, "sender": f"acp:x:{name}"})
    return Row(name, "MessageEvent", "user", CREATED, body)


async def test_a_message_that_joined_a_turn_ends_with_it(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "journal.sqlite3") as journal:
        log = await new_log(journal, "c")
        joined: list[str] = []
        first, second = await messages(
            log,
            message("first"),
            state(status="running", message_id="first"),
            message("second"),
            state(status="joined", message_id="first", joined="second"),
        )
        assert await outcome_of(log, second, joined.append) is None
        assert joined == ["first"]
        await messages(log, state(status="ended", message_id="first", stop_reason="end_turn"))
        ended = Outcome(4, {"stopReason": "end_turn"})
        assert await outcome_of(log, second, joined.append) == ended
        assert await outcome_of(log, first, joins_nothing) == ended
