"""Conversations that a server claims: taken up at once, or as soon as the database allows it."""

from __future__ import annotations

from pathlib import Path

import attrs
import orjson
import pytest
import trio

from supervisor.conversations import registry
from supervisor.documents.port import DocumentsUnavailable
from supervisor.machines.directory import Moved
from supervisor.machines.errors import DatabaseAway, OwnedElsewhere, Place
from tests.conversations.harness import Harness, open_harness, say, settled, until

PLACE = Place(server=2, name="b", address="http://127.0.0.1:1", state="alive")


class Machines:
    """Answers `acquire` by what is in `answers`, then with None."""

    name = "here"

    def __init__(self, *answers: Exception | Moved) -> None:
        self.answers = list(answers)

    async def acquire(self, conversation_id: str) -> Moved | None:
        await trio.lowlevel.checkpoint()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


async def stored_conversation(harness: Harness) -> str:
    """The id of a conversation that has had a turn, and is not loaded any more."""
    conversation = await harness.start()
    await conversation.send(say("hello"), run=True)
    await settled(conversation)
    await conversation.close()
    harness.supervisor._drop(conversation)
    return conversation.id


@pytest.mark.parametrize(
    ("answer", "loaded"),
    [
        (None, True),
        (DatabaseAway("gone"), True),
        (DocumentsUnavailable("gone"), True),
        (OwnedElsewhere("x", PLACE), False),
        (ValueError(), False),
    ],
)
async def test_a_claim_is_taken_up_or_tried_again_and_never_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Exception | None, loaded: bool
) -> None:
    monkeypatch.setattr(registry, "RECOVER_PAUSE_SECONDS", 0.01)
    async with open_harness(tmp_path) as harness:
        supervisor, identifier = harness.supervisor, await stored_conversation(harness)
        machines = Machines(*([] if answer is None else [answer]))
        supervisor._context = attrs.evolve(supervisor._context, machines=machines)
        await supervisor.claimed([(identifier, Moved("there", "died"))])
        if loaded:
            await until(lambda: identifier in supervisor._loaded)
            events = (await supervisor._loaded[identifier].log.search(limit=100)).items
            moved = [orjson.loads(each.body) for each in events if b'"server"' in each.body]
            assert [each["value"]["from"] for each in moved if each.get("key") == "server"] == ["there"]
        else:
            assert identifier not in supervisor._loaded


async def test_an_owner_counts_for_a_moment_and_until_it_is_forgotten_or_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_harness(tmp_path) as harness:
        supervisor, identifier = harness.supervisor, await stored_conversation(harness)
        machines = Machines(*[OwnedElsewhere(identifier, PLACE) for _ in range(3)])
        supervisor._context = attrs.evolve(supervisor._context, machines=machines)

        async def elsewhere() -> int:
            with pytest.raises(OwnedElsewhere):
                await supervisor.get(identifier)
            return len(machines.answers)

        assert [await elsewhere() for _ in range(3)] == [2, 2, 2]
        supervisor.forget_owner(identifier)
        assert await elsewhere() == 1
        monkeypatch.setattr(registry, "OWNER_SECONDS", 0.0)
        supervisor.forget_owner(identifier)
        assert await elsewhere() == 0
        monkeypatch.setattr(registry, "OWNER_SECONDS", 60.0)
        machines.answers.append(OwnedElsewhere(identifier, PLACE))
        assert await elsewhere() == 0
        await supervisor.claimed([(identifier, Moved("there", "died"))])
        claimed = await supervisor.get(identifier)
        await claimed.close()
        supervisor._drop(claimed)
        del claimed
        assert (await supervisor.get(identifier)).id == identifier  # looked up again, and not remembered
