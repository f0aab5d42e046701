"""The control socket: operators get in by it whatever becomes of the address."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from contextlib import suppress

import pytest
import trio

from gateway.cli.client import Server
from gateway.serving.control import ADDRESS_BYTES, ControlSocket, connect
from tests.support.processes import alive
from tests.support.server import running_server


async def ostler(server, *arguments, url=False, status=0, **environment):
    """What a command prints; it finds the server by the state directory, or by its address."""
    found = {"OSTLER_URL": server.url} if url else {"OSTLER_STATE": str(server.state), "OSTLER_PORT": "1"}
    env = {"PATH": os.environ["PATH"], "HOME": str(server.home), **found, **environment}
    command = [sys.executable, "-m", "gateway", *arguments]
    with trio.fail_after(60):
        done = await trio.run_process(command, env=env, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == status, done.stderr.decode()
    return done.stdout.decode() if status == 0 else done.stderr.decode()


@pytest.mark.guarantee(name="malicious-agents")
async def test_an_operator_needs_no_address(tmp_path):
    async with running_server(tmp_path, {"OSTLER_SESSION_API_KEY": "k"}) as server:
        path = server.state / "control.sock"
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert stat.S_IMODE(server.state.stat().st_mode) == 0o700
        shown = await ostler(server, "status", OSTLER_API_KEY="k")
        assert f"unix:{path}" in shown
        assert "descriptors:" in shown
        # An agent can reach the file, too: it is no way around the key.
        assert "requires a key" in await ostler(server, "ps", status=1)
        assert "does not know this key" in await ostler(server, "ps", status=1, OSTLER_API_KEY="wrong")
    assert not path.exists()


async def test_a_killed_server_leaves_a_file_that_the_next_one_replaces(tmp_path):
    async with running_server(tmp_path) as server:
        first = int((server.state / "server.pid").read_text())
        os.kill(first, signal.SIGKILL)
        with trio.fail_after(30):
            while alive(first):
                await trio.sleep(0.02)
            # Until then the address is asked, where who connects waits for the next server.
            while "unix:" not in await ostler(server, "status", OSTLER_PORT=server.url.rpartition(":")[2]):
                await trio.sleep(0.02)
        status = json.loads(await ostler(server, "status", "--json"))
        assert alive(status["pid"])
        assert status["pid"] != first


async def test_servers_of_two_directories_have_a_socket_each_however_long_its_path_is(tmp_path):
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    async with running_server(tmp_path / "a") as one, running_server(deep) as other:
        for server in (one, other):
            assert json.loads(await ostler(server, "status", "--json"))["state"] == str(server.state)
        assert len(str(other.state)) > ADDRESS_BYTES
        assert "unix:" in await ostler(other, "status")
        assert "control socket" not in other.output.read_text()


async def test_what_is_no_socket_is_left_alone_and_the_server_goes_on(tmp_path):
    (tmp_path / "state").mkdir(mode=0o700)
    path = tmp_path / "state" / "control.sock"
    path.write_text("mine")
    async with running_server(tmp_path) as server:
        assert server.output.read_text().count("control socket unavailable") == 1
        assert "ready" in await ostler(server, "status", url=True)
    assert path.read_text() == "mine"


def test_the_file_of_another_server_is_not_removed(tmp_path):
    first = ControlSocket(tmp_path)
    second = ControlSocket(tmp_path)
    first.close()
    assert second.path.is_socket()
    connect(second.path, 5).close()
    second.close()
    assert not second.path.exists()


@pytest.mark.parametrize(
    ("env", "by_socket"),
    [
        ({"OSTLER_STATE": "{}"}, True),
        ({"OSTLER_STATE": "{}", "OSTLER_PORT": "81"}, True),
        ({"OSTLER_STATE": "{}", "OSTLER_PORT": "0"}, True),
        ({"OSTLER_STATE": "{}", "OSTLER_URL": "http://h"}, False),
        ({"HOME": "{}"}, True),
        ({"HOME": "{}", "OSTLER_PORT": "81"}, False),
        ({"OSTLER_STATE": "/nowhere"}, False),
    ],
)
def test_which_socket(tmp_path, monkeypatch, env, by_socket):
    state = tmp_path / ".ostler" if "HOME" in env else tmp_path
    state.mkdir(exist_ok=True)
    env = {name: value.format(tmp_path) for name, value in env.items()}
    if "HOME" in env:
        monkeypatch.setenv("HOME", env["HOME"])
    opened = ControlSocket(state)
    try:
        server = Server.of(None, env)
        assert (server.socket_path is not None) == by_socket
        if by_socket:
            sock, host = server.connect()
            sock.close()
            assert (sock.family, host) == (socket.AF_UNIX, "localhost")
        assert Server.of("http://h", env).socket_path is None
    finally:
        opened.close()


async def test_without_a_server_at_the_socket_the_address_is_asked(server, tmp_path, monkeypatch):
    left = tmp_path / "left"
    left.mkdir()
    killed = ControlSocket(left)
    killed.socket.close()
    _, port = server.url.removeprefix("http://").split(":")
    found = Server.of(None, {"OSTLER_STATE": str(left), "OSTLER_PORT": port})
    assert found.socket_path is not None
    status = await trio.to_thread.run_sync(found.get, "/api/status")
    assert status["status"] == "ready"
    assert found.url == f"http://127.0.0.1:{port}"


async def test_attaching_by_the_socket(tmp_path):
    async with running_server(tmp_path) as server:
        workspace = tmp_path / "w"
        workspace.mkdir()
        made = await server.rest.create(workspace, {"acp_server": "demo"})
        env = {"PATH": os.environ["PATH"], "HOME": str(server.home), "OSTLER_STATE": str(server.state)}
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "attach", made["id"]],
            env=env | {"PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                with trio.fail_after(20):
                    line = await trio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
                assert line == f"attached to {made['id']}\n"
            finally:
                process.kill()


async def test_a_client_that_reads_nothing_is_cut_off_there_too(tmp_path):
    """The kernel's own limit is TCP's alone."""
    environment = {"OSTLER_STALL_SECONDS": "1", "OSTLER_ATTACHABLE": "1"}
    async with running_server(tmp_path, environment) as server:
        sock = connect(server.state / "control.sock", 5)
        with sock:
            sock.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    sock.send(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
            sock.setblocking(True)
            sock.settimeout(20)
            await trio.sleep(4)

            def drain():
                with suppress(ConnectionResetError):
                    while sock.recv(1 << 16):
                        pass

            with trio.fail_after(30):
                await trio.to_thread.run_sync(drain, abandon_on_cancel=True)
        assert "ready" in await ostler(server, "status")
