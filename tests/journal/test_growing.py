"""Of what grows every reader gets all, at every speed, whenever it joins: against a log without threads.

The log, its tail and its cursors are the real ones. What is durable, and when, the test says; the file is a
list. The tail and the items are made small, so that readers fall behind both.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from supervisor.conversations.recording.bounds.truncation import EVENT_BYTES
from supervisor.conversations.recording.streamed import WIRE, aborted, again, inside
from supervisor.journal import feed, growing
from supervisor.journal.feed import ITEM_OVERHEAD_BYTES
from supervisor.journal.growing import Growing
from supervisor.journal.log import Log
from supervisor.journal.rows import Frame, Row, Stored
from tests.support.log_store import Store

TIME = "2026-01-01T00:00:00.000000Z"
KEPT_BYTES = growing.GROWING_MAX_BYTES


def again_whole(row: Stored) -> Growing | None:
    """As the server does it: an item keeps more than an event may have, however small a test makes the
    former."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "GROWING_MAX_BYTES", KEPT_BYTES)
        return again(row)


class Reader:
    """A client of one kind of socket, and what it has understood."""

    def __init__(self, log: Log, after: int | None) -> None:
        self.cursor = log.subscribe(after, again=again_whole)
        self.from_seq = self.cursor.after_seq + 1
        self.joined = max(log.high_water, self.cursor.after_seq)
        self.seqs: list[int] = []
        self.legacy = {"text": "", "reasoning": ""}
        self.legacy_before: list[dict[str, str]] = []
        self.items: dict[str, dict[str, Any]] = {}
        self.ended: dict[str, dict[str, str]] = {}
        self.attempts: list[int] = []
        self.aborted: list[str] = []

    async def read(self, most: int) -> bool:
        """Take what there is. Returns whether there was anything."""
        with trio.move_on_after(1):  # of a clock that jumps
            for item in await self.cursor.next(most):
                if isinstance(item, Stored):
                    self._event(item)
                else:
                    self._shown(item.frame)
            return True
        return False

    def _event(self, row: Stored) -> None:
        self.seqs.append(row.seq)
        item = self.items.pop(row.id, None)
        if item is not None:
            self.ended[row.id] = item["said"]
        if row.kind == "MessageEvent":
            self.legacy_before.append(dict(self.legacy))
            self.legacy = {"text": "", "reasoning": ""}

    def _shown(self, frame: Any) -> None:
        if frame.legacy is not None:
            event = orjson.loads(frame.legacy)
            assert event["kind"] == "StreamingDeltaEvent"
            self.legacy["text"] += event.get("content") or ""
            self.legacy["reasoning"] += event.get("reasoning_content") or ""
        told = orjson.loads(frame.session)
        if told["type"] == "item_started":
            before = self.items.get(told["item_id"])
            assert before is None or told["attempt"] > before["attempt"]
            self.attempts.append(told["attempt"])
            self.items[told["item_id"]] = {
                "attempt": told["attempt"],
                "order": -1,
                "said": {"text": "", "reasoning": ""},
            }
        elif told["type"] == "delta":
            item = self.items[told["item_id"]]
            assert told["attempt"] == item["attempt"]
            assert told["order"] > item["order"]
            item["order"] = told["order"]
            item["said"][told["kind"]] += told["content"]
        else:
            assert told["type"] == "item_aborted"
            self.aborted.append(told["item_id"])
            self.items.pop(told["item_id"], None)
            self.legacy = {"text": "", "reasoning": ""}


class Play:
    """An agent that speaks, a journal that lags, and readers of any speed."""

    def __init__(self) -> None:
        self.store = Store()
        self.log = Log("c", key=0, last_seq=-1, writer=self.store, readers=self.store)  # type: ignore[arg-type]
        self.readers: list[Reader] = []
        self.item: Growing | None = None
        self.said: dict[str, str] = {}
        self.order = 0
        self.count = 0
        self.whole: dict[str, dict[str, str]] = {}
        self.began: dict[str, int] = {}
        self.retried = False

    def piece(self, kind: str, text: str) -> None:
        if self.item is None:
            self.count += 1
            self.item = Growing(f"item-{self.count}", self.log.last_seq, WIRE)
            self.said, self.order = {"text": "", "reasoning": ""}, 0
            self.log.begin(self.item)
        self.item.add(kind, inside(text), self.order, TIME)
        self.order += 1
        self.said[kind] += text
        self.log.grow(self.item)

    def retry(self, *, aborts: bool) -> None:
        """The agent begins its item anew, under the same id."""
        old = self.item
        if old is None:
            return
        if aborts:
            self.abort()
        self.item = Growing(old.id, self.log.last_seq, WIRE, old.attempt + 1)
        self.said, self.order = {"text": "", "reasoning": ""}, 0
        self.log.begin(self.item)
        self.retried = True

    def close(self) -> None:
        if self.item is None:
            return
        item, self.item = self.item, None
        self.whole[item.id] = self.said
        message = {"content": [{"text": self.said["text"]}], "reasoning_content": self.said["reasoning"]}
        self.event(item.id, "MessageEvent", {"kind": "MessageEvent", "llm_message": message})

    def event(self, event_id: str, kind: str, body: Any) -> None:
        self.log.append(
            [Row(id=event_id, kind=kind, source="agent", timestamp=TIME, body=orjson.dumps(body))]
        )

    def tool(self, size: int) -> None:
        self.count += 1
        self.event(f"tool-{self.count}", "ACPToolCallEvent", {"kind": "ACPToolCallEvent", "x": "x" * size})

    def abort(self) -> None:
        if self.item is not None:
            self.log.abandon(self.item, aborted(self.item, "failed"))
            self.item = None

    async def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("piece", kind, text):
                self.piece(kind, text)
            case ("close",):
                self.close()
            case ("abort",):
                self.abort()
            case ("retry", aborts):
                self.retry(aborts=aborts)
            case ("tool", size):
                self.tool(size)
            case ("commit",):
                self.store.commit(self.log)
            case ("join", after):
                if len(self.readers) < 4:
                    self.readers.append(Reader(self.log, after))
            case ("read", which, most):
                if self.readers:
                    await self.readers[which % len(self.readers)].read(most)

    async def finish(self) -> None:
        self.close()
        while self.store.queued:
            self.store.commit(self.log)
        for reader in self.readers:
            while await reader.read(3):
                pass

    def check(self, *, cut: bool = False) -> None:
        last = self.log.high_water
        seq_of = {row.id: row.seq for row in self.store.rows}
        for reader in self.readers:
            assert reader.seqs == list(range(reader.from_seq, last + 1))
            assert not reader.items
            for item_id, said in self.whole.items():
                if seq_of[item_id] > reader.joined:
                    assert reader.ended.get(item_id, {"text": "", "reasoning": ""}) == said
                else:
                    assert item_id not in reader.ended
            if not cut and not self.retried:  # the events socket knows no attempts
                messages = [row for row in self.store.rows if row.kind == "MessageEvent"]
                told = [row.id for row in messages if row.seq >= reader.from_seq]
                for item_id, legacy in zip(told, reader.legacy_before, strict=True):
                    if seq_of[item_id] > reader.joined:
                        assert legacy == self.whole[item_id]


TEXT = st.text(st.sampled_from('aé"\\\n€😀 '), min_size=1, max_size=30)
STEP = st.one_of(
    st.tuples(st.just("piece"), st.sampled_from(["text", "reasoning"]), TEXT),
    st.tuples(st.just("piece"), st.just("text"), TEXT),
    st.tuples(st.just("close")),
    st.tuples(st.just("abort")),
    st.tuples(st.just("retry"), st.booleans()),
    st.tuples(st.just("tool"), st.integers(0, 300)),
    st.tuples(st.just("commit")),
    st.tuples(st.just("join"), st.one_of(st.none(), st.integers(-1, 20))),
    st.tuples(st.just("read"), st.integers(0, 3), st.integers(1, 5)),
    st.tuples(st.just("read"), st.integers(0, 3), st.just(256)),
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(feed, "TAIL_MAX_BYTES", 5 * ITEM_OVERHEAD_BYTES)
    monkeypatch.setattr(feed, "TAIL_TRIMMED_BYTES", 3 * ITEM_OVERHEAD_BYTES)
    monkeypatch.setattr(feed, "TAIL_SETTLED_BYTES", ITEM_OVERHEAD_BYTES)
    monkeypatch.setattr(growing, "FRAME_BYTES", 60)
    monkeypatch.setattr("supervisor.conversations.recording.streamed.AGAIN_CHARS", 50)
    return monkeypatch


def play(steps: list[tuple[Any, ...]]) -> Play:
    async def run() -> Play:
        played = Play()
        for step in steps:
            await played.do(step)
        await played.finish()
        return played

    return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


LIMITS = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.guarantee(name="a-reader-that-falls-behind-loses-nothing")
@LIMITS
@given(steps=st.lists(STEP, max_size=60))
def test_what_a_reader_gets_is_the_whole_text(small: Any, steps: list[tuple[Any, ...]]) -> None:
    play(steps).check()


def test_what_is_told_again_from_an_event_is_all_kept() -> None:
    assert EVENT_BYTES < growing.GROWING_MAX_BYTES


LONG = "\\" * 20 + "€€€😀😀😀😀"


@pytest.mark.guarantee(name="a-reader-that-falls-behind-loses-nothing")
@LIMITS
@example(steps=[*[("piece", "text", LONG)] * 5, ("join", None)])
@given(steps=st.lists(STEP, max_size=60))
def test_also_where_more_grew_than_is_kept(small: Any, steps: list[tuple[Any, ...]]) -> None:
    small.setattr(growing, "GROWING_MAX_BYTES", 200)
    small.setattr(growing, "GROWING_TRIMMED_BYTES", 100)
    play(steps).check(cut=True)


@pytest.mark.guarantee(name="a-reader-that-falls-behind-loses-nothing")
def test_a_reader_that_keeps_up_gets_each_piece(small: Any) -> None:
    steps: list[tuple[Any, ...]] = [("join", None)]
    for number in range(20):
        steps += [("piece", "text", f"{number} "), ("read", 0, 256)]
    played = play(steps)
    played.check()


def frames_of(steps: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The session frames of the readers, in the order in which they took them."""
    seen: list[dict[str, Any]] = []
    shown = Reader._shown
    monkeypatch.setattr(
        Reader, "_shown", lambda self, frame: (seen.append(orjson.loads(frame.session)), shown(self, frame))
    )
    play(steps).check()
    return seen


@pytest.mark.guarantee(name="a-reader-that-falls-behind-loses-nothing")
def test_what_was_not_taken_is_merged_with_the_order_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[Any, ...]] = [("join", None), ("piece", "text", "0"), ("read", 0, 256)]
    steps += [("piece", "reasoning", f"<{number}>") for number in range(1, 4)]
    steps += [("piece", "text", f" {number}") for number in range(4, 1000)]
    frames = frames_of([*steps, ("read", 0, 256)], monkeypatch)
    assert [(frame["type"], frame.get("order")) for frame in frames] == [
        ("item_started", None),
        ("delta", 0),
        ("delta", 3),
        ("delta", 999),
    ]
    assert frames[2]["content"] == "<1><2><3>"
    assert frames[3]["content"] == "".join(f" {number}" for number in range(4, 1000))


def test_who_comes_in_the_middle_gets_the_text_so_far_and_then_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[tuple[Any, ...]] = [("tool", 1), ("commit",), ("piece", "text", "a"), ("piece", "text", "b")]
    steps += [("join", None), ("read", 0, 256), ("piece", "text", "c"), ("read", 0, 256)]
    frames = frames_of(steps, monkeypatch)
    assert frames[0] == {"type": "item_started", "item_id": "item-2", "attempt": 1, "anchor_seq": 0}
    assert [(frame["content"], frame["order"], frame["attempt"]) for frame in frames[1:]] == [
        ("ab", 1, 1),
        ("c", 2, 1),
    ]


def test_who_comes_back_begins_anew_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[Any, ...]] = [("join", None), ("piece", "text", "a"), ("read", 0, 256)]
    steps += [("join", None), ("read", 1, 256), ("join", None), ("read", 2, 256), ("piece", "text", "b")]
    steps += [("read", 0, 256)]
    frames = frames_of(steps, monkeypatch)
    begun = [frame["attempt"] for frame in frames if frame["type"] == "item_started"]
    assert begun == [0, 1, 2]
    assert (frames[-3]["content"], frames[-3]["attempt"]) == ("b", 0)


def test_an_item_that_never_becomes_an_event_is_told_to_nobody_who_comes_later() -> None:
    async def run() -> None:
        played = Play()
        reader = Reader(played.log, None)
        played.piece("text", "a")
        await reader.read(256)
        assert reader.items
        played.abort()
        await reader.read(256)
        assert not reader.items
        late = Reader(played.log, None)
        played.piece("text", "b")
        for each in (reader, late):
            await each.read(256)
            assert list(each.items) == ["item-2"]
            assert each.legacy["text"] == "b"

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("aborts", [False, True])
@pytest.mark.parametrize("slow", [False, True])
def test_what_is_begun_anew_under_its_id_is_told_anew(small: Any, *, aborts: bool, slow: bool) -> None:
    """To who has had some of the first attempt, and to who comes later; also to who fell behind the tail."""
    steps: list[tuple[Any, ...]] = [("join", None), ("piece", "text", "first try"), ("read", 0, 256)]
    steps += [("join", None), ("read", 1, 256), ("join", None), ("read", 2, 256)]
    steps += [("piece", "text", ", more"), ("retry", aborts), ("piece", "text", "second")]
    steps += [("tool", 1), ("commit",)] * 9 if slow else [("read", 0, 256), ("read", 1, 256)]
    steps += [("join", None), ("piece", "text", " try")]
    played = play(steps)
    played.check()
    assert [reader.ended["item-1"]["text"] for reader in played.readers] == ["second try"] * 4


@pytest.mark.guarantee(name="a-reader-that-falls-behind-loses-nothing")
@pytest.mark.parametrize("meanwhile", ["tool", "piece"])
def test_who_fell_behind_the_tail_is_told_what_never_becomes_an_event(small: Any, meanwhile: str) -> None:
    steps: list[tuple[Any, ...]] = [("join", None), ("piece", "text", "a"), ("read", 0, 256), ("abort",)]
    for number in range(20):
        steps += [("tool", 1), ("commit",)]
        if meanwhile == "piece":
            steps += [("piece", "text", f"{number}"), ("close",), ("commit",)]
    played = play(steps)
    played.check(cut=True)
    assert played.readers[0].aborted == ["item-1"]


def test_also_where_a_later_attempt_was_the_one_that_ended(small: Any) -> None:
    steps: list[tuple[Any, ...]] = [("join", None), ("piece", "text", "a"), ("read", 0, 256)]
    steps += [("retry", False), ("piece", "text", "b"), ("abort",)]
    played = play([*steps, *[("tool", 1), ("commit",)] * 20])
    played.check()
    assert played.readers[0].aborted == ["item-1"]


def test_a_reader_that_does_not_follow_is_told_events_alone(small: Any) -> None:
    async def run() -> None:
        played = Play()
        played.piece("text", "a")
        cursor = played.log.subscribe(None, follows=False)
        played.piece("text", "b")
        played.close()
        played.store.commit(played.log)
        assert [type(item) for item in await cursor.next()] == [Stored]

    trio.run(run)


def test_many_readers_at_one_place_share_their_frames() -> None:
    async def run() -> None:
        played = Play()
        cursors = [played.log.subscribe(None) for _ in range(10)]
        for number in range(5):
            played.piece("text", str(number))
        taken = [[item.frame for item in await cursor.next()][-1] for cursor in cursors]
        assert len({id(frame) for frame in taken}) == 1
        assert SimpleNamespace(**orjson.loads(taken[0].session)).content == "01234"

    trio.run(run)


@pytest.mark.guarantee(name="a-reader-that-falls-behind-loses-nothing")
def test_a_long_answer_weighs_little_more_than_its_text() -> None:
    """However small its pieces are, and with a reader that takes none of them."""
    log = Log("c", key=0, last_seq=-1, writer=Store(), readers=Store())  # type: ignore[arg-type]
    cursor = log.subscribe(None)
    item = Growing("item", -1, WIRE)
    log.begin(item)
    for number in range(20_000):
        item.add("text", b"x", number, TIME)
        log.grow(item)
    assert item.size == 20_000
    assert (cursor._tail.end, cursor._tail.size) == (1, ITEM_OVERHEAD_BYTES)
    assert len(item._channels["text"].marks) <= 20_000 // growing.FRAME_BYTES
    log.publish(Frame(session=b"{}"))
    assert cursor._tail.size == 20_000 + 2 * ITEM_OVERHEAD_BYTES + 2


@pytest.mark.guarantee(name="a-reader-that-falls-behind-loses-nothing")
@pytest.mark.parametrize("channels", [["text"], ["text", "reasoning"], ["text", "text", "text", "reasoning"]])
def test_what_an_item_keeps_has_a_bound(channels: list[str]) -> None:
    """However what is said and what is thought share it."""
    item = Growing("item", -1, WIRE)
    piece = b"x" * 4096
    for number in range(4 * growing.GROWING_MAX_BYTES // len(piece)):
        item.add(channels[number % len(channels)], piece, number, TIME)
        assert item.size <= growing.GROWING_MAX_BYTES
    assert item.size == sum(len(texts.data) for texts in item._channels.values())
    assert item.size > growing.GROWING_TRIMMED_BYTES // 2


@pytest.mark.guarantee(name="a-reader-that-falls-behind-loses-nothing")
def test_who_is_behind_what_is_forgotten_begins_anew_once(small: Any) -> None:
    """And not for each of the spans between which events stand."""
    small.setattr(growing, "GROWING_MAX_BYTES", 200)
    small.setattr(growing, "GROWING_TRIMMED_BYTES", 100)
    small.setattr(feed, "TAIL_MAX_BYTES", 1_000_000)
    steps: list[tuple[Any, ...]] = [("join", None), ("piece", "text", "begin"), ("read", 0, 256)]
    for number in range(40):
        steps += [("piece", ("text", "reasoning")[number % 2], f"{number:30}"), ("tool", 0), ("commit",)]
    (reader,) = play([*steps, ("read", 0, 256)]).readers
    # At first, then with what is left, and with the whole once its event is there.
    assert reader.attempts == [0, 1, 2]
    assert reader.seqs == list(range(41))
    assert reader.ended["item-1"]["text"].endswith(f"{38:30}")
