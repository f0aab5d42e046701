"""Files of the server's machine, as far as the operator permits: listed, sent, received, archived."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, urlsplit

import attrs
import trio
from quart import Response, request

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.files.downloads import Slot
from gateway.api.files.streaming import (
    BINARY,
    IN_PARTS,
    NO_BODY,
    FileBody,
    MadeBody,
    as_attachment,
    file_response,
    gather,
    in_thread,
    streamed,
)
from gateway.api.files.trajectories import trajectory
from gateway.api.files.uploads import PART, FormFile, boundary_of, pass_on
from gateway.api.requests.paths import admitted
from gateway.api.requests.reading import InvalidRequest, Query, path_uuid
from gateway.api.routing import Group
from gateway.api.services import Services
from supervisor.patience import PathTimeout
from supervisor.reading.model import ErrorDetail, described, said
from supervisor.reading.rules import Items, Limit
from supervisor.settings.errors import SettingsCorrupt
from supervisor.workspace.access import Access, Admitted
from supervisor.workspace.directories import create, subdirectories
from supervisor.workspace.exclusion import GENERATED, MAX_PATTERN_CHARACTERS, MAX_PATTERNS
from supervisor.workspace.files import Receiver, open_file
from supervisor.workspace.git.delta import Identity, delta, identity, only_repository
from supervisor.workspace.git.repository import NotARepository
from supervisor.workspace.problems import WorkspaceProblem
from supervisor.workspace.tar import tar_gz

TAG: Final = "Files"

MAX_FAVORITES: Final = 50
"""Directories of the home directory that are offered."""

MAX_PAGE: Final = 100
"""Directories of one page; the wire's limit."""

FILE: Final = {"type": "string", "format": "binary"}

NO_DELTA: Final = "Run `git init` in it, or give format=tar.gz."

ENTRY: Final = schemas.full(label=schemas.STRING, path=schemas.STRING)

HOME: Final = schemas.obj(
    {"home!": schemas.STRING, **schemas.each(schemas.array(ENTRY), "favorites locations")}
)

SUBDIRECTORIES: Final = schemas.page(schemas.full(name=schemas.STRING, path=schemas.STRING))

UPLOADED: Final = schemas.obj({"success": schemas.BOOLEAN, "file_size!": schemas.COUNT})

FORM: Final = schemas.full(**{PART: {"type": "string", "contentMediaType": BINARY}})

REFUSED: Final = {
    400: "The path does not fit",
    403: "Not permitted by the operator, or by the system",
    404: "Nothing there",
    429: "Too many downloads at once",
    504: "The file system does not answer",
}


@attrs.frozen(kw_only=True)
class PathQuery(Query):
    """What a request is about."""

    path: str = attrs.field(
        metadata=described("Absolute; below a conversation also relative to its workspace")
    )


@attrs.frozen(kw_only=True)
class HomeQuery(Query):
    """What is offered besides the home directory."""

    include_hidden: bool = False


@attrs.frozen(kw_only=True)
class SubdirectoriesQuery(PathQuery):
    """A page of directories in a directory."""

    page_id: str | None = said(None, "next_page_id of the page before")
    limit: Annotated[int, Limit(ge=1, le=MAX_PAGE)] = MAX_PAGE
    include_hidden: bool = False


@attrs.frozen(kw_only=True)
class ArchiveQuery(PathQuery):
    """What an archive is to hold."""

    format: Literal["git-delta", "tar.gz"] = "git-delta"
    base_ref: str | None = said(None, "What a git-delta is against; detected by default")
    use_default_excludes: bool = True
    exclude: Annotated[
        tuple[Annotated[str, Limit(max_length=MAX_PATTERN_CHARACTERS)], ...], Items(max_length=MAX_PATTERNS)
    ] = said((), "Further patterns of what is left out")


_server: Final = Group(TAG, "/api/file")
_files: Final = Group(
    TAG,
    {
        "/api/file": {},
        "/api/conversations/<conversation_id>/file": {404: "No such conversation, or nothing there"},
    },
    REFUSED,
)
_trajectories: Final = Group(
    TAG,
    {"/api/file": {}, "/api/conversations/<runtime_conversation_id>/file": {}},
    {404: "No such conversation", 429: "Too many downloads at once"},
)


@_server("GET /home", query=HomeQuery, result=HOME)
async def home_directory(services: Services, query: HomeQuery) -> Any:
    """Get the home directory and places to look.

    It is that of the server's user, with permitted directories to start browsing from. It answers also where
    the operator permits none, since clients start no conversation without it.
    """
    home = services.launcher.server_environment.get("HOME") or "/"
    favorites: list[dict[str, str]] = []
    locations: list[dict[str, str]] = []
    if services.access.access is Access.ALL:
        locations = [_entry("/", "/")]
        try:
            place = await services.access.admit(home)
            listing = partial(
                subdirectories, place, page=None, limit=MAX_FAVORITES, hidden=query.include_hidden
            )
            names = (await in_thread(listing, "to list a directory")).names
            favorites = [_entry(name, str(Path(home, name))) for name in names]
        except (WorkspaceProblem, PathTimeout, ValueError):
            pass  # It is not there, or not readable.
    elif services.access.access is Access.WORKSPACES:
        try:
            known = list(await services.known())[:MAX_FAVORITES]
        except SettingsCorrupt:  # of the registered workspaces; their own route reports it
            known = list(await services.known.of_conversations())[:MAX_FAVORITES]
        locations = [_entry(Path(path).name or path, path) for path in known]
    return {"home": home, "favorites": favorites, "locations": locations}


@_server("GET /search_subdirs", query=SubdirectoriesQuery, result=SUBDIRECTORIES, errors=REFUSED)
async def search(services: Services, query: SubdirectoriesQuery) -> Any:
    """List the directories in a directory.

    They are sorted by name, and come page by page. Hidden ones are left out unless `include_hidden` is set.
    """
    place = await admitted(services, query.path, None)
    listing = partial(
        subdirectories,
        place,
        page=query.page_id or None,
        limit=query.limit,
        hidden=query.include_hidden,
    )
    found = await in_thread(listing, "to list a directory")
    items = [{"name": name, "path": str(Path(query.path, name))} for name in found.names]
    return {"items": items, "next_page_id": found.following}


@_files(
    "POST /upload",
    query=PathQuery,
    body=FORM,
    example={PART: "Hello!"},
    body_media_type="multipart/form-data",
    result=UPLOADED,
    errors={
        408: "The body came too slowly",
        413: "The file is too large",
        415: "The body is not a form",
        507: "The disk is full",
    },
)
async def upload(services: Services, query: PathQuery, conversation_id: str | None = None) -> Any:
    """Store a file.

    The body is a form with one part, `file`. What is there under `path` is replaced when the new file is
    whole.
    """
    place = await admitted(services, query.path, conversation_id, make=True)
    boundary = boundary_of(request)
    receiver = await in_thread(partial(Receiver, place), "to make a file", wasted=lambda made: made.discard())
    try:
        form = FormFile(boundary, receiver.write)
        await pass_on(request, form, in_thread, services.config.body_seconds)
        await in_thread(receiver.keep, "to store a file")
    finally:
        with trio.CancelScope(shield=True):
            await in_thread(receiver.discard, "to remove a file")
    return {"success": True, "file_size": receiver.size}


@_files(
    "GET /download",
    query=PathQuery,
    result=FILE,
    media_type="*/*",
    errors=IN_PARTS,
    error_results=NO_BODY,
)
async def download(services: Services, query: PathQuery, conversation_id: str | None = None) -> Response:
    """Download a file.

    It is sent as an attachment. With the header `Range` only a part is sent.
    """
    place = await admitted(services, query.path, conversation_id)
    file = await in_thread(partial(open_file, place), "to open a file", wasted=lambda made: made.close())
    response = await file_response(file, BINARY, services.downloads, request)
    return as_attachment(response, place.path.name)


@_files("POST /create_directory", query=PathQuery, errors={507: "The disk is full"})
async def make_directory(services: Services, query: PathQuery, conversation_id: str | None = None) -> None:
    """Make a directory.

    Those that are missing above it are made, too. One that is there already is fine.
    """
    place = await admitted(services, query.path, conversation_id, make=True)
    await in_thread(partial(create, place), "to make a directory")


@_files(
    "GET /archive",
    query=ArchiveQuery,
    result=FILE,
    media_type="*/*",
    errors={
        413: "The repository, or the patch, needs more than git may take",
        507: "The disk is nearly full",
    },
)
async def archive(services: Services, query: ArchiveQuery, conversation_id: str | None = None) -> Response:
    """Download a directory as an archive, or its changes as a patch.

    `tar.gz` has the files; `git-delta` is a patch, with what the working tree adds to a commit. Generated
    files are left out unless `use_default_excludes` is false.
    """
    place = await admitted(services, query.path, conversation_id)
    await in_thread(partial(_require_directory, place), "to look at a directory")
    look = partial(only_repository, place.path, services.git.confines(place))
    repository = await in_thread(look, "to look for a repository")
    place = attrs.evolve(place, path=repository)
    excludes = [*(GENERATED if query.use_default_excludes else ()), *query.exclude]
    held = services.downloads.begin(request)
    if query.format == "tar.gz":
        return await _tar_gz(services, place, excludes, held)
    try:
        file, base, what = await delta(services.git, place, query.base_ref, excludes)
    except NotARepository:
        raise ApiError(400, f"Not a git repository: {place.path}. {NO_DELTA}") from None
    if request.method == "HEAD":
        file.close()
        response = Response(b"")
    else:
        response = streamed(FileBody(file), held)
        response.headers["Content-Length"] = str(file.size)
    response.content_type = "text/x-patch; charset=utf-8"
    _describe(response, what)
    if base is not None:
        response.headers["X-Archive-Base-Commit"] = base
        response.headers["X-Archive-Base-Ref"] = quote(query.base_ref or "auto", safe="")
    return as_attachment(response, f"{place.path.name}.patch")


@_trajectories("GET /download-trajectory/<conversation_id>", result=FILE, media_type=BINARY)
async def download_trajectory(
    services: Services, conversation_id: str, runtime_conversation_id: str | None = None
) -> Response:
    """Download a conversation as a zip archive.

    It has `meta.json` and a file for each event. It is made while it is sent.
    """
    dashed = path_uuid(conversation_id, "conversation_id")
    if runtime_conversation_id is not None:
        scope = path_uuid(runtime_conversation_id, "runtime_conversation_id")
        await services.supervisor.view(scope)
        if scope != dashed:
            why = "Trajectory must belong to the selected conversation"
            raise InvalidRequest(ErrorDetail(("path", "conversation_id"), why, "value_error"))
    conversation = await services.supervisor.view(dashed)
    response = await trajectory(conversation, dashed, services.downloads, request)
    return as_attachment(response, f"{dashed.replace('-', '')}.zip")


GROUPS: Final = (_server, _files, _trajectories)


async def _tar_gz(services: Services, place: Admitted, excludes: list[str], held: Slot) -> Response:
    what = None
    try:
        async with services.git.opened(place) as session:
            what = await identity(session)
    except (NotARepository, WorkspaceProblem):
        pass  # An archive needs none.
    made = tar_gz(place, excludes)
    if request.method == "HEAD":
        response = Response(b"")
    else:
        first = await in_thread(partial(gather, made), "to make an archive")
        response = streamed(MadeBody(made, first or b""), held)
    response.content_type = "application/gzip"
    if what is not None and what.root == place.path:
        _describe(response, what)
    return as_attachment(response, f"{place.path.name}.tar.gz")


def _entry(label: str, path: str) -> dict[str, str]:
    return {"label": label, "path": path}


def _require_directory(place: Admitted) -> None:
    """Raise WorkspaceProblem for what is not a directory that can be listed."""
    subdirectories(place, page=None, limit=1, hidden=True)


def _describe(response: Response, what: Identity) -> None:
    """Add headers that describe an archive's contents. Credentials are removed from the remote's address."""
    facts = {"Repo-Remote": _public(what.origin), "Branch": what.branch, "Head-Commit": what.head}
    for name, value in {**facts, "Repo-Root": str(what.root)}.items():
        if value:
            response.headers[f"X-Archive-{name}"] = quote(value.encode("utf-8", "replace"), safe="")


def _public(address: str | None) -> str | None:
    if address is None or "://" not in address:
        return address
    try:
        parts = urlsplit(address)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
    except ValueError:
        return None
