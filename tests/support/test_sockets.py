"""The tests' own WebSocket: what a server may do at any moment is no error."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Ping, Pong, Request

from tests.support.sockets import wrap_client_stream

PING = b"\x89\x00"  # as a server sends it: wsproto's would not, once it has read a Close frame


@pytest.mark.parametrize("pings_while_closing", [0, 1, 3])
async def test_a_ping_that_crosses_the_close_ends_no_test(autojump_clock, pings_while_closing):
    ours, theirs = trio.testing.memory_stream_pair()
    server = WSConnection(ConnectionType.SERVER)
    pongs = 0

    async def serve() -> None:
        nonlocal pongs
        async for data in theirs:
            server.receive_data(data)
            for event in server.events():
                match event:
                    case Request():
                        await theirs.send_all(server.send(AcceptConnection()) + server.send(Ping(b"open")))
                    case Pong():
                        pongs += 1
                    case CloseConnection():
                        await theirs.send_all(PING * pings_while_closing)  # sent before it had read the close
                        await theirs.send_all(server.send(event.response()))
                        return

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            socket = await wrap_client_stream(nursery, ours, "localhost", "/")
            await trio.testing.wait_all_tasks_blocked()
            await socket.aclose()
    assert pongs == 1
    assert socket.closed.code == 1000
