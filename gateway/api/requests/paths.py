"""The path of a request: absolute, or below a conversation's workspace, and permitted by the operator."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from gateway.api.errors import ApiError
from gateway.api.requests.reading import path_uuid
from gateway.api.services import Services
from supervisor.working_directory import make_working_directory
from supervisor.workspace.access import Admitted

ABSOLUTE = "Path must be absolute"


async def workspace_of(services: Services, conversation_id: str) -> str:
    """The working directory of a conversation. Raises InvalidRequest or UnknownConversation."""
    conversation = await services.supervisor.get(path_uuid(conversation_id, "conversation_id"))
    return str((await conversation.durable_info())["workspace"]["working_dir"])


async def admitted(
    services: Services, path: str, conversation_id: str | None, *, make: bool = False
) -> Admitted:
    """The path of a request, resolved. With a conversation it is one in its workspace, and may be relative.

    `make`: something is to be written there, so make the conversation's working directory if it is missing.

    Raises ApiError(400) for a relative path without a conversation, OwnedElsewhere, and what
    `PathAccess.admit` raises.
    """
    services.access.require()
    workspace = None
    if conversation_id is not None:
        workspace = await workspace_of(services, conversation_id)
        if not path.startswith("/"):
            path = f"{workspace}/{path}"
    elif not path.startswith("/"):
        raise ApiError(400, ABSOLUTE)
    else:
        await here(services, path)
    place = await services.access.admit(path, within=workspace)
    if make:
        await make_working_directories(services, path, str(place.path), own=workspace)
    return place


async def here(services: Services, path: str) -> None:
    """Raise OwnedElsewhere for an absolute path in the directory of a conversation of another server."""
    if services.machines is not None:
        from gateway.api.forwarding.paths import look_elsewhere

        await look_elsewhere(services, path)


async def make_working_directories(services: Services, *paths: str, own: str | None = None) -> None:
    """Make the missing working directories of conversations that these paths are in, as their agents' starts
    would: clients come before these.

    `own`: the working directory of the conversation that the request is about. One that cannot be made stays
    missing: what follows says what is wrong with it. Raises PathTimeout.
    """
    if await services.access.in_thread(lambda: all(map(os.path.lexists, paths)), "to look at a path"):
        return
    directories = await services.known.of_conversations()
    known = [*directories, *filter(None, [own])]
    await services.access.in_thread(partial(_make_all, known, paths), "to make a working directory")


def _make_all(known: Iterable[str], paths: Iterable[str]) -> None:
    plain = set(map(os.path.normpath, known))
    for path in map(Path, map(os.path.normpath, paths)):
        # From the outermost on: one that is inside of another's repository gets none.
        for each in (*reversed(path.parents), path):
            if str(each) in plain:
                with suppress(OSError):
                    make_working_directory(each)
