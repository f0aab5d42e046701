"""The tail as a pure structure, against a plain list of everything that ever happened."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from supervisor.journal import feed
from supervisor.journal.feed import ITEM_OVERHEAD_BYTES, Tail
from supervisor.journal.rows import Frame, Stored, Transient


def row(seq: int, size: int = 2) -> Stored:
    return Stored(id=f"e{seq}", kind="K", source="s", timestamp="t", body=b"x" * size, seq=seq)


def seqs(items):
    return [item.seq if isinstance(item, Stored) else item.frame.session for item in items]


def test_an_event_shows_only_when_it_is_durable():
    tail = Tail(0, -1)
    tail.append(row(0))
    assert tail.take(0, 0, 10) == ([], 0)
    assert tail.commit(0)
    assert seqs(tail.take(0, 0, 10)[0]) == [0]
    assert not tail.commit(0)


def test_a_transient_waits_for_the_events_before_it_and_for_no_other():
    tail = Tail(0, -1)
    assert tail.publish(Frame(session=b"before"))
    tail.append(row(0))
    assert not tail.publish(Frame(session=b"between"))
    tail.append(row(1))
    assert seqs(tail.take(0, 0, 10)[0]) == [b"before"]
    tail.commit(0)
    assert seqs(tail.take(0, 0, 10)[0]) == [b"before", 0, b"between"]
    tail.commit(1)
    assert seqs(tail.take(1, 0, 10)[0]) == [0, b"between", 1]


def test_transients_from_before_a_cursor_was_there_are_passed_over():
    tail = Tail(0, -1)
    tail.publish(Frame(session=b"old"))
    tail.append(row(0))
    tail.commit(0)
    tail.publish(Frame(session=b"old too"))
    born = tail.visible
    tail.publish(Frame(session=b"new"))
    assert seqs(tail.take(0, born, 10)[0]) == [0, b"new"]
    assert seqs(tail.take(0, born, 1)[0]) == [0]


def test_the_tail_is_bounded_in_bytes_and_keeps_the_newest(monkeypatch):
    monkeypatch.setattr(feed, "TAIL_MAX_BYTES", 10 * (100 + ITEM_OVERHEAD_BYTES))
    monkeypatch.setattr(feed, "TAIL_TRIMMED_BYTES", 7 * (100 + ITEM_OVERHEAD_BYTES))
    tail = Tail(0, -1)
    for seq in range(100):
        tail.append(row(seq, 100))
        assert tail.size <= feed.TAIL_MAX_BYTES
    tail.commit(99)
    assert tail.locate(tail.first_seq - 2) is None
    position = tail.locate(tail.first_seq - 1)
    assert seqs(tail.take(position, 0, 1000)[0]) == list(range(tail.first_seq, 100))
    tail.append(row(100, 10**7))
    tail.commit(100)
    assert seqs(tail.take(tail.start, 0, 10)[0]) == [100]


def test_what_every_cursor_has_had_is_given_back(monkeypatch):
    monkeypatch.setattr(feed, "TAIL_SETTLED_BYTES", 0)

    class Reader:
        position = 0

    quick, slow = Reader(), Reader()
    tail = Tail(0, -1)
    tail.cursors.add(quick)
    tail.cursors.add(slow)
    for seq in range(4):
        tail.append(row(seq))
    tail.commit(3)
    quick.position, slow.position = 4, 2
    tail.settle()
    assert (tail.start, tail.first_seq) == (2, 2)
    del slow
    tail.settle()
    assert (tail.start, tail.first_seq, tail.size) == (4, 4, 0)
    # What follows is in its place again.
    tail.append(row(4))
    tail.commit(4)
    assert seqs(tail.take(4, 0, 10)[0]) == [4]


class Tails(RuleBasedStateMachine):
    """Cursors that use the tail when it has what they need, and a list otherwise, miss and repeat nothing."""

    def __init__(self):
        super().__init__()
        self.next_seq = 3
        self.high_water = 2
        self.tail = Tail(3, 2)
        self.frames = 0
        self.readers = []
        # Everything from before the tail is in the file.
        self.story = [0, 1, 2]

    @rule(size=st.integers(0, 900))
    def append(self, size):
        self.tail.append(row(self.next_seq, size))
        self.story.append(self.next_seq)
        self.next_seq += 1

    @rule(size=st.integers(0, 900))
    def publish(self, size):
        frame = b"%d:" % self.frames + b"x" * size
        self.frames += 1
        self.tail.publish(Frame(session=frame))
        self.story.append(frame)

    @rule(data=st.data())
    def commit(self, data):
        self.high_water = data.draw(st.integers(self.high_water, self.next_seq - 1))
        self.tail.commit(self.high_water)

    @rule(data=st.data())
    def subscribe(self, data):
        after = data.draw(st.integers(-1, self.next_seq - 1))
        found = self.tail.locate(after)
        self.readers.append(
            Reading(after, self.tail.start - 1 if found is None else found, self.tail.visible)
        )
        self.tail.cursors.add(self.readers[-1])

    @rule(data=st.data(), max_items=st.integers(1, 5))
    def read(self, data, max_items):
        if not self.readers:
            return
        reader = data.draw(st.sampled_from(self.readers))
        self.step(reader, max_items)
        self.tail.settle()

    def step(self, reader, max_items):
        tail = self.tail
        if reader.position < tail.start:
            found = tail.locate(reader.after)
            if found is None:
                until = min(self.high_water, tail.first_seq - 1, reader.after + max_items)
                reader.seen += range(reader.after + 1, until + 1)
                reader.after = max(reader.after, until)
                return
            reader.position = found
        items, reader.position = tail.take(reader.position, reader.born, max_items)
        reader.seen += seqs(items)
        for item in items:
            if not isinstance(item, Transient):
                reader.after = item.seq

    @invariant()
    def every_reader_is_right(self):
        assert self.tail.start <= self.tail.visible <= self.tail.end
        assert self.tail.size <= feed.TAIL_MAX_BYTES or self.tail.end - self.tail.start == 1
        for reader in self.readers:
            rows = [item for item in reader.seen if isinstance(item, int)]
            assert rows == list(range(reader.first + 1, reader.first + 1 + len(rows)))
            assert not rows or rows[-1] <= self.high_water
            # The whole, transients included, is a part of the story in the story's order.
            story = iter(self.story)
            assert all(item in story for item in reader.seen)

    def teardown(self):
        self.tail.commit(self.next_seq - 1)
        self.high_water = self.next_seq - 1
        for reader in self.readers:
            for _ in range(len(self.story) + 5):
                self.step(reader, 5)
            rows = [item for item in reader.seen if isinstance(item, int)]
            assert rows == list(range(reader.first + 1, self.next_seq))


class Reading:
    def __init__(self, after, position, born):
        self.first = self.after = after
        self.position = position
        self.born = born
        self.seen = []


@pytest.fixture(autouse=True, scope="module")
def _small_tail():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed, "TAIL_MAX_BYTES", 5000)
        patch.setattr(feed, "TAIL_TRIMMED_BYTES", 4000)
        patch.setattr(feed, "TAIL_SETTLED_BYTES", 2000)
        yield


Tails.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestTails = Tails.TestCase
