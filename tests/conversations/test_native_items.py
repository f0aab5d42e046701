"""What an agent tells of events that it is still making, as clients read it: masked, and told once."""

from __future__ import annotations

import random
import time
from collections import defaultdict

import pytest

from supervisor.acp.schema.extension import (
    ItemAborted,
    ItemDelta,
    ItemStarted,
)
from supervisor.conversations.built_in import items as native_items
from supervisor.conversations.built_in.items import ITEMS_MAX, NativeItems
from supervisor.conversations.recording.effects import Aborted, Call, Delta, Effect, Opened
from supervisor.credentials.masking import Masker

SECRET = "canary-5e1f77aa01"
KINDS = ("text", "reasoning", "arguments")


def begin(attempt: int = 1, item: str = "i") -> ItemStarted:
    return ItemStarted("s", item, attempt)


def says(text: str, kind: str = "text", item: str = "i", attempt: int = 1) -> ItemDelta:
    return ItemDelta("s", item, 0, kind, text, attempt)  # type: ignore[arg-type]


class Client:
    """What clients make of it: one that knows items, and one that can only append."""

    def __init__(self, *secrets: str) -> None:
        self.items = NativeItems(Masker(secrets))
        self.effects: list[Effect] = []
        self.texts: dict[str, str] = defaultdict(str)
        self.appended = ""
        self.orders: list[int] = []

    def take(self, *told: ItemStarted | ItemDelta | ItemAborted) -> Client:
        for each in told:
            self.hear(self.items.take(each))
        return self

    def hear(self, effects: list[Effect]) -> Client:
        for out in effects:
            self.effects.append(out)
            if isinstance(out, Opened):
                self.texts.clear()
                self.orders.clear()
            elif isinstance(out, Delta):
                self.texts[out.kind] += out.content
                self.appended += out.content
                self.orders.append(out.order)
        return self

    @property
    def begun(self) -> list[int]:
        return [out.attempt for out in self.effects if isinstance(out, Opened)]


def test_an_attempt_that_says_the_same_is_told_once() -> None:
    client = Client().take(begin(), says("Hello "), says("wor"), begin(2), says("Hel"), says("lo world"))
    assert (client.texts, client.appended, client.begun) == ({"text": "Hello world"}, "Hello world", [1])
    assert client.orders == [0, 1, 2]
    assert client.hear(client.items.becomes("i")).begun == [1]


def test_an_attempt_that_says_something_else_begins_anew() -> None:
    client = Client().take(begin(), says("Hello wor"), begin(2), says("Hello there"), says("!"))
    assert (client.texts, client.begun) == ({"text": "Hello there!"}, [1, 2])
    assert client.orders == [0, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_an_attempt_that_says_less_begins_anew_before_its_event(kind: str) -> None:
    client = Client().take(begin(), says("Hello"), says("more", kind), begin(2), says("Hello"))
    assert client.begun == [1]
    client.hear(client.items.becomes("i"))
    assert (client.texts, client.begun) == ({"text": "Hello"}, [1, 2])


def test_a_secret_in_two_pieces_is_masked() -> None:
    for kind in KINDS:
        client = Client(SECRET).take(begin(), says(f"a {SECRET[:7]}", kind), says(f"{SECRET[7:]} b", kind))
        assert client.hear(client.items.becomes("i")).texts == {kind: "a <secret-hidden> b"}
    client = Client(SECRET).take(begin(), says(f"half: {SECRET[:7]}"))
    assert client.texts == {"text": "half: "}
    assert client.hear(client.items.becomes("i")).texts == {"text": f"half: {SECRET[:7]}"}


def test_calls_are_named_and_stand_beside_each_other() -> None:
    client = Client().take(begin(item="a"), begin(item="b"))
    for item in "ab":
        client.take(ItemDelta("s", item, 0, "arguments", "{}", 1, f"call-{item}", "terminal"))
    deltas = [out for out in client.effects if isinstance(out, Delta)]
    assert [(out.item_id, out.call) for out in deltas] == [
        ("a", Call("call-a", "terminal")),
        ("b", Call("call-b", "terminal")),
    ]
    assert all(out.alongside for out in client.effects if isinstance(out, Opened))


def test_what_is_open_when_nobody_goes_on_is_aborted() -> None:
    client = Client().take(begin(item="a"), begin(item="b"), ItemAborted("s", "a", "cancelled"))
    client.hear(client.items.close())
    assert client.effects[2:] == [Aborted("a", 1, "cancelled"), Aborted("b", 1, "failed")]
    assert client.items.close() == []
    assert client.take(says("late")).effects[4:] == []  # and nothing follows


def test_so_many_are_open_at_once() -> None:
    client = Client().take(*(begin(item=str(number)) for number in range(ITEMS_MAX)))
    with pytest.raises(ValueError, match="items are open"):
        client.take(begin(item="more"))


@pytest.mark.guarantee(name="a-reader-that-falls-behind-loses-nothing")
@pytest.mark.parametrize("seed", range(60))
def test_what_is_told_in_the_end_is_what_the_last_attempt_said(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it repeats, leaves out or adds; also where more was said than is kept."""
    rand = random.Random(seed)
    monkeypatch.setattr(native_items, "COMPARED_CHARS", rand.choice((12, 1000)))
    client = Client(SECRET)
    for attempt in range(1, rand.randrange(2, 6)):
        client.take(begin(attempt))
        said: dict[str, str] = {}
        for kind in rand.sample(KINDS, rand.randrange(1, 4)):
            said[kind] = f"Hello {SECRET} wor"[: rand.randrange(1, 40)] + rand.choice(("", "", "ld", "d"))
            rest = said[kind]
            while rest:
                size = rand.randrange(1, 12)
                client.take(says(rest[:size], kind, attempt=attempt))
                rest = rest[size:]
    client.hear(client.items.becomes("i"))
    assert client.texts == {kind: text.replace(SECRET, "<secret-hidden>") for kind, text in said.items()}
    assert client.orders == list(range(len(client.orders)))


def test_comparing_costs_no_more_for_each_piece_the_more_was_told() -> None:
    def cost(pieces: int) -> float:
        taken = []
        for _ in range(2):
            items = NativeItems()
            items.take(begin())
            items.take(says("never repeated", "reasoning"))
            items.take(begin(2))
            started = time.thread_time()
            for _ in range(pieces):
                items.take(says("12345"))
            taken.append(time.thread_time() - started)
        return min(taken)

    assert cost(120_000) < 3 * cost(60_000)


def test_an_attempt_that_says_more_than_is_compared_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_items, "COMPARED_CHARS", 20)
    client = Client().take(begin(), says("why", "reasoning"), says("Hello"), begin(2), says("Hello wor"))
    assert (client.begun, client.texts["text"]) == ([1], "Hello wor")
    client.take(says("ld, hello!"))
    assert (client.begun, client.texts) == ([1, 2], {"text": "Hello world, hello!"})
    client.take(begin(3), says("Hello world", "text"), says("!"))
    client.hear(client.items.becomes("i"))
    assert (client.begun, client.texts) == ([1, 2, 3], {"text": "Hello world!"})
