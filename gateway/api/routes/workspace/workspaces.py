"""The workspaces that people keep in their pickers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import attrs

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.requests.reading import Query, Request
from gateway.api.routing import EXAMPLE_DIR, Group
from gateway.api.services import Services
from supervisor.reading.rules import Items, Limit
from supervisor.workspace.access import Access
from supervisor.workspace.saved import MAX_SAVED, SavedWorkspace, TooManySaved

TAG: Final = "Workspaces"

PathText = Annotated[str, Limit(min_length=1, max_length=4096)]
NameText = Annotated[str, Limit(min_length=1, max_length=256)]

_ITEM: Final = schemas.each(schemas.STRING, "id! name! path!")
LISTED: Final = schemas.obj(
    {
        "workspaces": schemas.array(schemas.obj({**_ITEM, "parentPath": schemas.TEXT_OR_NULL})),
        "workspaceParents": schemas.array(schemas.obj(_ITEM)),
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


DAMAGED: Final = {409: "The file with the workspaces is damaged, or full"}
REFUSED: Final = {403: "Not permitted by the operator"}

_kept: Final = Group(TAG, "/api/workspaces", DAMAGED)


@_kept("GET", result=LISTED)
async def list_all(services: Services) -> Any:
    """List the kept workspaces.

    They are directories that clients offer for new conversations, and directories whose subdirectories they
    offer. They are kept until a client removes them.
    """
    return (await services.saved.all()).document()


@_kept(
    "POST",
    body=AddWorkspacesRequest,
    example={"workspaces": [{"id": "example", "name": "Example", "path": EXAMPLE_DIR}]},
    result=LISTED,
    errors=REFUSED,
)
async def add(services: Services, body: AddWorkspacesRequest) -> Any:
    """Keep workspaces.

    Those that are kept already, by their path, stay as they are. The answer has all of them.
    """
    found = [SavedWorkspace(each.id, each.name, each.path, each.parentPath) for each in body.workspaces]
    return await _keep(services, workspaces=found)


@_kept("DELETE", query=RemoveQuery, result=DELETED, errors={404: "Workspace not found"})
async def remove(services: Services, query: RemoveQuery) -> Any:
    """Forget a workspace.

    Clients no longer offer it. Its files stay.
    """
    if not await services.saved.remove(workspace=query.path):
        raise ApiError(404, "Workspace not found")
    return {"deleted": True}


@_kept(
    "POST /parents",
    body=AddWorkspaceParentsRequest,
    example={"parents": [{"id": "example", "name": "Example", "path": EXAMPLE_DIR}]},
    result=LISTED,
    errors=REFUSED,
)
async def add_parents(services: Services, body: AddWorkspaceParentsRequest) -> Any:
    """Keep directories of workspaces.

    Clients offer the directories in each. Those that are kept already, by their path, stay as they are.
    """
    found = [SavedWorkspace(each.id, each.name, each.path) for each in body.parents]
    return await _keep(services, parents=found)


@_kept("DELETE /parents", query=RemoveQuery, result=DELETED, errors={404: "Workspace parent not found"})
async def remove_parent(services: Services, query: RemoveQuery) -> Any:
    """Forget a directory of workspaces.

    Clients no longer offer what is in it. Its files stay.
    """
    if not await services.saved.remove(parent=query.path):
        raise ApiError(404, "Workspace parent not found")
    return {"deleted": True}


GROUPS: Final = (_kept,)


async def _keep(
    services: Services, workspaces: Sequence[SavedWorkspace] = (), parents: Sequence[SavedWorkspace] = ()
) -> Any:
    """Where clients are confined, what they keep opens nothing: it must be in a workspace already."""
    services.access.require()
    if services.access.access is Access.WORKSPACES:
        for each in (*workspaces, *parents):
            await services.access.admit(each.path)
    try:
        return (await services.saved.add(workspaces, parents)).document()
    except TooManySaved as error:
        raise ApiError(409, str(error)) from None
