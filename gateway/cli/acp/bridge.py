"""The bridge between an editor's streams and the server's socket."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Final

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from gateway.cli.acp.exchange import Exchange
from gateway.cli.client import Server
from gateway.cli.failures import Failure, Unreachable, leaves
from gateway.cli.follow.connection import Lost, Refused, websocket
from supervisor.agents.remote.streams import Input, Output

PATIENCE_SECONDS: Final = 60.0
"""Seconds to wait for a server that has ended: its warden restarts it within seconds."""

RETRY_SECONDS: Final = 0.1
"""Seconds before the first new try; each further one waits twice as long, up to RETRY_MOST_SECONDS."""

RETRY_MOST_SECONDS: Final = 2.0

FAREWELL_SECONDS: Final = 2.0
"""Seconds after the end of input in which what was written is sent, and answered where that takes no turn."""

ABSENT_SECONDS: Final = 10.0
"""Seconds to wait for the first request where there is no server: its answer says so in the editor."""


class Bridge:
    """Connects one editor with a server, over as many connections as necessary.

    `address` returns the server and the path of the socket, and is asked before each connection: a key may
    have been added.
    """

    def __init__(
        self, address: Callable[[], tuple[Server, str]], exchange: Exchange, given: Input, out: Output
    ) -> None:
        self._address = address
        self._exchange = exchange
        self._given = given
        self._out = out
        self._ended = trio.Event()
        self._changed = trio.Event()
        """Set when something is to be sent, or there is room, or an answer came; then replaced."""
        self._connected = False
        """Whether there ever was a connection."""
        self._said = ""

    async def run(self) -> None:
        """Run until the end of input; the editor's requests are answered before.

        Raises Unreachable where the server stays away, another Failure where it does not serve editors, and
        BrokenPipeError. Cancellation may leave a part of a line on standard output.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._out.run)
            nursery.start_soon(self._read_editor)
            try:
                await self._keep_connected()
            except Failure as failure:
                await self._give_up(failure)
                raise
            with trio.move_on_after(FAREWELL_SECONDS):
                await self._out.room(0)
            nursery.cancel_scope.cancel()

    async def _read_editor(self) -> None:
        exchange = self._exchange
        async for line in self._given.lines():
            self._out.put([exchange.too_long()] if line is None else exchange.from_editor(line))
            self._wake()
            await self._out.room()
            while exchange.full:
                await self._changed.wait()
        self._ended.set()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _keep_connected(self) -> None:
        exchange = self._exchange
        until, wait = 0.0, RETRY_SECONDS
        while not (self._ended.is_set() and exchange.settled):
            try:
                await self._connection()
            except Refused as refused:
                exchange.lost()
                await self._wait_for_key(str(refused))
                continue
            except (Lost, Unreachable) as error:
                if not self._connected:
                    raise Unreachable(str(error)) from None
                self._blame(error)
                now = trio.current_time()
                if until == 0.0 or (isinstance(error, Lost) and exchange.ready):
                    self._say(f"connection lost ({error}); trying again for {PATIENCE_SECONDS:g} s")
                    until, wait = now + PATIENCE_SECONDS, RETRY_SECONDS
                elif now > until:
                    raise Unreachable(f"{error}; tried again for {PATIENCE_SECONDS:g} s") from None
                exchange.lost()
            else:
                return
            if self._ended.is_set():
                raise Unreachable("the server was away when the input ended; the last messages are not sent")
            with trio.move_on_after(wait):
                await self._ended.wait()
            wait = min(2 * wait, RETRY_MOST_SECONDS)

    async def _connection(self) -> None:
        """One connection, to the end of input. Raises Lost, Unreachable, Refused, or another Failure."""
        server, path = self._address()
        try:
            async with websocket(server, path) as socket:
                self._connected = True
                self._said = ""
                await self._converse(socket)
        except (Lost, Unreachable, Refused):
            raise
        except Failure as failure:
            if await trio.to_thread.run_sync(server.surely_foreign):
                raise server.foreign() from None
            raise Failure(f"{failure}; an older server does not speak ACP: update it") from None

    async def _converse(self, socket: WebSocketConnection) -> None:
        self._exchange.opened()
        closed: ConnectionClosed | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, socket)
                nursery.start_soon(self._receive, socket)
                await self._ended.wait()
                with trio.move_on_after(FAREWELL_SECONDS):
                    while not self._exchange.settled:
                        await self._changed.wait()
                    await self._out.room(0)
                    await socket.aclose()
                nursery.cancel_scope.cancel()
        except* ConnectionClosed as group:
            closed = next(each for each in leaves(group) if isinstance(each, ConnectionClosed))
        if closed is not None and not (self._ended.is_set() and self._exchange.settled):
            raise closed

    async def _send(self, socket: WebSocketConnection) -> None:
        while True:
            frame = self._exchange.next_frame()
            if frame is None:
                await self._changed.wait()
                continue
            await socket.send_message(frame.decode())
            self._wake()

    async def _receive(self, socket: WebSocketConnection) -> None:
        exchange = self._exchange
        while True:
            frame = await socket.get_message()
            if isinstance(frame, str):
                # Queued at once: a frame that counts as shown must not be lost with the connection.
                self._out.put(exchange.from_server(frame))
                if exchange.sendable or self._ended.is_set():
                    self._wake()
                await self._out.room()

    def _blame(self, error: Lost | Unreachable) -> None:
        """Answer a request that the server does not bear: it would be sent again for ever."""
        match error:
            case Lost(code=1009):
                self._out.put(self._exchange.too_large())
            case Lost(code=1011):
                self._out.put(self._exchange.broken())

    async def _wait_for_key(self, reason: str) -> None:
        """Answer that a key is required, until the editor asks for more than `initialize`."""
        self._say(reason)
        self._out.put(self._exchange.refuse(reason))
        while not self._ended.is_set():
            await self._changed.wait()
            if self._exchange.wants_server:
                return
            self._out.put(self._exchange.refuse(reason))

    async def _give_up(self, failure: Failure) -> None:
        """Answer the editor's requests with the reason; the first one, where there never was a server."""
        with trio.move_on_after(0 if self._connected else ABSENT_SECONDS):
            while not (self._exchange.unanswered or self._ended.is_set()):
                await self._changed.wait()
        self._out.put(self._exchange.fail(str(failure)))
        with trio.move_on_after(FAREWELL_SECONDS):
            await self._out.room(0)

    def _say(self, text: str) -> None:
        """Say it to people once."""
        if text != self._said:
            say(text)
        self._said = text


def say(text: str) -> None:
    """Write a line for people to standard error, unless that is full because its reader does not read."""
    room = select.poll()
    room.register(2, select.POLLOUT)
    if room.poll(0):
        os.write(2, f"ostler acp: {text}\n".encode(errors="replace")[: select.PIPE_BUF])
