"""Servers that answer without end, tried by a helper that is a process: refused soon, in little memory."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from supervisor.agents.containment import tree
from supervisor.conversations.mcp.helper import ask_helper
from supervisor.mcp.answers import MB, MOST_BYTES, Answers

WAIT_S = 90.0

SECONDS = 60.0
"""For the server; a helper that waited for it would need all of them."""

ROOM = 64 * MB
"""What a helper may take besides its imports and what it was answered: the SDK copies that a few times."""

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n%sTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%s\r\n"


@asynccontextmanager
async def pouring(kind: bytes, data: bytes, more: bytes = b"") -> AsyncIterator[str]:
    """An HTTP server that answers whatever it is asked with `data`, again and again."""

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                await stream.receive_some(65536)
                await stream.send_all(HEAD % (kind, more))
                while True:
                    await stream.send_all(CHUNK % (len(data), data))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(partial(trio.serve_listeners, answer, listeners))
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/mcp"
        nursery.cancel_scope.cancel()


async def asked(tmp_path: Path, **request: Any) -> tuple[dict[str, Any], int]:
    """The helper's answer, and the most memory that one of its processes has had, in bytes."""
    most = 0

    def look() -> None:
        nonlocal most
        for pid in tree.descendants([os.getpid()], tree.process_table()):
            found = re.search(rb"VmHWM:\s+(\d+)", tree.read_file(pid, "status"))
            if b"supervisor.mcp.helper" in tree.read_file(pid, "cmdline") and found is not None:
                most = max(most, int(found[1]) * 1024)

    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            while True:
                await trio.to_thread.run_sync(look)
                await trio.sleep(0.05)

        nursery.start_soon(watch)
        with trio.fail_after(WAIT_S):
            answer = await ask_helper(request, environment=os.environ, cwd=tmp_path, seconds=SECONDS)
        nursery.cancel_scope.cancel()
    return answer, most


@pytest.fixture(scope="module")
def imports() -> int:
    """Bytes that a helper has with nothing but its imports: a command that ends at once."""
    (_, most) = trio.run(partial(asked, Path("/tmp"), op="test", server={"command": "true"}))
    assert most > 10 * MB
    return most


def code(text: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", "-S", "-c", f"import os\nwhile True: os.write({text})"]}


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("1, b'x' * 65536", id="a line"),
        pytest.param("1, b'no message\\n' * 5000", id="lines"),
        pytest.param('1, b\'{"jsonrpc": "2.0", "method": "notifications/x"}\\n\' * 1000', id="messages"),
    ],
)
async def test_a_command_that_writes_without_end(tmp_path: Path, imports: int, text: str) -> None:
    answer, most = await asked(tmp_path, op="test", server=code(text))
    assert (answer["ok"], answer["error_kind"]) == (False, "unknown"), answer
    assert "answered with more than 16 MB, which is the limit. Run the command by hand." in answer["error"]
    assert most < imports + 3 * MOST_BYTES + ROOM


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_standard_error_without_end_takes_no_room(tmp_path: Path, imports: int) -> None:
    """It is read for as long as the trial takes, and its end is told."""
    script = "yes flood | head -n 8000000 >&2; echo the end >&2; exit 3"
    answer, most = await asked(tmp_path, op="test", server={"command": "sh", "args": ["-c", script]})
    assert answer["ok"] is False
    assert "flood | the end" in answer["error"]
    assert most < imports + ROOM


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
@pytest.mark.parametrize(
    ("transport", "kind", "data"),
    [
        ("http", b"application/json", b" " * 65536),
        ("http", b"text/event-stream", b"data: " + b"x" * 65530),
        ("http", b"text/event-stream", b": ping\n\n" * 8000),
        ("sse", b"text/event-stream", b"event: x\ndata: y\n\n" * 4000),
    ],
)
async def test_a_url_that_answers_without_end(
    tmp_path: Path, imports: int, transport: str, kind: bytes, data: bytes
) -> None:
    async with pouring(kind, data) as url:
        answer, most = await asked(tmp_path, op="test", server={"url": url, "transport": transport})
    assert answer["ok"] is False
    assert most < imports + 3 * MOST_BYTES + ROOM


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_what_is_compressed_is_refused(tmp_path: Path) -> None:
    """A few bytes can be any number of them."""
    async with pouring(b"application/json", b"x", b"Content-Encoding: gzip\r\n") as url:
        answer, _ = await asked(tmp_path, op="test", server={"url": url, "transport": "http"})
    assert "compressed answer, which was not asked for" in answer["error"]


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
@pytest.mark.parametrize("op", ["refresh", "revoke"])
async def test_an_authorization_server_that_answers_without_end(
    tmp_path: Path, imports: int, op: str
) -> None:
    async with pouring(b"application/json", b" " * 65536) as url:
        origin = url.removesuffix("/mcp")
        state = {
            "client_info": {"client_id": "x", "redirect_uris": ["http://127.0.0.1/"]},
            "tokens": {"access_token": "a", "refresh_token": "r", "token_type": "Bearer"},
            "metadata": {
                "issuer": origin,
                "authorization_endpoint": f"{origin}/a",
                "token_endpoint": f"{origin}/t",
                "revocation_endpoint": f"{origin}/r",
                "response_types_supported": ["code"],
            },
        }
        answer, most = await asked(tmp_path, op=op, server={"url": url}, state=state)
    assert answer["ok"] is False
    assert "answered with more than 16 MB" in answer["error"]
    assert most < imports + 3 * MOST_BYTES + ROOM


def test_one_allowance_for_all_answers() -> None:
    answers = Answers(10 * MB)
    assert answers.take(6 * MB)
    assert not answers.over.is_set()
    assert not answers.take(5 * MB)
    assert answers.over.is_set()
    assert "more than 10 MB" in answers.why
