"""The console: a page at `/` that shows what runs and works with it, made of files that the package ships.

The page is a client: it uses the same requests and sockets as others. Its libraries are copied by
`scripts/vendor-console`; nothing is built, inline or from another host.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import trio
from quart import Request, Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import NotFound

from gateway.pages.shipped import READING, Asset, respond

ASSETS: Final = Path(__file__).parent / "console_assets"

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types dompurify"
)
"""No inline scripts or styles, no other server, no frames; text becomes HTML through DOMPurify alone."""

MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Of files that are served. Licences and the lock are shipped with them."""

PAGE: Final = Asset(ASSETS / "index.html", MEDIA_TYPES[".html"])


def wanted(asked: Request) -> bool:
    """Whether a browser asks for a page: programs that take anything get JSON."""
    accepted = asked.accept_mimetypes
    return accepted.quality("text/html") > accepted.quality("application/json")


async def page() -> Response:
    """The page itself."""
    response = await respond(request, PAGE, POLICY)
    response.headers.add("Vary", "Accept")
    return response


@cache
def assets() -> dict[str, Asset]:
    """What is served, by its path below `ASSETS`. Blocks the first time."""
    return {
        file.relative_to(ASSETS).as_posix(): Asset(file, MEDIA_TYPES[file.suffix])
        for file in ASSETS.rglob("*")
        if file.suffix in MEDIA_TYPES
    }


def install(app: QuartTrio) -> None:
    """Serve what the page loads."""

    async def serve(name: str) -> Response:
        found = (await trio.to_thread.run_sync(assets, limiter=READING)).get(name)
        if found is None:
            raise NotFound
        return await respond(request, found, POLICY)

    app.add_url_rule(
        "/console/<path:name>", endpoint="GET /console", view_func=serve, provide_automatic_options=False
    )
