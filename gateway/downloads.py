"""Answers that are sent while they are made: how many there may be at a time, for each holds files open."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from quart.wrappers.response import ResponseBody

from gateway.connection import current
from gateway.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable

PART: Final = 4
"""One connection has at most one of so many places: over HTTP/2 one could otherwise take them all."""

TOO_MANY: Final = "Too many downloads at once. Try again when one of them has ended."


class Downloads:
    """The places for such answers."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken: Counter[object] = Counter()
        """By connection."""

    @property
    def taken(self) -> int:
        """How many there are."""
        return self._taken.total()

    def begin(self) -> Place:
        """Take a place for an answer to the request under way. Raises ApiError(429) where none is left."""
        connection: object = current.get(None)
        of_one = max(1, self.limit // PART) if connection is not None else self.limit
        if self.taken >= self.limit or self._taken[connection] >= of_one:
            raise ApiError(429, TOO_MANY)
        return Place(self._taken, connection)


class Place:
    """One of the places. Given back once, at the latest when nobody has it any more."""

    def __init__(self, taken: Counter[object], connection: object) -> None:
        self._taken = taken
        self._connection = connection
        self._given = False
        taken[connection] += 1

    def give(self) -> None:
        """Give it back; idempotent."""
        if not self._given:
            self._given = True
            self._taken[self._connection] -= 1
            if not self._taken[self._connection]:
                del self._taken[self._connection]

    def __del__(self) -> None:
        # An answer that is cancelled before its body is asked for gives nothing back.
        self.give()


class HeldBody(ResponseBody):
    """A body that holds a place until it is sent, or given up."""

    def __init__(self, body: ResponseBody, place: Place) -> None:
        self._body = body
        self._place = place

    async def __aenter__(self) -> AsyncIterable[bytes]:
        return await self._body.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        try:
            await self._body.__aexit__(*error)
        finally:
            self._place.give()
