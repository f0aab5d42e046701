"""Clients that send much and never finish, against a real server: what is held of it is bounded, others get
in, and it is given back."""

from __future__ import annotations

import struct

import httpx2
import pytest
import trio

from gateway.configuration.config import Config
from gateway.http.budgets import RECEIVED_BYTES, SMALL_BYTES
from tests.server.test_unread import given_back, resident, settled
from tests.support.impolite import HANDSHAKE
from tests.support.server import running_server
from tests.support.thorough import everyday

MAX_BODY_BYTES = Config().max_body_bytes
KEY = "the-key"
CLIENTS = everyday(20, 150)
UNFINISHED = 1_000_000
"""What is missing of each."""

HELD_BYTES = RECEIVED_BYTES + CLIENTS * 1_000_000 + 40_000_000
"""What they may take of the server's memory: what is counted, with what the buffers have that grow by parts,
and for each connection what is not counted and what waits."""

SENT_S = 120.0

LEFT_BYTES = 60_000_000


def bodies():
    head = b"POST /api/conversations HTTP/1.1\r\nHost: localhost\r\nX-Session-API-Key: " + KEY.encode()
    return head + b"\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % MAX_BODY_BYTES


def sockets():
    path = b"GET /sockets/bash-events?session_api_key=" + KEY.encode()
    return HANDSHAKE.replace(HANDSHAKE.split(b" HTTP")[0], path)


FRAME = b"\x81\xff" + struct.pack(">Q", MAX_BODY_BYTES) + bytes(4)


@pytest.mark.guarantee(name="what-holds-how-much")
@pytest.mark.parametrize("begin", [bodies, sockets])
async def test_what_is_sent_and_not_finished_is_bounded_for_all_and_given_back(tmp_path, begin):
    large = b'{"title":"t"}' + b" " * (MAX_BODY_BYTES - 100)
    headers = {"X-Session-API-Key": KEY, "Content-Type": "application/json"}
    async with running_server(tmp_path, {"OSTLER_SESSION_API_KEYS": KEY}) as server:
        host, port = server.url.removeprefix("http://").split(":")
        by_control = httpx2.AsyncHTTPTransport(uds=str(server.state / "control.sock"))
        async with (
            httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=60) as http,
            httpx2.AsyncClient(
                base_url="http://localhost", headers=headers, timeout=60, transport=by_control
            ) as operator,
        ):
            path = "/api/conversations/00000000-0000-4000-8000-000000000000"
            assert (await http.patch(path, content=b'{"title":"t"}')).status_code == 404
            before, most, sending = await settled(server), 0, CLIENTS
            async with trio.open_nursery() as clients:
                clients.cancel_scope.deadline = trio.current_time() + SENT_S

                async def send():
                    nonlocal sending
                    async with await trio.open_tcp_stream(host, int(port)) as stream:
                        try:
                            await stream.send_all(begin())
                            if begin is sockets:
                                assert (await stream.receive_some(4096)).startswith(b"HTTP/1.1 101 ")
                                await stream.send_all(FRAME)
                            await stream.send_all(b" " * (MAX_BODY_BYTES - UNFINISHED))
                        except trio.BrokenResourceError:
                            return
                        finally:
                            sending -= 1
                        await trio.sleep_forever()

                for _ in range(CLIENTS):
                    clients.start_soon(send)
                while sending or most < RECEIVED_BYTES / 2:
                    most = max(most, resident(server) - before)
                    small = await http.patch(path, content=b'{"title":"t"}' + b" " * (SMALL_BYTES - 100))
                    assert small.status_code == 404
                    await trio.sleep(0.2)
                assert (await operator.patch(path, content=large)).status_code == 404
                if begin is bodies:
                    refused = await http.patch(path, content=large)
                    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
                most = max(most, resident(server) - before)
                clients.cancel_scope.cancel()
            assert sending == 0
            print(f"{begin.__name__}: {most / 1e6:.0f} MB held")
            assert RECEIVED_BYTES / 2 <= most < HELD_BYTES
            assert await given_back(server, before) <= LEFT_BYTES
            assert (await http.patch(path, content=large)).status_code == 404
