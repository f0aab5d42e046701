"""The limit on conversations."""

from __future__ import annotations

from gateway.errors import ApiError
from gateway.services import Services
from supervisor.conversations.state.errors import UnknownConversation


async def admit(services: Services, conversation_id: str | None) -> None:
    """Let a start request pass while there is room for one more conversation. Raises ApiError(429) otherwise.

    A request that names a conversation which is there already asks for no room. Requests under way at the
    same time are not counted: there may be a few more in the end, never many.
    """
    limit = services.config.max_conversations
    if await services.supervisor.count() < limit:
        return
    if conversation_id is not None:
        try:
            await services.supervisor.get(conversation_id)
        except UnknownConversation:
            pass
        else:
            return
    raise ApiError(429, f"There are {limit} conversations. Delete some, or raise OSTLER_MAX_CONVERSATIONS.")
