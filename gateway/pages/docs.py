"""The interface description for people: Swagger UI, shipped with Ostler (scripts/vendor-docs).

Requests tried out there need a key. Everything is served from here, and the Content-Security-Policy forbids
the browser to contact any other server.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from quart import Response, request
from quart_trio import QuartTrio

from gateway.pages.shipped import Asset, respond

ASSETS: Final = Path(__file__).parent / "docs_assets"

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
"""No inline scripts or styles, no other server, no frames."""

PAGE: Final = Asset(ASSETS / "docs.html", "text/html; charset=utf-8")

LOADED: Final[Mapping[str, Asset]] = {
    "start.js": Asset(ASSETS / "start.js", "text/javascript; charset=utf-8"),
    "swagger-ui-bundle.js": Asset(
        ASSETS / "swagger-ui" / "swagger-ui-bundle.js.gz", "text/javascript; charset=utf-8"
    ),
    "swagger-ui.css": Asset(ASSETS / "swagger-ui" / "swagger-ui.css.gz", "text/css; charset=utf-8"),
    "sockets.html": Asset(ASSETS / "sockets.html", "text/html; charset=utf-8"),
}
"""What the page loads from /docs/, and the page that it leads to for what OpenAPI cannot describe."""


def install(app: QuartTrio) -> None:
    """Serve what the page loads and leads to."""
    for name, asset in LOADED.items():
        path = f"/docs/{name}"

        async def serve(asset: Asset = asset) -> Response:
            return await respond(request, asset, POLICY)

        app.add_url_rule(path, endpoint=f"GET {path}", view_func=serve, provide_automatic_options=False)


async def page() -> Response:
    """The page itself."""
    return await respond(request, PAGE, POLICY)
