"""One connection of a client: it owns its descriptor, and one call ends all of its tasks.

Hypercorn implements HTTP/1.1 and WebSockets. But its tasks wait for each other: a reader for the end of an
answer, an answer for a queue that is not emptied. A disconnect that one of them notices does not reach the
others. So `Connection.end` closes the descriptor and cancels every task. The first to notice the end calls
it: the reader, a failing writer, the protocol, or the watch (`Connection.overdue`), which checks all
connections once a second.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import ContextVar
from http import HTTPStatus
from traceback import clear_frames
from typing import Any, Final, cast

import h11
import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.trio.task_group import TaskGroup, _handle
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import parse_socket_addr

from gateway.http.budgets import Received, Unsent
from gateway.http.frame_writer import FrameWriter
from gateway.http.message_buffer import MessageBuffer

GATHER_BYTES: Final = 64 * 1024
"""The most bytes written at once while gathering: what a socket's buffer accepts without waiting."""

JOIN_BYTES: Final = 1024 * 1024
"""The largest body that is copied to go out together with its head: that takes a tenth of a millisecond."""

WRITE_BYTES: Final = 16 * 1024
"""Bytes that a client has to read within `Config.stall_seconds`, over and over; a slower one counts as
stalled."""

WRITE_COST_BYTES: Final = 1024
"""Overhead of a write, counted like bytes towards the WRITE_BYTES after which other tasks have their turn: a
short write takes as long as copying some thousand bytes."""

FEED_BYTES: Final = 16 * 1024
"""Bytes that HTTP/1 gets before other tasks have their turn."""

SOCKET_FEED_BYTES: Final = 4 * 1024
"""The same for a WebSocket, whose smallest frames have six bytes."""

HALF_CLOSED_SECONDS: Final = 5.0
"""Seconds that a client which sends nothing more may wait for the answers to earlier requests."""

LINGER_SECONDS: Final = 2.0
"""Seconds that a connection without further requests may take to end by itself, and a client to leave after
the last answer."""

PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
"""What stands behind a status in its line."""

SendText = Callable[[bytes], Awaitable[None]]
"""Sends UTF-8 as one message of a WebSocket."""

SendTexts = Callable[[Sequence[bytes]], Awaitable[None]]
"""Sends each of several as one message."""


class Calls(TaskGroup):
    """The tasks of one connection, and the events that the application gets.

    A disconnect ends the application's events instead of being one more message: no queue needs room for it.
    Events for an application that has answered already are dropped, so that no sender blocks on them.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    async def spawn_app(
        self,
        app: AppWrapper,
        config: HypercornConfig,
        scope: Any,
        send: Callable[[Any], Awaitable[None]],
    ) -> Callable[[Any], Awaitable[None]]:
        """Start the application for a request. Returns the function that passes it events."""
        sending, received = trio.open_memory_channel[Any](config.max_app_queue_size)
        last: list[Any] = []
        head: Any = None
        ends = False

        async def receive() -> Any:
            try:
                return await received.receive()
            except trio.EndOfChannel:
                return last[0]

        async def put(message: Any) -> None:
            if message["type"] in ("http.disconnect", "websocket.disconnect"):
                last.append(message)
                sending.close()
                return
            try:
                await sending.send(message)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await trio.lowlevel.checkpoint()

        async def answer(message: Any) -> None:
            nonlocal head, ends
            body = message is not None and message["type"] == "http.response.body"
            ends = ends or message is None or (body and not message.get("more_body", False))
            if not self._connection.answers:
                await trio.lowlevel.checkpoint()
            elif message is not None and message["type"] == "http.response.start":
                # As ASGI has it: nothing is sent before the first part of the body, which goes with it.
                head = message
            elif head is None:
                await send(message)
            else:
                begun, head = head, None
                # The end of the answer lets the reader continue with the next request. So it is sent once
                # this answer is written, not merely gathered: backpressure for a client that does not read.
                async with self._connection.together(message):
                    await send(begun)
                    if message is not None:
                        await send({**message, "more_body": True} if ends else message)
                if message is None:
                    await send(None)
                elif ends:
                    await send({"type": "http.response.body", "body": b""})

        async def call() -> None:
            try:
                run_sync, run = trio.to_thread.run_sync, trio.from_thread.run
                await _handle(app, config, scope, receive, answer, run_sync, run)
            except BaseException as error:
                release(error)
                raise
            finally:
                received.close()
                self._connection.answered()

        self._connection.asked()
        self.spawn(call)
        return put


class Http1(H11Protocol):
    """HTTP/1.1 and WebSockets."""

    async def _send_h11_event(self, event: Any) -> None:
        if isinstance(event, h11.Response | h11.InformationalResponse):
            # Some clients show the phrase where they have nothing else. The event is this call's alone.
            object.__setattr__(event, "reason", PHRASES.get(event.status_code, b""))
        await super()._send_h11_event(event)

    async def _check_protocol(self, event: h11.Request) -> None:
        """Change to no other protocol: an `Upgrade` that a server does not know is ignored (RFC 9110, 7.8).
        `wrappers` refuses HTTP/2 without one."""


class Connection(TCPServer):
    """Hypercorn's connection with a single end. Owns the stream."""

    stream: Any  # a trio.SocketStream; Hypercorn declares the one of TLS

    def __init__(
        self,
        app: AppWrapper,
        config: HypercornConfig,
        context: WorkerContext,
        stream: trio.SocketStream,
        *,
        stall_seconds: float,
        unsent: Unsent,
        bodies: Received,
        messages: Received,
        gone: Callable[[Connection], None],
    ) -> None:
        super().__init__(app, config, context, ConnectionState({}), cast(Any, stream))
        self.welcome = False
        """Whether a request on it was authorized. Others yield first when there are too many."""
        self.of_server = False
        """Whether another server sends requests on it for its clients."""
        self.since = trio.current_time()
        """Since when it has been idle or busy, on Trio's clock."""
        self.half_closed: float | None = None
        """When the watch first noticed that the client sends nothing more, while the reader was blocked."""
        self.ended = False
        self._left: float | None = None
        self._stall_seconds = stall_seconds
        self._unsent = unsent
        self.bodies = bodies
        """What is held of bodies, of all connections like this one."""
        self._messages = messages
        self._inbox: MessageBuffer | None = None
        self._gone = gone
        # The end of the server comes by `ConnectionLimits.end` alone: after a cancellation Hypercorn would
        # answer an empty 500 before that.
        self._scope = trio.CancelScope(shield=True)
        self._calls = 0
        self._gathered: bytearray | None = None
        self._writing: float | None = None
        self._unyielded = 0
        self._handling = False
        self._reader: trio.lowlevel.Task | None = None
        self.http: Http1 | None = None
        """Set when `run` has begun."""

    @property
    def busy(self) -> bool:
        """Whether a request is in progress."""
        return self._calls > 0

    @property
    def unanswered(self) -> bool:
        """Whether a request waits for the first byte of its answer."""
        return self.answers and self.http is not None and self.http.connection.our_state is h11.SEND_RESPONSE

    @property
    def answers(self) -> bool:
        """Whether sent data still reaches the client."""
        return not self.ended and self._left is None

    @property
    def held_up(self) -> bool:
        """Whether the reader waits for something other than the client, so that it cannot notice the client's
        leaving."""
        return self._handling and not self.ended

    def asked(self) -> None:
        """Note the beginning of a request."""
        self._calls += 1
        self.since = trio.current_time()

    def answered(self) -> None:
        """Note the end of a request."""
        self._calls -= 1
        self.since = trio.current_time()

    def end(self) -> None:
        """Close the descriptor now, and cancel all tasks. Waits for nothing; idempotent."""
        if self.ended:
            return
        self.ended = True
        # The loop cancels it. If this task did, while it handles a cancellation of its own, that would become
        # the context of all others, and `release` would clear frames that are in use.
        self._scope.deadline = -math.inf
        # Wakes every task that waits for the descriptor, in any layer.
        self.stream.socket.close()
        self._gone(self)

    def leave(self) -> None:
        """Close the sending side, cancel all tasks, and end when the client has left, too.

        Closing with unread bytes of the client would reset the connection, and the client would lose the
        answer.
        """
        if self._left is None and not self.ended:
            self._left = trio.current_time()
            self._scope.cancel()
            with contextlib.suppress(OSError):
                self.stream.socket.shutdown(socket.SHUT_WR)

    def overdue(self, now: float) -> bool:
        """Whether a time limit of the connection has passed; all of them are checked here."""
        if self._writing is not None and now - self._writing > self._stall_seconds:
            return True
        if self._left is not None and now - self._left > LINGER_SECONDS:
            return True
        if self.half_closed is not None and now - self.half_closed > HALF_CLOSED_SECONDS:
            return True
        if self._inbox is not None and self._inbox.overdue(now):
            return True
        if self.busy:
            return False
        idle = now - self.since
        if idle > self.config.keep_alive_timeout:
            return True
        if self.context.terminated.is_set():
            return True
        if self.http is not None and self.http.connection.our_state is not h11.IDLE:
            return idle > LINGER_SECONDS
        return False

    async def run(self) -> None:
        """Serve until the connection ends. Afterwards no task of it is left; the descriptor is closed before.

        Raises the protocols' errors over invalid bytes. While it serves, only `end` and `leave` cancel it.
        """
        try:
            sock = self.stream.socket
            client = parse_socket_addr(sock.family, sock.getpeername())
            server = parse_socket_addr(sock.family, sock.getsockname())
            with self._scope:
                async with Calls(self) as tasks:
                    self.http = Http1(
                        self.app,
                        self.config,
                        self.context,
                        tasks,
                        ConnectionState({}),
                        False,
                        client,
                        server,
                        self.protocol_send,
                    )
                    await self._read_from(self.http)
                    self.end()
            # Discard the client's remaining data, until it disconnects or the watch ends the connection.
            self._handling = False
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                while await self.stream.receive_some(MAX_RECV):
                    pass
        except OSError:
            pass
        finally:
            self.end()
            # They form a reference cycle: what they have read would stay until the garbage collector runs.
            http, self.http = self.http, None
            if http is not None:
                http.stream = None
            if self._inbox is not None:
                self._inbox.end()

    async def _read_from(self, http: Http1) -> None:
        """Pass on the client's data until it disconnects."""
        self._reader = trio.lowlevel.current_task()
        while True:
            try:
                data = bytes(await self.stream.receive_some(MAX_RECV))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                break
            self._handling = True
            if not data:
                await http.handle(RawData(b""))
                break
            size = FEED_BYTES if isinstance(http.connection, h11.Connection) else SOCKET_FEED_BYTES
            for start in range(0, len(data), size):
                piece = data[start : start + size]
                await http.handle(RawData(piece))
                if self._inbox is not None:
                    await self._inbox.make_room()
                # A piece can hold hundreds of small frames: other tasks have their turn in between.
                if len(piece) < len(data):
                    await trio.lowlevel.checkpoint()
            self._handling = False
        # Answers from here on are discarded.
        with trio.CancelScope(shield=True):
            await http.handle(Closed())

    async def protocol_send(self, event: Event) -> None:
        """Carry out the protocol's output. Data for an ended connection is dropped."""
        if isinstance(event, RawData):
            await self._gather(event.data)
        elif isinstance(event, Closed):
            await self._flush()
            answering = self.http is not None and self.http.connection.our_state is h11.SEND_BODY
            if answering and trio.lowlevel.current_task() is self._reader:
                # What came behind a request was not HTTP. Its answer goes first, and ends the connection.
                await trio.sleep(LINGER_SECONDS)
            async with self.send_lock:  # what is about to be written goes first, too
                self.leave()
        elif isinstance(event, Updated) and not event.idle:
            self.since = trio.current_time()

    async def _flush(self, *, end: bool = False) -> None:
        """Write what has gathered; with `end`, gather no more."""
        if self._gathered is not None:
            data, self._gathered = bytes(self._gathered), None if end else bytearray()
            await self._write(data)

    async def _gather(self, data: bytes) -> None:
        if self._gathered is None:
            await self._write(data)
            return
        if len(data) >= GATHER_BYTES:
            data, self._gathered = b"".join((self._gathered, data)), bytearray()
            await self._write(data)
            return
        self._gathered += data
        if len(self._gathered) >= GATHER_BYTES:
            await self._flush()

    async def _write(self, data: bytes) -> None:
        """Send all of it. Cancellation is held back until then: no half of a frame is sent. The end of the
        connection ends the waiting, too."""
        if not data:
            return
        try:
            self.send_lock.acquire_nowait()
        except trio.WouldBlock:
            with trio.CancelScope(shield=True):
                await self.send_lock.acquire()
        try:
            rest = memoryview(data)[self._send_at_once(data) :]
            if rest:
                await self._send_rest(rest)
        finally:
            self.send_lock.release()
        self._unyielded += len(data) + WRITE_COST_BYTES
        if self._unyielded >= WRITE_BYTES:
            self._unyielded = 0
            await trio.lowlevel.cancel_shielded_checkpoint()

    def _send_at_once(self, data: bytes) -> int:
        """Send as many bytes as the kernel accepts without blocking, and return their number.

        That suffices for most data. Trio's `send` would pass through its loop each time, with a system call.
        """
        if not self.answers:
            return len(data)
        try:
            return os.write(self.stream.socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError:
            self.end()
            return len(data)

    async def _send_rest(self, rest: memoryview) -> None:
        """Send data that waits until the client reads. All of it is held until then."""
        waiting = self._unsent.add(rest.nbytes, stranger=not self.welcome, end=self.end)
        try:
            taken = WRITE_BYTES
            with trio.CancelScope(shield=True):
                while rest and self.answers:
                    if taken >= WRITE_BYTES:
                        self._writing, taken = trio.current_time(), 0
                    sent = await self.stream.socket.send(rest)
                    rest = rest[sent:]
                    taken += sent
        except (OSError, trio.ClosedResourceError):
            self.end()
        finally:
            self._writing = None
            self._unsent.remove(waiting)

    @contextlib.asynccontextmanager
    async def together(self, message: Any) -> AsyncIterator[None]:
        """Write what is sent in the block, the beginning of an answer with this message, in one piece.

        Two pieces cost a system call more, and wake the client twice. A large body is not copied for this.
        """
        small = message is None or len(message.get("body", b"")) < JOIN_BYTES
        if not small or self._gathered is not None:
            yield
            return
        self._gathered = bytearray()
        try:
            yield
        finally:
            await self._flush(end=True)

    def gathering(self, send: SendText) -> Gathering:
        """Write the data sent in the block in few large pieces, and yield what replaces `send` in the block.
        It takes several texts at once. The second value: whether many take hardly longer than one. Where they
        pass through all layers, or are compressed, each takes its time.

        A write for every frame of a stream costs more than the frame itself, and yields to all other tasks
        each time.
        """
        return Gathering(self, send)

    def inbox(self, *, first: int, then: int, compressed: bool) -> MessageBuffer:
        """Limit the messages of a WebSocket that is not accepted yet: the first one, and later ones.

        Without `compressed` the client may not compress: a few of its bytes could become a thousand times as
        many.
        """
        inbox = self._inbox = MessageBuffer(first, then, self._messages)
        stream = None if self.http is None else self.http.stream
        if isinstance(stream, WSStream):
            stream.buffer = inbox
            if not compressed:
                stream.handshake.extensions = None
        return inbox


class Gathering:
    """The block of `Connection.gathering`. A generator would take longer than what a small block does."""

    __slots__ = ("_connection", "_send")

    def __init__(self, connection: Connection, send: SendText) -> None:
        self._connection = connection
        self._send = send

    async def __aenter__(self) -> tuple[SendTexts, bool]:
        connection = self._connection
        connection._gathered = bytearray()
        stream = None if connection.http is None else connection.http.stream
        if isinstance(stream, WSStream):
            writer = FrameWriter(stream, connection._gather, self._send)
            return writer.send, writer.plain
        return self._send_each, False

    async def __aexit__(self, *error: object) -> None:
        await self._connection._flush(end=True)

    async def _send_each(self, texts: Sequence[bytes]) -> None:
        for text in texts:
            await self._send(text)


current: ContextVar[Connection] = ContextVar("current")
"""The connection of the running task."""


def release(error: BaseException) -> None:
    """Free what the cancelled tasks hold, such as an answer that was not read.

    Their frames are referenced by the exceptions, and these by the frames that handle them. Such a cycle
    stays until the garbage collector finds it, which scans old objects rarely, however large they are.
    """
    left, seen = [error], set[int]()
    while left:
        error = left.pop()
        if id(error) in seen:
            continue  # contexts may lead in a circle
        seen.add(id(error))
        if isinstance(error, BaseExceptionGroup):
            left += error.exceptions
            if error.split(trio.Cancelled)[1] is not None:
                continue
        elif not isinstance(error, trio.Cancelled):
            continue  # it may be raised again, with frames of tasks that continue
        clear_frames(error.__traceback__)
        if error.__context__ is not None:
            left.append(error.__context__)
