"""What is held of what clients send: bounded for all of them together, and given back on every path."""

from __future__ import annotations

import struct
from contextlib import AsyncExitStack, asynccontextmanager

import httpx2
import pytest
import trio

from gateway.api.files.uploads import PIECE_BYTES
from gateway.http import listener
from gateway.http.budgets import SMALL_BYTES, WAIT_SECONDS, Received, TooMuchHeld
from tests.gateway.harness import serving
from tests.support.impolite import HANDSHAKE

KEY = "the-key"
MOST = 512 * 1024
"""Of one body or message here; all together may have twice that."""

# -- by itself


async def test_there_is_room_for_so_much_and_the_next_one_is_refused(autojump_clock):
    received = Received(100)
    rooms = [await received.room(40), await received.room(60)]
    began = trio.current_time()
    with pytest.raises(TooMuchHeld):
        await received.room(1)
    assert trio.current_time() - began == pytest.approx(WAIT_SECONDS)
    for room in rooms:
        room.give()
        room.give()
    assert received.held == 0
    (await received.room(1000)).give()
    assert received.held == 0


async def test_who_waits_gets_room_in_turn(autojump_clock):
    received, order = Received(100), []
    rooms = {"first": await received.room(100)}

    async def want(name, size):
        rooms[name] = await received.room(size)
        order.append(name)

    async with trio.open_nursery() as nursery:
        for name, size in (("large", 90), ("small", 20)):
            nursery.start_soon(want, name, size)
            await trio.sleep(0.1)
        rooms["first"].shrink(50)
        await trio.sleep(0.1)
        assert order == [], "one that would fit does not overtake"
        rooms["first"].give()
        await trio.sleep(0.1)
        assert order == ["large"]
        rooms["large"].shrink(5)
    assert order == ["large", "small"]
    assert received.held == 25


async def test_what_is_cancelled_or_refused_while_it_waits_holds_nothing(autojump_clock):
    received = Received(100)
    first = await received.room(100)

    async def refused():
        with pytest.raises(TooMuchHeld):
            await received.room(100)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refused)
        await trio.sleep(0.1)
        with trio.move_on_after(1):
            await received.room(100)
        with trio.CancelScope() as at_once:
            nursery.start_soon(received.room, 10)
            await trio.sleep(0.1)
            at_once.cancel()
            first.shrink(20)  # the last one fits, but is behind the refused one
            await trio.sleep(0)
    assert received.held == 30, "what is refused lets go on who waits behind it"


async def test_what_can_do_without_leaves_half(autojump_clock):
    received = Received(100)
    rooms = [received.reserve_optional(20), received.reserve_optional(20), received.reserve_optional(20)]
    assert rooms[2] is None
    (await received.room(60)).give()
    for room in rooms[:2]:
        room.give()
    assert received.held == 0


# -- on connections


class Counted(Received):
    """Notes all that there are."""

    all: list[Counted]

    def __init__(self, most):
        super().__init__(most)
        self.most_held = 0
        self.all.append(self)

    @property
    def held(self):
        return self._held

    @held.setter
    def held(self, value):
        self._held = value
        self.most_held = max(getattr(self, "most_held", 0), value)


@pytest.fixture
async def server(tmp_path, monkeypatch):
    monkeypatch.setattr(Counted, "all", [], raising=False)
    monkeypatch.setattr(listener, "Received", Counted)
    monkeypatch.setattr(listener, "RECEIVED_BYTES", 2 * MOST)
    async with serving(
        tmp_path, max_body_bytes=MOST, max_message_bytes=MOST, session_api_keys=(KEY,), body_seconds=30.0
    ) as found:
        yield found
        with trio.fail_after(20):
            while any(each.held for each in Counted.all):
                await trio.sleep(0.01)


def bodies():
    return Counted.all[0]


def messages():
    return Counted.all[2]


@asynccontextmanager
async def stalled(server, data):
    """Clients that have sent this, and send nothing more."""
    host, port = server.url.removeprefix("http://").split(":")
    async with AsyncExitStack() as stack:
        streams = []
        for each in data:
            streams.append(await stack.enter_async_context(await trio.open_tcp_stream(host, int(port))))
            await streams[-1].send_all(each)
        yield streams


def begun(size, sent):
    head = b"POST /api/conversations HTTP/1.1\r\nHost: localhost\r\nX-Session-API-Key: " + KEY.encode()
    return head + b"\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % size + b" " * sent


async def until(condition):
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.01)


def large(size=MOST - 1000):
    return b'{"tags":{},"title":"t"}' + b" " * size


async def patch(server, body, **more):
    async with httpx2.AsyncClient(timeout=30, headers={"X-Session-API-Key": KEY}) as http:
        conversation = next(iter(server.supervisor.conversations))
        headers = {"Content-Type": "application/json"}
        url = f"{server.url}/api/conversations/{conversation}"
        return await http.patch(url, content=body, headers=headers, **more)


@pytest.mark.guarantee(name="what-holds-how-much")
async def test_bodies_of_all_clients_have_a_bound_and_small_ones_pass(server):
    await server.conversation()
    data = [begun(MOST, SMALL_BYTES * 2)] * 2
    async with stalled(server, data):
        await until(lambda: bodies().held == 2 * MOST)
        refused = await patch(server, large())
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
        assert "large requests" in refused.json()["detail"]
        assert (await patch(server, large(SMALL_BYTES - 100))).status_code == 200
    await until(lambda: not bodies().held)
    for _ in range(5):
        assert (await patch(server, large())).status_code == 200
    assert (await patch(server, b"[" + large())).status_code == 422
    assert bodies().held == 0
    assert bodies().most_held == 2 * MOST


async def test_bodies_without_a_length_count_as_the_largest_until_they_have_come(server):
    await server.conversation()

    async def pieces():
        for _ in range(3):
            yield b" " * SMALL_BYTES
        await until(lambda: bodies().held == MOST)
        yield b"{}"

    assert (await patch(server, pieces())).status_code == 200
    assert bodies().held == 0


async def test_files_come_in_small_pieces_where_there_is_no_room(server, tmp_path):
    async def upload():
        async with httpx2.AsyncClient(timeout=30, headers={"X-Session-API-Key": KEY}) as http:
            url = f"{server.url}/api/file/upload?path={tmp_path / 'f'}"
            answer = await http.post(url, files={"file": b"x" * (3 * PIECE_BYTES)})
        assert (answer.status_code, (tmp_path / "f").stat().st_size) == (200, 3 * PIECE_BYTES)

    await upload()
    assert bodies().most_held == 0, "here half of all is less than a piece"
    bodies().most = 8 * PIECE_BYTES
    await upload()
    assert (bodies().most_held, bodies().held) == (2 * PIECE_BYTES, 0)


def frame(size, sent):
    length = b"\xfe" + struct.pack(">H", size) if size < 65536 else b"\xff" + struct.pack(">Q", size)
    return b"\x81" + length + bytes(4) + b" " * sent


async def opened(streams):
    for each in streams:
        assert (await each.receive_some(4096)).startswith(b"HTTP/1.1 101 ")


async def hears(stream, wanted):
    """What is wanted comes, perhaps behind a ping."""
    data = b""
    with trio.fail_after(20):
        while wanted not in data:
            piece = await stream.receive_some(4096)
            assert piece, data
            data += piece


async def close_code(stream):
    """The code in the close frame that comes, small frames before it left out."""
    data = b""
    with trio.fail_after(20):
        while (at := data.find(b"\x88")) < 0 or len(data) < at + 4:
            piece = await stream.receive_some(4096)
            assert piece, data
            data += piece
    return struct.unpack(">H", data[at + 2 : at + 4])[0]


@pytest.mark.guarantee(name="what-holds-how-much")
async def test_messages_of_all_sockets_have_a_bound_and_small_ones_pass(server):
    path = b"GET /sockets/bash-events?session_api_key=" + KEY.encode()
    handshake = HANDSHAKE.replace(HANDSHAKE.split(b" HTTP")[0], path)
    async with stalled(server, [handshake] * 4) as streams:
        await opened(streams)
        for each in streams[:2]:
            await each.send_all(frame(MOST, SMALL_BYTES * 2))
        await until(lambda: messages().held == 2 * MOST)
        small = frame(200, 200)
        await streams[3].send_all(small)
        await hears(streams[3], b"JSONDecodeError")
        await streams[2].send_all(frame(MOST, SMALL_BYTES * 2))
        assert await close_code(streams[2]) == 1013
        await streams[0].aclose()
        await until(lambda: messages().held == MOST)
        await streams[3].send_all(frame(MOST - 1, MOST - 1))
        await hears(streams[3], b"JSONDecodeError")
        await until(lambda: messages().held == MOST)
    await until(lambda: not messages().held)
    assert messages().most_held == 2 * MOST
