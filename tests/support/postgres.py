"""PostgreSQL for tests: an empty database for each.

One cluster per process of the tests, started with the first test that needs it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from supervisor.database.address import Database
from tests.support.cluster import Cluster, binaries, running


@contextmanager
def cluster(
    *, durable: bool = False, listen: str = "", standby_of: Cluster | None = None
) -> Iterator[Cluster]:
    """A running cluster in a temporary directory. Skips the test where there is no PostgreSQL, but for CI."""
    if binaries() is None and os.environ.get("CI") != "true":
        pytest.skip("PostgreSQL is not installed")
    with running(durable=durable, listen=listen, standby_of=standby_of) as found:
        yield found


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """The cluster of this process of the tests. It is not durable."""
    with cluster() as found:
        yield found


@pytest.fixture(scope="session")
def _template(postgres: Cluster) -> str:
    """The name of a database with Ostler's schema, without content."""
    from supervisor.database.connection import connect
    from supervisor.database.schema import migrate

    made = postgres.database()
    with connect(made, "template") as connection:
        migrate(connection)
        row = connection.execute("SELECT current_database()").fetchone()
    assert row is not None
    return str(row[0])


@pytest.fixture
def database(postgres: Cluster, _template: str) -> Database:
    """A new database with Ostler's schema."""
    return postgres.database(_template)


@pytest.fixture
def empty_database(postgres: Cluster) -> Database:
    """A new database without anything."""
    return postgres.database()
