"""`python -m supervisor.agents.remote`: connect standard streams with a remote agent's WebSocket.

The transport is ACP's proposal for remote agents, in its WebSocket profile: a text frame is a message, binary
frames are ignored. Ends with status 0 after the end of input, else with 1 and the cause on standard error:
the server that started this process starts it again, and resumes the session.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import h11
import trio
from trio_websocket import ConnectionClosed, ConnectionRejected, WebSocketConnection, wrap_client_stream
from wsproto.utilities import ProtocolError

from supervisor.agents.remote.relay import VARIABLE
from supervisor.agents.remote.streams import Input, Output, taken

CONNECT_SECONDS: Final = 30.0
"""Seconds for the connection with its handshakes: a server that has to be woken takes some."""

PING_SECONDS: Final = 30.0
"""Seconds between pings: proxies end connections that are silent for a minute."""

PONG_SECONDS: Final = 30.0
"""Seconds for the answer to a ping, while the agent is not held back."""

CLOSE_SECONDS: Final = 2.0
"""Seconds for the close handshake after the end of input."""

LINE_BYTES: Final = 256 * 1024 * 1024
"""Bytes of a message to the agent. The server that writes it has bounds of its own, far below."""

READ_BYTES: Final = 64 * 1024

SILENT: Final = f"the remote agent has not answered for {CONNECT_SECONDS:g} s; check acp_url"

NOT_ADMITTED: Final = (401, 403)
NOT_FOUND: Final = 404

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


class Failed(Exception):
    """The relay cannot continue; the message says why, and what to do."""


class Relay:
    """One connection. `where` is the address for messages: without its query, which may hold a key."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._parts = parts = urlsplit(settings["url"])
        self._where = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self._waits = False
        """Whether it waits for a frame; else the agent is held back, and its pongs are not read."""

    async def run(self, given: Input, out: Output) -> None:
        """Relay until the end of input. Raises Failed, BrokenPipeError."""
        reason: str | None = None
        leaving = False
        try:
            async with await self._open() as stream, trio.open_nursery() as nursery:
                socket = await self._connect(nursery, stream)
                nursery.start_soon(out.run)
                nursery.start_soon(self._receive, socket, out)
                nursery.start_soon(self._keep_alive, socket)
                async for line in given.lines():
                    if line is not None and line.strip():
                        await socket.send_message(line.decode(errors="replace"))
                leaving = True
                with trio.move_on_after(CLOSE_SECONDS):
                    await socket.aclose()
                nursery.cancel_scope.cancel()
        except* ConnectionClosed as group:
            closed = _first(group)
            assert isinstance(closed, ConnectionClosed)
            reason = None if leaving else _said(closed)
        except* ConnectionRejected as group:
            rejected = _first(group)
            assert isinstance(rejected, ConnectionRejected)
            reason = _refusal(rejected.status_code)
        except* Failed as group:
            reason = str(_first(group))
        except* (ProtocolError, h11.ProtocolError) as group:
            reason = f"what answers is not a WebSocket: {_first(group)}; check acp_url"
        if reason is not None:
            raise Failed(f"{self._where}: {reason}")

    async def _open(self) -> Stream:
        parts = self._parts
        assert parts.hostname is not None
        secure = parts.scheme == "wss"
        try:
            with trio.fail_after(CONNECT_SECONDS):
                plain = await trio.open_tcp_stream(parts.hostname, parts.port or (443 if secure else 80))
                if not secure:
                    return plain
                context = ssl.create_default_context()
                stream = trio.SSLStream(plain, context, server_hostname=parts.hostname, https_compatible=True)
                await stream.do_handshake()
                return stream
        except trio.TooSlowError:
            raise Failed(SILENT) from None
        except (OSError, trio.BrokenResourceError) as error:
            raise Failed(_unreachable(error)) from None

    async def _connect(self, nursery: trio.Nursery, stream: Stream) -> WebSocketConnection:
        parts, headers = self._parts, self._settings["headers"]
        try:
            with trio.fail_after(CONNECT_SECONDS):
                return await wrap_client_stream(
                    nursery,
                    stream,
                    parts.netloc,
                    parts.path + (f"?{parts.query}" if parts.query else ""),
                    extra_headers=[(name.encode(), value.encode()) for name, value in headers.items()],
                    max_message_size=self._settings["max_bytes"],
                    receive_buffer_size=READ_BYTES,
                )
        except trio.TooSlowError:
            raise Failed(SILENT) from None

    async def _receive(self, socket: WebSocketConnection, out: Output) -> None:
        while True:
            self._waits = True
            frame = await socket.get_message()
            self._waits = False
            if isinstance(frame, str):
                out.put([frame.replace("\n", " ").encode()])
                await out.room()

    async def _keep_alive(self, socket: WebSocketConnection) -> None:
        while True:
            await trio.sleep(PING_SECONDS)
            with trio.move_on_after(PONG_SECONDS) as waiting:
                await socket.ping()
            if waiting.cancelled_caught and self._waits:
                raise Failed(f"the remote agent has not answered a ping for {PONG_SECONDS:g} s")


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def _said(closed: ConnectionClosed) -> str:
    if closed.reason is None or closed.reason.code == 1006:
        return "the connection was lost"
    said = f": {closed.reason.reason}" if closed.reason.reason else ""
    return f"the remote agent ended the connection ({closed.reason.code}{said})"


def _refusal(status: int) -> str:
    said = f"the remote agent refused the connection (status {status})"
    if status in NOT_ADMITTED:
        return f"{said}; check acp_headers, and the secrets that they name"
    return f"{said}; check the path of acp_url" if status == NOT_FOUND else said


def _unreachable(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed: {getattr(cause, 'verify_message', None) or cause.reason}; check acp_url"
    # Of several addresses each has failed: the group of their errors is the cause.
    first = _first(error.__cause__ or error)
    number = getattr(first, "errno", None) or 0
    reason = os.strerror(number) if number > 0 else getattr(first, "strerror", None) or str(first)
    return f"the remote agent cannot be reached ({reason}); check acp_url, and whether it runs there"


def main() -> int:
    """Relay; the exit status."""
    settings = json.loads(os.environ.pop(VARIABLE, "null"))
    if settings is None:
        print("acp_url is not set; set it with `ostler settings set acp_url`", file=sys.stderr)
        return 1
    given, out = taken()

    async def run() -> None:
        await Relay(settings).run(Input(given, LINE_BYTES), Output(out))

    try:
        trio.run(run)
    except BaseException as error:
        first = _first(error)
        if isinstance(first, Failed):
            print(first, file=sys.stderr)
        elif not isinstance(first, BrokenPipeError | KeyboardInterrupt):
            raise
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
