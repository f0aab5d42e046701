"""Streamed answers over real connections: readers of any speed, that come and go, get all of the text."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
import trio

from supervisor.conversations.recording.streamed import WIRE, inside
from supervisor.events import (
    Message,
    MessageEvent,
    TextContent,
    timestamp_now,
)
from supervisor.journal.growing import Growing
from tests.gateway.test_sockets import Client, connected, events, session

PIECES = 30_000


class Agent:
    """Streams answers into a conversation's log, as its recorder does."""

    def __init__(self, conversation: Any) -> None:
        self.conversation = conversation
        self.log = conversation.log
        self.item: Growing | None = None
        self.said = ""
        self.order = 0

    def say(self, text: str) -> None:
        if self.item is None:
            self.item = Growing(f"0000-{self.log.last_seq}", self.log.last_seq, WIRE)
            self.said, self.order = "", 0
            self.log.begin(self.item)
        self.item.add("text", inside(text), self.order, timestamp_now())
        self.order += 1
        self.said += text
        self.log.grow(self.item)

    async def end(self) -> str:
        assert self.item is not None
        item, self.item = self.item, None
        message = Message(role="assistant", content=(TextContent(text=self.said),))
        await self.conversation.record(MessageEvent(id=item.id, source="agent", llm_message=message))
        return self.said


async def modern(client: Client, slow: float = 0) -> tuple[str, str, int]:
    """What a session socket says of one answer: streamed, whole, and in how many deltas."""
    items: dict[str, str] = {}
    deltas = 0
    while True:
        frame = await client.next()
        if frame["type"] == "item_started":
            items[frame["item_id"]] = ""
        elif frame["type"] == "delta":
            items[frame["item_id"]] += frame["content"]
            deltas += 1
            await trio.sleep(slow)
        elif frame["type"] == "durable":
            event = frame["event"]
            return items[event["id"]], event["llm_message"]["content"][0]["text"], deltas


async def legacy(client: Client, slow: float = 0) -> tuple[str, str, int]:
    """The same of an events socket."""
    said, deltas = "", 0
    while True:
        frame = await client.next()
        if frame["kind"] == "StreamingDeltaEvent":
            said += frame["content"]
            deltas += 1
            await trio.sleep(slow)
        elif frame["kind"] == "MessageEvent":
            return said, frame["llm_message"]["content"][0]["text"], deltas


@pytest.mark.guarantee(name="a-reader-that-falls-behind-loses-nothing")
@pytest.mark.parametrize(("path", "read"), [(session, modern), (events, legacy)])
async def test_readers_of_any_speed_get_all_of_an_answer(
    server: Any, path: Callable[..., str], read: Callable[..., Any]
) -> None:
    conversation = await server.conversation()
    agent = Agent(conversation)
    found: dict[str, tuple[str, str, int]] = {}

    async def reader(name: str, slow: float) -> None:
        async with connected(server, path(conversation)) as client:
            await client.take(1 if read is legacy else 2)
            joined.append(name)
            found[name] = await read(client, slow)

    async def killed_and_back() -> None:
        async with connected(server, path(conversation)) as client:
            await client.take(4)
        await reader("back", 0)

    joined: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader, "quick", 0)
        nursery.start_soon(reader, "slow", 0.01)
        while len(joined) < 2:
            await trio.sleep(0.01)
        for number in range(PIECES):
            agent.say(f"wörd{number} ")
            if number == PIECES // 3:
                nursery.start_soon(reader, "late", 0)
                nursery.start_soon(killed_and_back)
            if number % 50 == 0:
                await trio.sleep(0 if number % 1000 else 0.01)
        while len(joined) < 4:
            agent.say("and ")
            await trio.sleep(0.01)
        whole = await agent.end()
    assert set(found) == {"quick", "slow", "late", "back"}
    for name, (streamed, final, _) in found.items():
        assert final == whole, name
        assert streamed == whole, name
    assert found["slow"][2] < PIECES / 10


async def test_a_reader_that_stood_still_gets_fewer_and_larger_pieces(server: Any) -> None:
    conversation = await server.conversation()
    agent = Agent(conversation)
    async with connected(server, session(conversation)) as client:
        await client.take(2)
        for number in range(5000):
            agent.say(f"{number} ")
        assert (await client.next())["type"] == "item_started"
        first = await client.next()
        assert (first["order"], first["content"]) == (4999, "".join(f"{number} " for number in range(5000)))
        agent.say("more")
        assert (await client.next())["content"] == "more"


@pytest.mark.guarantee(name="a-reader-that-falls-behind-loses-nothing")
async def test_a_socket_that_joins_is_told_history_then_what_is_open_then_what_happens(server: Any) -> None:
    conversation = await server.conversation()
    agent = Agent(conversation)
    agent.say("before ")
    await agent.end()
    for text in ("one ", "two "):
        agent.say(text)
    async with connected(server, session(conversation, "?after_seq=-1")) as client:
        await client.take(2)
        event, begun, so_far = await client.take(3)
        assert (event["type"], event["seq"]) == ("durable", 0)
        assert (begun["type"], begun["anchor_seq"]) == ("item_started", 0)
        assert (so_far["content"], so_far["order"]) == ("one two ", 1)
        agent.say("three")
        rest = await client.next()
        assert (rest["content"], rest["attempt"]) == ("three", begun["attempt"])
    async with connected(server, events(conversation)) as client:
        await client.take(1)
        assert (await client.next())["content"] == "one two three"


@pytest.mark.guarantee(name="a-reader-that-falls-behind-loses-nothing")
async def test_what_nobody_takes_is_no_more_than_the_answer(server: Any) -> None:
    """A socket whose client does not read costs a place in the text, however many pieces there are."""
    conversation = await server.conversation()
    agent = Agent(conversation)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect((host, int(port)))
        stuck.sendall(
            f"GET {session(conversation)} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        while not server.services.subscribers.total:
            await trio.sleep(0.01)
        await trio.sleep(0.05)
        for number in range(PIECES):
            agent.say("x" * 20)
            if number % 500 == 0:
                await trio.sleep(0)
        tail = conversation.log._live_tail()
        assert tail.end - tail.start <= 2
        assert agent.item is not None
        assert agent.item.size == 20 * PIECES
        assert len(agent.item._frames) <= 8
