"""Answers that are sent while they are made: from an open file, from a generator, with any length."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote

import structlog
import trio
from quart import Request, Response
from quart.wrappers.response import ResponseBody
from werkzeug.datastructures import Range
from werkzeug.http import http_date

from gateway.api.files.downloads import Downloads, HeldBody, Slot
from gateway.api.responses import bare
from gateway.http.client_connection import current
from supervisor.journal.errors import JournalError
from supervisor.patience import KeyedLimiters, in_time
from supervisor.workspace.files import PIECE_BYTES, Changed, OpenFile
from supervisor.workspace.problems import WorkspaceProblem

log = structlog.get_logger(__name__)

T = TypeVar("T")

THREADS: Final = 8
"""Threads that read and write files of clients at a time."""

STEP_SECONDS: Final = 20.0
"""Seconds for one piece (a quarter of a megabyte) of a file; a disk that takes longer counts as hung."""

GATHER_BYTES: Final = 64 * 1024
GATHER_SECONDS: Final = 0.2
"""How much of an answer one visit to a thread makes, and how long it works at most."""

_LIMITERS: Final = KeyedLimiters(THREADS)

SECOND: Final = 10**9
"""Nanoseconds."""

IN_PARTS: Final = {
    206: "The range that is asked for",
    304: "The client has it as it is",
    416: "The range is outside of the file",
}
"""The statuses of `file_response` besides 200."""

NO_BODY: Final = {304: None, 416: None}
"""Those without a body."""

BINARY: Final = "application/octet-stream"


async def in_thread(
    work: Callable[[], T], what: str, *, wasted: Callable[[T], object] = lambda result: None
) -> T:
    """Run work on files of clients in a thread that can be abandoned. Raises PathTimeout."""
    return await in_time(work, what, limiter=_LIMITERS.of("files"), seconds=STEP_SECONDS, wasted=wasted)


@asynccontextmanager
async def breaking_off() -> AsyncIterator[None]:
    """End the connection if the block fails after the answer has begun: HTTP has no other way to report it.

    The calling task is then cancelled. Without a connection, as in tests, the error propagates.
    """
    try:
        yield
    except (Changed, WorkspaceProblem, JournalError, OSError) as error:
        connection = current.get(None)
        if connection is None:
            raise
        log.warning("answer broken off", reason=str(error))
        connection.end()
        await trio.sleep_forever()


class FileBody(ResponseBody):
    """The bytes of an open file, which it owns."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file

    async def __aenter__(self) -> AsyncIterator[bytes]:
        return self._pieces()

    async def __aexit__(self, *_: Any) -> None:
        self._file.close()  # of something that was read: closing does not wait

    async def _pieces(self) -> AsyncIterator[bytes]:
        while self._file.left:
            async with breaking_off():
                piece = await in_thread(self._file.read, "to read a file")
            yield piece


class MadeBody(ResponseBody):
    """What a blocking generator yields. It runs in threads, a little at a time, as the client reads."""

    def __init__(self, made: Iterator[bytes], first: bytes = b"") -> None:
        self._made = made
        self._first = first
        self._stuck = False

    async def __aenter__(self) -> AsyncIterator[bytes]:
        return self._pieces()

    async def __aexit__(self, *_: Any) -> None:
        if not self._stuck:
            with trio.CancelScope(shield=True):
                await in_thread(partial(_close, self._made), "to close files")

    async def _pieces(self) -> AsyncIterator[bytes]:
        if self._first:
            yield self._first
        while True:
            self._stuck = True  # the generator belongs to the thread until that ends
            async with breaking_off():
                piece = await in_thread(
                    partial(gather, self._made), "to make an archive", wasted=lambda _: _close(self._made)
                )
            self._stuck = False
            if piece is None:
                return
            if piece:
                yield piece


def gather(made: Iterator[bytes]) -> bytes | None:
    """The next batch of what a generator yields; None at its end."""
    until = time.monotonic() + GATHER_SECONDS
    gathered = bytearray()
    for piece in made:
        gathered += piece
        if len(gathered) >= GATHER_BYTES or time.monotonic() > until:
            return bytes(gathered)
    return bytes(gathered) or None


def _close(made: Iterator[bytes]) -> None:
    close = getattr(made, "close", None)
    if close is not None:
        close()


async def file_response(file: OpenFile, media_type: str, downloads: Downloads, asked: Request) -> Response:
    """The answer to a request for the file: all of it, the requested range, or no body if the client's copy
    is current. A request for several ranges gets the whole file. Takes ownership of `file`.

    A small file is read at once. A large one is streamed; if it shrinks meanwhile, the connection ends, so
    that the client sees the truncation. Raises ApiError(429) for too many streamed files.
    """
    facts = {"Accept-Ranges": "bytes"}
    try:
        if file.modified is not None:
            modified = file.modified // SECOND
            tag = f"{file.modified:x}-{file.size:x}"
            facts["ETag"] = f'"{tag}"'
            with suppress(ValueError, OverflowError):  # some file systems keep times that no calendar has
                facts["Last-Modified"] = http_date(modified)
            if _is_known(asked, tag, modified):
                file.close()
                return bare(304, facts)
            if (part := _part(asked, tag, modified)) is not None:
                chosen = _within(part, file.size)
                if chosen is None and len(part.ranges) == 1:
                    file.close()
                    return bare(416, {**facts, "Content-Range": f"bytes */{file.size}"})
                if chosen is not None:
                    begin, end = chosen
                    file.skip(begin, end - begin)
                    facts["Content-Range"] = f"bytes {begin}-{end - 1}/{file.size}"
        length = file.left
        if asked.method == "HEAD":
            response = Response(b"")
            file.close()
        elif length <= PIECE_BYTES:
            data = await in_thread(partial(_whole, file), "to read a file")
            response, length = Response(data), len(data)
        else:
            response = streamed(FileBody(file), downloads.begin(asked))
    except BaseException:
        file.close()
        raise
    if "Content-Range" in facts:
        response.status_code = 206
    response.content_type = media_type
    response.headers.update({**facts, "Content-Length": str(length)})
    return response


def _is_known(asked: Request, tag: str, modified: int) -> bool:
    """Whether the client's copy is current."""
    if asked.if_none_match:
        return bool(asked.if_none_match.contains_weak(tag))
    since = asked.if_modified_since
    return since is not None and modified <= since.timestamp()


def _part(asked: Request, tag: str, modified: int) -> Range | None:
    """The requested range; None for the whole file, also if `If-Range` names an older copy, and for HEAD,
    which has no ranges (RFC 9110, 14.2)."""
    if asked.method != "GET":
        return None
    condition = asked.if_range
    if condition.etag is not None and condition.etag != tag:
        return None
    if condition.date is not None and condition.date.timestamp() != modified:
        return None
    part = asked.range
    return part if part is not None and part.units == "bytes" else None


def _within(part: Range, size: int) -> tuple[int, int] | None:
    """The request's only range, within a file of this size; None if there is none or several."""
    begin, end = part.ranges[0]
    if len(part.ranges) == 1 and begin < 0 < size:
        begin = max(begin, -size)  # the last bytes of a shorter file are all of it (RFC 9110, 14.1.2)
        part = Range(part.units, [(begin, end)])
    chosen = part.range_for_length(size)
    return None if chosen is None else (chosen[0], chosen[1])


def _whole(file: OpenFile) -> bytes:
    pieces = []
    try:
        with suppress(Changed):  # no length is announced yet, so a shortened file is answered as it is
            while piece := file.read():
                pieces.append(piece)
    finally:
        file.close()
    return b"".join(pieces)


def streamed(body: ResponseBody, slot: Slot) -> Response:
    """A response that may take as long as its client reads."""
    response = Response()
    response.response = HeldBody(body, slot)
    response.timeout = None
    response.content_type = BINARY
    return response


def as_attachment(response: Response, name: str) -> Response:
    """Make browsers save it under this name instead of rendering it."""
    plain = name.encode("ascii", "ignore").decode()
    if plain == name and '"' not in name and "\\" not in name and name.isprintable():
        disposition = f'attachment; filename="{name}"'
    else:
        disposition = f"attachment; filename*=utf-8''{quote(name.encode('utf-8', 'replace'), safe='')}"
    response.headers["Content-Disposition"] = disposition
    return response
