"""Limits concurrent streamed downloads, since each holds files open."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from quart import Request
from quart.wrappers.response import ResponseBody

from gateway.api.errors import ApiError
from gateway.configuration.address import KEY_HEADER
from gateway.http.access import from_header

if TYPE_CHECKING:
    from collections.abc import AsyncIterable

Client = tuple[str | None, str | None]
"""Address and key."""

TOO_MANY: Final = "Too many downloads at once. Try again when one of them has ended."


OTHERS_PART: Final = 3
"""A client may hold this many times the number of slots that it leaves free. So one client holds at most
three quarters of the slots, and a client without any can take the last one."""


class Downloads:
    """The slots for streamed downloads. A client is identified by its address, and by its key where the
    server has keys; clients behind one proxy with the same key count as one."""

    def __init__(self, limit: int, *, keyed: bool = False) -> None:
        self.limit = limit
        self.taken = 0
        """Slots in use."""
        self._keyed = keyed
        self._held = Counter[Client]()

    def begin(self, asked: Request) -> Slot:
        """Take a slot for the answer to this request. Raises ApiError(429) if its client may have no more."""
        client = (asked.remote_addr, from_header(asked.headers.get(KEY_HEADER)) if self._keyed else None)
        if self.taken + math.ceil(self._held[client] / OTHERS_PART) >= self.limit:
            raise ApiError(429, TOO_MANY)
        return Slot(self, client)

    def add(self, client: Client, count: int) -> None:
        """Add `count`, which may be negative, to the client's slots."""
        self.taken += count
        self._held[client] += count
        if not self._held[client]:
            del self._held[client]


class Slot:
    """One slot. Released once: by `release`, or when the object is garbage-collected."""

    def __init__(self, downloads: Downloads, client: Client) -> None:
        self._downloads = downloads
        self._client = client
        self._released = False
        downloads.add(client, 1)

    def release(self) -> None:
        """Release it; idempotent."""
        if not self._released:
            self._released = True
            self._downloads.add(self._client, -1)

    def __del__(self) -> None:
        # The body of an answer that is cancelled before it is read never exits, so it never calls `release`.
        self.release()


class HeldBody(ResponseBody):
    """A body that holds a slot until it is sent or abandoned."""

    def __init__(self, body: ResponseBody, slot: Slot) -> None:
        self._body = body
        self._slot = slot

    async def __aenter__(self) -> AsyncIterable[bytes]:
        return await self._body.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        try:
            await self._body.__aexit__(*error)
        finally:
            self._slot.release()
