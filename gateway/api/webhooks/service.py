"""All webhooks of a server: a sender for each conversation in use and each receiver."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import orjson
import structlog
import trio

from gateway.api.metrics import WebhookFigures
from gateway.api.webhooks.cursors import Cursors, Table
from gateway.api.webhooks.delivery import Receiver
from gateway.api.webhooks.sender import DeliveryCounters, Sender
from gateway.configuration.webhooks import WebhookSpec
from supervisor.conversations.state.errors import UnknownConversation
from supervisor.journal.errors import JournalError, LogDeleted
from supervisor.machines.errors import OwnedElsewhere

if TYPE_CHECKING:
    from gateway.api.contract import Conversation, Supervisor
    from supervisor.journal.log import Log

log = structlog.get_logger(__name__)

CLOSE_SECONDS: Final = 2.0
"""Seconds for sending pending events at shutdown. The next start sends the rest."""

DELETE_SECONDS: Final = 2.0
"""Seconds that the deletion of a conversation waits for its last events to be sent."""

DELETING: Final = "deleting"
"""The status of a conversation that is being deleted; only receivers see it."""


class Webhooks:
    """Made by `open_webhooks`."""

    def __init__(
        self,
        supervisor: Supervisor,
        receivers: Sequence[Receiver],
        cursors: Cursors,
        nursery: trio.Nursery,
    ) -> None:
        self._supervisor = supervisor
        self._resuming = False
        self._receivers = receivers
        self._cursors = cursors
        self._nursery = nursery
        self._senders: dict[tuple[str, int], Sender] = {}
        self.counters = DeliveryCounters()

    def figures(self) -> WebhookFigures:
        """The figures for the metrics."""
        counters = self.counters
        return WebhookFigures(
            delivered=counters.delivered,
            dropped=counters.dropped,
            failures=counters.failures,
            waiting=sum(not sender.idle for sender in self._senders.values()),
        )

    def used(self, conversation: Conversation) -> None:
        """Start the senders of a conversation that is in use."""
        conversation_id = conversation.log.conversation_id
        for number, receiver in enumerate(self._receivers):
            key = (conversation_id, number)
            if key not in self._senders:
                sender = Sender(conversation, receiver, self._cursors, self.counters, self.resume_soon)
                self._senders[key] = sender
                self._nursery.start_soon(self._run, key, sender)

    async def _run(self, key: tuple[str, int], sender: Sender) -> None:
        try:
            await sender.run()
        except Exception:
            # An unexpected error in one conversation's sender must not stop the others.
            log.exception("webhook sender failed", conversation_id=key[0])
        finally:
            del self._senders[key]

    def _of(self, conversation_id: str) -> list[Sender]:
        return [sender for (each, _), sender in self._senders.items() if each == conversation_id]

    def tell(self, info: Mapping[str, Any]) -> None:
        """Post the state of a conversation, which is in use."""
        body = orjson.dumps(info, option=orjson.OPT_NON_STR_KEYS)
        for sender in self._of(str(info["id"])):
            sender.tell(body)

    async def deleting(self, log: Log, info: Mapping[str, Any]) -> None:
        """Send the last events of a conversation, within DELETE_SECONDS, and say that it is deleted.

        `log` is its log, into which nothing more is written.
        """
        senders = self._of(str(info["id"]))
        self.tell({**info, "execution_status": DELETING})
        with trio.move_on_after(DELETE_SECONDS), suppress(JournalError):
            await log.flushed_unless_troubled()
            await _flushed(senders)

    async def deleted(self, conversation_id: str) -> None:
        """Delete the conversation's cursors."""
        await self._cursors.forget(conversation_id)

    def resume_soon(self) -> None:
        """Resume undelivered events: those of an earlier server, or of a receiver that was unreachable."""
        if not self._resuming:
            self._resuming = True
            self._nursery.start_soon(self._resume)

    async def _resume(self) -> None:
        try:
            for conversation_id in await self._cursors.behind():
                try:
                    self.used(await self._supervisor.get(conversation_id))
                except (UnknownConversation, LogDeleted):
                    await self._cursors.forget(conversation_id)
                except JournalError:
                    raise
                except OwnedElsewhere:
                    continue
                except Exception:
                    # A conversation that cannot be loaded must not end the others' webhooks, nor the server.
                    log.exception("webhook not resumed", conversation_id=conversation_id)
        except JournalError as error:
            log.warning("webhooks wait for the journal", error=str(error))
        finally:
            self._resuming = False

    async def close(self) -> None:
        """Send pending events, within CLOSE_SECONDS."""
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            await _flushed(list(self._senders.values()))


async def _flushed(senders: Sequence[Sender]) -> None:
    for sender in senders:
        sender.flush()
    async with trio.open_nursery() as nursery:
        for sender in senders:
            nursery.start_soon(sender.emptied)


@asynccontextmanager
async def open_webhooks(
    specs: Sequence[WebhookSpec], session_keys: Sequence[str], table: Table, supervisor: Supervisor
) -> AsyncIterator[Webhooks | None]:
    """Send conversations' events while the block runs; yields None if no webhook is configured.

    `table`: where their cursors are; it is closed at the end.

    Leaving the block, also by cancellation, sends pending events for a bounded time.
    """
    if not specs:
        yield None
        return
    key = session_keys[0] if session_keys else None
    receivers = [Receiver(spec, key) for spec in specs]
    cursors = Cursors(table)
    try:
        async with trio.open_nursery() as nursery:
            webhooks = Webhooks(supervisor, receivers, cursors, nursery)
            supervisor.watch(webhooks.used)
            webhooks.resume_soon()
            try:
                yield webhooks
            finally:
                supervisor.watch(None)
                await webhooks.close()
                nursery.cancel_scope.cancel()
    finally:
        for receiver in receivers:
            await receiver.close()
        await cursors.close()
