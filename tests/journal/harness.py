from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from supervisor.journal.journal import Journal, open_journal
from supervisor.journal.log import Log
from supervisor.journal.rows import Blob, Row
from tests.journal.places import Place, PostgresPlace, SqlitePlace

CREATED = "2026-11-21T08:00:00.000000Z"


@pytest.fixture
def journal_path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.sqlite"


@pytest.fixture(params=["sqlite", "postgres"])
def journal_place(request: pytest.FixtureRequest) -> Place:
    """A journal's place, in each of the two stores."""
    if request.param == "sqlite":
        return SqlitePlace(request.getfixturevalue("journal_path"))
    return PostgresPlace(request.getfixturevalue("database"))


@pytest.fixture
async def journal(journal_place: Place) -> AsyncIterator[Journal]:
    async with journal_place.open() as opened:
        yield opened


@pytest.fixture
async def sqlite_journal(journal_path: Path) -> AsyncIterator[Journal]:
    async with open_journal(journal_path) as opened:
        yield opened


@pytest.fixture
async def log(journal: Journal) -> Log:
    return await new_log(journal, "c-1")


async def new_log(journal: Journal, conversation_id: str) -> Log:
    return await journal.create(conversation_id, b"{}", status="idle", created_at=CREATED, updated_at=CREATED)


async def put_blob(log: Log, blob_id: str, data: bytes, media_type: str = "text/plain") -> None:
    """Store bytes, as the recorder does, and wait until they are durable."""
    log.append((), blobs=(Blob(blob_id, media_type, data),))
    await log.flushed()


@pytest.fixture
def make_log() -> Callable[..., object]:
    return new_log


@pytest.fixture
def make_row() -> Callable[..., Row]:
    numbers = itertools.count()

    def make(
        body: bytes = b"{}",
        *,
        id: str | None = None,  # noqa: A002
        kind: str = "MessageEvent",
        source: str = "user",
        timestamp: str = "2026-11-21T08:10:08.391633Z",
    ) -> Row:
        name = f"e-{next(numbers)}" if id is None else id
        return Row(id=name, kind=kind, source=source, timestamp=timestamp, body=body)

    return make
