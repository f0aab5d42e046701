"""The hooks of a project, for clients that send them with a start request."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Final

from gateway.api import schemas
from gateway.api.requests.bodies import HooksRequest
from gateway.api.requests.paths import here
from gateway.api.routing import EXAMPLE_DIR, Group
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


_hooks: Final = Group("Hooks", "/api/hooks")


@_hooks(
    "POST",
    body=HooksRequest,
    example={"project_dir": EXAMPLE_DIR},
    result=schemas.full(hook_config=schemas.nullable(schemas.ref(HookConfig.NAME))),
)
async def read(services: Services, body: HooksRequest) -> Any:
    """Read the hooks of a project.

    They are in `.openhands/hooks.json` below `project_dir`. The answer is null where there are none, none
    that can be used, or the operator keeps the directory from clients.
    """
    found: HookConfig | None = None
    if body.project_dir:
        access = services.access
        await here(services, body.project_dir)
        with suppress(AccessRefused, BadPath, OSError):
            # The file, not the directory: a link in it may lead out of the workspaces.
            path = f"{body.project_dir}/{HOOKS_FILE}"
            place = await access.admit(path, loc=("body", "project_dir"))
            found = await access.in_thread(partial(_read, place), "to read the project's hooks")
    return {"hook_config": None if found is None else as_json(found)}


GROUPS: Final = (_hooks,)
