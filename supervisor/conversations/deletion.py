"""Deletions that can be undone for a while: of which conversations, and until when.

They are kept in a document, so that a server that ends meanwhile carries them out after its next start.
Servers that share it all hide what waits; the one that has the conversation deletes it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from typing import Final

import structlog
import trio

from supervisor.conversations.state.errors import ConversationError, NotPossible, UnknownConversation
from supervisor.documents.changing import Changing
from supervisor.documents.port import Content, Document, DocumentsUnavailable
from supervisor.journal.errors import JournalError, JournalUnavailable

log = structlog.get_logger(__name__)

DELETIONS_FILE: Final = "deletions.json"
"""The document: an object with the time of each deletion, in seconds since the epoch."""

DELETIONS_MAX: Final = 1000
"""How many can wait at once: the document is written as a whole, some 60 KiB then."""

MAX_BYTES: Final = 1024 * 1024
"""Most bytes of the document that are read."""

UNDO_SECONDS_MAX: Final = 300
"""The longest time in which a deletion can be undone: a person notices a mistake within a minute."""

GRACE_SECONDS: Final = 5.0
"""After a start, the least that is left of a time: it may have passed while no server could undo it."""

AGAIN_SECONDS: Final = 30.0
"""Before a deletion that failed is tried again: a disk that was full, or a process that did not end. As long
until servers that share the document look what others wrote."""

WRITING: Final = trio.CapacityLimiter(1)
"""For the document: in order, one after the other."""


async def _ours(conversation_id: str) -> bool:
    return True


class Deletions:
    """The deletions that can still be undone. `until`: their times, by conversation, in seconds since the
    epoch. They are carried out by the clock that does not jump.

    `ours`: whether this server has the conversation, and so deletes it. It may claim one that none has.
    """

    def __init__(
        self,
        document: Document,
        until: dict[str, float],
        ours: Callable[[str], Awaitable[bool]] = _ours,
    ) -> None:
        self._document = document
        self.ours = ours
        self.until = until
        self._stamp: Hashable = None
        self._due: dict[str, float] = {}
        """The same times on Trio's clock."""
        self._begun: set[str] = set()
        """Those that are being carried out: it is too late to undo them."""
        self._lock = Changing(document)
        self._changed = trio.Event()

    async def load(self) -> None:
        """Read the document. One that is broken is reported, and nothing is deleted. Cancellation waits for
        the read."""
        try:
            self._take(await trio.to_thread.run_sync(self._document.read, MAX_BYTES, limiter=WRITING))
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("deletions that wait are unreadable; nothing is deleted", error=str(error))

    async def refresh(self) -> None:
        """Learn what other servers wrote. Raises DocumentsUnavailable."""
        if not self._document.shared:
            return
        try:
            found = await trio.to_thread.run_sync(self._newer, self._stamp, limiter=WRITING)
            if found is not None:
                self._take(found)
        except DocumentsUnavailable:
            raise
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("deletions that wait are unreadable", error=str(error))

    def _newer(self, known: Hashable) -> Content | None:
        return None if self._document.stamp() == known else self._document.read(MAX_BYTES)

    def _take(self, found: Content | None) -> None:
        """Make the document's content ours."""
        if found is None:
            return
        known = {str(each): float(moment) for each, moment in json.loads(found.data).items()}
        self._stamp = found.stamp
        now = time.time()
        for each, moment in known.items():
            if each not in self.until:
                # At most the whole time, also where the clock was set back meanwhile.
                left = min(max(moment - now, GRACE_SECONDS), UNDO_SECONDS_MAX)
                self._wait(each, now + left, trio.current_time() + left)
        for each in self.until.keys() - known.keys() - self._begun:
            self._drop(each)

    async def add(self, conversation_id: str, seconds: float) -> float:
        """Delete it after this time; the moment, in seconds since the epoch. One that waits already keeps its
        moment. Raises NotPossible if too many wait, JournalUnavailable or DocumentsUnavailable if the
        document cannot be written.

        Cancellation waits for the document.
        """
        async with self._lock:
            await self.refresh()
            known = self.until.get(conversation_id)
            if known is not None:
                return known
            if len(self.until) >= DELETIONS_MAX:
                raise NotPossible(
                    f"{DELETIONS_MAX} deletions wait already. "
                    "Try again later, or delete without undo_seconds."
                )
            moment, due = time.time() + seconds, trio.current_time() + seconds
            await self._write({**self.until, conversation_id: moment})
            self._wait(conversation_id, moment, due)
            return moment

    def _wait(self, conversation_id: str, moment: float, due: float) -> None:
        self.until[conversation_id] = moment
        self._due[conversation_id] = due
        self._changed.set()
        self._changed = trio.Event()

    async def undo(self, conversation_id: str) -> None:
        """Keep it. Raises NotPossible if it does not wait, UnknownConversation if it is too late, and as
        `add` if the document cannot be written.

        Cancellation waits for the document.
        """
        async with self._lock:
            await self.refresh()
            if conversation_id in self._begun:
                raise UnknownConversation(f"Conversation not found: {conversation_id}")
            if conversation_id not in self.until:
                raise NotPossible("The conversation is not being deleted.")
            await self._write({each: at for each, at in self.until.items() if each != conversation_id})
            self._drop(conversation_id)

    async def forget(self, conversation_id: str) -> None:
        """Note that it is deleted. A document that cannot be written is no trouble: it names what is gone."""
        if conversation_id not in self.until:
            return
        try:
            async with self._lock:
                await self.refresh()
                self._drop(conversation_id)
                await self._write(self.until)
        except (JournalUnavailable, DocumentsUnavailable) as error:
            self._drop(conversation_id)
            log.warning("a deletion that is done stays written down", error=str(error))

    def _drop(self, conversation_id: str) -> None:
        self.until.pop(conversation_id, None)
        self._due.pop(conversation_id, None)

    async def _write(self, until: Mapping[str, float]) -> None:
        data = json.dumps(dict(until)).encode()
        try:
            self._stamp = await trio.to_thread.run_sync(self._document.write, data, limiter=WRITING)
        except OSError as error:
            raise _unwritten(error) from error

    async def carry_out(self, delete: Callable[[str], Awaitable[None]]) -> None:
        """Delete each when its time is over, until it is cancelled."""
        while True:
            changed = self._changed
            with suppress(DocumentsUnavailable):  # it is asked again
                await self.refresh()
            now = trio.current_time()
            for each in [each for each, due in self._due.items() if due <= now]:
                await self._delete(each, delete)
            look = now + AGAIN_SECONDS if self._document.shared else math.inf
            with trio.move_on_at(min([look, *self._due.values()])):
                await changed.wait()

    async def _delete(self, conversation_id: str, delete: Callable[[str], Awaitable[None]]) -> None:
        try:
            if not await self.ours(conversation_id):
                self._again(conversation_id)  # until then its server may be gone
                return
            async with self._lock.here:  # a restore that has begun comes first
                await self.refresh()
                if conversation_id not in self.until:
                    return  # undone, or deleted meanwhile
                self._begun.add(conversation_id)
            await delete(conversation_id)
        except UnknownConversation:
            pass  # a server died between the deletion and the file
        except (JournalError, ConversationError, DocumentsUnavailable) as error:
            log.warning("deletion failed; trying again", conversation_id=conversation_id, error=str(error))
            self._again(conversation_id)
            return
        except Exception:
            # A fault with one must not end the server, whose nursery this is in.
            log.exception("deletion failed; trying again", conversation_id=conversation_id)
            self._again(conversation_id)
            return
        finally:
            self._begun.discard(conversation_id)
        await self.forget(conversation_id)

    def _again(self, conversation_id: str) -> None:
        if conversation_id in self.until:  # else a client has deleted it meanwhile
            self._due[conversation_id] = trio.current_time() + AGAIN_SECONDS


def _unwritten(error: OSError) -> JournalUnavailable:
    return JournalUnavailable(
        f"A deletion that can be undone cannot be written down: {error.strerror}. "
        "Try again later, or delete without undo_seconds."
    )
