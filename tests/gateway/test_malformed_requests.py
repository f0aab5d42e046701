"""Requests that are no HTTP, or hardly: answered with 400, and no faults in the log."""

from __future__ import annotations

import json

import pytest
import trio

HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
UPGRADE = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
CREATE = b"POST /api/conversations"
SOCKET = b"/sockets/events/00000000-0000-0000-0000-000000000000"


async def exchange(server, data, *, ended=False):
    """What comes back for raw bytes, until the server closes; `ended` closes our side first."""
    host, port = server.url.removeprefix("http://").split(":")
    stream = await trio.open_tcp_stream(host, int(port))
    async with stream:
        with trio.fail_after(30):
            await stream.send_all(data)
            if ended:
                await stream.send_eof()
            received = b""
            while piece := await stream.receive_some():
                received += piece
    return received


@pytest.mark.guarantee(name="nothing-that-is-sent-breaks-it")
@pytest.mark.parametrize(
    ("request_bytes", "detail"),
    [
        (b"GET ?alive HTTP/1.1\r\n" + HOST, "The request target has no path."),
        (b"GET http://[x HTTP/1.1\r\n" + HOST, "The request target is not a URL."),
        (b"GET http://[x]/sockets HTTP/1.1\r\n" + HOST, "The request target is not a URL."),
        (b"GET /alive HTTP/1.1\r\nHost: 127......0.0.1\r\n", "The Host header is not a host name."),
        (b"GET /alive HTTP/1.1\r\nHost: " + b"a" * 64 + b".com\r\n", "The Host header is not a host name."),
    ],
)
async def test_what_no_application_could_read(server, request_bytes, detail, capsys):
    answer = await exchange(server, request_bytes + b"Connection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nx-content-type-options: nosniff\r\n" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"detail": detail}
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("request_bytes", "ended"),
    [
        (b"GET " + SOCKET + b" HTTP/1.1\r\n" + HOST + UPGRADE + b"\r\nbytes that come too early", False),
        (CREATE + b" HTTP/1.1\r\n" + HOST + JSON + CHUNKED + b"\r\nzz\r\nhello\r\n0\r\n\r\n", False),
        (CREATE + b" HTTP/1.1\r\n" + HOST + JSON + CHUNKED + b"\r\n50\r\nhel", True),
        (CREATE + b" HTTP/1.0\r\n" + HOST + JSON + CHUNKED + b"\r\n5\r\nhello\r\n0\r\n\r\n", False),
        (b"GET /alive HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\nGET garbage", False),
    ],
)
async def test_clients_that_do_not_keep_to_the_protocol_fill_no_log(server, request_bytes, ended, capsys):
    answer = await exchange(server, request_bytes, ended=ended)
    assert answer.split(b" ")[1] in (b"200", b"400", b"422")
    assert "Traceback" not in capsys.readouterr().err
    alive = await exchange(server, b"GET /alive HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
    assert alive.split(b" ")[1] == b"200"
