"""Any server answers: the sockets of what another one has are relayed to it, frame by frame."""

from __future__ import annotations

import json
import tracemalloc

import pytest
import trio

from gateway.api.forwarding import joined as joined_module
from gateway.api.forwarding import owners as owners_module
from gateway.api.forwarding import sockets as sockets_module
from supervisor.events import MessageEvent
from supervisor.machines.errors import DatabaseAway
from tests.gateway.servers import SERVER_KEY, cluster
from tests.gateway.test_forwarding import KEY, Listener, listening
from tests.gateway.test_sockets import address, connected, events, message, refused, session, text_of

HEADERS = ((b"X-Session-API-Key", KEY.encode()),)


@pytest.fixture
async def two(tmp_path):
    async with cluster(tmp_path, 2, session_api_keys=(KEY,)) as made:
        yield made


async def test_history_and_live_events_and_messages(two):
    conversation = await two.conversation(1)
    await conversation.record(message("before"))
    async with connected(two.gateways[0], session(conversation, "?after_seq=-1"), HEADERS) as client:
        assert await client.next() == {"type": "sync", "from_seq": 0, "through_seq": 0}
        await client.next()
        assert text_of((await client.next())["event"]) == "before"
        await client.send({"role": "user", "content": [{"type": "text", "text": "from here"}]})
        assert text_of((await client.next())["event"]) == "from here"
        assert [(call[0], call[2]) for call in conversation.calls] == [("send", True)]


async def test_a_message_with_an_id_is_one_message(two):
    conversation = await two.conversation(1)
    frame = {
        "role": "user",
        "id": "01a20170-0000-7000-8000-000000000000",
        "content": [{"type": "text", "text": "once"}],
    }
    async with connected(two.gateways[0], session(conversation), HEADERS) as client:
        await client.take(2)
        await client.send(frame)
        assert (await client.next())["event"]["id"] == frame["id"]
        await client.send(frame)
        await client.nothing()


async def test_the_key_in_the_first_frame_or_in_the_query(two, monkeypatch):
    conversation = await two.conversation(1)
    seen = []
    accept = sockets_module.wrap_client_stream

    async def noted(nursery, stream, host, resource, **more):
        seen.append((resource, dict(more["extra_headers"])))
        return await accept(nursery, stream, host, resource, **more)

    monkeypatch.setattr(sockets_module, "wrap_client_stream", noted)
    async with connected(two.gateways[0], events(conversation, "?resend_mode=all")) as client:
        await client.send({"type": "auth", "session_api_key": KEY})
        assert (await client.next())["key"] == "full_state"
    query = f"?session_api_key={KEY}&resend_mode=all"
    async with connected(two.gateways[0], events(conversation, query)) as client:
        assert (await client.next())["key"] == "full_state"
    assert [resource for resource, _ in seen] == [events(conversation, "?resend_mode=all")] * 2
    for _, headers in seen:
        assert headers[b"x-ostler-server"] == SERVER_KEY.encode()
        assert b"x-session-api-key" not in headers
    async with connected(two.gateways[0], events(conversation)) as client:
        await client.send({"type": "auth", "session_api_key": "wrong"})
        assert (await client.closed())[0] == 4001


@pytest.mark.parametrize("key", ["wrong", KEY])
async def test_a_forged_key_of_a_server(two, key):
    conversation = await two.conversation(1)
    status, _ = await refused(two.gateways[1], events(conversation), ((b"X-Ostler-Server", key.encode()),))
    assert status == 403


async def test_a_socket_of_a_server_is_not_relayed_again(two):
    conversation = await two.conversation(1)
    headers = ((b"X-Ostler-Server", SERVER_KEY.encode()),)
    async with connected(two.gateways[0], events(conversation), headers) as client:
        assert await client.closed() == (1012, "The conversation is on the server server-1 now")


async def test_the_owners_close_is_the_clients(two):
    conversation = await two.conversation(1)
    async with connected(two.gateways[0], events(conversation), HEADERS) as client:
        await client.next()
        two.gateways[1].services.closing.set()
        assert await client.closed() == (1001, "The server is shutting down")


async def test_an_unknown_conversation(two):
    conversation = await two.conversation(1)
    two.forget(1, conversation)
    async with connected(two.gateways[0], events(conversation), HEADERS) as client:
        assert await client.closed() == (4004, "Conversation not found")


async def cut(listener, stream):
    await _accept(stream)


async def silent(listener, stream):
    await _accept(stream)
    while await stream.receive_some(65536):
        pass


async def _accept(stream):
    # The handshake has been read; its key is not looked at by the tests' clients of ours.
    from wsproto import ConnectionType, WSConnection
    from wsproto.events import AcceptConnection

    await trio.lowlevel.checkpoint()
    server = WSConnection(ConnectionType.SERVER)
    server.receive_data(stream.head)
    list(server.events())
    await stream.send_all(server.send(AcceptConnection()))


class HeadListener(Listener):
    async def serve(self, stream):
        try:
            async with stream:
                stream.head = await stream.receive_some(65536)
                self.requests += 1
                await self.act(self, stream)
        except trio.BrokenResourceError:
            pass
        finally:
            self.ended.set()


@pytest.fixture(autouse=True)
def heads(monkeypatch):
    monkeypatch.setattr("tests.gateway.test_forwarding.Listener", HeadListener)


async def test_a_lost_owner_is_a_close_to_come_back_from(two):
    async with listening(cut) as listener:
        conversation = await two.conversation(1, address=listener.url)
        async with connected(two.gateways[0], events(conversation), HEADERS) as client:
            code, reason = await client.closed()
            assert (code, bool(reason)) == (1012, True)


async def test_a_dead_owner_is_a_close_to_come_back_from(two, monkeypatch):
    monkeypatch.setattr(owners_module, "LOOK_SECONDS", 0.05)
    async with listening(silent) as listener:
        conversation = await two.conversation(1, address=listener.url)
        async with connected(two.gateways[0], events(conversation), HEADERS) as client:
            await client.nothing()
            two.views[1].state = "dead"
            assert await client.closed() == (1012, "The server server-1 is gone")


async def test_a_client_that_leaves_ends_the_socket_at_the_owner(two):
    async with listening(silent) as listener:
        conversation = await two.conversation(1, address=listener.url)
        async with connected(two.gateways[0], events(conversation), HEADERS) as client:
            await client.nothing()
        with trio.fail_after(5):
            await listener.ended.wait()


async def test_this_server_takes_over_before_the_first_frame(two):
    conversation = await two.conversation(1)
    await conversation.record(message("before"))
    two.views[1].address = "http://127.0.0.1:1"
    two.move(conversation, 1)
    async with connected(two.gateways[0], events(conversation, "?resend_mode=all"), HEADERS) as client:
        await client.nothing()
        two.move(conversation, 0)
        assert (await client.next())["key"] == "full_state"
        assert text_of(await client.next()) == "before"


async def test_no_server_can_say_who_has_it(two):
    conversation = await two.conversation(1)

    async def fails(_):
        raise DatabaseAway("gone")

    two.gateways[0].supervisor.get = fails
    async with connected(two.gateways[0], events(conversation), HEADERS) as client:
        code, reason = await client.closed()
        assert (code, "gone" in reason) == (1013, False)


async def test_a_conversation_that_moves_away_closes_its_socket(two):
    conversation = await two.conversation(0)
    async with connected(two.gateways[0], events(conversation), HEADERS) as client:
        await client.next()
        two.move(conversation, 1)
        await client.send({"role": "user", "content": [{"type": "text", "text": "late"}]})
        assert await client.closed() == (1012, "The conversation is on the server server-1 now")
        assert conversation.calls == []


async def test_a_slow_reader_holds_the_owner_back(two):
    conversation = await two.conversation(1)
    for _ in range(100):
        await conversation.record(message("x" * 1_000_000))
    stream = await trio.open_tcp_stream(*address(two.gateways[0]))
    async with stream:
        tracemalloc.start()
        try:
            lines = (
                f"GET {events(conversation, '?resend_mode=all')} HTTP/1.1",
                "Host: localhost",
                "Connection: Upgrade",
                "Upgrade: websocket",
                "Sec-WebSocket-Version: 13",
                "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
                f"X-Session-API-Key: {KEY}",
            )
            await stream.send_all("\r\n".join((*lines, "", "")).encode())
            await trio.sleep(1)
            assert tracemalloc.get_traced_memory()[1] < 40 * 1024 * 1024
        finally:
            tracemalloc.stop()


async def test_the_output_of_an_agent(two):
    conversation = await two.conversation(1)
    two.gateways[1].supervisor.add_agent(conversation.id)
    two.gateways[1].supervisor.lines = ["a line"]
    async with connected(two.gateways[0], f"/sockets/agents/{conversation.id}", HEADERS) as client:
        assert await client.next() == {"type": "sync", "of": "stderr"}
        assert (await client.next())["lines"] == ["a line"]


async def test_commands_of_all_servers(two, tmp_path, monkeypatch):
    monkeypatch.setattr(joined_module, "LOOK_SECONDS", 0.05)
    directory = tmp_path / "there"
    directory.mkdir()
    await two.conversation(1, str(directory))
    two.gateways[0].supervisor.listing = two.gateways[1].supervisor.listing
    two.gateways[0].supervisor.count = two.gateways[1].supervisor.count
    async with connected(two.gateways[0], "/sockets/bash-events", HEADERS) as client:
        await client.send({"command": "echo here"})
        assert (await client.next())["command"] == "echo here"
        assert (await client.next())["stdout"] == "here\n"
        await client.send({"command": "pwd", "cwd": str(directory)})
        assert (await client.next())["command"] == "pwd"
        assert (await client.next())["stdout"] == f"{directory}\n"
        assert len(two.gateways[1].services.bash.log) == 2


async def test_frames_are_unchanged(two):
    conversation = await two.conversation(1)
    event = MessageEvent(source="user", llm_message=message("ü\u2028").llm_message)
    await conversation.record(event)
    (stored,) = await conversation.log.read(-1, 1)
    async with connected(two.gateways[0], events(conversation, "?resend_mode=all"), HEADERS) as client:
        await client.next()
        assert (await client.websocket.get_message()).encode() == stored.body
        assert json.loads(stored.body)["id"] == event.id
