"""Event sockets over HTTP/2 (RFC 8441), where many streams share one connection."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
import trio

from supervisor.events import Message, MessageEvent, TextContent
from supervisor.fairness import Share

TEXT = "x" * 3000
EVENTS = 400  # several times what one flow-control window holds


async def test_two_sockets_on_one_connection_each_get_everything(server, monkeypatch):
    groups = set()
    spent = Share.spent

    def note(self, messages=1):
        groups.add(messages)
        return spent(self, messages)

    monkeypatch.setattr(Share, "spent", note)
    conversation = await server.conversation()
    host, port = server.url.removeprefix("http://").split(":")
    stream = await trio.open_tcp_stream(host, int(port))
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
    received = {1: 0, 3: 0}
    opened = 0

    async def flush():
        await stream.send_all(client.data_to_send())

    async def read(until):
        nonlocal opened
        with trio.fail_after(20):
            while not until():
                data = await stream.receive_some(65536)
                assert data, "the server closed the connection"
                for event in client.receive_data(data):
                    assert not isinstance(event, h2.events.StreamEnded | h2.events.StreamReset)
                    if isinstance(event, h2.events.ResponseReceived):
                        assert (":status", "200") in event.headers
                        opened += 1
                    elif isinstance(event, h2.events.DataReceived):
                        received[event.stream_id] += len(event.data)
                        client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                await flush()

    async with stream:
        client.initiate_connection()
        await flush()
        await read(lambda: client.remote_settings.enable_connect_protocol)
        for number in received:
            headers = {
                ":method": "CONNECT",
                ":protocol": "websocket",
                ":scheme": "http",
                ":path": f"/sockets/events/{conversation.id}",
                ":authority": f"{host}:{port}",
                "sec-websocket-version": "13",
            }
            client.send_headers(number, headers.items())
        await flush()
        await read(lambda: opened == 2)
        for _ in range(EVENTS // 20):
            message = Message(role="user", content=(TextContent(text=TEXT),))
            await conversation.record(*[MessageEvent(source="user", llm_message=message) for _ in range(20)])
        await read(lambda: min(received.values()) > EVENTS * len(TEXT))
    assert groups == {1}  # each frame takes long here, so the clock is looked at before each
