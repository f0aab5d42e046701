"""Lists of conversations: each is written anew only when its record has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson

from supervisor.conversations.recording.listed import Listed
from tests.conversations.harness import open_harness

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
    assert list(listed._kept) == ["e", "f", "g", "h", "a"][-5:]
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
