"""The address of the database, from OSTLER_DATABASE. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import attrs
import psycopg
from psycopg.conninfo import conninfo_to_dict

VARIABLE: Final = "OSTLER_DATABASE"

SCHEMES: Final = frozenset({"postgresql", "postgres"})

EXAMPLE: Final = "postgresql://user:password@host/name"

PASSWORDS: Final = ("password", "sslpassword")
"""Parameters of an address that are confidential."""


@attrs.frozen
class Database:
    """Where the database is. `conninfo` holds the password; everything that is shown is made of `shown`."""

    conninfo: str = attrs.field(repr=False)

    @property
    def _parameters(self) -> Mapping[str, Any]:
        return conninfo_to_dict(self.conninfo)

    @property
    def shown(self) -> str:
        """Host, port and name, without user and password: for messages and logs."""
        found = self._parameters
        host, port = found.get("host") or "the local socket", found.get("port")
        return f"{host}{f':{port}' if port else ''}/{found.get('dbname', '')}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The passwords: they are masked wherever they appear, as they are and as a URL has them."""
        found = self._parameters
        values = [str(found[name]) for name in PASSWORDS if found.get(name)]
        return tuple(dict.fromkeys([*values, *(quote(each, safe="") for each in values)]))


def parse(text: str) -> Database:
    """Read an address. Raises ValueError, whose message never repeats the text: it may hold a password."""
    if text.partition("://")[0] not in SCHEMES:
        raise ValueError(f"only PostgreSQL is supported; write it as {EXAMPLE}")
    try:
        conninfo_to_dict(text)
    except psycopg.ProgrammingError:
        raise ValueError(f"the address cannot be read; write it as {EXAMPLE}") from None
    return Database(text)
