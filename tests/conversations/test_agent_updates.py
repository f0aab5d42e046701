"""An agent's own updates: how they become lines, and that a reader gets each piece once."""

from __future__ import annotations

import itertools
from typing import Any, cast

import attrs
import orjson
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from supervisor.conversations.recording import agent_updates
from supervisor.conversations.recording.agent_updates import AgentUpdates
from supervisor.conversations.recording.bounds.truncation import EVENT_BYTES
from supervisor.conversations.recording.update_lines import lines_of, unshown
from supervisor.conversations.updates import AgentUpdate, UpdateReader
from supervisor.credentials.masking import HIDDEN, Masker
from supervisor.journal import feed
from supervisor.journal.feed import ITEM_OVERHEAD_BYTES
from supervisor.journal.log import Log
from supervisor.journal.rows import Frame, Row
from tests.support.log_store import Store

SECRET = "sk-demo-0123456789"
TIME = "2026-01-01T00:00:00.000000Z"


@attrs.define
class Shown:
    """Stands for a log that is followed: keeps what is published."""

    shows_updates: bool = True
    frames: list[Frame] = attrs.field(factory=list)

    def publish(self, frame: Frame) -> None:
        self.frames.append(frame)

    @property
    def bodies(self) -> list[Any]:
        return [orjson.loads(frame.piece.body) for frame in self.frames if frame.piece is not None]


def made(log: Any = None, mask: Masker | None = None, session_id: str | None = None) -> AgentUpdates:
    return AgentUpdates(
        cast(Log, log or Shown()),
        mask=lambda: mask or agent_updates.NOTHING,
        session_id=lambda: session_id,
    )


def text(words: str, kind: str = "agent_message_chunk", **members: Any) -> dict[str, Any]:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": words}, **members}


def thought(words: str, **members: Any) -> dict[str, Any]:
    return text(words, "agent_thought_chunk", **members)


def call(call_id: str = "c", kind: str = "tool_call_update", **members: Any) -> dict[str, Any]:
    return {"sessionUpdate": kind, "toolCallId": call_id, **members}


def output(data: str, call_id: str = "c", **members: Any) -> dict[str, Any]:
    return call(call_id, _meta={"terminal_output_delta": {"data": data, "terminal_id": "t"}}, **members)


def taken(updates: AgentUpdates) -> list[Any]:
    """What an event would get now."""
    found = [orjson.loads(line) for _, line in lines_of(updates.pending())[1]] if updates.pending() else []
    updates.clear()
    return found


IMAGE = {
    "sessionUpdate": "agent_message_chunk",
    "content": {"type": "image", "data": "aGk=", "mimeType": "i/p"},
}
PLAN = {"sessionUpdate": "plan", "entries": []}
NOTED = text("c", _meta={"a": 1})
MARKED = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "c", "annotations": {}}}


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ([text("a"), text("b")], [text("ab")]),
        ([text("a", messageId="1"), text("b", messageId="1")], [text("ab", messageId="1")]),
        ([text("a", messageId="1"), text("b", messageId="2")], None),
        ([text("a", messageId="1"), text("b")], None),
        ([text("a", messageId=None), text("b")], None),
        ([text("a"), thought("b"), thought("c"), text("d")], [text("a"), thought("bc"), text("d")]),
        ([text("a"), text("b", "user_message_chunk")], None),
        ([text("a"), PLAN, text("b")], None),
        ([text("a"), NOTED, text("b")], None),
        ([text("a"), MARKED, text("b")], None),
        ([text("a"), IMAGE, text("b")], None),
        ([text("a"), {"sessionUpdate": "agent_message_chunk", "content": "b"}], None),
        ([text("a"), text(""), text("b")], [text("ab")]),
        ([output("a"), output("b")], [output("ab")]),
        ([output("a"), output("b", "d")], None),
        ([output("a"), text("b"), output("c")], None),
        ([output("a"), output("b", status="completed")], None),
        ([output("a"), call(_meta={"terminal_output_delta": {"data": "b", "terminal_id": "other"}})], None),
        ([output("a"), call(_meta={"terminal_output_delta": {"data": 1}}), output("c")], None),
        ([call(status="in_progress"), call(status="in_progress"), call(status="completed")], None),
        ([call(kind="tool_call", locations=[{"path": "/a", "line": 3}], _meta={"x": [1]})], None),
        ([{"sessionUpdate": "something new", "é\n": "\u2028\n\"", "big": 2**70}], [
            {"sessionUpdate": "something new", "é\n": "\u2028\n\"", "big": float(2**70)}
        ]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("settles", [False, True])
def test_what_is_kept(sent: list[Any], kept: list[Any] | None, settles: bool) -> None:
    updates = made()
    for each in sent:
        updates.add(each)
        if settles:
            updates.settle()
    assert taken(updates) == (sent if kept is None else kept)
    assert taken(updates) == []


def test_a_text_continues_in_the_next_event() -> None:
    updates = made()
    updates.add(text("a"))
    assert taken(updates) == [text("a")]
    updates.add(text("b"))
    updates.add(PLAN)
    assert taken(updates) == [text("b"), PLAN]


def test_what_an_event_could_not_take_the_next_one_gets() -> None:
    updates = made()
    updates.add(text("a"))
    assert updates.pending() == updates.pending()  # the first one was not written
    updates.add(PLAN)
    assert taken(updates) == [text("a"), PLAN]


# -- masks ------------------------------------------------------------------------------------------------


@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize("make", [text, thought, output])
@pytest.mark.parametrize("cut", [1, 5, len(SECRET) - 1, len(SECRET)])
@pytest.mark.parametrize("between", [[], [PLAN], [{"sessionUpdate": "usage_update", "used": 1, "size": 2}]])
def test_a_secret_in_two_pieces_is_shown_by_none(make: Any, cut: int, between: list[Any]) -> None:
    log = Shown()
    updates = made(log, Masker([SECRET]))
    for each in [make("a " + SECRET[:cut]), *between, make(SECRET[cut:] + " b"), *between]:
        updates.add(each)
    updates.flush()
    for shown in (orjson.dumps(log.bodies), orjson.dumps(taken(updates))):
        assert HIDDEN.encode() in shown
        for at in range(len(SECRET) - 3):  # no part of it
            assert SECRET[at : at + 4].encode() not in shown


def said(lines: list[Any]) -> str:
    return "".join(line["content"]["text"] for line in lines if "content" in line)


@pytest.mark.parametrize(
    "then",
    [
        call(kind="tool_call"),
        text("next", messageId="2"),
        None,
    ],
)
def test_what_only_looked_like_a_secret_is_there_in_the_end(then: Any) -> None:
    updates = made(None, Masker([SECRET]))
    updates.add(text("a sk-d"))
    assert said(taken(updates)) == "a "
    if then is None:
        updates.flush()
    else:
        updates.add(then)
        updates.flush()
    assert said(taken(updates)).startswith("sk-d")


def test_output_that_looked_like_a_secret_is_there_when_its_call_ends() -> None:
    updates = made(None, Masker([SECRET]))
    for each in [output("a sk-"), call(status="completed"), output("sk-", "d"), output("x", "d")]:
        updates.add(each)
    parts = [line["_meta"]["terminal_output_delta"]["data"] for line in taken(updates) if "_meta" in line]
    assert parts == ["a ", "sk-", "sk-x"]


@pytest.mark.parametrize("live", [False, True])
def test_the_session_id_is_cut_short(live: bool) -> None:
    updates = made(Shown(live), session_id="session-0123456789")
    updates.add(text("session-0123456789"))
    assert b"session-" not in updates.snapshot().lines[0][1]
    updates.add({"sessionUpdate": "plan", "_meta": {"id": "session-0123456789"}})
    assert taken(updates) == [text("…23456789"), {"sessionUpdate": "plan", "_meta": {"id": "…23456789"}}]


# -- bounds -----------------------------------------------------------------------------------------------


def test_a_long_text_is_several_lines() -> None:
    updates = made()
    for _ in range(300):
        updates.add(text("x" * 1000))
    lines = taken(updates)
    assert said(lines) == "x" * 300_000
    assert all(len(line["content"]["text"]) <= agent_updates.LINE_CHARS for line in lines)


def test_no_line_is_larger_than_an_event() -> None:
    log = Shown()
    updates = made(log)
    updates.add(call(content=["x" * 100_000] * 50))
    updates.add(call(**{f"key {number}": "x" * 20 for number in range(100_000)}))
    assert len(updates.pending()) < EVENT_BYTES
    assert [frame.size < EVENT_BYTES for frame in log.frames] == [True, True]
    assert [line["toolCallId"] for line in taken(updates)] == ["c", "c"]


ODD = [None, 1, "x", [], {}, {"a": 1}, [{"type": "text"}]]


@pytest.mark.guarantee(name="nothing-that-is-sent-breaks-it")
@pytest.mark.parametrize("mask", [None, Masker([SECRET])])
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "sent", [text("a", messageId="m"), call(status="completed", content="x"), output("a")], ids=str
)
def test_no_type_of_a_member_breaks_it(sent: dict[str, Any], odd: Any, mask: Masker | None) -> None:
    for name in sent:
        updates = made(None, mask)
        changed = {**sent, name: odd}
        for each in (sent, changed, sent):
            updates.add(each)
            updates.settle()
        updates.flush()
        assert sent["sessionUpdate"] in [each["sessionUpdate"] for each in taken(updates)]
    meta = {**sent, "_meta": {"terminal_output_delta": odd}}
    updates = made(None, mask)
    updates.add(meta)
    updates.flush()
    assert taken(updates) == [meta]


def test_a_text_of_single_letters_takes_little() -> None:
    updates = made()
    for _ in range(3 * agent_updates.PARTS_MAX):
        updates.add(text("x"))
        updates.settle()
    assert updates._text is not None
    assert len(updates._text.parts) <= agent_updates.PARTS_MAX + 1
    assert said(taken(updates)) == "x" * 3 * agent_updates.PARTS_MAX


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
def test_the_first_and_the_newest_lines_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_updates, "PENDING_LINES", 10)
    updates = made()
    for number in range(100):
        updates.add(call(str(number)))
        updates.settle()
    _, lines = lines_of(updates.pending())
    assert [(index, orjson.loads(line)["toolCallId"]) for index, line in lines] == [
        (number, str(number)) for number in (*range(5), *range(95, 100))
    ]
    assert updates.snapshot().lines == lines


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
def test_what_waits_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_updates, "PENDING_BYTES", 10_000)
    updates = made()
    for number in range(1000):
        updates.add({"sessionUpdate": str(number), "x": "x" * 100})
        updates.add(text("x" * 100))
        updates.settle()
        assert len(updates.pending()) <= 11_000
    found = [line["sessionUpdate"] for line in taken(updates)]
    assert (found[0], found[-2]) == ("0", "999")
    updates.add(PLAN)
    assert taken(updates) == [PLAN]


LARGE = "x" * 2000


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ([call(content=LARGE), call(content="y")], [1]),
        ([call(content=LARGE), call(content=LARGE + "y", status="completed")], [1]),
        ([call(content=LARGE), call("d", content=LARGE)], [0, 1]),
        ([call(content=LARGE), call(rawOutput=LARGE)], [0, 1]),
        ([call(content=LARGE), call(content=None)], [0, 1]),
        ([call(kind="tool_call", content=LARGE), call(content=LARGE)], [0, 1]),
        ([output(LARGE, x=1), output(LARGE, x=1)], [0, 1]),
        ([call(content="small"), call(content="small")], [0, 1]),
    ],
)
def test_what_a_later_update_replaces_is_not_kept_where_it_is_large(sent: list[Any], kept: list[int]) -> None:
    log = Shown()
    updates = made(log)
    for each in sent:
        updates.add(each)
        updates.settle()
    assert log.bodies == sent
    assert lines_of(updates.pending())[1] == [(at, orjson.dumps(sent[at])) for at in kept]


# -- places -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [text, output])
@pytest.mark.parametrize(
    ("index", "place", "left"),
    [
        (0, (0, 0), "abc"),
        (0, (0, 1), "bc"),
        (0, (0, 3), None),
        (0, (1, 0), None),
        (1, (1, 2), "c"),
        (2, (1, 2), "abc"),
    ],
)
def test_what_comes_after_a_place(make: Any, index: int, place: tuple[int, int], left: str | None) -> None:
    found = unshown(orjson.dumps(make("abc")), index, place)
    assert (None if found is None else orjson.loads(found)) == (None if left is None else make(left))


class Client:
    """What somebody got, who may come back at any moment: characters of texts, other updates, events."""

    def __init__(self, play: Play, after: str | None) -> None:
        self.play = play
        self.begin = -1 if after == "" else play.log.high_water
        self.reader = play.follow(after)
        self.got: list[str] = []

    async def read(self, most: int | None = None) -> bool:
        with trio.move_on_after(0.001):
            items = await self.reader.next()
            position = None
            for item in items[:most]:
                if isinstance(item, AgentUpdate):
                    self.got += self.play.atoms(item.body)
                    position = item.position
                else:
                    self.got.append(item.id)
                    position = str(item.seq)
            if most is not None and len(items) > most and position is not None:
                self.reader = self.play.follow(position)  # it was killed in the middle of these
            else:
                assert position == self.reader.position
            return True
        return False

    def come_back(self) -> None:
        self.reader = self.play.follow(self.reader.position)


class Play:
    """An agent that says things, a journal that lags, a server that dies, and clients of any speed.

    Each character and each other update is unlike all others."""

    def __init__(self) -> None:
        self.store = Store()
        self.sent: dict[str, dict[str, Any]] = {}
        self.order: list[str] = []
        self.pending: list[str] = []
        self.lost: set[str] = set()
        self.unstored: list[list[str]] = []
        self.events = itertools.count()
        self.clients: list[Client] = []
        self.begin(-1)

    def begin(self, last_seq: int) -> None:
        self.log = Log("c", key=0, last_seq=last_seq, writer=self.store, readers=self.store)  # type: ignore[arg-type]
        self.updates = AgentUpdates(self.log)

    def follow(self, after: str | None) -> UpdateReader:
        return UpdateReader(self.log, self.updates, after)

    def atoms(self, body: bytes) -> list[str]:
        update = orjson.loads(body)
        if "_meta" in update:
            found = list(update["_meta"]["terminal_output_delta"]["data"])
            assert update == output("".join(found))
            return found
        if "content" not in update:
            assert update == self.sent[update["toolCallId"]]
            return [update["toolCallId"]]
        found = list(update["content"]["text"])
        assert found
        for each in found:
            assert {**update, "content": None} == self.sent[each]
        return found

    def text(self, kind: str, message_id: str | None, length: int) -> None:
        members = {} if message_id is None else {"messageId": message_id}
        words = "".join(chr(0x4E00 + len(self.sent) + n) for n in range(length))
        self.sent |= {each: {"sessionUpdate": kind, **members, "content": None} for each in words}
        self.updates.add(text(words, kind, **members))
        self.pending += words

    def output(self, length: int) -> None:
        words = "".join(chr(0x4E00 + len(self.sent) + n) for n in range(length))
        self.sent |= {each: {} for each in words}
        self.updates.add(output(words))
        self.pending += words

    def other(self, size: int) -> None:
        number = f"#{len(self.sent)}"
        self.sent[number] = call(number, title="x" * size)
        self.updates.add(self.sent[number])
        self.pending.append(number)

    def write(self, rows: int) -> None:
        made = [Row(f"e{next(self.events)}", "K", "agent", TIME, b"{}") for _ in range(rows)]
        made[0].updates = self.updates.pending()
        self.log.append(made)
        self.updates.clear()
        came = [*self.pending, *(row.id for row in made)]
        self.pending = []
        self.order += came
        self.unstored.append(came)

    def commit(self) -> None:
        if self.unstored:
            self.store.commit(self.log)
            del self.unstored[0]

    def settle(self) -> None:
        self.updates.settle()

    def lose(self, atoms: list[str]) -> None:
        self.lost.update(atoms)
        self.order = [each for each in self.order if each not in self.lost]

    def reload(self) -> None:
        """Nothing of the conversation stays but its log."""
        self.lose(self.pending)
        self.pending = []
        self.updates = AgentUpdates(self.log)

    def die(self) -> None:
        for came in [*self.unstored, self.pending]:
            self.lose(came)
        self.unstored, self.pending, self.store.queued = [], [], []
        self.begin(len(self.store.rows) - 1)
        for client in self.clients:
            client.come_back()

    async def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("join", after):
                if len(self.clients) < 4:
                    self.clients.append(Client(self, after))
            case ("read", which, most):
                if self.clients:
                    await self.clients[which % len(self.clients)].read(most)
            case ("back", which):
                if self.clients:
                    self.clients[which % len(self.clients)].come_back()
            case (name, *arguments):
                getattr(self, name)(*arguments)

    async def finish(self) -> None:
        self.write(1)
        while self.unstored:
            self.commit()
        for client in self.clients:
            while await client.read():
                pass

    def check(self) -> None:
        ids = [row.id for row in self.store.rows]
        for client in self.clients:
            begin = 0 if client.begin < 0 else self.order.index(ids[client.begin]) + 1
            assert [each for each in client.got if each not in self.lost] == self.order[begin:]
            assert len(set(client.got)) == len(client.got)


KIND = st.sampled_from(["agent_message_chunk", "agent_message_chunk", "agent_thought_chunk"])
STEP = st.one_of(
    st.tuples(st.just("text"), KIND, st.sampled_from([None, None, "m"]), st.integers(1, 8)),
    st.tuples(st.just("text"), KIND, st.none(), st.integers(1, 8)),
    st.tuples(st.just("other"), st.integers(0, 300)),
    st.tuples(st.just("output"), st.integers(1, 8)),
    st.tuples(st.just("write"), st.integers(1, 3)),
    st.tuples(st.just("commit")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("settle")),
    st.tuples(st.just("reload")),
    st.tuples(st.just("die")),
    st.tuples(st.just("join"), st.sampled_from([None, ""])),
    st.tuples(st.just("back"), st.integers(0, 3)),
    st.tuples(st.just("read"), st.integers(0, 3), st.one_of(st.none(), st.integers(1, 3))),
    st.tuples(st.just("read"), st.integers(0, 3), st.none()),
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "TAIL_MAX_BYTES", 8 * ITEM_OVERHEAD_BYTES)
    monkeypatch.setattr(feed, "TAIL_TRIMMED_BYTES", 5 * ITEM_OVERHEAD_BYTES)
    monkeypatch.setattr(feed, "TAIL_SETTLED_BYTES", ITEM_OVERHEAD_BYTES)
    monkeypatch.setattr(agent_updates, "LINE_CHARS", 10)


A, B = ("text", "agent_message_chunk", None, 3), ("other", 1)
JOIN, READ = ("join", None), ("read", 0, None)


@pytest.mark.guarantee(name="a-reader-that-falls-behind-loses-nothing")
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(steps=[JOIN, A, READ, A, READ, B, ("back", 0), A, READ])
@example(steps=[A, JOIN, READ, A, ("die",), A, READ])
@example(steps=[JOIN, A, READ, ("write", 1), ("commit",), ("die",), A, READ])
@example(steps=[JOIN, A, READ, ("reload",), B, READ, A])
@example(steps=[A, ("write", 1), A, JOIN, A, READ, ("commit",), B])
@example(steps=[A, ("write", 1), A, JOIN, ("write", 1), *[("commit",)] * 2, READ, A, READ])
@example(steps=[JOIN, ("write", 1), A, ("reload",), B, JOIN, B, ("commit",)])
@example(steps=[JOIN, *[A, B] * 20, READ, ("write", 1), *[A, B] * 20])
@given(steps=st.lists(STEP, max_size=60))
def test_a_client_gets_each_piece_once(small: None, steps: list[tuple[Any, ...]]) -> None:
    async def run() -> Play:
        play = Play()
        for step in steps:
            await play.do(step)
        await play.finish()
        return play

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0)).check()


def seen(*steps: tuple[Any, ...]) -> list[str]:
    """What the last client has got at the end of these steps."""

    async def run() -> list[str]:
        play = Play()
        for step in steps:
            await play.do(step)
        return play.clients[-1].got

    return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def test_each_piece_is_shown_before_its_event(small: None) -> None:
    first, second = chr(0x4E00), chr(0x4E01)
    one = ("text", "agent_message_chunk", None, 1)
    late = seen(JOIN, ("write", 1), one, JOIN, ("commit",), one, ("read", 1, None))
    assert late == ["e0", first, second]
    assert seen(JOIN, one, READ) == [first]
    assert seen(one, JOIN, READ, one, READ) == [first, second]
    assert seen(one, ("write", 1), ("commit",), one, JOIN, READ) == [second]


@pytest.mark.parametrize(
    "after", ["x", "1.2", "1.2.3", "1.2.3.", "-2", "1.2.3.g", " 1", "1" * 19, "1.-2.0.a"]
)
async def test_what_is_no_position(after: str) -> None:
    play = Play()
    with pytest.raises(ValueError, match="Not a position"):
        play.follow(after)


async def test_a_position_beyond_the_end_is_the_end() -> None:
    play = Play()
    play.write(2)
    play.commit()
    assert play.follow("7.3.2.abc").position == "1"
    assert play.follow("0.3.2.abc").position == "0.3.2.abc"
    assert play.follow(None).position == "1"
    assert play.follow("").position == "-1"
    assert play.follow("-1").position == "-1"


async def test_a_log_that_nobody_follows_publishes_nothing() -> None:
    play = Play()
    assert not play.log.shows_updates
    reader = play.follow(None)
    assert play.log.shows_updates
    del reader
    assert not play.log.shows_updates


async def test_other_readers_get_none_of_it() -> None:
    play = Play()
    other, reader = play.log.subscribe(None), play.follow(None)
    play.other(1)
    play.write(1)
    play.commit()
    assert [getattr(item, "seq", None) for item in await other.next()] == [0]
    assert len(await reader.next()) == 2
