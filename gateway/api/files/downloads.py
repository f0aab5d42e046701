"""Answers that are sent while they are made: how many there may be at a time, for each holds files open."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from quart import Request
from quart.wrappers.response import ResponseBody

from gateway.api.errors import ApiError
from gateway.configuration.address import KEY_HEADER
from gateway.http.auth import from_header

if TYPE_CHECKING:
    from collections.abc import AsyncIterable

Client = tuple[str | None, str | None]
"""Address and key."""

TOO_MANY: Final = "Too many downloads at once. Try again when one of them has ended."


OTHERS_PART: Final = 3
"""A client may have so many times what it leaves for others. So one has three quarters of the places at most;
one that has none gets the last one."""


class Downloads:
    """The places for such answers. A client is an address, and a key where there are keys: one on the same
    machine, or behind the same proxy, with the same key is the same."""

    def __init__(self, limit: int, *, keyed: bool = False) -> None:
        self.limit = limit
        self.taken = 0
        """How many there are."""
        self._keyed = keyed
        self._held = Counter[Client]()

    def begin(self, asked: Request) -> Place:
        """Take a place for an answer to this request. Raises ApiError(429) where none is left for its
        client."""
        client = (asked.remote_addr, from_header(asked.headers.get(KEY_HEADER)) if self._keyed else None)
        if self.taken + math.ceil(self._held[client] / OTHERS_PART) >= self.limit:
            raise ApiError(429, TOO_MANY)
        return Place(self, client)

    def add(self, client: Client, count: int) -> None:
        """Note that the client has so many more, or fewer."""
        self.taken += count
        self._held[client] += count
        if not self._held[client]:
            del self._held[client]


class Place:
    """One of the places. Given back once, at the latest when nobody has it any more."""

    def __init__(self, downloads: Downloads, client: Client) -> None:
        self._downloads = downloads
        self._client = client
        self._given = False
        downloads.add(client, 1)

    def give(self) -> None:
        """Give it back; idempotent."""
        if not self._given:
            self._given = True
            self._downloads.add(self._client, -1)

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
