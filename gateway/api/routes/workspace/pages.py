"""A conversation's workspace as a web site: reports, plots and pages that an agent has made.

What is served was written by an agent. A browser runs it in a sandbox, as a page of no origin: it has
scripts, but neither the storage of this server's origin nor the right to read its answers.
"""

from __future__ import annotations

import mimetypes
from functools import partial
from typing import Final

import attrs
from quart import Response, request

from gateway.api.errors import ApiError
from gateway.api.files.streaming import BINARY, IN_PARTS, NO_BODY, file_response, in_thread
from gateway.api.requests.paths import workspace_of
from gateway.api.routes.workspace.files import FILE
from gateway.api.routing import Group
from gateway.api.services import Services
from gateway.api.workspace_cookie import MAX_AGE_SECONDS, issue, put
from gateway.configuration.address import KEY_HEADER
from gateway.http.access import from_header, is_known
from supervisor.workspace.access import Admitted, OutsideWorkspace
from supervisor.workspace.directories import opened
from supervisor.workspace.files import OpenFile, open_file
from supervisor.workspace.problems import Missing, Unfit

TAG: Final = "Workspaces"

BASE: Final = "/api/conversations/<conversation_id>/workspace"
RULES: Final = frozenset({BASE, f"{BASE}/", f"{BASE}/<path:file_path>"})
"""Routes that the cookie opens."""

INDEX: Final = "index.html"
NO_INDEX: Final = "No index.html in directory"

SANDBOX: Final = "sandbox allow-scripts allow-forms allow-modals allow-popups allow-downloads"
"""Without allow-same-origin the page has no origin; without allow-top-navigation it stays in its frame."""

UNBOXED: Final = frozenset({"application/pdf"})
"""Browsers show no PDF in a sandbox, and scripts in a PDF cannot send requests to this server."""

_TYPES: Final = mimetypes.MimeTypes(filenames=())
"""Python's own table: the same on every machine."""


_pages: Final = Group(
    TAG,
    BASE,
    {
        **IN_PARTS,
        400: "The path is outside of the workspace",
        403: "Not permitted by the operator, or by the system",
        404: "No such conversation or file",
        429: "Too many downloads at once",
    },
)
_session: Final = Group(TAG, "/api/auth/workspace-session")


async def get(services: Services, conversation_id: str, file_path: str = "") -> Response:
    """A file of the workspace, or the index.html of a directory.

    A browser gets it with its media type, in a sandbox. The key may be in the header, or in the cookie of
    `/api/auth/workspace-session`.
    """
    services.access.require()
    workspace = await workspace_of(services, conversation_id)
    try:
        place = await services.access.admit(f"{workspace}/{file_path}", within=workspace)
    except OutsideWorkspace:
        raise ApiError(400, "Path is outside the workspace") from None
    file, name = await in_thread(
        partial(_open, place), "to open a file", wasted=lambda found: found[0].close()
    )
    media_type = media_type_of(name)
    response = await file_response(file, media_type, services.downloads, request)
    if media_type not in UNBOXED:
        response.headers["Content-Security-Policy"] = SANDBOX
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cache-Control"] = "private, no-cache"
    return response


for _path, _summary in (
    ("", "Get the index.html of a conversation's workspace"),
    ("/", "Get the same, with links that are relative to the workspace"),
    ("/<path:file_path>", "Get a file of a conversation's workspace"),
):
    _pages(f"GET {_path}", summary=_summary, result=FILE, media_type="*/*", error_results=NO_BODY)(get)


@_session("POST", status=204, result=None)
async def open_session(services: Services) -> Response:
    """Get a cookie that opens the files of workspaces.

    A browser cannot send the header with links and images. The cookie opens files of workspaces alone, and
    this request needs the key in the header.
    """
    key = from_header(request.headers.get(KEY_HEADER)) or ""
    keys = services.config.session_api_keys
    response = _empty()
    put(response, request, issue(key) if is_known(key, keys) else "", MAX_AGE_SECONDS)
    return response


@_session("DELETE", status=204, result=None)
async def close_session() -> Response:
    """Clear the cookie.

    The browser forgets it. This request needs the key in the header.
    """
    response = _empty()
    put(response, request, "", 0)
    return response


GROUPS: Final = (_pages, _session)


def media_type_of(name: str) -> str:
    """The media type of a file by its name, with the charset of texts."""
    found, encoding = _TYPES.guess_type(name, strict=False)
    if found is None or encoding is not None:
        return BINARY
    return f"{found}; charset=utf-8" if found.startswith("text/") else found


def _open(place: Admitted) -> tuple[OpenFile, str]:
    try:
        with opened(place):
            pass
    except (Missing, Unfit):
        return open_file(place), place.path.name
    try:
        # A link to elsewhere is not followed: its target was not looked at.
        return open_file(attrs.evolve(place, path=place.path / INDEX)), INDEX
    except (Missing, Unfit):
        raise Missing(NO_INDEX) from None


def _empty() -> Response:
    response = Response(b"", status=204)
    del response.headers["Content-Type"]
    return response
