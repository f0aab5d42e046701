"""A conversation as a zip archive, read from the journal page by page while it is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
from quart import Request, Response
from quart.wrappers.response import ResponseBody

from gateway.api.files.streaming import breaking_off, in_thread, streamed
from supervisor.workspace.trajectory import Trajectory

if TYPE_CHECKING:
    from gateway.api.contract import View
    from gateway.api.files.downloads import Downloads

PAGE: Final = 200
"""Events read and packed at a time; the journal returns fewer if they are large."""


class _Body(ResponseBody):
    """The archive. It excludes events appended after the request."""

    def __init__(self, conversation: View, archive: Trajectory) -> None:
        self._conversation = conversation
        self._archive = archive

    async def __aenter__(self) -> AsyncIterator[bytes]:
        return self._pieces()

    async def __aexit__(self, *_: Any) -> None:
        pass

    async def _pieces(self) -> AsyncIterator[bytes]:
        log = self._conversation.log
        last, seq = log.high_water, -1
        while seq < last:
            async with breaking_off():
                found = await log.read(seq, PAGE)
                events = [(each.id, each.body) for each in found if each.seq <= last]
                piece = await in_thread(partial(self._archive.add, events), "to pack events")
            if not found:
                break
            seq = found[-1].seq
            yield piece
        yield await in_thread(self._archive.end, "to pack events")


async def trajectory(
    conversation: View, conversation_id: str, downloads: Downloads, asked: Request
) -> Response:
    """A response with the archive. Without its bytes for HEAD. Raises ApiError(429)."""
    slot = downloads.begin(asked)
    meta = orjson.dumps(await conversation.durable_info(), option=orjson.OPT_INDENT_2)
    if asked.method == "HEAD":
        return Response(b"", content_type="application/octet-stream")
    return streamed(_Body(conversation, Trajectory(conversation_id, meta)), slot)
