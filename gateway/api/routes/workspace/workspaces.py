"""The workspaces that people keep in their pickers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import attrs
from quart import Response, request

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.requests.bodies import json_body
from gateway.api.requests.reading import Query, Request, read_body, read_query
from gateway.api.responses import json_response
from gateway.api.routing import Route, params_of
from gateway.api.services import Services
from supervisor.reading.rules import Items, Limit
from supervisor.workspace.access import Access
from supervisor.workspace.saved import MAX_SAVED, SavedWorkspace, SavedWorkspaces, TooManySaved

TAG: Final = "Workspaces"

PathText = Annotated[str, Limit(min_length=1, max_length=4096)]
NameText = Annotated[str, Limit(min_length=1, max_length=256)]

_ITEM: Final = {"id": schemas.STRING, "name": schemas.STRING, "path": schemas.STRING}
LISTED: Final = schemas.obj(
    {
        "workspaces": schemas.array(
            schemas.obj({**_ITEM, "parentPath": schemas.TEXT_OR_NULL}, "id", "name", "path")
        ),
        "workspaceParents": schemas.array(schemas.obj(_ITEM, "id", "name", "path")),
    }
)
DELETED: Final = schemas.obj({"deleted": schemas.BOOLEAN})


@attrs.frozen(kw_only=True)
class WorkspaceParentItem(Request):
    """A directory that holds workspaces."""

    id: PathText
    name: NameText
    path: PathText


@attrs.frozen(kw_only=True)
class WorkspaceItem(Request):
    """A workspace; `parentPath` is the directory in which it was found."""

    id: PathText
    name: NameText
    path: PathText
    parentPath: Annotated[str, Limit(max_length=4096)] | None = None  # noqa: N815 - the wire's name


@attrs.frozen(kw_only=True)
class AddWorkspacesRequest(Request):
    """Workspaces to keep."""

    workspaces: Annotated[tuple[WorkspaceItem, ...], Items(max_length=MAX_SAVED)]


@attrs.frozen(kw_only=True)
class AddWorkspaceParentsRequest(Request):
    """Directories of workspaces to keep."""

    parents: Annotated[tuple[WorkspaceParentItem, ...], Items(max_length=MAX_SAVED)]


@attrs.frozen(kw_only=True)
class RemoveQuery(Query):
    """What is not to be kept any longer."""

    path: str


@attrs.frozen
class WorkspacesRoutes:
    """Handlers of `/api/workspaces`."""

    services: Services
    saved: SavedWorkspaces

    async def list(self) -> Response:
        """All of them, and the directories that hold some."""
        return json_response((await self.saved.all()).document())

    async def add(self) -> Response:
        """Keep workspaces; those that are kept already, by their path, stay as they are."""
        found = read_body(AddWorkspacesRequest, await json_body(request)).workspaces
        await self._permit(each.path for each in found)
        return await self._kept(
            workspaces=[SavedWorkspace(each.id, each.name, each.path, each.parentPath) for each in found]
        )

    async def add_parents(self) -> Response:
        """Keep directories of workspaces."""
        found = read_body(AddWorkspaceParentsRequest, await json_body(request)).parents
        await self._permit(each.path for each in found)
        return await self._kept(parents=[SavedWorkspace(each.id, each.name, each.path) for each in found])

    async def remove(self) -> Response:
        """Forget a workspace; its files stay."""
        if not await self.saved.remove(workspace=read_query(RemoveQuery, request.args).path):
            raise ApiError(404, "Workspace not found")
        return json_response({"deleted": True})

    async def remove_parent(self) -> Response:
        """Forget a directory of workspaces; its files stay."""
        if not await self.saved.remove(parent=read_query(RemoveQuery, request.args).path):
            raise ApiError(404, "Workspace parent not found")
        return json_response({"deleted": True})

    async def _permit(self, paths: Iterable[str]) -> None:
        """Where clients are confined, what they keep opens nothing: it must be in a workspace already."""
        self.services.access.require()
        if self.services.access.access is Access.WORKSPACES:
            for path in paths:
                await self.services.access.admit(path)

    async def _kept(
        self, workspaces: Iterable[SavedWorkspace] = (), parents: Iterable[SavedWorkspace] = ()
    ) -> Response:
        try:
            saved = await self.saved.add(workspaces, parents)
        except TooManySaved as error:
            raise ApiError(409, str(error)) from None
        return json_response(saved.document())

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        base = "/api/workspaces"
        damaged = {409: "The file with the workspaces is damaged, or full"}
        refused = {**damaged, 403: "Not permitted by the operator"}
        return (
            Route(
                method="GET",
                path=base,
                handler=self.list,
                summary="List the kept workspaces",
                tag=TAG,
                result=LISTED,
                errors=damaged,
            ),
            Route(
                method="POST",
                path=base,
                handler=self.add,
                summary="Keep workspaces",
                tag=TAG,
                body=AddWorkspacesRequest,
                result=LISTED,
                errors=refused,
            ),
            Route(
                method="DELETE",
                path=base,
                handler=self.remove,
                summary="Forget a workspace",
                tag=TAG,
                query=params_of(RemoveQuery),
                result=DELETED,
                errors={**damaged, 404: "Workspace not found"},
            ),
            Route(
                method="POST",
                path=f"{base}/parents",
                handler=self.add_parents,
                summary="Keep directories of workspaces",
                tag=TAG,
                body=AddWorkspaceParentsRequest,
                result=LISTED,
                errors=refused,
            ),
            Route(
                method="DELETE",
                path=f"{base}/parents",
                handler=self.remove_parent,
                summary="Forget a directory of workspaces",
                tag=TAG,
                query=params_of(RemoveQuery),
                result=DELETED,
                errors={**damaged, 404: "Workspace parent not found"},
            ),
        )
