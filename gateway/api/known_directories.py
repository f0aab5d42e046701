"""The known workspaces: the conversations' working directories, and those that clients registered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import orjson

from supervisor.workspace.access import MAX_ROOTS, Directories

if TYPE_CHECKING:
    from gateway.api.contract import Supervisor

PAGE: Final = 100
"""Conversations that are looked up at a time."""


class KnownDirectories:
    """The working directories of all conversations, newest first, and those that `also` adds.

    A call costs two queries if no conversation was created or deleted since the previous call.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._directories: dict[str, str] = {}
        """By conversation, newest first."""
        self.also: list[Directories] = []
        """Further sources of directories, such as the registered workspaces."""

    async def __call__(self) -> Iterable[str]:
        """The distinct directories, at most MAX_ROOTS of the conversations. Raises what `also` raises."""
        found = dict.fromkeys(await self.of_conversations())
        for more in self.also:
            found.update(dict.fromkeys(await more()))
        return found

    async def of_conversations(self) -> Iterable[str]:
        """The distinct directories of the conversations, at most MAX_ROOTS."""
        return dict.fromkeys((await self.by_conversation()).values())

    async def by_conversation(self) -> Mapping[str, str]:
        """The directories by the ids of the conversations, the newest first, at most MAX_ROOTS."""
        if not await self._up_to_date():
            self._directories = {}
            await self._up_to_date()
        return self._directories

    async def _up_to_date(self) -> bool:
        """Add the newer conversations. Returns False if others were deleted."""
        newer: dict[str, str] = {}
        page: str | None = None
        while len(newer) < MAX_ROOTS:
            found = await self._supervisor.listing(
                status=None, order="created_at_desc", page=page, limit=PAGE
            )
            for info in orjson.loads(b"[%b]" % found.bodies):
                if info["id"] in self._directories:
                    break
                newer[info["id"]] = info["workspace"]["working_dir"]
            else:
                page = found.next_page_id
                if page is not None:
                    continue
            break
        self._directories = dict(list({**newer, **self._directories}.items())[:MAX_ROOTS])
        return len(self._directories) == min(await self._supervisor.count(), MAX_ROOTS)
