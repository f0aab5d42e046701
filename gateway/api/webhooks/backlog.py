"""A receiver's undelivered events, as sequence numbers: the events themselves stay in the journal. Pure."""

from __future__ import annotations

from collections import deque

import attrs

from gateway.configuration.webhooks import WebhookSpec


@attrs.define
class Backlog:
    """The undelivered events, oldest first: sequence number and bytes of each.

    `snapshot` is the newest state that is not journalled, and the number of the event before it. A newer one
    replaces it.
    """

    spec: WebhookSpec
    dropped: int = 0
    snapshot: tuple[int, bytes] | None = None
    _waiting: deque[tuple[int, int]] = attrs.field(factory=deque)
    _bytes: int = 0

    def __len__(self) -> int:
        return len(self._waiting) + (self.snapshot is not None)

    @property
    def full(self) -> bool:
        """Whether a batch is to be sent now."""
        return len(self) >= self.spec.event_buffer_size or self._bytes >= self.spec.max_batch_bytes

    def add(self, seq: int, size: int) -> None:
        """Add the next event."""
        self._waiting.append((seq, size))
        self._bytes += size
        self._trim()

    def _trim(self) -> None:
        spec = self.spec
        while self._waiting and (
            len(self._waiting) > spec.max_queue_size or self._bytes > spec.max_queue_bytes
        ):
            self._bytes -= self._waiting.popleft()[1]
            self.dropped += 1

    def take(self) -> list[tuple[int, int]]:
        """Take the next batch of events out; none if only a snapshot waits."""
        batch: list[tuple[int, int]] = []
        size = 2
        while self._waiting and len(batch) < self.spec.event_buffer_size:
            size += self._waiting[0][1] + 1
            if batch and size > self.spec.max_batch_bytes:
                break
            batch.append(self._waiting.popleft())
            self._bytes -= batch[-1][1]
        return batch

    def take_snapshot(self, last: int) -> tuple[int, bytes] | None:
        """Take the snapshot out if no undelivered event precedes it. `last`: the last event of the current
        batch."""
        found = self.snapshot
        if found is None or (self._waiting and found[0] > last):
            return None
        self.snapshot = None
        return found

    def put_back(self, batch: list[tuple[int, int]], snapshot: tuple[int, bytes] | None) -> None:
        """Put an undelivered batch back at the front, within the bounds."""
        self._waiting.extendleft(reversed(batch))
        self._bytes += sum(size for _, size in batch)
        if self.snapshot is None:
            self.snapshot = snapshot
        self._trim()
