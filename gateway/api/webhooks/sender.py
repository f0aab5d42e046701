"""Follows one conversation's log for one receiver, and posts what is new in batches."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import attrs
import orjson
import structlog
import trio

from gateway.api.webhooks.backlog import Backlog
from gateway.api.webhooks.cursors import Cursors
from gateway.api.webhooks.delivery import NotDelivered, Receiver
from gateway.http.throttled_log import ThrottledLog
from supervisor.events import Vocabulary, with_nulls
from supervisor.journal.cursor import Cursor
from supervisor.journal.errors import JournalError
from supervisor.journal.rows import Stored

if TYPE_CHECKING:
    from gateway.api.contract import Conversation

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 60.0
"""Seconds between two checks whether the conversation is still loaded, while nothing is to be sent."""

INFOS_MAX: Final = 20
"""Most conversation states that are queued for a receiver; the oldest are dropped."""

SNAPSHOT: Final = b'{"type":"transient"'
"""The prefix of a frame with a state that is not journalled; streamed deltas have another."""


@attrs.define
class DeliveryCounters:
    """Counts for the metrics: events delivered and dropped, and requests that failed."""

    delivered: int = 0
    dropped: int = 0
    failures: int = 0


class Sender:
    """The only sender for its conversation and receiver.

    `run` ends when the conversation is no longer loaded and everything is delivered, or when it is deleted.
    If the conversation is not loaded, it also ends at the first failure; the cursor is kept. `recovered` is
    called when the receiver accepts a request after failures.
    """

    def __init__(
        self,
        conversation: Conversation,
        receiver: Receiver,
        cursors: Cursors,
        counters: DeliveryCounters,
        recovered: Callable[[], None] = lambda: None,
    ) -> None:
        # Weak: a receiver that is behind must not keep a conversation loaded.
        self._conversation = weakref.ref(conversation)
        self._log = conversation.log
        self._vocabulary: Vocabulary = conversation.vocabulary
        self._from = conversation.log.high_water
        self._receiver = receiver
        self._spec = receiver.spec
        self._cursors = cursors
        self._counters = counters
        self._key = receiver.spec.base_url
        self._backlog = Backlog(self._spec)
        self._infos: deque[bytes] = deque(maxlen=INFOS_MAX)
        self._news = trio.Event()
        self._flush = trio.Event()
        self._empty = trio.Event()
        self._gone = False
        self._begun = False
        self._flush_to = -1
        self._refused = 0
        self._position = self._seen = self._from
        self._dropping = ThrottledLog(log, "warning", "webhook falls behind; events are dropped")
        self._recovered = recovered

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._backlog and not self._infos

    def tell(self, info: bytes) -> None:
        """Post a state of the conversation, as JSON."""
        self._infos.append(info)
        self._wake()

    def flush(self) -> None:
        """Send all events that are durable now, without waiting for a full batch."""
        self._flush_to = self._log.high_water
        self._flush.set()
        self._wake()

    async def emptied(self) -> None:
        """Wait until everything up to the last `flush` is delivered, or a delivery fails."""
        refused = self._refused
        while not self._flushed and self._refused == refused:
            await self._empty.wait()

    @property
    def _flushed(self) -> bool:
        """Whether everything up to the last `flush` is delivered. Events not yet read from the log count as
        undelivered."""
        return self.idle and (self._gone or (self._begun and self._seen >= self._flush_to))

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def run(self) -> None:
        """Follow the log and post. Cancellation ends it; undelivered events are delivered after the next
        start."""
        stored = await self._cursors.get(self._log.conversation_id, self._key)
        self._position = self._seen = self._from if stored is None else stored
        self._begun = True
        await self._keep(behind=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            nursery.start_soon(self._post_infos)
            await self._post()
            nursery.cancel_scope.cancel()
        if not self._gone and self.idle:
            await self._keep(behind=False)

    async def _keep(self, *, behind: bool) -> None:
        await self._cursors.put(self._log.conversation_id, self._key, self._position, behind=behind)

    # -- following ----------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        try:
            # Streamed pieces are for people who watch; receivers get the events.
            cursor = self._log.subscribe(self._position, follows=False)
            while True:
                await self._take(cursor)
        except JournalError:
            self._gone = True  # deleted, or at the server's end
            self._wake()

    async def _take(self, cursor: Cursor) -> None:
        backlog, before = self._backlog, self._backlog.dropped
        for item in await cursor.next():
            if isinstance(item, Stored):
                backlog.add(item.seq, len(item.body))
                self._seen = item.seq
            elif item.frame.legacy is not None and (item.frame.session or b"").startswith(SNAPSHOT):
                backlog.snapshot = (self._seen, item.frame.legacy)
        self._count_dropped(before)
        if backlog:
            self._wake()

    def _count_dropped(self, before: int) -> None:
        if self._backlog.dropped > before:
            self._counters.dropped += self._backlog.dropped - before
            self._dropping.say(host=self._spec.host, conversation_id=self._log.conversation_id)

    # -- posting ------------------------------------------------------------------------------------------

    async def _post(self) -> None:
        while True:
            if not self._backlog:
                self._settle()
                if self.idle and (self._gone or self._conversation() is None):
                    return
                with trio.move_on_after(LOOK_SECONDS):
                    await self._news.wait()
                continue
            await self._gather()
            if self._gone:
                self._backlog = Backlog(self._spec)  # a deleted log cannot be read any more
            elif not await self._deliver() and not self._gone:
                if self._conversation() is None:
                    return
                self._flush = trio.Event()  # the pending flush has had its attempt
                self._refused += 1
                self._give_word()
                with trio.move_on_after(self._spec.flush_delay):
                    await self._flush.wait()

    def _settle(self) -> None:
        if self._flushed:
            self._flush = trio.Event()
            self._give_word()

    def _give_word(self) -> None:
        self._empty.set()
        self._empty = trio.Event()

    async def _gather(self) -> None:
        """Wait until a batch is full or old enough."""
        with trio.move_on_after(self._spec.flush_delay):
            while not (self._backlog.full or self._gone or self._flush.is_set()):
                await self._news.wait()

    async def _deliver(self) -> bool:
        """Send one batch. Returns whether it was delivered."""
        batch = self._backlog.take()
        snapshot: tuple[int, bytes] | None = None
        delivered = False
        try:
            rows: Sequence[Stored] = ()
            if batch:
                with suppress(JournalError):
                    rows = await self._log.read(batch[0][0] - 1, len(batch))
                if not rows:
                    return False
                # The log returns fewer rows if they are very large.
                batch, rest = batch[: len(rows)], batch[len(rows) :]
                self._backlog.put_back(rest, None)
            snapshot = self._backlog.take_snapshot(batch[-1][0] if batch else -1)
            body = await trio.to_thread.run_sync(_body, rows, snapshot, self._vocabulary)
            delivered = await self._try(f"/events/{self._log.conversation_id.replace('-', '')}", body)
        finally:
            if not delivered:
                before = self._backlog.dropped
                # In front of what came meanwhile, since events of a conversation are delivered in order.
                self._backlog.put_back(batch, snapshot)
                self._count_dropped(before)
        if delivered:
            self._counters.delivered += len(batch) + (snapshot is not None)
            if batch:
                self._position = batch[-1][0]
                await self._keep(behind=True)
        return delivered

    async def _try(self, path: str, body: bytes) -> bool:
        """Post, and again after failures. Returns whether it was delivered."""
        for attempt in range(self._spec.num_retries + 1):
            if attempt:
                with trio.move_on_after(self._spec.retry_delay):
                    await self._flush.wait()
            try:
                await self._receiver.post(path, body)
            except NotDelivered as error:
                self._counters.failures += 1
                self._receiver.failing = True
                self._receiver.complaint.say(host=self._spec.host, reason=str(error))
                if self._flush.is_set():
                    return False
            else:
                if self._receiver.failing:
                    self._receiver.failing = False
                    self._recovered()
                return True
        return False

    async def _post_infos(self) -> None:
        while True:
            while not self._infos:
                await self._news.wait()
            info = self._infos[0]
            await self._try("/conversations", info)
            if self._infos and self._infos[0] is info:
                self._infos.popleft()
            self._wake()


def _body(rows: Sequence[Stored], snapshot: tuple[int, bytes] | None, vocabulary: Vocabulary) -> bytes:
    """The batch as a JSON array, nulls present. For a thread."""
    events: list[Any] = []
    pending = snapshot
    for row in rows:
        if pending is not None and pending[0] < row.seq:
            events.append(orjson.Fragment(pending[1]))
            pending = None
        events.append(with_nulls(orjson.loads(row.body), vocabulary))
    if pending is not None:
        events.append(orjson.Fragment(pending[1]))
    return orjson.dumps(events)
