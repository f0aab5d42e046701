"""Frames that are made past wsproto are the ones that it would make, and it has the last word."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypercorn.protocol.ws_stream import ASGIWebsocketState
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import CloseConnection, TextMessage
from wsproto.extensions import PerMessageDeflate

from gateway.http.frame_writer import FrameWriter

SIZES = (0, 1, 125, 126, 127, 65_535, 65_536, 1_000_000)


def stream(extensions=None):
    agreed = []
    if extensions:
        agreed = [PerMessageDeflate()]
        agreed[0].accept(extensions)
    return SimpleNamespace(
        closed=False,
        state=ASGIWebsocketState.CONNECTED,
        handshake=SimpleNamespace(extensions=[extensions] if extensions else None),
        connection=Connection(ConnectionType.SERVER, agreed),
    )


def frame_writer(of):
    gathered, otherwise = [], []

    async def gather(data):
        gathered.append(bytes(data))

    async def usual(text):
        otherwise.append(text)

    return FrameWriter(of, gather, usual), gathered, otherwise


@pytest.mark.parametrize("extensions", [None, "permessage-deflate"])
async def test_a_client_reads_what_was_sent(extensions):
    client_side = [PerMessageDeflate()]
    if extensions:
        client_side[0].finalize(extensions)
    client = Connection(ConnectionType.CLIENT, client_side if extensions else [])
    texts = ["ä" * (size // 2) + "x" * (size % 2) for size in SIZES]
    sending, gathered, otherwise = frame_writer(stream(extensions))
    assert sending.plain is (extensions is None)  # what is compressed takes its time
    for text in texts:
        await sending.send([text.encode()])
    client.receive_data(b"".join(gathered))
    read = "".join(event.data for event in client.events() if isinstance(event, TextMessage))
    assert read == "".join(texts)
    assert len(gathered) == len(texts)
    assert not otherwise


@pytest.mark.parametrize("size", SIZES)
async def test_a_frame_is_the_one_that_the_library_makes(size):
    of = stream()
    sending, gathered, _ = frame_writer(of)
    await sending.send([b"x" * size])
    assert gathered == [of.connection.send(TextMessage(data="x" * size))]


@pytest.mark.parametrize("end", ["closed", "state", "ours", "theirs"])
async def test_on_a_stream_that_is_not_open_the_layers_decide(end):
    of = stream()
    if end == "closed":
        of.closed = True
    elif end == "state":
        of.state = ASGIWebsocketState.CLOSED
    elif end == "ours":
        of.connection.send(CloseConnection(code=1000))
        assert of.connection.state is ConnectionState.LOCAL_CLOSING
    else:
        client = Connection(ConnectionType.CLIENT)
        of.connection.receive_data(client.send(CloseConnection(code=1000)))
        list(of.connection.events())
        assert of.connection.state is ConnectionState.REMOTE_CLOSING
    sending, gathered, otherwise = frame_writer(of)
    await sending.send([b"late"])
    assert otherwise == [b"late"]
    assert not gathered
