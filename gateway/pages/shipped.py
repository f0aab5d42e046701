"""Serves files that the package ships: whole, compressed, and revalidated at each load.

A page and its assets need no key, since they hold nothing private; what they ask of the server does.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Final

import attrs
import trio
from quart import Request, Response

PIECE_BYTES: Final = 16 * 1024
"""Bytes sent at once. A slow client occupies this much memory, not the whole file."""

READING: Final = trio.CapacityLimiter(1)
"""For reading shipped files: each is read once."""

PACKED: Final = frozenset({".js", ".css", ".html", ".svg"})
"""Files that are compressed when they are first asked for; `.gz` are shipped so."""


@attrs.frozen
class Asset:
    """A shipped file: where it is, and its media type. `.gz` is sent with Content-Encoding gzip."""

    file: Path
    media_type: str


@attrs.frozen
class Content:
    """A file's bytes, whether they are compressed, and its ETag."""

    data: bytes
    packed: bool
    tag: str


@cache
def content(file: Path) -> Content:
    """A shipped file. Blocks the first time; then cached, and shared by all requests."""
    data = file.read_bytes()
    tag = hashlib.sha256(data).hexdigest()[:32]
    if file.suffix in PACKED:
        return Content(gzip.compress(data, mtime=0), packed=True, tag=tag)
    return Content(data, packed=file.suffix == ".gz", tag=tag)


async def respond(asked: Request, asset: Asset, policy: str) -> Response:
    """A file that is shipped, or 304 where the browser has it. `policy` is its Content-Security-Policy.

    Browsers revalidate their copy each time, so that an upgrade of Ostler takes effect at once.
    """
    found = await trio.to_thread.run_sync(content, asset.file, limiter=READING)
    unpack = found.packed and asked.accept_encodings.quality("gzip") <= 0
    tag = f"{found.tag}-plain" if unpack else found.tag
    headers = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
        "ETag": f'"{tag}"',
    }
    if found.packed:
        headers["Vary"] = "Accept-Encoding"
    if asked.if_none_match.contains_weak(tag):
        return _unchanged(headers)
    if unpack:
        return Response(_unpacked(found.data), content_type=asset.media_type, headers=headers)
    if found.packed:
        headers["Content-Encoding"] = "gzip"
    headers["Content-Length"] = str(len(found.data))
    return Response(_pieces(found.data), content_type=asset.media_type, headers=headers)


def _unchanged(headers: dict[str, str]) -> Response:
    response = Response(b"", status=304, headers=headers)
    del response.headers["Content-Type"]
    del response.headers["Content-Length"]  # it would be that of what is not sent (RFC 9110, 8.6)
    return response


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]


async def _unpacked(data: bytes) -> AsyncIterator[bytes]:
    """For the few clients that do not take gzip."""
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    while data:
        yield unpacker.decompress(data, PIECE_BYTES)
        data = unpacker.unconsumed_tail
