"""Has a test of a store run over files and over PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.documents.port import Documents

FILES_ALONE = pytest.mark.parametrize("stores", ["files"], indirect=True)
"""For the tests of a module that look at the files."""


@pytest.fixture(params=["files", "postgres"])
def stores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where the stores keep their documents. With PostgreSQL each state directory has a database of its own
    instead, and whatever is opened over it is another server."""
    if request.param == "files":
        yield "files"
        return
    from supervisor.database.address import Database
    from supervisor.database.documents import PostgresDocuments

    postgres, template = request.getfixturevalue("postgres"), request.getfixturevalue("_template")
    databases: dict[Path, Database] = {}
    opened: list[PostgresDocuments] = []

    def at(state: Path) -> Documents:
        if state not in databases:
            databases[state] = postgres.database(template)
        opened.append(PostgresDocuments(databases[state]))
        return opened[-1]

    for module in (request.module, "supervisor.credentials.store", "supervisor.mcp.file"):
        name = module if isinstance(module, str) else module.__name__
        monkeypatch.setattr(f"{name}.FileDocuments", at, raising=False)
    yield "postgres"
    for each in opened:
        each.close()
