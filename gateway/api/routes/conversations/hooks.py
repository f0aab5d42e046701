"""The hooks of a project, for clients that send them with a start request."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import attrs
from quart import Response, request

from gateway.api import schemas
from gateway.api.requests.bodies import HooksRequest, json_body
from gateway.api.requests.reading import read_body
from gateway.api.responses import json_response
from gateway.api.routing import Route
from gateway.api.services import Services
from supervisor.hooks.config import HookConfig
from supervisor.hooks.project import HOOKS_FILE, hooks_of
from supervisor.reading.shapes import as_json
from supervisor.workspace.access import AccessRefused, Admitted, BadPath
from supervisor.workspace.files import Changed, open_file
from supervisor.workspace.problems import WorkspaceProblem


def _read(place: Admitted) -> HookConfig | None:
    """Read the hooks. Blocks as long as the file system does, but does not wait for another process's
    lease."""
    try:
        file = open_file(place)
    except WorkspaceProblem:
        return None
    try:
        return hooks_of(file.read() + file.read(), place.path)  # two pieces are more than it may have
    except Changed:
        return None
    finally:
        file.close()


@attrs.frozen
class HookRoutes:
    """The handler of `/api/hooks`."""

    services: Services

    async def read(self) -> Response:
        """The hooks in the project's file; null where there are none, none that can be used, or the operator
        keeps the directory from clients."""
        asked = read_body(HooksRequest, await json_body(request))
        found: HookConfig | None = None
        if asked.project_dir:
            access = self.services.access
            with suppress(AccessRefused, BadPath, OSError):
                # The file, not the directory: a link in it may lead out of the workspaces.
                path = f"{asked.project_dir}/{HOOKS_FILE}"
                place = await access.admit(path, loc=("body", "project_dir"))
                found = await access.in_thread(partial(_read, place), "to read the project's hooks")
        return json_response({"hook_config": None if found is None else as_json(found)})

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        config = schemas.nullable(schemas.ref(HookConfig.NAME))
        return (
            Route(
                method="POST",
                path="/api/hooks",
                handler=self.read,
                summary="Read the hooks of a project",
                tag="Hooks",
                body=HooksRequest,
                result=schemas.obj({"hook_config": config}, "hook_config"),
            ),
        )
