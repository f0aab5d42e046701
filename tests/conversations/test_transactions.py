"""Which records of a turn are one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from supervisor.conversations.conversation import Conversation
from supervisor.journal.port import Append
from supervisor.journal.storage import writer
from tests.conversations.harness import open_harness, say, settled


def transactions(conversation: Conversation) -> list[list[str]]:
    """What is written from now on: the names of the events of each transaction."""
    found: list[list[str]] = []
    store = conversation.context.journal._writer._store
    write = store.write

    def noted(ops: Sequence[Any]) -> None:
        found.append([name(row) for op in ops if isinstance(op, Append) for row in op.rows])
        write(ops)

    store.write = noted  # type: ignore[method-assign]
    return found


def name(row: Any) -> str:
    body = orjson.loads(row.body)
    if body.get("key") == "turn":
        return f"turn {body['value']['status']}"
    return str(body["llm_message"]["role"]) if row.kind == "MessageEvent" else str(row.kind)


def of(found: list[list[str]], wanted: str) -> int:
    (place,) = [number for number, names in enumerate(found) if wanted in names]
    return place


async def test_a_warm_turn_is_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MORE_SECONDS", 10.0)  # however slow this machine is
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = transactions(conversation)
        await conversation.send(say("first"), run=True)
        await settled(conversation)
        # The agent starts for the first message, which must not be lost meanwhile.
        assert of(found, "user") < of(found, "turn running") < of(found, "turn ended")

        found.clear()
        await conversation.send(say("second"), run=True)
        await settled(conversation)
        assert of(found, "user") == of(found, "turn running") < of(found, "turn ended")
