"""Git repositories in workspaces: what changed, diffs, commits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import attrs
from quart import Response, request

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.requests.paths import admitted
from gateway.api.requests.reading import InvalidRequest, Query, read_query
from gateway.api.requests.unhidden import WARNING_HEADER
from gateway.api.responses import json_response
from gateway.api.routes.workspace.files import REFUSED, PathQuery
from gateway.api.routing import Group
from gateway.api.services import Services
from supervisor.reading.model import ErrorDetail, said
from supervisor.reading.rules import Limit
from supervisor.workspace.git.changes import (
    ADDED,
    DELETED,
    UPDATED,
    Change,
    changes,
    commit_changes,
    commits,
    file_diff,
)
from supervisor.workspace.git.repository import NotARepository

TAG: Final = "Git"

SHA: Final = re.compile("[0-9a-fA-F]{4,64}")
SHA_PATTERN: Final = f"^{SHA.pattern}$"

DEFAULT_COMMITS: Final = 50
MAX_COMMITS: Final = 200
"""Commits of one request; the wire's."""

CHANGES: Final = schemas.array(
    schemas.full(status=schemas.choice(("MOVED", ADDED, DELETED, UPDATED)), path=schemas.STRING)
)
DIFF: Final = schemas.full(modified=schemas.TEXT_OR_NULL, original=schemas.TEXT_OR_NULL)
COMMITS: Final = schemas.full(
    commits=schemas.array(
        schemas.obj(schemas.each(schemas.STRING, "sha! short_sha! subject! author! timestamp!"))
    ),
    has_more=schemas.BOOLEAN,
)

NO_REPOSITORY: Final = "the directory is not in a Git repository; run `git init` in it to see changes"

NO_PROVIDERS: Final = (
    "Ostler does not list the repositories of git providers. "
    "Clone a repository into a workspace, and use its path."
)


@attrs.frozen(kw_only=True)
class ChangesQuery(PathQuery):
    """Which changes are meant."""

    ref: str | None = said(None, "What to compare with; detected by default, HEAD for git's status")


@attrs.frozen(kw_only=True)
class DiffQuery(ChangesQuery):
    """Which diff is meant. `commit` excludes `ref`."""

    commit: Annotated[str, Limit(pattern=SHA)] | None = None


@attrs.frozen(kw_only=True)
class CommitsQuery(PathQuery):
    """How many commits are meant."""

    limit: Annotated[int, Limit(ge=1, le=MAX_COMMITS)] = DEFAULT_COMMITS


@attrs.frozen(kw_only=True)
class RepositoriesQuery(Query):
    """Which repositories of a provider are meant."""

    provider: Literal["github", "gitlab", "bitbucket", "azure_devops"]
    query: str | None = None
    limit: Annotated[int, Limit(ge=1, le=100)] = 100
    page_id: str | None = None


_git: Final = Group(
    TAG,
    {"/api/git": {}, "/api/conversations/<conversation_id>/git": {}},
    {
        **REFUSED,
        400: "The path or ref does not fit, or git failed",
        404: "No such conversation",
        413: "The repository needs more than git may take",
    },
    path_schemas={"sha": {**schemas.STRING, "pattern": SHA_PATTERN}},
)
_providers: Final = Group(TAG, "/api/git/repositories")


@_git("GET /changes", query=ChangesQuery, result=CHANGES)
async def changed(services: Services, query: ChangesQuery, conversation_id: str | None = None) -> Any:
    """List the files that changed.

    They differ from `ref`, or from where the work began; paths are from the directory. Without a repository
    the list is empty.
    """
    place = await admitted(services, query.path, conversation_id)
    try:
        return _listed(await changes(services.git, place, query.ref))
    except NotARepository:
        return _without_repository([])


@_git("GET /diff", query=DiffQuery, result=DIFF)
async def diff(services: Services, query: DiffQuery, conversation_id: str | None = None) -> Any:
    """Get a file before and after.

    Both are texts of at most 1 MiB. Without a repository they are null.
    """
    if query.ref is not None and query.commit is not None:
        raise ApiError(400, "'ref' and 'commit' are mutually exclusive")
    path = Path(query.path)
    if not path.name or path.name == "..":
        raise ApiError(400, "Path is not a file")
    # A link is shown as what it is, so only what is above it is resolved.
    above = await admitted(services, _above(query.path), conversation_id)
    found = await file_diff(services.git, above, path.name, ref=query.ref, commit=query.commit)
    return {"modified": found.modified, "original": found.original}


@_git("GET /commits", query=CommitsQuery, result=COMMITS)
async def newest(services: Services, query: CommitsQuery, conversation_id: str | None = None) -> Any:
    """List the newest commits.

    They have author, time and subject. Without a repository the list is empty.
    """
    place = await admitted(services, query.path, conversation_id)
    try:
        async with services.git.opened(place) as session:
            found, more = await commits(session, query.limit)
    except NotARepository:
        return _without_repository({"commits": [], "has_more": False})
    return {"commits": [attrs.asdict(each) for each in found], "has_more": more}


@_git("GET /commits/<sha>/changes", query=PathQuery, result=CHANGES)
async def changed_by(services: Services, sha: str, conversation_id: str | None = None) -> Any:
    """List the files that a commit changed.

    Paths are from the top of the repository. Without a repository the list is empty.
    """
    if not SHA.fullmatch(sha):
        raise InvalidRequest(
            ErrorDetail(
                ("path", "sha"), f"String should match pattern '{SHA_PATTERN}'", "string_pattern_mismatch"
            )
        )
    place = await admitted(services, read_query(PathQuery, request.args).path, conversation_id)
    try:
        async with services.git.opened(place) as session:
            return _listed(await commit_changes(session, sha))
    except NotARepository:
        return _without_repository([])


@_providers("GET /search", query=RepositoriesQuery, status=501, result=schemas.ref("Error"))
async def repositories(query: RepositoriesQuery) -> Any:
    """List the repositories of a git provider (not implemented).

    Ostler asks no provider, since the tokens of providers are for agents. So the answer is 501.
    """
    raise ApiError(501, NO_PROVIDERS)


GROUPS: Final = (_git, _providers)


def _without_repository(empty: Any) -> Response:
    """Say with an empty answer why it is empty: its body is the interface's."""
    answer = json_response(empty)
    answer.headers[WARNING_HEADER] = NO_REPOSITORY
    return answer


def _above(path: str) -> str:
    """The parent directory of a path, computed from its text; links are left for the system to follow."""
    return path.rstrip("/").rpartition("/")[0] or ("/" if path.startswith("/") else ".")


def _listed(found: Iterable[Change]) -> list[dict[str, str]]:
    return [{"status": each.status, "path": each.path} for each in found]
