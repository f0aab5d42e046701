"""Any server answers: requests for what another one has are forwarded to it, and its answers come back."""

from __future__ import annotations

import ast
import sys
import tracemalloc
from contextlib import asynccontextmanager
from functools import partial

import attrs
import httpx2
import orjson
import pytest
import trio

from gateway.api.forwarding import owners as owners_module
from gateway.api.forwarding import requests as requests_module
from supervisor.conversations.state.errors import ConversationClosing
from supervisor.machines.errors import DatabaseAway, Unclaimed
from tests.gateway.servers import SERVER_KEY, cluster

KEY = "k3y"
MIB = 1024 * 1024


@pytest.fixture
async def two(tmp_path):
    async with cluster(tmp_path, 2, session_api_keys=(KEY,)) as made:
        yield made


@pytest.fixture
async def client():
    async with httpx2.AsyncClient(timeout=30, headers={"X-Session-API-Key": KEY}) as made:
        yield made


def url(made, server, path):
    return made.gateways[server].url + path


def path_of(conversation, more=""):
    return f"/api/conversations/{conversation.id}{more}"


async def test_a_message_goes_to_the_owner(two, client):
    conversation = await two.conversation(1)
    body = {"content": [{"type": "text", "text": "hello"}], "run": True}
    answer = await client.post(url(two, 0, path_of(conversation, "/events")), json=body)
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    ((_, message, run),) = conversation.calls
    assert (message.content[0].text, run) == ("hello", True)


async def test_the_owners_refusal_is_the_answer(two, client):
    conversation = await two.conversation(1)
    conversation.status = "running"
    answer = await client.post(url(two, 0, path_of(conversation, "/run")))
    assert answer.status_code == 409
    assert "already running" in answer.json()["detail"]


async def test_a_start_with_the_id_of_a_conversation_elsewhere(two, client, monkeypatch):
    conversation = await two.conversation(1)
    supervisor = two.gateways[0].supervisor
    create = supervisor.create

    async def looking(request):
        if request.conversation_id is not None:
            await supervisor.get(request.conversation_id)
        return await create(request)

    monkeypatch.setattr(supervisor, "create", looking)
    body = {"workspace": {"working_dir": "/w"}, "conversation_id": conversation.id}
    answer = await client.post(url(two, 0, "/api/conversations"), json=body)
    # The body was read and checked before; it goes along all the same.
    assert (answer.status_code, answer.json()["id"]) == (200, conversation.id)


async def test_what_is_stored_is_read_here(two, client, monkeypatch):
    conversation = await two.conversation(1)
    two.views[1].address = "http://127.0.0.1:1"
    two.move(conversation, 1)
    assert (await client.get(url(two, 0, path_of(conversation)))).status_code == 200
    assert (await client.get(url(two, 0, path_of(conversation, "/events/count")))).json() == 0


async def test_the_clients_key_stays_here(two, client, monkeypatch):
    conversation = await two.conversation(1)
    seen = []
    before = two.gateways[1].app._before
    monkeypatch.setattr(
        two.gateways[1].app, "_before", lambda request: seen.append(request.headers) or before(request)
    )
    headers = {
        "Cookie": "a=b",
        "X-Forwarded-For": "192.0.2.1",
        "Origin": "http://localhost",
        "X-Any": "thing",
    }
    answer = await client.post(url(two, 0, path_of(conversation, "/pause")), headers=headers)
    assert answer.status_code == 200
    (got,) = seen
    assert "X-Session-Api-Key" not in got
    assert "Cookie" not in got
    assert "Origin" not in got
    assert got.get("X-Ostler-Server") == SERVER_KEY
    assert got.get("X-Forwarded-For") == "192.0.2.1, 127.0.0.1"
    assert got.get("X-Any") == "thing"
    assert got.get("Host") == two.gateways[0].url.removeprefix("http://")
    assert answer.headers.get_list("Vary") == ["Origin"]
    assert answer.headers["Access-Control-Allow-Origin"] == "http://localhost"


@pytest.mark.parametrize("key", ["", "wrong", KEY])
async def test_a_forged_key_of_a_server(two, key):
    conversation = await two.conversation(1)
    async with httpx2.AsyncClient() as stranger:
        answer = await stranger.get(url(two, 1, path_of(conversation)), headers={"X-Ostler-Server": key})
        assert answer.status_code == 401
        answer = await stranger.get(
            url(two, 1, path_of(conversation)), headers={"X-Ostler-Server": key, "X-Session-API-Key": KEY}
        )
        assert answer.status_code == 401


async def test_a_key_of_servers_where_there_are_none(server_with):
    async with server_with(session_api_keys=(KEY,)) as server, httpx2.AsyncClient() as stranger:
        headers = {"X-Ostler-Server": SERVER_KEY}
        assert (await stranger.get(f"{server.url}/api/status", headers=headers)).status_code == 401


async def test_a_request_of_a_server_is_not_forwarded_again(two):
    conversation = await two.conversation(1)
    async with httpx2.AsyncClient(headers={"X-Ostler-Server": SERVER_KEY}) as server:
        answer = await server.post(url(two, 0, path_of(conversation, "/pause")))
    assert answer.status_code == 421
    assert answer.headers["X-Ostler-Moved"] == "1"
    assert conversation.calls == []


async def test_moved_and_found_again(two, client, tmp_path):
    async with cluster(tmp_path / "more", 3, session_api_keys=(KEY,)) as three:
        conversation = await three.conversation(1)
        three.move(conversation, 2)
        # Server 0 learns of the move only after it has asked server 1.
        supervisor = three.gateways[0].supervisor
        supervisor.elsewhere[conversation.id] = three.place(1), conversation
        get, asked = supervisor.get, []

        async def learns(conversation_id):
            asked.append(conversation_id)
            if len(asked) > 1:
                supervisor.elsewhere[conversation.id] = three.place(2), conversation
            return await get(conversation_id)

        supervisor.get = learns
        answer = await client.post(url(three, 0, path_of(conversation, "/interrupt")))
        assert answer.status_code == 200
        assert conversation.calls == ["interrupt"]
        assert len(asked) == 2


async def test_this_server_takes_over_meanwhile(two, client):
    conversation = await two.conversation(1)
    two.views[1].address = "http://127.0.0.1:1"
    two.move(conversation, 1)
    body = {"content": [{"type": "text", "text": "hello"}]}
    async with trio.open_nursery() as nursery:

        async def take_over():
            await trio.sleep(0.3)
            two.move(conversation, 0)

        nursery.start_soon(take_over)
        answer = await client.post(url(two, 0, path_of(conversation, "/events")), json=body)
    assert answer.status_code == 200
    ((_, message, _),) = conversation.calls
    assert message.content[0].text == "hello"


@pytest.mark.parametrize("asked", [0, 1])
@pytest.mark.parametrize("route", ["/run", "/pause"])
async def test_handed_over_under_a_request(two, client, monkeypatch, asked, route):
    """The owner is emptied, and closes the conversation after a request has got it."""
    conversation = await two.conversation(1)
    action, tried = getattr(conversation, route[1:]), []

    async def closing_first():
        tried.append(route)
        if len(tried) == 1:
            two.machines[1].draining.set()
            two.move(conversation, 0)
            raise ConversationClosing
        await action()

    monkeypatch.setattr(conversation, route[1:], closing_first)
    answer = await client.post(url(two, asked, path_of(conversation, route)))
    assert (answer.status_code, len(tried), conversation.calls) == (200, 2, [route[1:]])


async def test_one_that_closes_for_ever(tmp_path, client, monkeypatch):
    monkeypatch.setattr(requests_module, "TAKEOVER_SECONDS", 0.2)
    async with cluster(tmp_path, 2, session_api_keys=(KEY,), lease_seconds=0.2) as two:
        conversation = await two.conversation(1)

        async def closing():
            raise ConversationClosing

        monkeypatch.setattr(conversation, "run", closing)
        # It is being deleted.
        answer = await client.post(url(two, 0, path_of(conversation, "/run")))
        assert (answer.status_code, answer.json()["detail"]) == (409, "The conversation is being closed.")
        two.machines[1].draining.set()
        answer = await client.post(url(two, 1, path_of(conversation, "/run")))
        assert (answer.status_code, answer.json()["detail"]) == (503, "The conversation is being closed.")
        assert "Retry-After" in answer.headers
        answer = await client.post(url(two, 0, path_of(conversation, "/run")))
        assert answer.status_code == 503


@pytest.mark.parametrize("route", ["/interrupt", "/pause", "/events/respond_to_confirmation"])
async def test_what_is_meant_for_now_does_not_wait(two, client, route):
    conversation = await two.conversation(1)
    two.views[1].address = "http://127.0.0.1:1"
    two.move(conversation, 1)
    with trio.fail_after(5):
        answer = await client.post(url(two, 0, path_of(conversation, route)), json={"accept": True})
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "5"
    assert answer.json()["detail"].startswith("The server server-1 has the conversation, and is away: ")


async def test_an_owner_that_stays_away(tmp_path, client, monkeypatch):
    monkeypatch.setattr(requests_module, "TAKEOVER_SECONDS", 0.2)
    async with cluster(tmp_path, 2, session_api_keys=(KEY,), lease_seconds=0.2) as two:
        conversation = await two.conversation(1)
        two.views[1].address = "http://127.0.0.1:1"
        two.move(conversation, 1)
        answer = await client.post(url(two, 0, path_of(conversation, "/run")))
        assert answer.status_code == 503
        assert conversation.calls == []


class Listener:
    """A server that does what a test says with the beginning of each request."""

    def __init__(self, act):
        self.act = act
        self.requests = 0
        self.ended = trio.Event()

    async def serve(self, stream):
        try:
            async with stream:
                await stream.receive_some(65536)
                self.requests += 1
                await self.act(self, stream)
        except trio.BrokenResourceError:
            pass
        finally:
            self.ended.set()


@asynccontextmanager
async def listening(act):
    listener = Listener(act)
    async with trio.open_nursery() as nursery:
        (sock,) = await nursery.start(partial(trio.serve_tcp, listener.serve, 0, host="127.0.0.1"))
        listener.url = f"http://127.0.0.1:{sock.socket.getsockname()[1]}"
        yield listener
        nursery.cancel_scope.cancel()


async def cut(listener, stream):
    pass


async def silent(listener, stream):
    while await stream.receive_some(65536):
        pass


async def half(listener, stream):
    await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")


async def half_head(listener, stream):
    await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-le")


@pytest.mark.parametrize("act", [cut, half_head, half])
async def test_a_connection_that_is_cut_after_the_request(two, client, act):
    async with listening(act) as listener:
        conversation = await two.conversation(1, address=listener.url)
        answer = await client.post(url(two, 0, path_of(conversation, "/run")))
        assert answer.status_code == 503
        assert "It may have been carried out" in answer.json()["detail"]
        assert listener.requests == 1


@pytest.mark.parametrize(
    ("headers", "more"),
    [({"Idempotency-Key": "a"}, {}), ({}, {"id": "01a20170-0000-7000-8000-000000000000"})],
)
async def test_a_message_with_a_key_is_sent_again(two, client, headers, more):
    async with listening(cut) as listener, trio.open_nursery() as nursery:
        conversation = await two.conversation(1, address=listener.url)

        async def take_over():
            await trio.sleep(0.3)
            two.move(conversation, 0)

        nursery.start_soon(take_over)
        body = {"content": [{"type": "text", "text": "hello"}], **more}
        path = url(two, 0, path_of(conversation, "/events"))
        answer = await client.post(path, json=body, headers=headers)
        assert answer.status_code == 200
        assert listener.requests > 1
        assert (await client.post(path, json=body, headers=headers)).status_code == 200
        assert len(conversation.calls) == 1


async def test_an_owner_that_ends_is_no_answer(tmp_path, client, monkeypatch):
    """A client of a server that goes on is not told that another one ends."""
    async with cluster(tmp_path, 2, session_api_keys=(KEY,), grace_seconds=0.01) as two:
        conversation = await two.conversation(1)
        send, asked = conversation.send, []

        async def end_first(*given, **named):
            asked.append(given)
            if len(asked) == 1:
                two.move(conversation, 0)
                two.gateways[1].services.closing.set()
                await trio.sleep_forever()
            return await send(*given, **named)

        monkeypatch.setattr(conversation, "send", end_first)
        body = {"content": [{"type": "text", "text": "hello"}]}
        path = url(two, 0, path_of(conversation, "/events"))
        answer = await client.post(path, json=body, headers={"Idempotency-Key": "a"})
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    assert len(asked) == 2


async def test_a_dead_owner_ends_the_wait(two, client, monkeypatch):
    monkeypatch.setattr(owners_module, "LOOK_SECONDS", 0.05)
    async with listening(silent) as listener, trio.open_nursery() as nursery:
        conversation = await two.conversation(1, address=listener.url)

        async def die():
            await trio.sleep(0.2)
            two.views[1].state = "dead"

        nursery.start_soon(die)
        with trio.fail_after(5):
            answer = await client.post(url(two, 0, path_of(conversation, "/run")))
        assert answer.status_code == 503
        assert "it is dead" in answer.json()["detail"]


async def test_a_client_that_leaves_ends_the_request_at_the_owner(two, client):
    async with listening(silent) as listener:
        conversation = await two.conversation(1, address=listener.url)
        with trio.move_on_after(0.3):
            await client.post(url(two, 0, path_of(conversation, "/run")))
        with trio.fail_after(5):
            await listener.ended.wait()


async def test_a_broken_answer_breaks_the_clients(two, client):
    async def long(listener, stream):
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n" + bytes(70_000))

    async with listening(long) as listener:
        conversation = await two.conversation(1, "/w", address=listener.url)
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get(url(two, 0, path_of(conversation, "/file/download?path=a")))


async def test_large_files_in_both_directions(two, client, tmp_path):
    conversation = await two.conversation(1, str(tmp_path))
    size = 64 * MIB
    boundary = b"xyz"

    async def form():
        yield b'--%b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' % boundary
        for _ in range(size // MIB):
            yield b"x" * MIB
        yield b"\r\n--%b--\r\n" % boundary

    tracemalloc.start()
    try:
        answer = await client.post(
            url(two, 0, path_of(conversation, "/file/upload?path=a")),
            content=form(),
            headers={"Content-Type": "multipart/form-data; boundary=xyz"},
        )
        assert answer.json() == {"success": True, "file_size": size}
        got = 0
        async with client.stream(
            "GET", url(two, 0, path_of(conversation, "/file/download?path=a"))
        ) as download:
            assert download.headers["Content-Length"] == str(size)
            async for piece in download.aiter_raw():
                got += len(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert got == size
    assert peak < 24 * MIB


async def test_a_slow_reader_holds_the_owner_back(two, client, tmp_path):
    (tmp_path / "big").write_bytes(bytes(64 * MIB))
    conversation = await two.conversation(1, str(tmp_path))
    path = url(two, 0, path_of(conversation, "/file/download?path=big"))
    tracemalloc.start()
    try:
        async with client.stream("GET", path):
            await trio.sleep(0.5)
            assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


async def test_head_and_parts(two, client, tmp_path):
    (tmp_path / "a").write_bytes(b"0123456789")
    conversation = await two.conversation(1, str(tmp_path))
    path = url(two, 0, path_of(conversation, "/file/download?path=a"))
    head = await client.head(path)
    assert (head.status_code, head.headers["Content-Length"], head.content) == (200, "10", b"")
    part = await client.get(path, headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.content) == (206, b"234")
    known = await client.get(path, headers={"If-None-Match": head.headers["ETag"]})
    assert (known.status_code, known.content) == (304, b"")


async def test_an_upload_that_is_refused_early(two, client):
    conversation = await two.conversation(1)
    answer = await client.post(
        url(two, 0, path_of(conversation, "/file/upload?path=/elsewhere")),
        content=bytes(MIB),
        headers={"Content-Type": "application/octet-stream"},
    )
    assert answer.status_code == 422


async def test_paths_of_a_conversation_elsewhere(two, client, tmp_path):
    conversation = await two.conversation(1, str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a").write_text("there")
    # The list of conversations is in the database, for all servers.
    two.gateways[0].supervisor.listing = two.gateways[1].supervisor.listing
    two.gateways[0].supervisor.count = two.gateways[1].supervisor.count
    seen = []
    before = two.gateways[1].app._before
    two.gateways[1].app._before = lambda request: seen.append(request.path) or before(request)
    path = f"/api/file/download?path={tmp_path}/elsewhere/a"
    assert (await client.get(url(two, 0, path))).text == "there"
    assert seen == ["/api/file/download"]
    command = {"command": "pwd", "cwd": conversation.request.working_dir}
    answer = await client.post(url(two, 0, "/api/bash/execute_bash_command"), json=command)
    assert answer.json()["stdout"].strip() == conversation.request.working_dir
    assert len(seen) == 2
    # With a conversation of its own in that directory, it answers itself.
    made = await two.conversation(0, str(tmp_path / "elsewhere"))
    both = [conversation.info(), made.info()]
    two.gateways[0].services.known._directories = {
        each["id"]: each["workspace"]["working_dir"] for each in both
    }
    two.gateways[0].services.known._up_to_date = partial(_true)
    assert (await client.get(url(two, 0, path))).text == "there"
    assert len(seen) == 2


async def _true():
    return True


async def test_agents_of_all_servers(two, client):
    one, other = await two.conversation(0), await two.conversation(1)
    two.gateways[0].supervisor.add_agent(one.id)
    two.gateways[1].supervisor.add_agent(other.id)
    found = (await client.get(url(two, 0, "/api/agents"))).json()["agents"]
    assert [(each["conversation_id"], each["server"]) for each in found] == [
        (one.id, "server-0"),
        (other.id, "server-1"),
    ]
    two.views[1].address = "http://127.0.0.1:1"
    answer = await client.get(url(two, 0, "/api/agents"))
    assert [each["server"] for each in answer.json()["agents"]] == ["server-0"]
    assert answer.headers["Ostler-Warning"] == "these servers did not answer: server-1"


async def test_commands_of_all_servers(two, client):
    ids = []
    for server in (0, 1, 0, 1):
        answer = await client.post(
            url(two, server, "/api/bash/execute_bash_command"), json={"command": f"echo {server}"}
        )
        ids.append(answer.json()["command_id"])
    for order in ("TIMESTAMP", "TIMESTAMP_DESC"):
        found, page = [], None
        while True:
            query = {"kind__eq": "BashCommand", "limit": 3, "sort_order": order}
            answer = await client.get(
                url(two, 0, "/api/bash/bash_events/search"),
                params={**query, **({"page_id": page} if page else {})},
            )
            found += [each["id"] for each in answer.json()["items"]]
            page = answer.json()["next_page_id"]
            if page is None:
                break
        assert found == (ids if order == "TIMESTAMP" else ids[::-1])
    assert (await client.get(url(two, 0, f"/api/bash/bash_events/{ids[1]}"))).json()["id"] == ids[1]
    assert (await client.get(url(two, 0, f"/api/bash/bash_events/{'0' * 32}"))).status_code == 404
    answer = await client.request(
        "GET", url(two, 0, "/api/bash/bash_events/"), json=[ids[1], "0" * 32, ids[0]]
    )
    assert [each and each["id"] for each in answer.json()] == [ids[1], None, ids[0]]
    assert (await client.post(url(two, 0, f"/api/bash/bash_commands/{ids[1]}/stop"))).status_code == 200
    assert (await client.delete(url(two, 0, "/api/bash/bash_events"))).json() == {"cleared_count": 8}


@pytest.mark.parametrize("error", [DatabaseAway("gone"), Unclaimed("x")])
async def test_no_server_can_say_who_has_it(two, client, error):
    conversation = await two.conversation(1)

    async def fails(_):
        raise error

    two.gateways[0].supervisor.get = fails
    answer = await client.post(url(two, 0, path_of(conversation, "/run")))
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "gone" not in answer.text


async def test_a_dead_server_has_no_paths(two, client, tmp_path):
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    (directory / "a").write_text("here")
    await two.conversation(1, str(directory))
    two.gateways[0].supervisor.listing = two.gateways[1].supervisor.listing
    two.gateways[0].supervisor.count = two.gateways[1].supervisor.count
    two.views[1] = attrs.evolve(two.views[1], state="dead", address="http://127.0.0.1:1")
    assert (await client.get(url(two, 0, f"/api/file/download?path={directory}/a"))).text == "here"


async def test_the_servers(two, client):
    found = (await client.get(url(two, 1, "/api/servers"))).json()["servers"]
    assert [(each["name"], each["state"], each["this"]) for each in found] == [
        ("server-0", "alive", False),
        ("server-1", "alive", True),
    ]
    assert (await client.get(url(two, 1, "/api/status"))).json()["servers"] == found
    assert (
        'ostler_server_lease_seconds{server="server-0",state="alive"} 12.0'
        in (await client.get(url(two, 1, "/metrics"))).text
    )
    assert (await client.post(url(two, 1, "/api/servers/server-0/drain"))).status_code == 200
    assert (await client.post(url(two, 1, "/api/servers/other/drain"))).status_code == 404
    assert two.drained == ["server-0", "other"]
    two.machines[1].failure = OSError("away")
    assert (await client.get(url(two, 1, "/api/status"))).json()["servers"] == []


async def test_one_server_alone(server, http):
    assert (await http.get(f"{server.url}/api/servers")).json() == {"servers": []}
    assert (await http.post(f"{server.url}/api/servers/a/drain")).status_code == 404
    assert "servers" not in (await http.get(f"{server.url}/api/status")).json()
    assert "server" not in orjson.dumps((await http.get(f"{server.url}/api/agents")).json()).decode()


def test_one_server_alone_imports_nothing_of_it():
    import subprocess

    code = (
        "import sys, gateway.api.app, gateway.api.sockets.exchange\n"
        "of_several = 'forwarding', 'machines', 'psycopg'\n"
        "print([each for each in sys.modules if any(name in each for name in of_several)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # What settings and errors are called is known to all.
    known = {"gateway.configuration.machines", "supervisor.machines", "supervisor.machines.errors"}
    assert set(ast.literal_eval(done.stdout)) <= known
