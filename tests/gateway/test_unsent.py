"""What waits to be sent to clients that do not read."""

from __future__ import annotations

import pytest

from gateway.http.budgets import Unsent


@pytest.mark.guarantee(name="nothing-hangs")
def test_who_has_waited_longest_yields_first_and_strangers_yield_to_strangers_alone():
    ended = []
    unsent = Unsent(strangers_bytes=100, all_bytes=1000)
    unsent.add(600, stranger=False, end=lambda: ended.append("known"))
    for number in range(4):
        unsent.add(30, stranger=True, end=lambda number=number: ended.append(number))
    assert ended == [0]
    assert unsent.bytes_of(strangers=True) == 90
    unsent.add(400, stranger=False, end=lambda: ended.append("another"))
    assert ended == [0, "known"]
    assert unsent.bytes_of(strangers=False) == 490


def test_what_is_sent_counts_no_more():
    ended = []
    unsent = Unsent(strangers_bytes=100)
    for _ in range(10):
        waiting = unsent.add(80, stranger=True, end=lambda: ended.append(1))
        unsent.remove(waiting)
        unsent.remove(waiting)
    assert (ended, unsent.bytes_of(strangers=False)) == ([], 0)


def test_one_that_is_too_large_for_all_ends_itself():
    ended = []
    unsent = Unsent(strangers_bytes=100)
    unsent.add(50, stranger=True, end=lambda: ended.append("small"))
    unsent.add(101, stranger=True, end=lambda: ended.append("large"))
    assert ended == ["small", "large"]
    assert unsent.bytes_of(strangers=True) == 0
