"""Lists of conversations: each is written anew only when its record has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from supervisor.conversations.recording.listed import Listed
from supervisor.journal import RecordOrder
from tests.conversations.harness import open_harness, turn

ASKED: Final[dict[str, Any]] = {"status": None, "order": "created_at", "page": None, "limit": 10}


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
    for name in "abcdefgh":
        assert listed.json(name, b"x" * 10, upper) == b"X" * 10
        listed.json("a", b"x" * 10, upper)
    assert list(listed._kept) == ["e", "f", "g", "h", "a"]
    assert listed._bytes == 100
    assert listed.json("large", b"y" * 1000, upper) == b"Y" * 1000
    assert not listed._kept
    assert listed._bytes == 0
    listed.json("a", b"x", upper)
    listed.forget("a")
    listed.forget("a")
    assert (listed._bytes, dict(listed._kept)) == (0, {})


async def test_a_list_shows_each_change_and_no_more_after_the_end(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        supervisor = harness.supervisor
        first, second = [await harness.start() for _ in range(2)]

        async def listed() -> list[dict[str, Any]]:
            page = await supervisor.listing(**ASKED)
            infos: list[dict[str, Any]] = orjson.loads(b"[" + page.bodies + b"]")
            # The same as when all is written anew, and as each one by itself.
            assert infos == orjson.loads(orjson.dumps((await supervisor.search(**ASKED)).items))
            for info in infos:
                conversation = await supervisor.get(info["id"])
                assert info == orjson.loads(orjson.dumps(await conversation.durable_info()))
            return infos

        assert [info["id"] for info in await listed()] == [first.id, second.id]
        for title in ("A title", "Another"):
            await second.set_title(title)
            assert [info["title"] for info in await listed()] == [None, title]
        await supervisor.delete(second.id)
        assert [info["id"] for info in await listed()] == [first.id]
        assert second.id not in supervisor._listed._kept


@pytest.mark.parametrize("order", RecordOrder)
async def test_a_list_is_the_page_that_a_search_finds(tmp_path: Path, order: RecordOrder) -> None:
    async with open_harness(tmp_path) as harness:
        supervisor = harness.supervisor
        first, second, third = [(await harness.start()).id for _ in range(3)]
        for each in (second, first):  # in this order they change, and they have had a turn
            await turn(await supervisor.get(each), "hello")

        async def pages(status: str | None, limit: int) -> list[list[str]]:
            """The ids of each page, which are those of the search."""
            found: list[list[str]] = []
            page: str | None = None
            while True:
                asked: dict[str, Any] = {"status": status, "order": order, "page": page, "limit": limit}
                listing, search = await supervisor.listing(**asked), await supervisor.search(**asked)
                infos = orjson.loads(b"[" + listing.bodies + b"]")
                assert infos == orjson.loads(orjson.dumps(search.items))
                assert listing.next_page_id == search.next_page_id
                found.append([info["id"] for info in infos])
                page = listing.next_page_id
                if page is None:
                    return found

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
