"""What is remembered of an agent's standard error."""

from __future__ import annotations

import pytest

from supervisor.agents.pipes import TAIL_BYTES, TAIL_LINES, LineTail


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([], []),
        ([b"a"], ["a"]),
        ([b"a\n"], ["a"]),
        ([b"a", b"b\nc"], ["ab", "c"]),
        ([b"a\r\n\r\nb"], ["a", "", "b"]),
        ([b"\xff\n"], ["\ufffd"]),
        ([b"x" * 5000, b"x" * 5000 + b"\ny"], ["x" * 4096, "y"]),
        ([b"%d\n" % n for n in range(TAIL_LINES + 5)], [str(n) for n in range(5, TAIL_LINES + 5)]),
    ],
)
def test_line_tail(chunks, lines):
    tail = LineTail()
    for chunk in chunks:
        tail.feed(chunk)
    assert tail.lines() == lines


def test_line_tail_of_a_flood_is_that_of_its_end():
    flood = b"begun\n" + b"".join(b"%d\n" % n for n in range(30_000)) + b"open"
    at_once, bit_by_bit = LineTail(), LineTail()
    at_once.feed(b"bef")
    at_once.feed(flood)
    for start in range(0, len(flood), 100):
        bit_by_bit.feed(flood[start : start + 100])
    assert at_once.lines() == bit_by_bit.lines()
    assert at_once.lines()[-2:] == ["29999", "open"]


def test_line_tail_is_bounded_in_bytes():
    tail = LineTail()
    tail.feed(b"".join(b"z" * 4000 + b"\n" for _ in range(100)))
    assert sum(map(len, tail.lines())) <= TAIL_BYTES
