"""Lists of conversations: each is written anew only when its record has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from supervisor.conversations.registry import Listed
from supervisor.journal.rows import RecordOrder
from tests.conversations.harness import open_harness, turn


def upper(stored: bytes) -> bytes:
    return stored.upper()


def test_a_record_is_written_once_as_long_as_it_is_the_same() -> None:
    listed, written = Listed(), list[bytes]()

    def write(stored: bytes) -> bytes:
        written.append(stored)
        return stored.upper()

    for stored in (b"one", b"one", b"two", b"two", b"one"):
        assert listed.json("c", stored, write) == stored.upper()
    assert listed.json("d", b"one", write) == b"ONE"
    assert written == [b"one", b"two", b"one", b"one"]


def test_what_is_kept_has_a_bound_and_the_one_listed_longest_ago_goes_first() -> None:
    listed = Listed(most=100)
    for name in "abcdefghijkl":
        assert listed.json(name, b"x" * 5, upper) == b"X" * 5
        listed.json("a", b"x" * 5, upper)
    assert list(listed._kept) == [*"defghijkl", "a"]
    assert listed._bytes == 100
    for name in listed._kept.copy():
        listed.forget(name)
    listed.json("a", b"x", upper)
    listed.forget("a")
    listed.forget("a")
    assert (listed._bytes, dict(listed._kept)) == (0, {})


def test_one_that_is_large_pushes_out_no_others() -> None:
    listed = Listed(most=100)
    for name in "abc":
        listed.json(name, b"x" * 6, upper)
    for size in (7, 49, 51, 1000):
        assert listed.json("large", b"y" * size, upper) == b"Y" * size
        assert (list(listed._kept), listed._bytes) == (["a", "b", "c"], 36)
    # It is not shown as it was before it grew either.
    for stored in (b"small", b"y" * 1000, b"small"):
        assert listed.json("a", stored, upper) == stored.upper()
    assert (list(listed._kept), listed._bytes) == (["b", "c", "a"], 34)


async def test_a_list_shows_each_change_and_no_more_after_the_end(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        supervisor = harness.supervisor
        first, second = [await harness.start() for _ in range(2)]

        async def listed() -> list[dict[str, Any]]:
            infos = await harness.listed()
            for info in infos:  # as each one by itself
                conversation = await supervisor.get(info["id"])
                assert info == orjson.loads(orjson.dumps(await conversation.durable_info()))
            return infos

        assert [info["id"] for info in await listed()] == [first.id, second.id]
        for title in ("A title", "Another"):
            await second.changes.set_title(title)
            assert [info["title"] for info in await listed()] == [None, title]
        await supervisor.delete(second.id)
        assert [info["id"] for info in await listed()] == [first.id]
        assert second.id not in supervisor._listed._kept


@pytest.mark.parametrize("order", RecordOrder)
async def test_a_list_goes_in_the_order_asked_by_status_and_page_by_page(
    tmp_path: Path, order: RecordOrder
) -> None:
    async with open_harness(tmp_path) as harness:
        supervisor = harness.supervisor
        first, second, third = [(await harness.start()).id for _ in range(3)]
        for each in (second, first):  # in this order they change, and they have had a turn
            await turn(await supervisor.get(each), "hello")

        async def pages(status: str | None, limit: int) -> list[list[str]]:
            """The ids of each page."""
            found: list[list[str]] = []
            page: str | None = None
            while True:
                listing = await supervisor.listing(status=status, order=order, page=page, limit=limit)
                infos = orjson.loads(b"[%b]" % listing.bodies)
                found.append([info["id"] for info in infos])
                page = listing.next_page_id
                if page is None:
                    return found
                assert len(found) < 10, "no end of pages"

        changed = {
            RecordOrder.CREATED_AT: [first, second, third],
            RecordOrder.CREATED_AT_DESC: [third, second, first],
            RecordOrder.UPDATED_AT: [third, second, first],
            RecordOrder.UPDATED_AT_DESC: [first, second, third],
        }[order]
        had_a_turn = [each for each in changed if each != third]
        assert await pages(None, 10) == [changed]
        assert await pages(None, 1) == [[each] for each in changed]
        assert await pages("finished", 10) == [had_a_turn]
        assert await pages("finished", 1) == [[each] for each in had_a_turn]
        assert await pages("idle", 10) == [[third]]
        assert await pages("error", 10) == [[]]
