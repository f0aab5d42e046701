"""Clients of a server that may die at any moment: they come back to where it is then."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import httpx2
import trio
from trio_websocket import ConnectionClosed, HandshakeError

from tests.support.sockets import collect, session_socket

POLL_S = 0.02
CONNECT_S = 4.0  # trio-websocket waits for ever when a connection is lost within the handshake
PAUSE_S = 0.1  # before the next attempt
REQUEST_S = 30.0
GONE = (OSError, HandshakeError, ConnectionClosed, trio.ClosedResourceError)


class Follower:
    """One client on the session socket; it remembers the last number it saw and comes back with it."""

    def __init__(self, conversation: str, address: Callable[[], str]) -> None:
        self.conversation = conversation
        self.numbers: list[int] = []
        self.events: list[dict] = []
        self.errors: list[str] = []
        self.connections = 0
        self.state = "away"
        """Where it is: away, connecting to or connected with an address."""
        self._address = address
        self._scope: trio.CancelScope | None = None

    @property
    def last(self) -> int:
        return self.numbers[-1] if self.numbers else -1

    def cut(self) -> None:
        """Lose the connection."""
        if self._scope is not None:
            self._scope.cancel()

    async def follow(self) -> None:
        """For ever; ends by cancellation."""
        while True:
            with trio.CancelScope() as self._scope:
                try:
                    await self._connected()
                except* (
                    OSError,
                    HandshakeError,
                    ConnectionClosed,
                    trio.TooSlowError,
                    trio.ClosedResourceError,
                ):
                    pass
            self.state = "away"
            await trio.sleep(PAUSE_S)

    async def _connected(self) -> None:
        address = session_socket(self._address(), self.conversation, self.last)
        self.state = f"connecting to {address} since {time.monotonic():.1f}"
        with trio.CancelScope(deadline=trio.current_time() + CONNECT_S) as limit:
            async with collect(address) as socket:
                limit.deadline = float("inf")
                self.connections += 1
                self.state = f"connected with {address} since {time.monotonic():.1f}"
                position = 0
                while True:
                    closed = socket.closed
                    fresh = socket.frames[position:]
                    position += len(fresh)
                    for frame in fresh:
                        self._take(frame)
                    if closed and not fresh:
                        return
                    await trio.sleep(POLL_S)

    def _take(self, frame: dict) -> None:
        if frame["type"] == "durable":
            self.numbers.append(frame["seq"])
            self.events.append(frame["event"])
        elif frame["type"] == "error":
            self.errors.append(f"{self.conversation}: error frame {frame}")


class Sender:
    """Sends messages with names of their own; knows which were accepted. A failed one is not sent again."""

    def __init__(
        self, number: int, conversation: str, http: httpx2.AsyncClient, address: Callable[[], str]
    ) -> None:
        self.number = number
        self.conversation = conversation
        self.accepted: list[str] = []
        self.attempted: list[str] = []
        self.errors: list[str] = []
        self._http = http
        self._address = address

    async def send(self, directives: str = "") -> bool:
        """Whether it was accepted."""
        name = f"m{self.number}-{len(self.attempted)}"
        self.attempted.append(name)
        text = f"{directives}\n{name}".strip()
        body = {"role": "user", "content": [{"type": "text", "text": text}], "run": True}
        accepted = await self.post("events", body)
        if accepted:
            self.accepted.append(name)
        return accepted

    async def post(self, action: str, body: object) -> bool:
        """Do this in the conversation; as `call`."""
        return await self.call("POST", f"/api/conversations/{self.conversation}/{action}", body)

    async def call(self, method: str, path: str, body: object = None) -> bool:
        """False when the server was away. Any other answer than success or 503 is an error of the run."""
        try:
            answer = await self._http.request(method, self._address() + path, json=body)
        except httpx2.TransportError:
            return False
        if answer.status_code not in (200, 201, 503):
            self.errors.append(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer.status_code in (200, 201)

    async def chatter(
        self, chance: random.Random, prompt: Callable[[random.Random], str], pause: float
    ) -> None:
        """Send one message after the other; ends by cancellation."""
        while True:
            # A send that is under way is seen to its end, so that it is known whether it was accepted.
            with trio.CancelScope(shield=True):
                await self.send(prompt(chance))
            await trio.sleep(chance.uniform(0, 2 * pause))
