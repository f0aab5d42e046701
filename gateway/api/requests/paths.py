"""The path of a request: absolute, or below a conversation's workspace, and permitted by the operator."""

from __future__ import annotations

from gateway.api.errors import ApiError
from gateway.api.requests.reading import path_uuid
from gateway.api.services import Services
from supervisor.workspace.access import Admitted

ABSOLUTE = "Path must be absolute"


async def workspace_of(services: Services, conversation_id: str) -> str:
    """The working directory of a conversation. Raises InvalidRequest or UnknownConversation."""
    conversation = await services.supervisor.get(path_uuid(conversation_id, "conversation_id"))
    return str((await conversation.durable_info())["workspace"]["working_dir"])


async def admitted(services: Services, path: str, conversation_id: str | None) -> Admitted:
    """The path of a request, resolved. With a conversation it is one in its workspace, and may be relative.

    Raises ApiError(400) for a relative path without a conversation, and what `PathAccess.admit` raises.
    """
    services.access.require()
    if conversation_id is None:
        if not path.startswith("/"):
            raise ApiError(400, ABSOLUTE)
        return await services.access.admit(path)
    workspace = await workspace_of(services, conversation_id)
    if not path.startswith("/"):
        path = f"{workspace}/{path}"
    return await services.access.admit(path, within=workspace)
