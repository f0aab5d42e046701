"""HTTP/2 with Hypercorn, hardened against what clients may send by the protocol and beyond it."""

from __future__ import annotations

import binascii
import contextlib
from collections.abc import Iterable
from typing import Any, Final

import h2.errors
import h2.events
import h2.exceptions
import trio
from hypercorn.events import Closed
from hypercorn.protocol.events import StreamClosed
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.ws_stream import WSStream
from hyperframe.exceptions import HyperframeError
from priority.priority import MissingStreamError, PriorityError

CALM_BURST: Final = 1000.0
CALM_RATE: Final = 100.0
"""Frames without payload - pings, settings, priorities, resets, empty data, unknown ones - that a client may
send at once, and per second from then on. Clients ping every few seconds and send settings once."""

RESET_COST: Final = 5.0
"""The count of a reset stream: the application had its request. A page that is left resets some ten
streams."""

CALMED: Final = (
    h2.events.PingReceived,
    h2.events.PingAckReceived,
    h2.events.RemoteSettingsChanged,
    h2.events.SettingsAcknowledged,
    h2.events.PriorityUpdated,
    h2.events.UnknownFrameReceived,
    h2.events.StreamReset,
)


class Http2(H2Protocol):
    """Hypercorn's HTTP/2, hardened.

    Data waits for the client's window in a bounded buffer, a closed stream leaves nothing, priorities are
    ignored (RFC 9113 has deprecated them), and floods end the connection.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._calm = CALM_BURST
        self._calm_at = trio.current_time()
        self._sent: dict[int, int] = {}
        """Bytes sent of the streams that have some waiting."""
        self._marks: dict[int, tuple[float, int]] = {}
        """When each of these was looked at, and what it had sent by then."""

    @property
    def unsent(self) -> bool:
        """Whether data waits to be sent."""
        return any(buffer.buffer for buffer in self.stream_buffers.values())

    def stalled(self, now: float, seconds: float, size: int) -> list[int]:
        """The streams of which the client read less than `size` bytes in `seconds` although more waits.

        Call it repeatedly: each stream is judged from the first time that it is seen with waiting data.
        """
        waiting = {each for each, buffer in self.stream_buffers.items() if buffer.buffer}
        found = []
        for gone in self._marks.keys() - waiting:
            del self._marks[gone]
        for stream_id in waiting:
            sent = self._sent.get(stream_id, 0)
            since, before = self._marks.setdefault(stream_id, (now, sent))
            if sent - before >= size:
                self._marks[stream_id] = (now, sent)
            elif now - since > seconds:
                found.append(stream_id)
                del self._marks[stream_id]
        return found

    async def give_up(
        self, stream_id: int, reason: h2.errors.ErrorCodes = h2.errors.ErrorCodes.CANCEL
    ) -> None:
        """Reset a stream, and release its sender."""
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self.connection.reset_stream(stream_id, reason)
        await self._close_stream(stream_id)
        await self._forget(stream_id)
        await self._flush()

    async def _send_data(self, stream_id: int) -> None:
        buffer = self.stream_buffers.get(stream_id)
        if buffer is None:
            await self._forget(stream_id)
            return
        try:
            waiting = len(buffer.buffer)
            if waiting and self.connection.local_flow_control_window(stream_id) <= 0:
                # Hypercorn would take nothing out and tell the application that there is room.
                self.priority.block(stream_id)
                return
            await super()._send_data(stream_id)
        except (KeyError, PriorityError, h2.exceptions.ProtocolError):
            await self._forget(stream_id)  # reset while this was sent
            return
        self._sent[stream_id] = self._sent.get(stream_id, 0) + waiting - len(buffer.buffer)
        if stream_id not in self.stream_buffers:
            await self._forget(stream_id)

    async def _forget(self, stream_id: int) -> None:
        """Release the task that waits to send on it, and its place."""
        buffer = self.stream_buffers.pop(stream_id, None)
        if buffer is not None:
            await buffer.close()
        self._sent.pop(stream_id, None)
        with contextlib.suppress(MissingStreamError):
            self.priority.remove_stream(stream_id)

    async def _handle_events(self, events: Iterable[h2.events.Event]) -> None:
        for event in events:
            if self._too_much(event):
                self.connection.close_connection(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
                await self._flush()
                await self.send(Closed())
                return
            if isinstance(event, h2.events.PriorityUpdated):
                continue
            if isinstance(event, h2.events.RequestReceived) and not _is_readable(event):
                self.connection.reset_stream(event.stream_id, h2.errors.ErrorCodes.PROTOCOL_ERROR)
            elif isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                # For a request that is answered already, or was refused.
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            else:
                await super()._handle_events([event])
            if isinstance(event, h2.events.StreamReset):
                await self._forget(event.stream_id)
        await self._flush()

    async def initiate(
        self, headers: list[tuple[bytes, bytes]] | None = None, settings: bytes | None = None
    ) -> None:
        """Begin, after an upgrade with the client's settings. Raises ProtocolError."""
        try:
            await super().initiate(headers, settings)
        except (HyperframeError, binascii.Error) as error:
            raise h2.exceptions.ProtocolError(f"invalid SETTINGS: {error}") from None

    async def stream_send(self, event: Any) -> None:
        """Send a stream's data to the client, and always report its end."""
        ended = self.streams.get(event.stream_id) if isinstance(event, StreamClosed) else None
        await super().stream_send(event)
        buffer = self.stream_buffers.get(event.stream_id)
        if ended is None or buffer is None or buffer._complete:
            return
        if isinstance(ended, WSStream):
            buffer.set_complete()
            self.priority.unblock(event.stream_id)
            await self.has_data.set()
        else:
            await self.give_up(event.stream_id, h2.errors.ErrorCodes.INTERNAL_ERROR)

    def _too_much(self, event: h2.events.Event) -> bool:
        """Whether a client sends more frames without payload than it may."""
        empty = isinstance(event, h2.events.DataReceived) and not event.data and not event.stream_ended
        if not empty and not isinstance(event, CALMED):
            return False
        now = trio.current_time()
        self._calm = min(CALM_BURST, self._calm + (now - self._calm_at) * CALM_RATE)
        self._calm_at = now
        self._calm -= RESET_COST if isinstance(event, h2.events.StreamReset) else 1.0
        return self._calm < 0


def _is_readable(request: h2.events.RequestReceived) -> bool:
    """Whether a request has an ASCII path, as Hypercorn expects."""
    path = [value for name, value in request.headers if bytes(name) == b":path"]
    method = [value for name, value in request.headers if bytes(name) == b":method"]
    return len(path) == 1 and all(bytes(value).isascii() for value in (*path, *method))
