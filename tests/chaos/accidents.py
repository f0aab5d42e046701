"""Accidents from outside that need some doing: rude connections, a journal that somebody else holds, a full
disk, a lease on a file. Each is bounded in time and undoes what it did."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import trio

from tests.support.impolite import SENT
from tests.support.lease import HOLDER
from tests.support.processes import alive, command_line, descendants, half_closed

_GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
_POST = b"POST /api/conversations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200\r\n\r\n{}"
_UPGRADE = (
    b"GET /sockets/events/01a1fd5c-83bf-7d90-b8a7-f8d042d32f4b HTTP/1.1\r\nHost: localhost\r\n"
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
RUDE_WORDS = (
    b"",
    _GET[:9],
    _GET * 3,
    _GET * 100,
    _GET + b"more than a request",
    _POST,
    _POST.replace(b"200", b"2") + _GET,
    _UPGRADE,
    _UPGRADE + _GET,
    _HTTP2,
    _HTTP2 + b"\xff" * 64,
    b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    *SENT.values(),
)
"""What a rude client sends before it goes without having read anything."""

RUDE_CONNECTIONS = 24  # of one burst
FORGOTTEN_S = 10.0  # a connection whose client has gone is closed by the server


async def rude_connections(address: str, chance: random.Random) -> list[str]:
    """A burst of clients who go without a word or with a reset; what the server still holds of them."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    ours: set[int] = set()
    for _ in range(RUDE_CONNECTIONS):
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1) as client:
            ours.add(client.getsockname()[1])
            client.sendall(chance.choice(RUDE_WORDS))
            if chance.random() < 0.5:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until = time.monotonic() + FORGOTTEN_S
    while (held := half_closed(int(port)) & ours) and time.monotonic() < until:
        await trio.sleep(0.05)
    return [f"the server holds {len(held)} connections whose clients have gone"] if held else []


async def hold_journal(path: Path, seconds: float) -> None:
    """Be another program that writes to the journal's database for so long: a backup, a shell."""
    connection = sqlite3.connect(path, timeout=0.05, isolation_level=None)
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:  # the server is writing
                await trio.sleep(0.005)
            else:
                break
        await trio.sleep(max(0.0, until - time.monotonic()))
    finally:
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("ROLLBACK")
        connection.close()


async def full_disk(pid: Callable[[], int | None], seconds: float) -> None:
    """For so long the server can make no file longer, as on a full disk."""
    found = pid()
    if found is None:
        return
    try:
        before = resource.prlimit(found, resource.RLIMIT_FSIZE, (os.sysconf("SC_PAGE_SIZE"), -1))
    except (ProcessLookupError, PermissionError):
        return
    try:
        await trio.sleep(seconds)
    finally:
        if alive(found):
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(found, resource.RLIMIT_FSIZE, before)


async def lease(path: Path, seconds: float) -> None:
    """For so long nobody can open the file who would wait for it: a process of the same user has a lease."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-I", "-S", "-c", HOLDER, str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        await trio.sleep(seconds)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


def spawners(server: int) -> list[int]:
    """The processes below the server that start others."""
    return [found.pid for found in descendants(server) if "/spawner.py " in command_line(found.pid)]
