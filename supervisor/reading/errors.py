"""Errors of a document, in the shape that clients get."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

import attrs

from supervisor.reading.model import Location, Model

MAX_ERRORS: Final = 100
"""Most errors listed of one document. At the next one reading stops: hostile input can have millions."""

LOC_PARTS: Final = 20
"""Most parts of an error's location that are reported."""

NAME_CHARACTERS: Final = 200
"""Most characters of an input's name that are repeated."""

TOO_MANY: Final = "too_many_errors"
"""The type of the entry that stands for further errors, which are not searched for."""


@attrs.frozen
class ErrorDetail(Model):
    """One thing that is wrong: where (`loc`, property names and indexes from the root), what, and its type.

    The message never repeats the offending value, which may be a secret.
    """

    NAME: ClassVar[str] = "ValidationError"

    loc: tuple[str | int, ...]
    msg: str
    type: str


@attrs.frozen(kw_only=True)
class HTTPValidationError(Model):
    """The body of a 422 answer."""

    detail: tuple[ErrorDetail, ...]


class Invalid(ValueError):
    """A document is invalid; `errors` says where and how, and is bounded as `Errors.told` is.

    Its text is made on demand, and bounded: names in a document may have megabytes.
    """

    def __init__(self, errors: Iterable[ErrorDetail]) -> None:
        self.errors: tuple[ErrorDetail, ...] = tuple(errors)
        super().__init__(self.errors)

    def __str__(self) -> str:
        return "; ".join(f"{_place(each.loc)}: {each.msg}" for each in self.errors)


def _place(loc: Location) -> str:
    """A location in one line, its long names cut."""
    return ".".join(
        part if len(part) <= NAME_CHARACTERS else f"{part[:NAME_CHARACTERS]}..."
        for part in map(str, loc[:LOC_PARTS])
    )


Check = Callable[[Any, Location, "Errors"], Any]
"""Reads the value at a location. On an error it adds that to the Errors, and returns an arbitrary value."""


class Errors:
    """Collects the first errors of one document while it is read, and whether there are more.

    `named` are the checks that its descriptions leave to the caller (`Named`). Values without a check are
    kept as they are.
    """

    __slots__ = ("_found", "more", "named")

    def __init__(self, named: Mapping[str, Check] | None = None) -> None:
        self._found: list[ErrorDetail] = []
        self.more = 0
        """Number of unlisted errors. At the first one, the reader of a list or an object stops."""
        self.named: Mapping[str, Check] = named or {}

    def __len__(self) -> int:
        return len(self._found) + self.more

    def add(self, loc: Location, kind: str, message: str) -> None:
        """Note an error."""
        if len(self._found) < MAX_ERRORS:
            self._found.append(ErrorDetail(loc, message, kind))
        else:
            self.more += 1

    def note(self, errors: Iterable[ErrorDetail]) -> None:
        """Add errors that were found elsewhere."""
        for each in errors:
            self.add(tuple(each.loc), each.type, each.msg)

    def told(self) -> tuple[ErrorDetail, ...]:
        """The errors as a client gets them."""
        if not self.more:
            return tuple(self._found)
        return (*self._found, ErrorDetail((), "There are more mistakes", TOO_MANY))

    def raise_if_any(self) -> None:
        """Raise Invalid unless none was noted."""
        if self._found:
            raise Invalid(self.told())
