"""Deletes a conversation, with what the gateway keeps of it: its commands, and how far webhooks are."""

from __future__ import annotations

import trio

from gateway.api.services import Services


async def delete(services: Services, conversation_id: str) -> None:
    """Delete the conversation of this (dashed) id. No command of it is left when this returns.

    Raises UnknownConversation, JournalError; then it still exists.

    Cancellation (a client that goes away) leaves a conversation or none, and never commands of one that is
    gone.
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
