"""Deletes a conversation with the gateway's own state for it: its commands and its webhook cursors."""

from __future__ import annotations

import trio

from gateway.api.services import Services


async def delete(services: Services, conversation_id: str) -> None:
    """Delete the conversation with this dashed id. None of its commands is left when this returns.

    Raises UnknownConversation, JournalError; the conversation then still exists.

    Cancellation (the client disconnects) leaves the conversation or deletes it, and never leaves commands of
    a deleted one.
    """
    conversation = await services.supervisor.get(conversation_id)
    webhooks = services.webhooks

    async def closed() -> None:
        if webhooks is not None:
            await webhooks.deleting(conversation.log, await conversation.durable_info())

    try:
        await services.supervisor.delete(conversation_id, closed)
    finally:
        if conversation.log.deleted:
            with trio.CancelScope(shield=True):
                if services.bash is not None:
                    await services.bash.forget(conversation_id)  # bounded by its STOP_SECONDS
                if webhooks is not None:
                    await webhooks.deleted(conversation_id)
