"""The two doors: where requests go, with which keys, and what is refused."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import h11
import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from supervisor.agents.walls.door import proxies as bounds
from supervisor.agents.walls.door.exchange import Exchange
from supervisor.agents.walls.door.hosts import WayOut, allow_list
from supervisor.agents.walls.door.proxies import Proxies
from supervisor.agents.walls.door.rewiring import Wiring
from tests.walls.door.server import Asked, Server, serving

KEY = "sk-ant-api03-abcDEF0123456789abcDEF0123456789"
PUBLIC = "93.184.216.34"
"""An address that no test connects to."""


@dataclass
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes
    reason: str = ""


@dataclass
class Agent:
    """An agent's connections to its doors."""

    proxies: Proxies
    wiring: Wiring
    nursery: trio.Nursery
    refused: list[tuple[str, int, str]] = field(default_factory=list)

    def connect(self, *, api: bool) -> trio.StapledStream:
        ours, theirs = memory_stream_pair()

        async def serve() -> None:
            try:
                await Exchange(theirs).serve(self.proxies.api if api else self.proxies.other)
            except (trio.BrokenResourceError, h11.ProtocolError):
                pass
            finally:
                await trio.aclose_forcefully(theirs)

        self.nursery.start_soon(serve)
        return ours

    async def ask(
        self, target: str, *headers: tuple[str, str], api: bool = True, method: str = "GET", body: bytes = b""
    ) -> Answered:
        stream = self.connect(api=api)
        http = h11.Connection(h11.CLIENT)
        length = [("Content-Length", str(len(body)))] if body else []
        request = h11.Request(method=method, target=target, headers=[("Host", "door"), *headers, *length])
        await stream.send_all(http.send(request) or b"")
        if body:
            await stream.send_all(http.send(h11.Data(data=body)) or b"")
        await stream.send_all(http.send(h11.EndOfMessage()) or b"")
        found = Answered(0, {}, b"")
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Response):
                found.status, found.reason = event.status_code, event.reason.decode()
                found.headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                found.body += event.data
            else:
                await stream.aclose()
                return found


@asynccontextmanager
async def agent(hosts: str = "", way_out: WayOut | None = None) -> AsyncIterator[Agent]:
    wiring = Wiring()
    refused: list[tuple[str, int, str]] = []
    proxies = Proxies(
        wiring.upstreams, allow_list(hosts), lambda *each: refused.append(each), way_out or WayOut()
    )
    async with trio.open_nursery() as nursery:
        yield Agent(proxies, wiring, nursery, refused)
        nursery.cancel_scope.cancel()
    await proxies.aclose()


def path(address: str) -> str:
    """The path of an address of the door."""
    return address.removeprefix("http://127.0.0.1:6801")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as found:
        yield found


# -- to the APIs -----------------------------------------------------------------------------------------


async def test_the_key_is_put_in(server: Server) -> None:
    async with agent() as asking:
        base = path(asking.wiring.address(f"{server.url}/v1", KEY))
        [instead] = asking.wiring.upstreams[0].keys
        answered = await asking.ask(
            f"{base}/messages?beta=true&key={instead}",
            ("x-api-key", instead),
            ("Authorization", f"Bearer {instead}"),
            ("X-Hop", "1"),
            ("Connection", "X-Hop"),
            ("anthropic-version", "2023-06-01"),
            method="POST",
            body=b"{}",
        )
    assert (answered.status, answered.body) == (200, b"good")
    [asked] = server.asked
    assert (asked.method, asked.target) == ("POST", f"/v1/messages?beta=true&key={KEY}")
    assert asked.headers["x-api-key"] == KEY
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.headers["anthropic-version"] == "2023-06-01"
    assert asked.headers["host"] == f"127.0.0.1:{server.port}"
    assert asked.headers["content-length"] == "2"
    assert not {"x-hop", "connection", "transfer-encoding"} & asked.headers.keys()
    assert "127.0.0.1:6801" not in str(asked.headers)


async def test_a_key_goes_to_its_own_api_alone(server: Server) -> None:
    async with agent() as asking, serving() as other:
        asking.wiring.address(server.url, KEY)
        second = path(asking.wiring.address(other.url))
        third = path(asking.wiring.address(f"http://localhost:{other.port}", "other-key-0123456789"))
        [instead] = asking.wiring.upstreams[0].keys
        answered = await asking.ask(f"{second}/x", ("x-api-key", instead))
        assert answered.status == 200
        assert other.asked[0].headers["x-api-key"] == instead
        answered = await asking.ask(f"{third}/x", ("x-api-key", instead))
        assert answered.status == 403
        assert len(other.asked) == 1
        for target in (
            f"//127.0.0.1:{other.port}/x",
            f"/@127.0.0.1:{other.port}/x",
            "/../x",
            "/%2e%2e/x",
            "/x?http://e/",
        ):
            await asking.ask(f"/p/0{target}", ("x-api-key", instead))
        assert len(other.asked) == 1
        assert KEY not in str([each.headers for each in other.asked])
    assert {each.headers["host"] for each in server.asked} == {f"127.0.0.1:{server.port}"}
    assert len(server.asked) == 5


async def test_another_key_is_refused(server: Server) -> None:
    async with agent() as asking:
        base = path(asking.wiring.address(server.url, KEY))
        answered = await asking.ask(f"{base}/v1/files", ("x-api-key", "sk-of-the-attacker"))
        assert answered.status == 403
        assert b"a secret of the conversation" in answered.body
        assert (await asking.ask(f"{base}/v1/files?key=other")).status == 403
        assert (await asking.ask(f"{base}/v1/files")).status == 200
    assert len(server.asked) == 1


async def test_a_redirect_is_the_agents_to_follow(server: Server) -> None:
    async def redirect(asked: Asked) -> None:
        await asked.answer(b"", 302, ("Location", "https://evil.example/"), ("Alt-Svc", 'h3=":443"'))

    server.handler = redirect
    async with agent() as asking:
        answered = await asking.ask(f"{path(asking.wiring.address(server.url, KEY))}/x")
    assert (answered.status, answered.headers["location"]) == (302, "https://evil.example/")
    assert "alt-svc" not in answered.headers


@pytest.mark.parametrize(
    "target",
    ["/", "/v1/messages", "/p/", "/p/1/x", "/p/-1/x", "/p/x/x", "/p/00000000/x", "http://api.example/"],
)
async def test_an_address_without_an_api_is_said(target: str, server: Server) -> None:
    async with agent() as asking:
        asking.wiring.address(server.url, KEY)
        answered = await asking.ask(target)
    assert answered.status == 404
    assert b"base URL that Ostler set" in answered.body
    assert server.asked == []


async def test_a_websocket_is_refused(server: Server) -> None:
    async with agent() as asking:
        base = path(asking.wiring.address(server.url, KEY))
        answered = await asking.ask(f"{base}/ws", ("Upgrade", "websocket"), ("Connection", "Upgrade"))
    assert answered.status == 426
    assert b"no WebSockets" in answered.body


async def test_an_api_that_is_away_is_said(free: int) -> None:
    async with agent() as asking:
        answered = await asking.ask(f"{path(asking.wiring.address(f'http://127.0.0.1:{free}', KEY))}/x")
    assert answered.status == 502
    assert f"http://127.0.0.1:{free} does not answer".encode() in answered.body


@pytest.fixture
def free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_an_answer_that_is_cut_is_cut(server: Server) -> None:
    async def cut(asked: Asked) -> None:
        await asked.begin(200, (("Content-Length", "100"),))
        await asked.piece(b"half")
        await asked.stream.aclose()

    server.handler = cut
    async with agent() as asking:
        with pytest.raises(h11.RemoteProtocolError):
            await asking.ask(f"{path(asking.wiring.address(server.url, KEY))}/x")


async def test_answers_without_a_body(server: Server) -> None:
    async def short(asked: Asked) -> None:
        if asked.method == "HEAD":
            await asked.begin(200, (("Content-Length", "10"),))
        else:
            await asked.begin(204 if "204" in asked.target else 304)
        await asked.end()

    server.handler = short
    async with agent() as asking:
        base = path(asking.wiring.address(server.url, KEY))
        assert (await asking.ask(f"{base}/x", method="HEAD")).headers["content-length"] == "10"
        assert (await asking.ask(f"{base}/204")).status == 204
        assert (await asking.ask(f"{base}/304")).status == 304


async def test_over_tls(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    context, trusted = _certificate(tmp_path)
    monkeypatch.setattr(bounds, "_context", lambda: trusted)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_ssl_over_tcp, server.serve, 0, context)
        port = listeners[0].transport_listener.socket.getsockname()[1]
        async with agent() as asking:
            base = path(asking.wiring.address(f"https://localhost:{port}", KEY))
            [instead] = asking.wiring.upstreams[0].keys
            assert (await asking.ask(f"{base}/x", ("x-api-key", instead))).status == 200
            monkeypatch.setattr(bounds, "_context", ssl.create_default_context)
        async with agent() as asking:
            base = path(asking.wiring.address(f"https://localhost:{port}", KEY))
            answered = await asking.ask(f"{base}/x")
            assert answered.status == 502
            assert b"certificate" in answered.body.lower()
        nursery.cancel_scope.cancel()
    assert [each.headers.get("x-api-key") for each in server.asked] == [KEY]


def _certificate(directory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The context of a server called localhost, and one that trusts it."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = directory / "localhost.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.load_verify_locations(cadata=made.public_bytes(serialization.Encoding.PEM).decode())
    return context, trusted


# -- through the proxy of the machine's network ------------------------------------------------------------


@asynccontextmanager
async def network_proxy(
    hosts: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[WayOut, list[str]]]:
    """A proxy that alone can look up names. The way out, and the names that are looked up."""
    monkeypatch.setattr(bounds, "_own", lambda _: False)
    monkeypatch.setattr(bounds, "inner", lambda address: str(address) == "10.0.0.1")
    asked = resolving(monkeypatch, "127.0.0.1")
    async with agent(hosts) as far, trio.open_nursery() as nursery:

        async def serve(stream: trio.SocketStream) -> None:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError):
                await Exchange(stream).serve(far.proxies.other)

        [listener] = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), serve, 0)
        port = listener.socket.getsockname()[1]
        yield WayOut(f"http://user:p%40ss@127.0.0.1:{port}", ("direct.example",)), asked
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("method", ["GET", "CONNECT"])
async def test_other_hosts_are_reached_through_a_proxy(
    method: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"far.example:{server.port}"
    async with (
        network_proxy(f"*.example:{server.port}", monkeypatch) as (way_out, asked),
        agent(f"*.example:{server.port},*:{server.port}", way_out) as asking,
    ):
        if method == "GET":
            assert (await asking.ask(f"http://{name}/x", api=False)).status == 200
        else:
            stream = asking.connect(api=False)
            await stream.send_all(f"CONNECT {name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert b"200 Connected" in await stream.receive_some()
            await stream.send_all(f"GET /x HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
            assert b"200" in await stream.receive_some()
        assert asked == ["far.example"]  # by the proxy alone
        target = f"10.0.0.1:{server.port}"
        answered = await asking.ask(
            target if method == "CONNECT" else f"http://{target}/", api=False, method=method
        )
        assert answered.status == 403
        # What the proxy refuses is said.
        target = f"far.other:{server.port}"
        answered = await asking.ask(
            target if method == "CONNECT" else f"http://{target}/", api=False, method=method
        )
        assert answered.status == (502 if method == "CONNECT" else 403)
    assert server.asked[0].headers["host"] == name
    assert "proxy-authorization" not in server.asked[0].headers


async def test_an_api_is_reached_through_a_proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        network_proxy(f"*.example:{server.port}", monkeypatch) as (way_out, asked),
        agent("", way_out) as asking,
    ):
        base = path(asking.wiring.address(f"http://far.example:{server.port}", KEY))
        near = path(asking.wiring.address(server.url))
        [instead] = asking.wiring.upstreams[0].keys
        assert (await asking.ask(f"{base}/x", ("x-api-key", instead))).status == 200
        assert asked == ["far.example"]
        assert (await asking.ask(f"{near}/y")).status == 200
    assert [each.headers.get("x-api-key") for each in server.asked] == [KEY, None]
    assert server.asked[1].headers["host"] == f"127.0.0.1:{server.port}"


# -- to other hosts --------------------------------------------------------------------------------------


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Have every name have these addresses. Return the names that are looked up."""
    asked: list[str] = []

    real = socket.getaddrinfo

    def look_up(host: str, port: int, *args: int, **_: object) -> list[object]:
        if host[:1].isdigit():
            return real(host, port, *args)  # of a connection to an address
        asked.append(host)
        return [
            (socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
            for each in addresses
        ]

    monkeypatch.setattr(bounds.socket, "getaddrinfo", look_up)
    return asked


@pytest.mark.parametrize("method", ["CONNECT", "GET"])
async def test_a_host_that_is_not_allowed_is_refused_and_reported(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = resolving(monkeypatch, PUBLIC)
    port = 443 if method == "CONNECT" else 80
    target = "evil.example:443" if method == "CONNECT" else "http://evil.example/x?secret"
    async with agent() as asking:
        answered = await asking.ask(target, api=False, method=method)
        assert answered.status == 403
        assert answered.reason == "Forbidden by OSTLER_AGENT_HOSTS"
        assert answered.body.decode() == (
            f"Ostler does not let this agent reach evil.example:{port}: it is not among the hosts that this "
            "agent may reach; add it to OSTLER_AGENT_HOSTS.\n"
        )
        [(host, reported, why)] = asking.refused
        assert (host, reported) == ("evil.example", port)
        assert why in answered.body.decode()
    assert looked_up == []


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "::ffff:127.0.0.1", "fe80::1%lo", "0.0.0.0"],
)
@pytest.mark.parametrize("target", ["pypi.org:443", "http://pypi.org/"])
async def test_a_name_for_an_inner_address_is_no_way_in(
    address: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, address)
    async with agent() as asking:
        method = "GET" if "/" in target else "CONNECT"
        answered = await asking.ask(target, api=False, method=method)
        assert answered.status == 403
        assert b"not of the public internet; name it with its port" in answered.body
        assert len(asking.refused) == 1


async def test_an_address_of_this_machine_is_no_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    # A public one would be that of a network card.
    monkeypatch.setattr(bounds, "inner", lambda _: False)
    resolving(monkeypatch, "127.0.0.1")
    async with agent() as asking:
        assert (await asking.ask("pypi.org:443", api=False, method="CONNECT")).status == 403


@pytest.mark.parametrize("method", ["GET", "CONNECT"])
async def test_the_connection_goes_to_the_address_that_was_looked_at(
    method: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second look-up could have another answer (DNS rebinding)."""
    monkeypatch.setattr(bounds, "_own", lambda _: False)
    monkeypatch.setattr(bounds, "inner", lambda address: str(address) == "127.0.0.9")
    asked = resolving(monkeypatch, "127.0.0.9", "127.0.0.1")
    name = f"rebinding.example:{server.port}"
    async with agent(f"*.example:{server.port}") as asking:
        if method == "GET":
            assert (await asking.ask(f"http://{name}/x", api=False)).status == 200
        else:
            stream = asking.connect(api=False)
            await stream.send_all(f"CONNECT {name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert b"200 Connected" in await stream.receive_some()
            await stream.send_all(f"GET /x HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
            assert b"200" in await stream.receive_some()
    assert asked == ["rebinding.example"]
    assert server.asked[0].headers["host"] == name


async def test_a_host_that_the_operator_names_with_its_port_may_be_inside(server: Server) -> None:
    async with agent(f"localhost:{server.port}") as asking:
        answered = await asking.ask(
            f"http://localhost:{server.port}/x?y=1",
            ("Proxy-Authorization", "Basic x"),
            ("x-api-key", "as it is"),
            api=False,
            method="POST",
            body=b"12345",
        )
        assert (answered.status, answered.body) == (200, b"good")
        [asked] = server.asked
        assert (asked.target, asked.size) == ("/x?y=1", 5)
        assert asked.headers["host"] == f"localhost:{server.port}"
        assert asked.headers["x-api-key"] == "as it is"
        assert "proxy-authorization" not in asked.headers
        assert (await asking.ask(f"http://127.0.0.1:{server.port}/", api=False)).status == 403


async def test_a_placeholder_stays_one_for_other_hosts(server: Server) -> None:
    async with agent(f"localhost:{server.port}") as asking:
        asking.wiring.address(server.url, KEY)
        [instead] = asking.wiring.upstreams[0].keys
        await asking.ask(f"http://localhost:{server.port}/", ("x-api-key", instead), api=False)
    assert server.asked[0].headers["x-api-key"] == instead


async def test_a_tunnel(server: Server) -> None:
    async with agent(f"localhost:{server.port}") as asking:
        stream = asking.connect(api=False)
        # The first bytes of the tunnel come with the request.
        await stream.send_all(
            b"CONNECT localhost:%d HTTP/1.1\r\nHost: x\r\n\r\n" % server.port
            + b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
        )
        said = b""
        while not said.endswith(b"good"):
            said += await stream.receive_some()
        assert said.startswith(b"HTTP/1.1 200 Connected\r\n\r\nHTTP/1.1 200")
        await stream.aclose()
    assert server.asked[0].target == "/a"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_client_may_ask_the_proxy_for_the_door_to_its_apis(host: str, server: Server) -> None:
    """Some send everything through a proxy, whatever NO_PROXY says."""
    async with agent() as asking:
        base = path(asking.wiring.address(server.url, KEY))
        [instead] = asking.wiring.upstreams[0].keys
        answered = await asking.ask(f"http://{host}:6801{base}/x", ("x-api-key", instead), api=False)
        assert answered.status == 200
        stream = asking.connect(api=False)
        request = b"GET %s/y HTTP/1.1\r\nHost: a\r\nx-api-key: %s\r\n\r\n" % (base.encode(), instead.encode())
        await stream.send_all(b"CONNECT %s:6801 HTTP/1.1\r\nHost: a\r\n\r\n" % host.encode() + request)
        said = b""
        for count in (1, 2):
            while said.count(b"good") < count:
                said += await stream.receive_some()
            await stream.send_all(request)
        await stream.aclose()
        assert (await asking.ask(f"http://{host}:6802/", api=False)).status == 403
    assert [each.target for each in server.asked][:3] == ["/x", "/y", "/y"]
    assert {each.headers["x-api-key"] for each in server.asked} == {KEY}


async def test_a_silent_tunnel_is_closed(autojump_clock: MockClock) -> None:
    agent_end, door_end = memory_stream_pair()
    host_end, other_end = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        ended = trio.Event()

        async def run() -> None:
            await bounds._tunnel(door_end, other_end, b"")
            ended.set()

        nursery.start_soon(run)
        for sending, reading in ((agent_end, host_end), (host_end, agent_end)):
            await trio.sleep(bounds.TUNNEL_SECONDS - 1)
            await sending.send_all(b"x")
            assert await reading.receive_some() == b"x"
        began = trio.current_time()
        await ended.wait()
        assert trio.current_time() - began == pytest.approx(bounds.TUNNEL_SECONDS)


async def test_an_end_of_one_direction_leaves_the_other(autojump_clock: MockClock) -> None:
    agent_end, door_end = memory_stream_pair()
    host_end, other_end = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bounds._tunnel, door_end, other_end, b"")
        await agent_end.send_all(b"request")
        await agent_end.send_eof()
        assert await host_end.receive_some() == b"request"
        assert await host_end.receive_some() == b""
        await host_end.send_all(b"answer")
        await host_end.send_eof()
        assert await agent_end.receive_some() == b"answer"
        assert await agent_end.receive_some() == b""


@pytest.mark.parametrize(
    ("target", "method"),
    [
        ("/", "GET"),
        ("*", "OPTIONS"),
        ("https://pypi.org/", "GET"),
        ("pypi.org", "CONNECT"),
        ("http:///x", "GET"),
        ("http://[::1/", "GET"),
    ],
)
async def test_what_a_proxy_does_not_take(target: str, method: str) -> None:
    async with agent() as asking:
        assert (await asking.ask(target, api=False, method=method)).status == 400
        assert asking.refused == []


async def test_a_name_that_is_not_found_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(bounds.socket, "getaddrinfo", look_up)
    async with agent() as asking:
        answered = await asking.ask("pypi.org:443", api=False, method="CONNECT")
    assert (answered.status, answered.body) == (502, b"pypi.org is not found: Name or service not known.\n")


async def test_reports_are_few(autojump_clock: MockClock) -> None:
    async with agent() as asking:
        for number in range(bounds.REFUSALS_MOST + 5):
            for _ in range(3):
                await asking.ask(f"host{number}.example:443", api=False, method="CONNECT")
        assert len(asking.refused) == bounds.REFUSALS_MOST
        assert len(set(asking.refused)) == bounds.REFUSALS_MOST
        await trio.sleep(bounds.REFUSAL_SECONDS)
        await asking.ask("host0.example:443", api=False, method="CONNECT")
        assert len(asking.refused) == bounds.REFUSALS_MOST + 1
    json.dumps(asking.refused)
