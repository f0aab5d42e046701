"""The limit on conversations."""

from __future__ import annotations

from gateway.api.errors import ApiError
from gateway.api.services import Services
from supervisor.conversations.state.errors import UnknownConversation


async def admit(services: Services, conversation_id: str | None) -> None:
    """Admit a start request while the limit of conversations is not reached. Raises ApiError(429) otherwise.

    A request for an existing conversation is always admitted. Concurrent requests are not counted, so they
    may exceed the limit by a few.
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
