"""The clients of docs/clients.md talk to a real server, lose connections and the server, and miss nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from supervisor.agents.containment.containment import PID_FILE
from tests.support.examples import talking
from tests.support.server import ServerProcess, running_server, shared_server

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
KEY = "a-key-for-the-examples"
WAIT_S = 50.0
CUT_S = 0.05
CUTS = 3

NAMES = ("client.py", "client.mjs")
CLIENTS = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One with a key."""
    with shared_server(tmp_path_factory.mktemp("served"), {"OSTLER_SESSION_API_KEY": KEY}) as server:
        yield server


@asynccontextmanager
async def cutting_proxy(url: str) -> AsyncIterator[tuple[str, list[str]]]:
    """A way to the server on which the first WebSockets break soon after they have begun."""
    port = int(url.rpartition(":")[2])
    cut: list[str] = []

    async def serve(client: trio.SocketStream) -> None:
        upstream = await trio.open_tcp_stream("127.0.0.1", port)
        async with upstream as server, client, trio.open_nursery() as nursery:

            async def pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    async for piece in source:
                        await sink.send_all(piece)
                        # Also on a connection that has served requests before.
                        if source is client and b" /sockets/" in piece and len(cut) < CUTS:
                            cut.append(piece.split(b" ")[1].decode())
                            nursery.start_soon(end, nursery)
                nursery.cancel_scope.cancel()

            nursery.start_soon(pump, client, server)
            nursery.start_soon(pump, server, client)

    async def end(nursery: trio.Nursery) -> None:
        await trio.sleep(CUT_S)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}", cut
        nursery.cancel_scope.cancel()


@pytest.mark.guarantee(name="nothing-is-lost")
@CLIENTS
async def test_a_client_follows_a_conversation_over_lost_connections(
    tmp_path: Path, server: ServerProcess, name: str
) -> None:
    async with cutting_proxy(server.url) as (url, cut):
        async with talking(name, url, "Please write a file.", tmp_path, KEY) as talk:
            pass
        assert talk.process.returncode == 0, talk.told
        # Nothing is missing, nothing comes twice, and what it asked for was allowed, once.
        assert talk.numbers == list(range(len(talk.numbers)))
        assert "I wrote hello-from-ostler.txt" in talk.said
        assert (tmp_path / "hello-from-ostler.txt").exists()
        assert len(cut) >= 2
        assert "trying again" in talk.told
        assert all("after_seq=" in path for path in cut)


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_clients_go_on_after_the_server_was_killed(tmp_path: Path) -> None:
    async with running_server(tmp_path, {"OSTLER_SESSION_API_KEY": KEY}) as server, AsyncExitStack() as stack:
        talks = [
            await stack.enter_async_context(talking(name, server.url, "Be slow, please.", tmp_path, KEY))
            for name in NAMES
        ]
        for talk in talks:
            await talk.until("ActionEvent")
        os.kill(int((server.state / PID_FILE).read_text()), signal.SIGKILL)
        await stack.aclose()
        for talk in talks:
            assert talk.process.returncode == 1, talk.told
            assert "trying again" in talk.told
            assert "ConversationErrorEvent" in talk.told
            assert talk.numbers == list(range(len(talk.numbers)))


@CLIENTS
async def test_a_client_is_told_of_a_wrong_key(tmp_path: Path, server: ServerProcess, name: str) -> None:
    async with talking(name, server.url, "Hello!", tmp_path, key="wrong") as talk:
        pass
    assert talk.process.returncode == 1
    assert "401" in talk.told


async def test_an_open_server_needs_no_key(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server:
        for name in NAMES:
            async with talking(name, server.url, "Hello!", tmp_path, key="") as talk:
                pass
            assert talk.process.returncode == 0, talk.told


def test_the_first_client_of_the_readme_prints_the_answer(tmp_path: Path) -> None:
    page = (EXAMPLES.parents[1] / "README.md").read_text()
    [program] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    with shared_server(tmp_path / "served") as server:
        assert program.count("http://127.0.0.1:8000") == 1
        done = subprocess.run(
            [sys.executable, "-c", program.replace("http://127.0.0.1:8000", server.url)],
            cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "Hello! Who are you?" in done.stdout
