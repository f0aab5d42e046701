"""The registry of a server's conversations: loaded on demand, kept while they are active."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

import orjson
import structlog
import trio

from supervisor.conversations.agent.context import Context
from supervisor.conversations.deletion import DELETIONS_FILE, Deletions
from supervisor.conversations.state.errors import UnknownConversation
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.status import LIVE_STATUSES
from supervisor.documents.port import DocumentsUnavailable
from supervisor.journal.errors import JournalError, JournalUnavailable, LogDeleted
from supervisor.journal.errors import UnknownConversation as NotInJournal
from supervisor.journal.rows import Listing
from supervisor.machines.errors import NotNow, OwnedElsewhere, Place
from supervisor.tight import tight

if TYPE_CHECKING:
    from supervisor.conversations.conversation import Conversation
    from supervisor.conversations.elsewhere import StoredConversation
    from supervisor.conversations.overview import Overview
    from supervisor.machines.directory import Moved

log = structlog.get_logger(__name__)

RECENT_MAX: Final = 256
"""Idle conversations kept loaded, the most recently used ones.

Each takes some kilobytes, and a client polls its own every few seconds.
"""

RECOVER_PAUSE_SECONDS: Final = 1.0
"""Seconds before the recovery is retried, so that a flapping journal does not cause a busy loop."""

MACHINERY: Final = (
    "supervisor.conversations.built_in.kind",
    "supervisor.conversations.conversation",
    "supervisor.conversations.external.kind",
    "supervisor.conversations.forking",
    "supervisor.conversations.resource.resource",
)
"""Modules that a server without conversations does not load; they import a third of all modules."""

MOST_BYTES: Final = 2 * 1024 * 1024
"""Bytes of records and JSON that are kept: some hundred conversations of the usual size, several pages."""

LARGEST_PART: Final = 8
"""One conversation is kept if it takes up to this part (1/8) of the bound: a larger one would push out many
others."""

OWNER_SECONDS: Final = 1.0
"""Seconds for which a request is passed on to where the conversation was, without asking the database, which
takes a third of what passing on adds. A server that has it no longer says so, and then it is asked."""

OWNERS_MAX: Final = 10_000
"""Places that are remembered: some megabytes."""

NOT_NOW: Final = (JournalUnavailable, DocumentsUnavailable, NotNow)
"""What passes: taking a conversation up is tried again."""

T = TypeVar("T")

Write = Callable[[bytes], bytes]
"""Makes the JSON of a conversation from its stored record."""


class Listed:
    """The JSON of the conversations that were listed last. What was made of a record is true as long as the
    record is the same, byte for byte."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._bytes = 0
        self._kept: OrderedDict[str, tuple[bytes, bytes]] = OrderedDict()

    def json(self, conversation_id: str, stored: bytes, write: Write) -> bytes:
        """The JSON of this conversation, whose record is `stored`. Raises what `write` raises."""
        known = self._kept.get(conversation_id)
        if known is not None and known[0] == stored:
            self._kept.move_to_end(conversation_id)
            return known[1]
        written = tight(write(stored))
        self.forget(conversation_id)
        size = len(stored) + len(written)
        if size * LARGEST_PART > self._most:
            return written
        self._kept[conversation_id] = stored, written
        self._bytes += size
        while self._bytes > self._most:
            self.forget(next(iter(self._kept)))
        return written

    def forget(self, conversation_id: str) -> None:
        """Keep nothing of this one."""
        for each in self._kept.pop(conversation_id, ()):
            self._bytes -= len(each)


class Registry:
    """The conversations of one server: loaded on demand, kept while they are active."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._loaded: WeakValueDictionary[str, Conversation] = WeakValueDictionary()
        self._recent: OrderedDict[str, Conversation] = OrderedDict()
        self._listed = Listed()
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        self._used: Callable[[Conversation], None] | None = None
        self._machinery = False
        self._loading_machinery = trio.Lock()
        self._leaving: set[str] = set()
        """Those that this server is handing over to others."""
        self._owners: dict[str, tuple[Place, float]] = {}
        """Where conversations of other servers were, and until when that counts (Trio's clock)."""
        self._overview: Overview | None = None
        self.shared = context.machines is not None
        """Whether other servers have conversations of the journal, too."""
        self.deletions = Deletions(context.documents.document(DELETIONS_FILE), context.deleted_later)
        """Those that can be undone."""
        if context.machines is not None:
            self.deletions.ours = self._ours
        self.deleting: Callable[[str], Awaitable[None]] = self.delete
        """Carries one of them out; the gateway's removes what it has of the conversation, too."""

    async def _ours(self, conversation_id: str) -> bool:
        """Whether this server has a conversation, or could claim it now."""
        machines = self._context.machines
        assert machines is not None
        try:
            await machines.acquire(conversation_id)
        except (OwnedElsewhere, NotNow):
            return False
        return True

    async def prepare(self) -> None:
        """Import what conversations need; otherwise the first request for a conversation waits for it.

        Cancellation waits for the end of the import.
        """
        if self._machinery:
            return
        async with self._loading_machinery:
            if any(name not in sys.modules for name in MACHINERY):
                # In a thread: it takes a tenth of a second.
                await trio.to_thread.run_sync(lambda: [import_module(name) for name in MACHINERY])
            self._machinery = True

    def _lock(self, conversation_id: str) -> trio.Lock:
        lock = self._locks.get(conversation_id)
        if lock is None:
            lock = self._locks[conversation_id] = trio.Lock()
        return lock

    async def get(self, conversation_id: str) -> Conversation:
        """Return the conversation with this (dashed) id. Raises UnknownConversation, and OwnedElsewhere where
        another server has it."""
        loaded = self._loaded.get(conversation_id)
        if loaded is not None and conversation_id not in self._leaving:
            self._keep(loaded)
            return loaded
        place, until = self._owners.get(conversation_id, (None, 0.0))
        if place is not None and trio.current_time() < until:
            await trio.lowlevel.checkpoint()
            raise OwnedElsewhere(conversation_id, place)
        async with self._lock(conversation_id):
            try:
                return await self._get(conversation_id)
            except OwnedElsewhere as error:
                if len(self._owners) >= OWNERS_MAX:
                    self._owners.clear()
                self._owners[conversation_id] = error.place, trio.current_time() + OWNER_SECONDS
                raise

    def forget_owner(self, conversation_id: str) -> None:
        """Ask the database where a conversation is, next time: it is not where it was."""
        self._owners.pop(conversation_id, None)

    async def view(self, conversation_id: str) -> Conversation | StoredConversation:
        """Return what can be read of a conversation, without taking it from another server: the conversation
        itself where it is loaded, or no other server could have it. Raises UnknownConversation,
        JournalError."""
        if not self.shared or conversation_id in self._loaded:
            return await self.get(conversation_id)
        try:
            # The log first: the record is then no older than its last event.
            journal_log = await self._context.journal.reading(conversation_id)
        except (NotInJournal, LogDeleted) as error:
            raise UnknownConversation(f"Conversation not found: {conversation_id}") from error
        (stored,) = await self._context.journal.get_records([conversation_id])
        if stored is None:
            raise UnknownConversation(f"Conversation not found: {conversation_id}")
        await self.prepare()
        from supervisor.conversations.elsewhere import StoredConversation

        return StoredConversation(self._context, ConversationRecord.load(stored.record), journal_log)

    async def _get(self, conversation_id: str, moved: Moved | None = None) -> Conversation:
        loaded = self._loaded.get(conversation_id)
        if loaded is not None:
            return loaded
        machines = self._context.machines
        if machines is not None:
            moved = await machines.acquire(conversation_id) or moved
        try:
            journal_log = await self._context.journal.log(conversation_id)
            with trio.move_on_after(self._context.deadlines.durable):
                await journal_log.flushed()  # the record on its way to the file counts
            if not journal_log.settled:
                journal_log.accept()
                raise JournalUnavailable("The conversation is still being written. Try again later.")
        except (NotInJournal, LogDeleted) as error:
            raise UnknownConversation(f"Conversation not found: {conversation_id}") from error
        stored = (await self._context.journal.get_records([conversation_id]))[0]
        if stored is None:
            raise UnknownConversation(f"Conversation not found: {conversation_id}")
        await self.deletions.refresh()
        await self.prepare()
        from supervisor.conversations.conversation import Conversation

        conversation = Conversation(self._context, ConversationRecord.load(stored.record), journal_log)
        if moved is None or machines is None:
            await conversation.recover()
        else:
            await conversation.recover({"from": moved.from_name, "to": machines.name, "why": moved.why})
        self._keep(conversation)
        return conversation

    def _keep(self, conversation: Conversation) -> None:
        """Keep the most recently used ones. An active one stays loaded since its task refers to it."""
        self._loaded[conversation.id] = conversation
        self._recent[conversation.id] = conversation
        self._recent.move_to_end(conversation.id)
        if self._used is not None:
            self._used(conversation)
        if len(self._recent) > RECENT_MAX:
            left, _ = self._recent.popitem(last=False)
            if self._overview is not None:
                self._overview.unloaded(left)

    @property
    def prepared(self) -> bool:
        """Whether what conversations need is imported: before, there has been none."""
        return self._machinery

    @property
    def overview(self) -> Overview:
        """The rows of all conversations, for those that follow them. Made at its first use."""
        if self._overview is None:
            from supervisor.conversations.overview import Overview

            context = self._context
            self._overview = Overview(
                context.journal,
                lambda: list(self._loaded.values()),
                context.kinds,
                self.prepare,
                context.nursery,
                hidden=context.deleted_later.__contains__,
                shared=self.shared,
            )
        return self._overview

    def watch(self, used: Callable[[Conversation], None] | None) -> None:
        """Call `used` with each loaded conversation now, and with each requested one later; None ends that.
        It must not block."""
        self._used = used
        if used is not None:
            for conversation in list(self._loaded.values()):
                used(conversation)

    async def recover(self) -> None:
        """After a start: correct the state of every conversation that an earlier server left running. Among
        several servers each gets those that it claims (`claimed`)."""
        if self._context.machines is not None:
            return
        await self._recover([found async for found in self._left_running()])

    async def _recover(self, ids: Sequence[str]) -> None:
        later: list[str] = []
        for conversation_id in ids:
            try:
                await self.get(conversation_id)
            except NOT_NOW:
                later.append(conversation_id)
            except (UnknownConversation, OwnedElsewhere):
                continue  # deleted while it waited, or taken by another server
        if later:
            log.warning("recovering conversations once the journal is writable", count=len(later))
            self._context.nursery.start_soon(self._later, self._recover, later)

    async def _later(self, take_up: Callable[[Sequence[T]], Awaitable[None]], left: Sequence[T]) -> None:
        try:
            await self._context.journal.writable()
            await trio.sleep(RECOVER_PAUSE_SECONDS)
            await take_up(left)
        except JournalError as error:
            log.warning("conversations not recovered", error=str(error))

    async def _left_running(self) -> AsyncIterator[str]:
        for status in sorted(LIVE_STATUSES):
            page_id = None
            while True:
                page = await self._context.journal.search_records(status=status, page=page_id, limit=100)
                for stored in page.items:
                    yield stored.id
                page_id = page.next_page_id
                if page_id is None:
                    break

    async def claimed(self, conversations: Sequence[tuple[str, Moved | None]]) -> None:
        """Take up the work of conversations that this server has just claimed from another one. What the
        database does not allow now is tried again."""
        later: list[tuple[str, Moved | None]] = []

        async def take_up(conversation_id: str, moved: Moved | None) -> None:
            try:
                async with self._lock(conversation_id):
                    await self._get(conversation_id, moved)
            except NOT_NOW:
                later.append((conversation_id, moved))
            except (JournalError, UnknownConversation, OwnedElsewhere) as error:
                log.warning("conversation not taken up", conversation_id=conversation_id, reason=str(error))
            except Exception:
                # A conversation that cannot be loaded must not end the server, which has all the others.
                log.exception("conversation not taken up", conversation_id=conversation_id)

        async with trio.open_nursery() as nursery:
            for conversation_id, moved in conversations:
                self.forget_owner(conversation_id)
                nursery.start_soon(take_up, conversation_id, moved)
        if later:
            self._context.nursery.start_soon(self._later, self.claimed, later)

    def loaded_count(self) -> int:
        """How many conversations are loaded."""
        return len(self._loaded)

    async def hand_over(self, seconds: float) -> None:
        """Give all conversations to other servers. Those with a turn get this time to end it; then it is
        interrupted, as at the end of a server.

        Shielded from cancellation, and bounded: all conversations are closed at once.
        """
        machines = self._context.machines
        assert machines is not None
        deadline = trio.current_time() + seconds
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                for conversation in list(self._loaded.values()):
                    nursery.start_soon(self._hand_over, conversation, deadline)
            try:
                await machines.release(None)
            except NotNow as error:
                log.warning("conversations not released; the end of the lease does it", reason=str(error))

    async def _hand_over(self, conversation: Conversation, deadline: float) -> None:
        conversation_id = conversation.id
        if conversation.queue.active and not conversation.outlasting:
            with trio.move_on_at(deadline):
                await conversation.queue.settled.wait()
        async with self._lock(conversation_id):
            self._leaving.add(conversation_id)
            try:
                await conversation.leave()
                await self._context.journal.give_up(conversation_id)
                self._drop(conversation)
                if self._context.machines is not None:
                    await self._context.machines.release([conversation_id])
            except (NotNow, JournalError) as error:
                # It is taken over when the server has left.
                log.warning(
                    "conversation not handed over", conversation_id=conversation_id, reason=str(error)
                )
            except Exception:
                log.exception("conversation not handed over", conversation_id=conversation_id)
                if conversation.closed:
                    self._drop(conversation)
            finally:
                self._leaving.discard(conversation_id)

    async def forget_left(self) -> None:
        """Remove agents' data of conversations that do not exist: an earlier server was killed while it made
        a fork or deleted a conversation."""
        left = await self._context.launcher.files.unsettled()
        if left:
            await self.prepare()
        for conversation_id in left:
            from supervisor.conversations.forking import forget_unless_there

            async with self._lock(conversation_id):
                await forget_unless_there(self._context, conversation_id)

    async def listing(self, *, status: str | None, order: str, page: str | None, limit: int) -> Listing:
        """Return a page of conversation resources, as JSON with commas between them. Each is as it was on the
        disk after the call began. `order` is one of the journal's record orders. Those that wait for their
        deletion are left out."""
        await self.deletions.refresh()
        found = await self._context.journal.search_records(
            status=status, order=order, page=page, limit=limit, without=self.deletions.until
        )
        if found.items:
            await self.prepare()
        bodies = [self._listed.json(each.id, each.record, self._json) for each in found.items]
        return Listing(bodies=b",".join(bodies), next_page_id=found.next_page_id)

    def _json(self, stored: bytes) -> bytes:
        from supervisor.conversations.resource.resource import conversation_info

        record = ConversationRecord.load(stored)
        agent = self._context.kinds(record)
        info = conversation_info(agent, self._context.launcher.data, hooks=self._context.hooks)
        return orjson.dumps(info)

    async def count(self, *, status: str | None = None) -> int:
        """Count the conversations, of one execution status or of all, without those that will be deleted."""
        await self.deletions.refresh()
        return await self._context.journal.count_records(status=status, without=self.deletions.until)

    async def delete(self, conversation_id: str, closed: Callable[[], Awaitable[None]] | None = None) -> None:
        """Delete a conversation: interrupt it, stop its agent, remove its events and its agent's data.

        `closed` is called in between: nothing more happens in the conversation, and its log is still there.

        Raises UnknownConversation, JournalError, AgentTimeout; then it still exists.

        Cancellation leaves it whole, or deleted; its agent is stopped.
        """
        conversation = await self.get(conversation_id)
        try:
            await conversation.close()
            if closed is not None:
                await closed()
            async with self._lock(conversation_id):
                self._drop(conversation)
                await self._context.launcher.files.unsettle(conversation_id)
                await self._context.journal.delete(conversation_id)
            if self._overview is not None:
                self._overview.deleted(conversation_id)
        finally:
            # A closed object must be loaded again if the conversation still exists. If its agent did not end,
            # the object stays and accepts nothing, so that no second agent can start.
            if conversation.closed:
                self._drop(conversation)
        with trio.CancelScope(shield=True):  # bounded; else the data stays until the next start
            await self._context.launcher.files.forget(conversation_id)
        await self.deletions.forget(conversation_id)

    async def delete_later(self, conversation_id: str, seconds: float) -> float:
        """Stop a conversation, hide it, and delete it after this time unless `restore` is called; the moment
        of its deletion, in seconds since the epoch. Until then it can be read, and refuses changes.

        One that waits already keeps its moment. Raises UnknownConversation, JournalError, AgentTimeout,
        NotPossible; then it still exists, and is not deleted.

        Cancellation leaves it as it is, or waiting for its deletion; its agent is stopped.
        """
        conversation = await self.get(conversation_id)
        try:
            await conversation.close()
            moment = await self.deletions.add(conversation_id, seconds)
        finally:
            if conversation.closed:
                self._drop(conversation)
        if self._overview is not None:
            self._overview.deleted(conversation_id)
        return moment

    async def restore(self, conversation_id: str) -> Conversation:
        """Undo `delete_later`; the conversation. Raises UnknownConversation, NotPossible, JournalError.

        Cancellation leaves it waiting for its deletion, or restored.
        """
        conversation = await self.get(conversation_id)
        await self.deletions.undo(conversation_id)
        if self._overview is not None:
            self._overview.restored(conversation)
        return conversation

    def _drop(self, conversation: Conversation) -> None:
        self._listed.forget(conversation.id)
        if self._loaded.get(conversation.id) is conversation:
            del self._loaded[conversation.id]
        if self._recent.get(conversation.id) is conversation:
            del self._recent[conversation.id]
