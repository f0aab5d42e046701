"""Strict reading of a TOML table: every property has a type, none is left unread."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, TypeGuard

__all__ = ["CatalogError", "Table"]

_REQUIRED: Final = object()


class CatalogError(Exception):
    """A descriptor is not usable; the message names the file, the property and what was expected."""


def _is_texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


class Table:
    """Takes properties out of a decoded table; as a context manager it rejects what was not taken."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.where = where
        self._left = dict(values)

    def __enter__(self) -> Table:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._left:
            raise CatalogError(f"{self.where}: unknown properties {', '.join(sorted(self._left))}")

    def text(self, name: str) -> str:
        """A required string."""
        value = self._take(name, _REQUIRED)
        if isinstance(value, str):
            return value
        raise self._wrong(name, "a string")

    def text_or_none(self, name: str) -> str | None:
        """An optional string."""
        value = self._take(name, None)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong(name, "a string")

    def number_or_none(self, name: str) -> int | None:
        """An optional whole number."""
        value = self._take(name, None)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self._wrong(name, "a whole number")

    def version_or_none(self, name: str) -> tuple[int, ...] | None:
        """An optional version, written as numbers with dots between them."""
        value = self.text_or_none(name)
        if value is None:
            return None
        parts = value.split(".")
        if not all(part.isdecimal() for part in parts):
            raise self._wrong(name, "a version like 22.19")
        return tuple(int(part) for part in parts)

    def flag(self, name: str) -> bool:
        """An optional boolean, false when absent."""
        value = self._take(name, False)
        if isinstance(value, bool):
            return value
        raise self._wrong(name, "true or false")

    def texts(self, name: str, default: object = _REQUIRED) -> tuple[str, ...]:
        """A list of strings, required unless a default is given."""
        value = self._take(name, default)
        if value is default:
            return ()
        if _is_texts(value):
            return tuple(value)
        raise self._wrong(name, "a list of strings")

    def variables(self, name: str) -> dict[str, str]:
        """An optional table of strings."""
        value = self._take(name, {})
        if isinstance(value, dict) and all(isinstance(item, str) for item in value.values()):
            return value
        raise self._wrong(name, "a table of strings")

    def table(self, name: str) -> Table | None:
        """An optional inner table."""
        value = self._take(name, None)
        if value is None:
            return None
        if isinstance(value, dict):
            return Table(value, f"{self.where}: {name}")
        raise self._wrong(name, "a table")

    def tables(self, name: str) -> list[Table]:
        """An optional list of inner tables."""
        value = self._take(name, [])
        if isinstance(value, list) and all(isinstance(item, dict) for item in value):
            return [Table(item, f"{self.where}: {name}[{index}]") for index, item in enumerate(value)]
        raise self._wrong(name, "a list of tables")

    def all_texts(self) -> dict[str, tuple[str, ...]]:
        """Everything left, each a list of strings."""
        return {name: self.texts(name) for name in list(self._left)}

    def _take(self, name: str, default: object) -> Any:
        value = self._left.pop(name, default)
        if value is _REQUIRED:
            raise CatalogError(f"{self.where}: {name} is missing")
        return value

    def _wrong(self, name: str, expected: str) -> CatalogError:
        return CatalogError(f"{self.where}: {name} has to be {expected}")
