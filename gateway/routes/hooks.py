"""The hooks of a project, for clients that send them with a start request."""

from __future__ import annotations

from contextlib import suppress

import attrs
from quart import Response, request

from gateway import schemas
from gateway.bodies import HooksRequest, json_body
from gateway.reading import read_body
from gateway.responses import json_response
from gateway.routing import Route
from gateway.services import Services
from supervisor.hooks import HookConfig, read_project_hooks
from supervisor.reading import as_json
from supervisor.workspace.access import AccessRefused, BadPath, OutsideWorkspace


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
            with suppress(AccessRefused, BadPath, OutsideWorkspace, OSError):
                place = await self.services.access.admit(asked.project_dir, loc=("body", "project_dir"))
                found = await read_project_hooks(place.path)
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
