"""Git repositories in workspaces: what changed, diffs, commits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
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
from gateway.api.routing import Route, params_of
from gateway.api.services import Services
from supervisor.reading.model import ErrorDetail, described
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
from supervisor.workspace.git.command import Git
from supervisor.workspace.git.repository import NotARepository

TAG: Final = "Git"

SHA: Final = re.compile("[0-9a-fA-F]{4,64}")
SHA_PATTERN: Final = f"^{SHA.pattern}$"

DEFAULT_COMMITS: Final = 50
MAX_COMMITS: Final = 200
"""Commits of one request; the wire's."""

CHANGES: Final = schemas.array(
    schemas.obj(
        {"status": schemas.choice(("MOVED", ADDED, DELETED, UPDATED)), "path": schemas.STRING},
        "status",
        "path",
    )
)
DIFF: Final = schemas.obj(
    {"modified": schemas.TEXT_OR_NULL, "original": schemas.TEXT_OR_NULL}, "modified", "original"
)
COMMITS: Final = schemas.obj(
    {
        "commits": schemas.array(
            schemas.obj(
                dict.fromkeys(("sha", "short_sha", "subject", "author", "timestamp"), schemas.STRING),
                "sha",
                "short_sha",
                "subject",
                "author",
                "timestamp",
            )
        ),
        "has_more": schemas.BOOLEAN,
    },
    "commits",
    "has_more",
)

NO_REPOSITORY: Final = "the directory is not in a Git repository; run `git init` in it to see changes"

NO_PROVIDERS: Final = (
    "Ostler does not list the repositories of git providers. "
    "Clone a repository into a workspace, and use its path."
)


@attrs.frozen(kw_only=True)
class ChangesQuery(PathQuery):
    """Which changes are meant."""

    ref: str | None = attrs.field(
        default=None, metadata=described("What to compare with; detected by default, HEAD for git's status")
    )


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


@attrs.frozen
class GitRoutes:
    """Handlers of `/api/git`, and of the same below a conversation."""

    services: Services
    git: Git

    async def changes(self, conversation_id: str | None = None) -> Response:
        """Files that differ from the base, by their paths from the directory; none without a repository."""
        query = read_query(ChangesQuery, request.args)
        place = await admitted(self.services, query.path, conversation_id)
        try:
            return json_response(_listed(await changes(self.git, place, query.ref)))
        except NotARepository:
            return _without_repository(json_response([]))

    async def diff(self, conversation_id: str | None = None) -> Response:
        """A file before and after; nulls without a repository."""
        query = read_query(DiffQuery, request.args)
        if query.ref is not None and query.commit is not None:
            raise ApiError(400, "'ref' and 'commit' are mutually exclusive")
        path = Path(query.path)
        if not path.name or path.name == "..":
            raise ApiError(400, "Path is not a file")
        # A link is shown as what it is, so only what is above it is resolved.
        above = await admitted(self.services, _above(query.path), conversation_id)
        found = await file_diff(self.git, above, path.name, ref=query.ref, commit=query.commit)
        return json_response({"modified": found.modified, "original": found.original})

    async def commits(self, conversation_id: str | None = None) -> Response:
        """The newest commits; none without a repository."""
        query = read_query(CommitsQuery, request.args)
        place = await admitted(self.services, query.path, conversation_id)
        try:
            async with self.git.opened(place) as session:
                found, more = await commits(session, query.limit)
        except NotARepository:
            return _without_repository(json_response({"commits": [], "has_more": False}))
        return json_response({"commits": [attrs.asdict(each) for each in found], "has_more": more})

    async def commit_changes(self, sha: str, conversation_id: str | None = None) -> Response:
        """The files that a commit changed, with paths from the top of the repository."""
        if not SHA.fullmatch(sha):
            raise InvalidRequest(
                ErrorDetail(
                    ("path", "sha"), f"String should match pattern '{SHA_PATTERN}'", "string_pattern_mismatch"
                )
            )
        place = await admitted(self.services, read_query(PathQuery, request.args).path, conversation_id)
        try:
            async with self.git.opened(place) as session:
                return json_response(_listed(await commit_changes(session, sha)))
        except NotARepository:
            return _without_repository(json_response([]))

    async def repositories(self) -> Response:
        """Not done here: providers' tokens are for agents."""
        read_query(RepositoriesQuery, request.args)
        raise ApiError(501, NO_PROVIDERS)

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        return (
            *self._routes("/api/git"),
            *self._routes("/api/conversations/<conversation_id>/git"),
            Route(
                method="GET",
                path="/api/git/repositories/search",
                handler=self.repositories,
                summary="List the repositories of a git provider (not implemented)",
                tag=TAG,
                query=params_of(RepositoriesQuery),
                status=501,
                result=schemas.ref("Error"),
            ),
        )

    def _routes(self, base: str) -> tuple[Route, ...]:
        errors = {
            **REFUSED,
            400: "The path or ref does not fit, or git failed",
            404: "No such conversation",
            413: "The repository needs more than git may take",
        }

        def route(name: str, handler: Callable[..., Any], summary: str, query: Any, result: Any) -> Route:
            return Route(
                method="GET",
                path=f"{base}/{name}",
                handler=handler,
                summary=summary,
                tag=TAG,
                query=params_of(query),
                path_schemas={"sha": {**schemas.STRING, "pattern": SHA_PATTERN}},
                result=result,
                errors=errors,
            )

        return (
            route("changes", self.changes, "List the files that changed", ChangesQuery, CHANGES),
            route("diff", self.diff, "Get a file before and after", DiffQuery, DIFF),
            route("commits", self.commits, "List the newest commits", CommitsQuery, COMMITS),
            route(
                "commits/<sha>/changes",
                self.commit_changes,
                "List the files that a commit changed",
                PathQuery,
                CHANGES,
            ),
        )


def _without_repository(answer: Response) -> Response:
    """Say with an empty answer why it is empty: its body is the interface's."""
    answer.headers[WARNING_HEADER] = NO_REPOSITORY
    return answer


def _above(path: str) -> str:
    """The parent directory of a path, computed from its text; links are left for the system to follow."""
    return path.rstrip("/").rpartition("/")[0] or ("/" if path.startswith("/") else ".")


def _listed(found: Iterable[Change]) -> list[dict[str, str]]:
    return [{"status": each.status, "path": each.path} for each in found]
