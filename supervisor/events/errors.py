"""What is wrong with a document, in the shape in which clients are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import attrs

from supervisor.events.model import Model

MAX_ERRORS: Final = 1000
"""Errors collected of one document. Megabytes of hostile input would otherwise become gigabytes of them."""

Location = tuple[str | int, ...]


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


class EventValidationError(ValueError):
    """A document is not what it should be; `errors` lists all that is wrong with it, at most MAX_ERRORS."""

    def __init__(self, errors: Sequence[ErrorDetail]) -> None:
        self.errors: tuple[ErrorDetail, ...] = tuple(errors)
        first = self.errors[0]
        more = f" (and {len(self.errors) - 1} more)" if len(self.errors) > 1 else ""
        super().__init__(f"{'.'.join(map(str, first.loc)) or 'document'}: {first.msg}{more}")


class Errors:
    """The errors of one document while it is read."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: list[ErrorDetail] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, loc: Location, kind: str, message: str) -> None:
        """Note an error. Raises EventValidationError when there are too many to go on."""
        self._found.append(ErrorDetail(loc, message, kind))
        if len(self._found) >= MAX_ERRORS:
            raise EventValidationError(self._found)

    def raise_if_any(self) -> None:
        """Raise EventValidationError unless none was noted."""
        if self._found:
            raise EventValidationError(self._found)
