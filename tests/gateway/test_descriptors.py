"""A server with few file descriptors, and one that has none left: an error of the call, never its end."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import time
from contextlib import suppress

import pytest
import trio

from gateway.serving.control import connect
from supervisor.agents.spawning import descriptors
from supervisor.agents.spawning.descriptors import shares
from tests.support.scripted import scripted_command
from tests.support.server import running_server

BUSY = {"OSTLER_ATTACHABLE": "1", "OSTLER_WHEN_FULL": "refuse"}


def limited(number):
    return ["sh", "-c", f'ulimit -n {number}; exec "$@"', "sh"]


async def ostler(server, *arguments, status=0, **found):
    env = {"PATH": os.environ["PATH"], "HOME": str(server.home), **found}
    command = [sys.executable, "-m", "gateway", *arguments]
    with trio.fail_after(60):
        done = await trio.run_process(command, env=env, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == status, done.stderr.decode()
    return done.stdout.decode()


def pid_of(server):
    return int((server.state / "server.pid").read_text())


# -- shares


@pytest.mark.parametrize("limit", [128, 200, 256, 1024, 4096, 20_000, 10**6])
@pytest.mark.parametrize("connections", [None, 10, 10**6])
@pytest.mark.parametrize("doors", [False, True])
def test_all_shares_together_fit(limit, connections, doors):
    if doors and limit < 200:
        pytest.skip("one agent behind a door, and one connection, are more")
    found = shares(limit, connections, doors=doors)
    taken = descriptors.FIXED + found.reserve + found.operators + found.connections
    per_agent, per_terminal = descriptors.PER_AGENT, descriptors.PER_TERMINAL
    if doors:
        per_agent += descriptors.DOOR_LISTENERS + found.door_connections * descriptors.PER_DOOR_CONNECTION
        per_terminal += descriptors.DOOR_LISTENERS + descriptors.DOOR_WATCH
    taken += found.agents * per_agent + found.terminals * per_terminal
    # The first download's file is part of the transient reserve.
    assert taken + (found.downloads - 1) * descriptors.PER_DOWNLOAD <= limit
    assert min(found.agents, found.terminals, found.downloads, found.connections) >= 1
    if connections == 10 and limit >= 200:
        assert found.connections == 10
        assert found.agents >= shares(limit, doors=doors).agents


def test_agents_behind_doors_have_all_their_connections_where_there_are_enough_descriptors():
    few, many = shares(1024, doors=True), shares(524_288, doors=True)
    assert (few.door_connections, many.door_connections) == (8, descriptors.DOOR_CONNECTIONS)
    assert few.agents >= 16
    assert many.agents >= 900


def test_more_descriptors_are_no_smaller_shares():
    found = [shares(limit) for limit in range(64, 20_000, 7)]
    for kind in ("agents", "terminals", "downloads", "connections"):
        counts = [getattr(each, kind) for each in found]
        assert counts == sorted(counts)


async def test_the_server_raises_its_limit_and_agents_have_that_of_before(tmp_path):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    prefix = ["sh", "-c", 'ulimit -Sn 300; exec "$@"', "sh"]
    async with running_server(tmp_path, BUSY, prefix=prefix) as server:
        status = await server.rest.call("GET", "/api/status")
        assert status["descriptors"]["limit"] == hard
        assert resource.prlimit(pid_of(server), resource.RLIMIT_NOFILE) == (hard, hard)
        made = await server.rest.create(tmp_path, {"acp_server": "custom", "acp_command": scripted_command()})
        said = json.dumps(await server.rest.turn(made["id"], "!terminal sh -c ulimit${IFS}-n"))
        (agent,) = (await server.rest.call("GET", "/api/agents"))["agents"]
        assert resource.prlimit(agent["pid"], resource.RLIMIT_NOFILE)[0] == 300
        assert "300" in re.findall(r"terminal/output -> .*?}", said)[0], said


def test_without_a_higher_limit_nothing_is_changed(monkeypatch):
    monkeypatch.setattr(descriptors, "_before", None)
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (100, 100))
    descriptors.raise_limit()
    assert descriptors._before is None


# -- few


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_agents_stop_where_their_share_ends_and_operators_get_in(tmp_path):
    async with running_server(tmp_path, BUSY, prefix=limited(200)) as server:
        share = shares(200).agents
        # Each of them is at work, so that none makes room.
        agent = {"acp_server": "custom", "acp_command": scripted_command()}
        ids = []
        refused = None
        for number in range(share + 3):
            workspace = tmp_path / f"w{number}"
            workspace.mkdir()
            made = await server.rest.create(workspace, agent)
            body = {"role": "user", "content": [{"type": "text", "text": "!slowtool 120"}], "run": True}
            response = await server.rest.http.post(f"/api/conversations/{made['id']}/events", json=body)
            if response.status_code == 503:
                refused = response
                break
            assert response.status_code in (200, 201)
            ids.append(made["id"])
            with trio.fail_after(30):
                while (await server.rest.call("GET", f"/api/agents/{made['id']}"))["state"] != "running":
                    await trio.sleep(0.05)
        assert refused is not None
        assert int(refused.headers["Retry-After"]) > 0
        assert len(ids) == share
        status = (await server.rest.call("GET", "/api/status"))["descriptors"]
        assert status["agents"] == {"used": share, "share": share}
        assert status["used"] + status["reserve"] <= 200

        # Clients fill their share, and beyond.
        host, port = server.url.removeprefix("http://").split(":")
        idle = [await trio.open_tcp_stream(host, int(port)) for _ in range(100)]
        by_socket = {"OSTLER_STATE": str(server.state)}
        by_address = {"OSTLER_URL": server.url}
        for found in (by_socket, by_address):
            assert (await ostler(server, "ps", **found)).count("running") == share
            assert "descriptors:" in await ostler(server, "status", **found)
        await ostler(server, "stop", ids[0], **by_socket)
        await ostler(server, "stop", ids[1], **by_address)
        for stream in idle:
            await trio.aclose_forcefully(stream)

        # There is room again.
        again = await server.rest.create(tmp_path, agent)
        await server.rest.turn(again["id"], "hello")
        log = server.output.read_text()
        assert "Too many open files" not in log
        assert "Traceback" not in log


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_an_operator_gets_in_although_each_place_is_taken(tmp_path):
    """By clients that were let in and are at work: the address refuses, the control socket does not."""
    environment = {**BUSY, "OSTLER_MAX_CONNECTIONS": "5"}
    async with running_server(tmp_path, environment) as server:
        agent = {"acp_server": "custom", "acp_command": scripted_command()}
        made = await server.rest.create(tmp_path, agent)
        host, port = server.url.removeprefix("http://").split(":")
        target = f"/sockets/events/{made['id']}"
        handshake = (
            f"GET {target} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        held = []
        for _ in range(5):
            stream = await trio.open_tcp_stream(host, int(port))
            await stream.send_all(handshake.encode())
            assert b" 101 " in await stream.receive_some()
            held.append(stream)
        await ostler(server, "ps", status=1, OSTLER_URL=server.url)
        shown = json.loads(await ostler(server, "status", "--json", OSTLER_STATE=str(server.state)))
        assert shown["descriptors"]["connections"] == {"used": 5, "share": 5}
        for stream in held:
            await trio.aclose_forcefully(stream)


# -- none


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_a_server_without_any_descriptor_goes_on(tmp_path):
    async with running_server(tmp_path, BUSY) as server:
        agent = {"acp_server": "custom", "acp_command": scripted_command()}
        made = await server.rest.create(tmp_path, agent)
        await server.rest.turn(made["id"], "hello")
        pid = pid_of(server)
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
        # The numbers up to the highest one that is in use count: so few that none is left.
        lowest = next(number for number in range(len(taken) + 1) if number not in taken)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, limits[1]))

        # On a connection that is there: what needs a file fails, what needs none goes on.
        assert (await server.rest.http.get("/alive")).status_code == 200
        assert (await server.rest.http.get("/api/agents")).status_code in (200, 500, 503)
        events = await server.rest.http.get(f"/api/conversations/{made['id']}/events/search")
        assert events.status_code == 200
        workspace = tmp_path / "w"
        workspace.mkdir()
        for path in (f"/api/agents/{made['id']}/restart", f"/api/agents/{made['id']}/stop"):
            assert (await server.rest.http.post(path)).status_code < 600
        body = {"workspace": {"kind": "LocalWorkspace", "working_dir": str(workspace)}}
        body["agent_settings"] = {"agent_kind": "acp", **agent}
        other = await server.rest.http.post("/api/conversations", json=body)
        if other.status_code < 300:
            message = {"role": "user", "content": [{"type": "text", "text": "hello"}], "run": True}
            await server.rest.http.post(f"/api/conversations/{other.json()['id']}/events", json=message)

        # New clients wait, or take the place of who does nothing. Nobody is told a traceback each time.
        host, port = server.url.removeprefix("http://").split(":")
        waiting = [await trio.open_tcp_stream(host, int(port)) for _ in range(20)]
        await trio.sleep(2)
        assert server.output.read_text().count("connection not accepted") <= 2
        # Operators have descriptors of their own.
        with connect(server.state / "control.sock", 5) as sock:
            sock.sendall(b"GET /api/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = b""
            with trio.fail_after(30):
                while data := await trio.to_thread.run_sync(sock.recv, 1 << 16):
                    answer += data
        assert answer.startswith(b"HTTP/1.1 200")
        for stream in waiting:
            await trio.aclose_forcefully(stream)

        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            with suppress(Exception):
                if (await server.rest.http.get("/api/status")).status_code == 200:
                    break
            await trio.sleep(0.1)
        assert pid_of(server) == pid
        third = await server.rest.create(workspace, agent)
        await server.rest.turn(third["id"], "hello")
        await server.rest.turn(made["id"], "hello")
        server.signal(signal.SIGTERM)
        assert await server.wait() == 0
