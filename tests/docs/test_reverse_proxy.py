"""The configurations of docs/reverse-proxy.md with a real nginx and Caddy, where these are installed."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from trio_websocket import WebSocketConnection

from tests.support.examples import EXAMPLES, talking
from tests.support.server import ServerProcess, running_server, shared_server
from tests.support.sockets import wrap_client_stream

KEY = "a-key-behind-a-proxy"
HEADERS = [("X-Session-API-Key", KEY)]
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
WAIT_S = 30.0
NAME = "ostler.example"

Changes = tuple[tuple[str, str], ...]

CONFIGURATIONS = {
    "nginx": ["nginx.conf", ""],
    "nginx-subpath": ["nginx-subpath.conf", "/ostler"],
    "caddy": ["Caddyfile", ""],
}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def certificate(directory: Path) -> None:
    """A certificate of its own for the name and for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName(NAME), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (directory / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (directory / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    """What a user would change, too. Each of the texts must be there."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def nginx(
    directory: Path, file: str, port: int, upstream: str, change: tuple[tuple[str, str], ...]
) -> list[str]:
    text = (EXAMPLES / "nginx.conf").read_text()
    if file != "nginx.conf":
        text = re.sub(
            r"    location / \{.*?\n    \}\n", lambda _: (EXAMPLES / file).read_text(), text, flags=re.S
        )
    text = replaced(
        text,
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("/etc/ssl/ostler.example.pem", str(directory / "cert.pem")),
        ("/etc/ssl/ostler.example.key", str(directory / "key.pem")),
        ("/var/log/nginx/ostler.log", str(directory / "access.log")),
        ("127.0.0.1:8000", upstream),
        *change,
    )
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {directory}/{kind};\n" for kind in kinds)
    user = "user root;\n" if os.geteuid() == 0 else ""  # whose directories these are
    main = directory / "main.conf"
    main.write_text(
        f"{user}daemon off;\npid {directory}/nginx.pid;\nerror_log {directory}/error.log;\n"
        f"events {{}}\nhttp {{\n{places}{text}}}\n"
    )
    return [str(shutil.which("nginx")), "-e", f"{directory}/error.log", "-c", str(main)]


def caddy(
    directory: Path, file: str, port: int, upstream: str, change: tuple[tuple[str, str], ...]
) -> list[str]:
    text = replaced(
        (EXAMPLES / file).read_text(),
        ("ostler.example {", f"https://127.0.0.1:{port} {{\n\ttls {directory}/cert.pem {directory}/key.pem"),
        ("127.0.0.1:8000", upstream),
        *change,
    )
    main = directory / "Caddyfile"
    main.write_text(f"{{\n\tadmin off\n\tauto_https off\n}}\n{text}")
    return [str(shutil.which("caddy")), "run", "--config", str(main), "--adapter", "caddyfile"]


PROGRAMS: dict[str, Callable[..., list[str]]] = {"nginx": nginx, "caddy": caddy}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One with a key, behind all of them."""
    with shared_server(tmp_path_factory.mktemp("proxied"), {"OSTLER_SESSION_API_KEY": KEY}) as server:
        yield server


@asynccontextmanager
async def proxied(
    kind: str, directory: Path, server: ServerProcess, *change: tuple[str, str]
) -> AsyncIterator[str]:
    """A proxy before the server: its URL."""
    program = kind.partition("-")[0]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    place = directory / "proxy"
    place.mkdir()
    certificate(place)
    file, path = CONFIGURATIONS[kind]
    port = free_port()
    command = PROGRAMS[program](place, file, port, urlsplit(server.url).netloc, change)
    environment = {"PATH": os.environ["PATH"], "HOME": str(place), "XDG_DATA_HOME": str(place)}
    with (place / "output").open("wb") as output:
        process = subprocess.Popen(command, env=environment, cwd=place, stdout=output, stderr=output)
    try:
        with trio.fail_after(WAIT_S):
            while True:
                assert process.poll() is None, (place / "output").read_text()
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                except OSError:
                    await trio.sleep(0.05)
                else:
                    break
        yield f"https://127.0.0.1:{port}{path}"
    finally:
        process.terminate()
        await trio.to_thread.run_sync(process.wait)


def trust(directory: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(directory / "proxy" / "cert.pem"))


def trusting(directory: Path) -> dict[str, str]:
    file = str(directory / "proxy" / "cert.pem")
    return {"SSL_CERT_FILE": file, "NODE_EXTRA_CA_CERTS": file}


async def begin(client: httpx2.AsyncClient, url: str, directory: Path, text: str) -> str:
    body = {
        "workspace": {"working_dir": str(directory / "workspace")},
        "initial_message": {"content": [{"type": "text", "text": text}]},
    }
    answer = await client.post(f"{url}/api/conversations", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def session_of(url: str, identifier: str) -> str:
    return f"{url.replace('http', 'ws', 1)}/sockets/session/{identifier}?after_seq=-1"


@asynccontextmanager
async def web_socket(
    address: str, context: ssl.SSLContext, headers: list[tuple[str, str]] | None = None
) -> AsyncIterator[WebSocketConnection]:
    """A WebSocket over TLS. (That of trio_websocket leaves descriptors of TLS streams to the collector.)"""
    parts = urlsplit(address)
    host, port = str(parts.hostname), int(parts.port or 0)
    async with await trio.open_tcp_stream(host, port) as tcp, trio.open_nursery() as nursery:
        stream = trio.SSLStream(tcp, context, server_hostname=host, https_compatible=True)
        socket = await wrap_client_stream(
            nursery, stream, parts.netloc, f"{parts.path}?{parts.query}", extra_headers=headers or ()
        )
        yield socket
        nursery.cancel_scope.cancel()


async def until(socket: WebSocketConnection, words: str) -> None:
    with trio.fail_after(WAIT_S):
        while words not in await socket.get_message():
            pass


@pytest.mark.guarantee(name="nothing-is-lost")
@pytest.mark.parametrize("name", ["client.py", "client.mjs"])
@pytest.mark.parametrize("kind", CONFIGURATIONS)
async def test_the_clients_work_through_it(
    tmp_path: Path, server: ServerProcess, kind: str, name: str
) -> None:
    async with proxied(kind, tmp_path, server) as url:
        async with talking(name, url, "Please write a file.", tmp_path, KEY, trusting(tmp_path)) as talk:
            pass
        assert talk.process.returncode == 0, talk.told
        assert talk.numbers == list(range(len(talk.numbers)))
        assert "I wrote hello-from-ostler.txt" in talk.said
        assert "trying again" not in talk.told


@pytest.mark.parametrize("kind", CONFIGURATIONS)
async def test_requests_keys_and_interrupts_pass(tmp_path: Path, server: ServerProcess, kind: str) -> None:
    async with proxied(kind, tmp_path, server) as url:
        context = trust(tmp_path)
        speaking = {"verify": context, "headers": dict(HEADERS), "timeout": WAIT_S}
        async with httpx2.AsyncClient(http2=True, **speaking) as client:
            answer = await client.get(f"{url}/api/conversations/count")
            assert (answer.status_code, answer.http_version) == (200, "HTTP/2")
            refused = await client.get(f"{url}/api/conversations/count", headers={"X-Session-API-Key": "no"})
            assert (refused.status_code, refused.json()) == (401, {"detail": "Unauthorized"})
            # Larger than nginx takes by itself.
            identifier = await begin(client, url, tmp_path, "Be slow, please. " + "x" * 2_000_000)
            address = session_of(url, identifier)
            async with httpx2.AsyncClient(**speaking) as one:
                handshake = await one.get(
                    address.replace("wss", "https"), headers={"X-Session-API-Key": "no", **UPGRADE}
                )
            assert handshake.status_code == 403
            async with web_socket(address, context) as socket:
                await socket.send_message(json.dumps({"type": "auth", "session_api_key": KEY}))
                await until(socket, '"type":"delta"')
                interrupted = await client.post(f"{url}/api/conversations/{identifier}/interrupt")
                assert interrupted.json() == {"success": True}
                await until(socket, '"value":"paused"')
            environment = {**os.environ, **trusting(tmp_path), "OSTLER_API_KEY": KEY, "HOME": str(tmp_path)}
            command = [sys.executable, "-m", "gateway", "conversations", "show", identifier, "--url", url]
            shown = await trio.run_process(command, env=environment, capture_stdout=True)
            assert identifier in shown.stdout.decode()
            # What the client closes, the proxy closes.
            headers = {"X-Session-API-Key": KEY}
            async with httpx2.AsyncClient() as direct:
                with trio.fail_after(WAIT_S):
                    while (
                        "ostler_sockets 0"
                        not in (await direct.get(f"{server.url}/metrics", headers=headers)).text
                    ):
                        await trio.sleep(0.05)
        log = tmp_path / "proxy" / "access.log"
        if log.exists():
            assert "after_seq" not in log.read_text()


async def test_pings_keep_an_idle_socket_open(tmp_path: Path) -> None:
    """With a time-out of the proxy's that is shorter than the silence, and longer than between two pings."""
    change = ("proxy_read_timeout 600s", "proxy_read_timeout 2s")
    variables = {"OSTLER_SESSION_API_KEY": KEY, "OSTLER_PING_SECONDS": "0.5"}
    async with (
        running_server(tmp_path, variables) as server,
        proxied("nginx", tmp_path, server, change) as url,
    ):
        context = trust(tmp_path)
        async with httpx2.AsyncClient(verify=context, headers=dict(HEADERS), timeout=WAIT_S) as client:
            identifier = await begin(client, url, tmp_path, "Hello!")
            async with web_socket(session_of(url, identifier), context, HEADERS) as socket:
                await until(socket, '"value":"finished"')
                await trio.sleep(3)
                body = {"content": [{"type": "text", "text": "Once more."}], "run": True}
                await client.post(f"{url}/api/conversations/{identifier}/events", json=body)
                await until(socket, '"value":"finished"')


def test_the_page_leads_to_what_is_tested_and_shows_no_other() -> None:
    page = (EXAMPLES.parent / "reverse-proxy.md").read_text()
    assert re.findall(r"\]\(examples/([^)]+)\)", page) == [file for file, _ in CONFIGURATIONS.values()]
    assert "```" not in page
