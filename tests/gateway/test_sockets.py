"""The event sockets over real connections: order, replay, authentication, and clients that misbehave."""

from __future__ import annotations

import copy
import json
import socket
import time
import tracemalloc
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from trio_websocket import ConnectionClosed, ConnectionRejected

from supervisor.events import Message, MessageEvent, TextContent
from supervisor.journal.rows import Frame
from tests.support.sockets import wrap_client_stream

KEY = "k3y"


def message(text, timestamp=None):
    more = {} if timestamp is None else {"timestamp": timestamp}
    return MessageEvent(
        source="user", llm_message=Message(role="user", content=(TextContent(text=text),)), **more
    )


def text_of(frame):
    return frame["llm_message"]["content"][0]["text"]


def address(gateway):
    host, port = gateway.url.removeprefix("http://").split(":")
    return host, int(port)


class Client:
    def __init__(self, websocket):
        self.websocket = websocket

    async def next(self):
        with trio.fail_after(30):
            return json.loads(await self.websocket.get_message())

    async def take(self, count):
        return [await self.next() for _ in range(count)]

    async def send(self, frame):
        await self.websocket.send_message(frame if isinstance(frame, str | bytes) else json.dumps(frame))

    async def closed(self):
        """Code and reason with which the server closes; frames before are passed over."""
        with trio.fail_after(30):
            while True:
                try:
                    await self.websocket.get_message()
                except ConnectionClosed as error:
                    return error.reason.code, error.reason.reason

    async def nothing(self, seconds=0.1):
        with trio.move_on_after(seconds):
            raise AssertionError(await self.websocket.get_message())


@asynccontextmanager
async def connected(gateway, path, headers=None, host="localhost") -> AsyncIterator[Client]:
    stream = await trio.open_tcp_stream(*address(gateway))
    # Closed here: what the server ended, and a refused handshake, the library leaves open.
    async with stream, trio.open_nursery() as nursery:
        websocket = await wrap_client_stream(nursery, stream, host, path, extra_headers=headers or ())
        yield Client(websocket)
        with trio.move_on_after(1):
            await websocket.aclose()
        nursery.cancel_scope.cancel()


async def refused(gateway, path, headers=None, host="localhost"):
    """Status and body of a handshake that is not accepted."""
    try:
        async with connected(gateway, path, headers, host):
            raise AssertionError("accepted")
    except* ConnectionRejected as group:
        error = group
        while isinstance(error, BaseExceptionGroup):
            (error,) = error.exceptions
    return error.status_code, error.body or b""


def events(conversation, query=""):
    return f"/sockets/events/{conversation.id}{query}"


def session(conversation, query=""):
    return f"/sockets/session/{conversation.id}{query}"


# What comes in which order.


async def test_snapshot_first_then_live(server):
    conversation = await server.conversation()
    await conversation.record(message("before"))
    async with connected(server, events(conversation)) as client:
        snapshot = await client.next()
        assert (snapshot["kind"], snapshot["key"]) == ("ConversationStateUpdateEvent", "full_state")
        await conversation.record(message("after"))
        assert text_of(await client.next()) == "after"
        await client.nothing()


@pytest.mark.parametrize("query", ["resend_mode=all", "resend_all=true", "resend_all=1"])
async def test_replay_of_everything(server, query):
    conversation = await server.conversation()
    await conversation.record(*[message(str(n)) for n in range(300)])
    async with connected(server, events(conversation, f"?{query}")) as client:
        assert (await client.next())["key"] == "full_state"
        assert [text_of(frame) for frame in await client.take(300)] == [str(n) for n in range(300)]
        await conversation.record(message("live"))
        assert text_of(await client.next()) == "live"


async def test_frames_are_the_stored_bytes(server):
    conversation = await server.conversation()
    await conversation.record(message("ü"))
    (stored,) = await conversation.log.read(-1, 1)
    async with connected(server, events(conversation, "?resend_mode=all")) as client:
        await client.next()
        assert (await client.websocket.get_message()).encode() == stored.body


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("2026-05-01T10:00:01.000000Z", ["1", "2"]),
        ("2026-05-01T10:00:01.000001Z", ["2"]),
        ("2026-05-01T12:00:01%2B02:00", ["1", "2"]),
        ("2026-05-01T12:00:01+02:00", ["1", "2"]),
        ("2027-01-01T00:00:00Z", []),
        ("2000-01-01", ["0", "1", "2"]),
    ],
)
async def test_replay_since(server, after, expected):
    conversation = await server.conversation()
    await conversation.record(*[message(str(n), f"2026-05-01T10:00:0{n}.000000Z") for n in range(3)])
    async with connected(
        server, events(conversation, f"?resend_mode=since&after_timestamp={after}")
    ) as client:
        assert (await client.next())["key"] == "full_state"
        assert [text_of(frame) for frame in await client.take(len(expected))] == expected
        await conversation.record(message("live"))
        assert text_of(await client.next()) == "live"


async def test_without_a_time_nothing_is_replayed(server):
    conversation = await server.conversation()
    await conversation.record(message("before"))
    async with connected(server, events(conversation, "?resend_mode=since")) as client:
        assert (await client.next())["key"] == "full_state"
        await conversation.record(message("live"))
        assert text_of(await client.next()) == "live"


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_nothing_is_lost_or_repeated_between_replay_and_live(server):
    """Events keep coming while sockets connect; each socket sees every one once, in order."""
    conversation = await server.conversation()
    total, seen = 400, []

    async def write():
        for n in range(total):
            conversation.append(message(str(n)))
            if n % 10 == 0:
                await trio.sleep(0.005)

    async def read(delay):
        await trio.sleep(delay)
        async with connected(server, events(conversation, "?resend_mode=all")) as client:
            await client.next()
            frames = await client.take(total)
            await client.nothing(0.05)
            seen.append([text_of(frame) for frame in frames])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        for step in range(5):
            nursery.start_soon(read, step * 0.03)
    assert seen == [[str(n) for n in range(total)]] * 5


async def test_transients_go_where_they_belong(server):
    conversation = await server.conversation()
    async with (
        connected(server, events(conversation)) as legacy,
        connected(server, session(conversation)) as modern,
    ):
        await legacy.next()
        await modern.take(2)
        conversation.log.publish(Frame(legacy=b'{"kind":"StreamingDeltaEvent"}'))
        conversation.log.publish(Frame(session=b'{"type":"delta"}'))
        conversation.log.publish(Frame(legacy=b'{"n":1}', session=b'{"n":2}'))
        assert await legacy.take(2) == [{"kind": "StreamingDeltaEvent"}, {"n": 1}]
        assert await modern.take(2) == [{"type": "delta"}, {"n": 2}]


async def test_session_frames(server):
    conversation = await server.conversation()
    ids = await conversation.record(message("0"), message("1"))
    async with connected(server, session(conversation, "?after_seq=-1")) as client:
        sync, snapshot, first, second = await client.take(4)
        assert sync == {"type": "sync", "from_seq": 0, "through_seq": 1}
        assert (snapshot["type"], snapshot["event"]["key"]) == ("transient", "full_state")
        assert (first["type"], first["seq"], first["event"]["id"]) == ("durable", 0, ids[0])
        assert (second["seq"], second["event"]["id"]) == (1, ids[1])
        await conversation.record(message("2"))
        assert (await client.next())["seq"] == 2
    async with connected(server, session(conversation, "?after_seq=1")) as client:
        sync, _, third = await client.take(3)
        assert sync == {"type": "sync", "from_seq": 2, "through_seq": 2}
        assert third["seq"] == 2
    async with connected(server, session(conversation)) as client:
        sync, _ = await client.take(2)
        assert sync == {"type": "sync", "from_seq": 3}
        await conversation.record(message("3"))
        assert (await client.next())["seq"] == 3


async def test_session_of_a_client_from_another_server(server):
    conversation = await server.conversation()
    async with connected(server, session(conversation, "?after_seq=7")) as client:
        sync, error, _ = await client.take(3)
        assert sync == {"type": "sync", "from_seq": 0}
        assert (error["type"], error["code"]) == ("error", "seq_ahead")
        await conversation.record(message("x"))
        assert (await client.next())["seq"] == 0


# What clients say.


async def test_messages_run_the_agent(server):
    conversation = await server.conversation()
    async with connected(server, events(conversation)) as client:
        await client.next()
        await client.send({"type": "auth", "session_api_key": "whatever"})
        await client.send({"role": "user", "content": [{"type": "text", "text": "hi"}], "run": False})
        assert text_of(await client.next()) == "hi"
    (call,) = conversation.calls
    assert (call[0], call[2]) == ("send", True)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("{", "JSONDecodeError"),
        ("", "JSONDecodeError"),
        (b"\xff", "JSONDecodeError"),
        (b"", "JSONDecodeError"),
        ("[]", "ValidationError"),
        ("{}", "ValidationError"),
        ('{"role":"user","content":"x"}', "ValidationError"),
        ('{"role":"user","content":[{"type":"audio","data":"?","mimeType":"a/b"}]}', "ValidationError"),
        ('{"role":"robot","content":[]}', "AssertionError"),
        ('{"role":"assistant","content":[]}', "AssertionError"),
    ],
)
async def test_malformed_frames_are_answered_to_their_sender_alone(server, frame, code):
    conversation = await server.conversation()
    async with (
        connected(server, events(conversation)) as sender,
        connected(server, events(conversation)) as other,
        connected(server, session(conversation)) as modern,
    ):
        await sender.next()
        await other.next()
        await modern.take(2)
        await sender.send(frame)
        error = await sender.next()
        assert (error["kind"], error["code"], error["source"]) == ("ServerErrorEvent", code, "environment")
        assert error["id"]
        assert error["timestamp"]
        await modern.send(frame)
        assert {key: value for key, value in (await modern.next()).items() if key != "detail"} == {
            "type": "error",
            "code": code,
        }
        await conversation.record(message("still there"))
        assert text_of(await sender.next()) == "still there"
        assert text_of(await other.next()) == "still there"
    assert conversation.calls == []


async def test_a_refusal_of_the_conversation_is_told(server):
    conversation = await server.conversation()
    conversation.capacity = False
    async with connected(server, events(conversation)) as client:
        await client.next()
        await client.send({"role": "user", "content": []})
        frames = await client.take(2)
        assert [frame.get("code") for frame in frames if frame["kind"] == "ServerErrorEvent"] == [
            "AtCapacity"
        ]


async def test_a_socket_stays_with_a_conversation_that_is_loaded_again(server):
    """As after a deletion that was undone: the object is another one, over the same log."""
    before = await server.conversation()
    frame = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    async with connected(server, events(before)) as client:
        await client.next()
        after = server.supervisor.conversations[before.id] = copy.copy(before)
        after.calls = []
        await client.send(frame)
        assert text_of(await client.next()) == "hi"
    assert (before.calls, len(after.calls)) == ([], 1)


async def test_many_frames_at_once_are_all_taken(server):
    """Hypercorn's queue holds ten: a handler that does not keep receiving hangs after the eleventh."""
    conversation = await server.conversation()
    async with connected(server, events(conversation)) as client:
        await client.next()
        for n in range(60):
            await client.send({"role": "user", "content": [{"type": "text", "text": str(n)}]})
        assert [text_of(frame) for frame in await client.take(60)] == [str(n) for n in range(60)]


# Who may connect.


@pytest.mark.parametrize("make", [events, session])
async def test_keys_in_query_and_header(server_with, make):
    async with server_with(session_api_keys=("other", KEY)) as server:
        conversation = await server.conversation()
        assert await refused(server, make(conversation, "?session_api_key=wrong")) == (403, b"")
        assert await refused(server, make(conversation, "?session_api_key=")) == (403, b"")
        assert await refused(server, make(conversation), [("X-Session-API-Key", "wrong")]) == (403, b"")
        async with connected(server, make(conversation, f"?session_api_key={KEY}")) as client:
            await client.next()
        async with connected(server, make(conversation), [("X-Session-API-Key", KEY)]) as client:
            await client.next()


@pytest.mark.parametrize("make", [events, session])
async def test_key_in_the_first_message(server_with, make):
    async with server_with(session_api_keys=(KEY,)) as server:
        conversation = await server.conversation()
        async with connected(server, make(conversation)) as client:
            await client.nothing()
            await client.send({"type": "auth", "session_api_key": KEY})
            await client.next()
        for frame in (
            {"type": "auth", "session_api_key": "wrong"},
            {"type": "auth"},
            {"session_api_key": KEY},
            {"type": "auth", "session_api_key": [KEY]},
            "not json",
            b"\x00",
            "[]",
            '"x"',
        ):
            async with connected(server, make(conversation)) as client:
                await client.send(frame)
                assert await client.closed() == (4001, "Authentication failed")


async def test_the_first_message_has_a_deadline(server_with):
    async with server_with(session_api_keys=(KEY,), auth_seconds=0.1) as server:
        conversation = await server.conversation()
        async with connected(server, events(conversation)) as client:
            assert (await client.closed())[0] == 4001


async def test_the_close_code_survives_frames_that_nobody_read(server_with):
    async with server_with(session_api_keys=(KEY,)) as server:
        conversation = await server.conversation()
        for _ in range(5):
            async with connected(server, events(conversation)) as client:
                for _ in range(20):
                    with trio.move_on_after(1):
                        try:
                            await client.send("x" * 10_000)
                        except ConnectionClosed:
                            break
                assert (await client.closed())[0] == 4001


@pytest.mark.parametrize("kind", ["events", "session"])
async def test_unknown_conversations_are_4004(server, kind):
    async with connected(server, f"/sockets/{kind}/{uuid.uuid4()}") as client:
        assert await client.closed() == (4004, "Conversation not found")


@pytest.mark.parametrize(
    "path",
    [
        "/sockets/events/x",
        "/sockets/session/x",
        "/sockets/events/{id}?resend_mode=some",
        "/sockets/events/{id}?resend_mode=since&after_timestamp=yesterday",
        "/sockets/events/{id}?resend_all=maybe",
        "/sockets/session/{id}?after_seq=x",
        "/sockets/session/{id}?after_seq=-2",
        "/sockets/session/{id}?after_seq=",
    ],
)
async def test_bad_handshakes_are_403(server, path):
    conversation = await server.conversation()
    assert await refused(server, path.format(id=conversation.id)) == (403, b"")


async def test_no_such_socket(server, http):
    status, body = await refused(server, "/sockets/other")
    assert (status, json.loads(body)) == (404, {"detail": "Not Found"})
    assert (await refused(server, "/api/settings"))[0] in (404, 405)
    conversation = await server.conversation()
    response = await http.get(server.url + events(conversation))
    assert response.status_code in (400, 404)
    assert isinstance(response.json()["detail"], str)


async def test_hex_ids_and_places(server_with):
    async with server_with(max_subscribers=2) as server:
        conversation = await server.conversation()
        plain = f"/sockets/events/{conversation.id.replace('-', '')}"
        async with connected(server, plain) as first, connected(server, session(conversation)) as second:
            await first.next()
            await second.next()
            async with connected(server, events(conversation)) as third:
                assert await third.closed() == (1013, "Too many connections for this conversation")
            other = await server.conversation()
            async with connected(server, events(other)) as client:
                await client.next()
        with trio.fail_after(30):
            while server.services.subscribers._count:
                await trio.sleep(0.01)
        async with connected(server, events(conversation)) as client:
            await client.next()


# Clients and conversations that go away.


async def test_deleted_conversations_end_their_sockets(server):
    conversation = await server.conversation()
    async with connected(server, events(conversation)) as client:
        await client.next()
        await server.supervisor.delete(conversation.id)
        assert await client.closed() == (4004, "Conversation not found")


@pytest.mark.parametrize("frames", [0, 30])
async def test_disconnects_are_noticed(server, frames):
    conversation = await server.conversation()
    async with connected(server, events(conversation)) as client:
        await client.next()
        for _ in range(frames):
            await client.send("not json")
        assert server.services.subscribers._count[conversation.id] == 1
        await client.websocket._stream.aclose()
        with trio.fail_after(30):
            while server.services.subscribers._count:
                conversation.append(message("to nobody"))
                await trio.sleep(0.01)


async def test_a_shutdown_says_goodbye(server):
    conversation = await server.conversation()
    async with connected(server, events(conversation)) as client:
        await client.next()
        server.services.closing.set()
        assert await client.closed() == (1001, "The server is shutting down")


async def stalled_client(server, conversation):
    """A connection that asked for everything and reads nothing of it."""
    stalled = trio.socket.socket()
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await stalled.connect(address(server))
    await stalled.send(
        f"GET {events(conversation, '?resend_mode=all')} HTTP/1.1\r\nHost: localhost\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
    )
    return stalled


@pytest.mark.guarantee(name="nothing-hangs")
async def test_a_stalled_client_holds_up_nobody(server):
    conversation = await server.conversation()
    large = message("x" * 1_000_000)
    await conversation.record(large)
    stalled = await stalled_client(server, conversation)
    with stalled:
        for n in range(20):
            await conversation.record(message(f"{n}" * 500_000))
        async with connected(server, events(conversation)) as client:
            await client.next()
            started = time.monotonic()
            await conversation.record(message("quick"))
            assert text_of(await client.next()) == "quick"
            assert time.monotonic() - started < 1
            # What the stalled client has not read waits in the journal, not in memory.
            assert server.services.subscribers._count[conversation.id] == 2


@pytest.mark.guarantee(name="nothing-hangs")
@pytest.mark.skipif(
    not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel cannot end a stalled connection"
)
async def test_a_stalled_client_is_cut_off(server_with):
    async with server_with(stall_seconds=0.5) as server:
        conversation = await server.conversation()
        await conversation.record(*[message(f"{n}" * 500_000) for n in range(20)])
        with await stalled_client(server, conversation):
            with trio.fail_after(30):
                while not server.services.subscribers._count:
                    await trio.sleep(0.01)
                while server.services.subscribers._count:
                    await trio.sleep(0.05)


@pytest.mark.guarantee(name="nothing-hangs")
async def test_a_stalled_client_does_not_hold_up_the_shutdown(server_with):
    started = None
    async with server_with(grace_seconds=0.2) as server:
        conversation = await server.conversation()
        await conversation.record(*[message(f"{n}" * 500_000) for n in range(20)])
        stalled = await stalled_client(server, conversation)
        with trio.fail_after(30):
            while not server.services.subscribers._count:
                await trio.sleep(0.01)
        await trio.sleep(0.1)
        started = time.monotonic()
    assert time.monotonic() - started < 3
    stalled.close()


# Pages that should not be here.


@pytest.mark.guarantee(name="web-pages")
@pytest.mark.parametrize("kind", ["events", "session"])
async def test_foreign_pages_open_no_socket_on_an_open_server(server, kind):
    conversation = await server.conversation()
    path = f"/sockets/{kind}/{conversation.id}"
    for origin in ("http://evil.example", "null", "http://localhost.evil.example"):
        assert await refused(server, path, [("Origin", origin)]) == (403, b"")
    # Its name leads here by now.
    rebound = [("Origin", "http://evil.example")]
    assert await refused(server, path, rebound, host="evil.example") == (403, b"")
    assert await refused(server, path, host="evil.example") == (403, b"")
    for headers in ([], [("Origin", "http://localhost:3000")], [("Origin", "http://127.0.0.1:18732")]):
        async with connected(server, path, headers) as client:
            await client.next()


async def test_with_a_key_a_socket_opens_from_anywhere(server_with):
    async with server_with(session_api_keys=(KEY,)) as server:
        conversation = await server.conversation()
        origin = [("Origin", "https://ui.example")]
        path = events(conversation, f"?session_api_key={KEY}")
        async with connected(server, path, origin, host="ostler.example") as client:
            await client.next()
        async with connected(server, events(conversation), origin, host="ostler.example") as client:
            await client.send({"type": "auth", "session_api_key": KEY})
            await client.next()
        assert await refused(server, events(conversation, "?session_api_key=no"), origin) == (403, b"")


# Messages that are too large.


async def test_a_message_too_large_closes_the_socket(server_with):
    async with server_with(max_message_bytes=1000) as server:
        conversation = await server.conversation()
        for text in ("x" * 901, "ü" * 451):
            async with connected(server, events(conversation)) as client:
                await client.next()
                content = [{"type": "text", "text": "x" * 900}]
                await client.send({"role": "user", "content": content})
                assert text_of(await client.next()) == "x" * 900
                await client.send('{"role":"user","content":[{"type":"text","text":"' + text + '"' + " " * 60)
                assert (await client.closed())[0] == 1009
        assert len(conversation.calls) == 2


async def test_who_has_shown_no_key_sends_little(server_with):
    async with server_with(session_api_keys=(KEY,)) as server:
        conversation = await server.conversation()
        async with connected(server, events(conversation)) as client:
            await client.send({"type": "auth", "session_api_key": KEY, "padding": "x" * 20_000})
            assert (await client.closed())[0] == 1009
        # What follows the key at once is judged as a message of a client that has shown it.
        async with connected(server, events(conversation)) as client:
            await client.send({"type": "auth", "session_api_key": KEY})
            content = [{"type": "text", "text": "y" * 20_000}]
            await client.send({"role": "user", "content": content})
            await client.next()
            assert text_of(await client.next()) == "y" * 20_000
        async with connected(server, events(conversation)) as client:
            await client.send({"type": "auth", "session_api_key": "no"})
            await client.send("y" * 20_000)
            assert await client.closed() == (4001, "Authentication failed")


def fragment(payload, opcode):
    """A masked frame of a message that goes on; the mask is zero."""
    assert len(payload) > 0xFFFF
    return bytes([opcode, 0x80 | 127]) + len(payload).to_bytes(8, "big") + bytes(4) + payload


async def handshake(stream, path, headers=""):
    await stream.send_all(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{headers}\r\n".encode()
    )
    received = b""
    while b"\r\n\r\n" not in received:
        received += await stream.receive_some()
    return received.partition(b"\r\n\r\n")[0]


async def test_a_message_without_end_fills_no_memory(server_with):
    """The client ignores that its message is too large, and goes on sending it."""
    async with server_with(max_message_bytes=100_000) as server:
        conversation = await server.conversation()
        stream = await trio.open_tcp_stream(*address(server))
        async with stream:
            await handshake(stream, events(conversation))
            sent, ended = 0, trio.Event()

            async def send():
                nonlocal sent
                more = fragment(b"x" * 70_000, 0)
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(fragment(b"x" * 70_000, 1))
                    while True:
                        await stream.send_all(more)
                        sent += 70_000

            async def read():
                with suppress(trio.BrokenResourceError):
                    while await stream.receive_some():
                        pass
                ended.set()

            tracemalloc.start()
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(read)
                    nursery.start_soon(send)
                    with trio.fail_after(30):
                        await ended.wait()
                    nursery.cancel_scope.cancel()
                # How much gets there within the server's patience is up to the machine: 28 MB on a quiet one.
                assert sent > 2_000_000
                assert tracemalloc.get_traced_memory()[1] < 1_000_000
            finally:
                tracemalloc.stop()
        with trio.fail_after(30):
            while server.services.subscribers._count:
                await trio.sleep(0.01)


async def test_who_has_shown_no_key_may_not_compress(server_with):
    offer = "Sec-WebSocket-Extensions: permessage-deflate\r\n"
    async with server_with(session_api_keys=(KEY,)) as server:
        conversation = await server.conversation()
        for headers, expected in (("", False), (f"X-Session-API-Key: {KEY}\r\n", True)):
            stream = await trio.open_tcp_stream(*address(server))
            async with stream:
                head = await handshake(stream, events(conversation), offer + headers)
                assert head.startswith(b"HTTP/1.1 101")
                assert (b"permessage-deflate" in head) is expected
