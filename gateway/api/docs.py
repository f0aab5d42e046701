"""The interface description for people: Swagger UI, shipped with Ostler (scripts/vendor-docs).

The page and its assets need no key, since they hold nothing private; requests tried out there do. Everything
is served from here, and the Content-Security-Policy forbids the browser to contact any other server.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import AsyncIterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import attrs
import trio
from quart import Request, Response, request
from quart_trio import QuartTrio

from gateway.api.responses import bare

ASSETS: Final = Path(__file__).parent / "assets"

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
"""No inline scripts or styles, no other server, no frames."""

PIECE_BYTES: Final = 16 * 1024
"""Bytes sent at once. A slow client occupies this much memory, not the whole file."""

READING: Final = trio.CapacityLimiter(1)
"""For reading shipped files: each is read once."""


@attrs.frozen
class Asset:
    """A shipped file: its path below ASSETS, and its media type. `.gz` is sent with Content-Encoding gzip."""

    file: str
    media_type: str


PAGE: Final = Asset("docs.html", "text/html; charset=utf-8")

LOADED: Final[Mapping[str, Asset]] = {
    "start.js": Asset("start.js", "text/javascript; charset=utf-8"),
    "swagger-ui-bundle.js": Asset("swagger-ui/swagger-ui-bundle.js.gz", "text/javascript; charset=utf-8"),
    "swagger-ui.css": Asset("swagger-ui/swagger-ui.css.gz", "text/css; charset=utf-8"),
    "sockets.html": Asset("sockets.html", "text/html; charset=utf-8"),
}
"""What the page loads from /docs/, and the page that it leads to for what OpenAPI cannot describe."""


@attrs.frozen
class Content:
    """A file's bytes, and its ETag."""

    data: bytes
    tag: str


@cache
def content(file: str) -> Content:
    """A file below ASSETS. Blocks the first time; then cached, and shared by all requests."""
    data = (ASSETS / file).read_bytes()
    return Content(data, hashlib.sha256(data).hexdigest()[:32])


def install(app: QuartTrio) -> None:
    """Serve what the page loads and leads to."""
    for name, asset in LOADED.items():
        path = f"/docs/{name}"

        async def serve(asset: Asset = asset) -> Response:
            return await respond(request, asset)

        app.add_url_rule(path, endpoint=f"GET {path}", view_func=serve, provide_automatic_options=False)


async def respond(asked: Request, asset: Asset) -> Response:
    """A file that is shipped, or 304 where the browser has it.

    Browsers revalidate their copy each time, so that an upgrade of Ostler takes effect at once.
    """
    found = await trio.to_thread.run_sync(content, asset.file, limiter=READING)
    packed = asset.file.endswith(".gz")
    unpack = packed and asked.accept_encodings.quality("gzip") <= 0
    tag = f"{found.tag}-plain" if unpack else found.tag
    headers = {
        "Content-Security-Policy": POLICY,
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
        "ETag": f'"{tag}"',
    }
    if packed:
        headers["Vary"] = "Accept-Encoding"
    if asked.if_none_match.contains_weak(tag):
        return bare(304, headers)
    if unpack:
        return Response(_unpacked(found.data), content_type=asset.media_type, headers=headers)
    if packed:
        headers["Content-Encoding"] = "gzip"
    headers["Content-Length"] = str(len(found.data))
    return Response(_pieces(found.data), content_type=asset.media_type, headers=headers)


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]


async def _unpacked(data: bytes) -> AsyncIterator[bytes]:
    """For the few clients that do not take gzip."""
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    while data:
        yield unpacker.decompress(data, PIECE_BYTES)
        data = unpacker.unconsumed_tail
