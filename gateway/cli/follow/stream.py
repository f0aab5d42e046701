"""The frames of a conversation's session socket, over as many connections as necessary."""

from __future__ import annotations

import json
import socket
import ssl
import sys
from collections.abc import AsyncGenerator
from typing import Any, Final, cast

import h11
import trio
from trio_websocket import CloseReason, ConnectionClosed, ConnectionRejected, wrap_client_stream
from wsproto.utilities import ProtocolError

from gateway.cli.client import ANSWER_SECONDS, CONNECT_SECONDS, Server
from gateway.cli.failures import Failure, Unreachable, leaves

READ_BYTES: Final = 64 * 1024

PROBE_AFTER_SECONDS: Final = 30
"""Seconds of silence after which the kernel probes the connection."""

PATIENCE_SECONDS: Final = 60.0
"""Seconds to wait for a server that has ended: its warden restarts it within seconds."""

RETRY_SECONDS: Final = 0.5

GONE_SECONDS: Final = 3.0
"""Seconds without a server until a person reads that it is gone: a warden restarts one sooner."""

LOST: Final = "lost"
"""A type of frames that no server sends."""

UNKNOWN_CONVERSATION: Final = 4004
ABNORMAL: Final = 1006
REFUSED: Final = 403


class Lost(Exception):
    """The connection ended although the conversation continues: the server stopped, or the network failed."""


class Position:
    """The position in the log, so that a new connection can continue there. `after_seq` None: at its end."""

    def __init__(self, after_seq: int | None) -> None:
        self.after_seq = after_seq
        self._through = -1

    def note(self, frame: dict[str, Any]) -> None:
        """Take a frame into account."""
        match frame:
            case {"type": "durable", "seq": int(seq)}:
                self.after_seq = seq
            case {"type": "sync", "from_seq": int(seq), "through_seq": int(through)}:
                self._through = through
                if self.after_seq is None:
                    self.after_seq = seq - 1

    @property
    def behind(self) -> bool:
        """Whether events that existed when the connection was opened are still to come."""
        return self.after_seq is not None and self.after_seq < self._through

    def caught_up(self, frame: dict[str, Any]) -> bool:
        """Whether, with this frame, all events that existed when the connection was opened have arrived."""
        return frame.get("type") in ("durable", "transient") and not self.behind


@trio.as_safe_channel
async def following(
    server: Server, conversation_id: str, after_seq: int | None
) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
    """Yield frames after a sequence number, as text and read; None: new frames only.

    A lost connection is reopened, and continues after the last event; a frame of type LOST has what to say of
    it, and a second one follows where the server is gone.
    Never ends by itself. Raises Unreachable if the server stays unreachable, and Failure.
    """
    position = Position(after_seq)
    connected, said, lost_at = False, False, 0.0
    until: float | None = None
    while True:
        try:
            async with _connection(server, conversation_id, position.after_seq) as texts:
                async for text in texts:
                    connected, until = True, None
                    frame = json.loads(text)
                    position.note(frame)
                    yield text, frame
        except (Lost, Unreachable) as error:
            if until is None:
                if not connected and isinstance(error, Unreachable):
                    raise
                lost_at, said = trio.current_time(), False
                until = lost_at + PATIENCE_SECONDS
                yield "", {"type": LOST, "said": f"connection lost ({error}); trying again"}
            elif trio.current_time() > until:
                raise Unreachable(str(error)) from None
            elif isinstance(error, Unreachable) and not said and trio.current_time() > lost_at + GONE_SECONDS:
                said = True
                yield "", {"type": LOST, "said": _gone(server)}
        await trio.sleep(RETRY_SECONDS)


def _gone(server: Server) -> str:
    start = "; start it again with `ostler serve`" if server.local and not server.temporary else ""
    return f"the server at {server.url} is gone{start} (Ctrl-C leaves)"


@trio.as_safe_channel
async def _connection(server: Server, conversation_id: str, after_seq: int | None) -> AsyncGenerator[str]:
    """Yield the text frames of one connection.

    Never ends by itself. Raises Lost, Unreachable, or Failure if another try would not help.
    """
    query = "" if after_seq is None else f"?after_seq={after_seq}"
    target = server.path(f"/sockets/session/{conversation_id}{query}")
    stream, host = await _open(server)
    headers = [
        (name.encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in server.headers().items()
    ]
    end: Exception = Lost("the connection ended")
    try:
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(ANSWER_SECONDS) as opening:
                websocket = await wrap_client_stream(
                    nursery,
                    cast(trio.SocketStream, trio.StapledStream(stream, _Answers(stream, opening))),
                    host,
                    target,
                    extra_headers=headers,
                    max_message_size=sys.maxsize,
                    receive_buffer_size=READ_BYTES,
                )
            try:
                while not opening.cancelled_caught:
                    text = await websocket.get_message()
                    if isinstance(text, str):
                        yield text
            except ConnectionClosed as closed:
                end = _end(closed.reason)
            nursery.cancel_scope.cancel()
    except* ConnectionRejected as rejected:
        status = next(each.status_code for each in leaves(rejected) if isinstance(each, ConnectionRejected))
        how = f"the connection (status {status})"
        if status == REFUSED:
            how = "the key; set OSTLER_API_KEY to one of its session keys"
        end = Failure(f"the server refused {how}")
    except* (ProtocolError, h11.ProtocolError) as error:
        end = Lost(str(leaves(error)[0]))
    finally:
        # Closing the TCP connection suffices: a leaving client does not wait for the close handshake.
        await trio.aclose_forcefully(stream)
    raise end


async def _open(server: Server) -> tuple[trio.abc.Stream, str]:
    try:
        sock, host = await trio.to_thread.run_sync(server.open, abandon_on_cancel=True)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_SECONDS)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        if not server.encrypts:
            return stream, host
        context = ssl.create_default_context()
        secure = trio.SSLStream(stream, context, server_hostname=server.host, https_compatible=True)
        with trio.fail_after(CONNECT_SECONDS):
            await secure.do_handshake()
    except (TimeoutError, trio.TooSlowError):
        raise Unreachable(
            f"the server at {server.url} has not answered for {CONNECT_SECONDS:g} s; its log may say why"
        ) from None
    except OSError as error:
        raise Unreachable(server.absent(error)) from None
    except trio.BrokenResourceError as error:
        reason = error.__cause__ if isinstance(error.__cause__, OSError) else OSError(str(error))
        raise Unreachable(server.absent(reason)) from None
    return secure, host


class _Answers(trio.abc.ReceiveStream):
    """The server's messages. trio-websocket would keep waiting for a server that ends without a close
    frame."""

    def __init__(self, stream: trio.abc.ReceiveStream, opening: trio.CancelScope) -> None:
        self._stream = stream
        self._opening = opening

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data: bytes | bytearray = b""
        try:
            data = await self._stream.receive_some(max_bytes)
        finally:
            if not data:
                self._opening.cancel()
        return data

    async def aclose(self) -> None:
        await self._stream.aclose()


def _end(reason: CloseReason | None) -> Exception:
    if reason is None or reason.code == ABNORMAL:
        return Lost("the connection ended")
    if reason.code == UNKNOWN_CONVERSATION:
        return Failure("the server has no such conversation")
    return Lost(reason.reason or "the server ended it")
