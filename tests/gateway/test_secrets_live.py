"""Secrets at a whole server with a real agent process: who gets them, and who can see them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import httpx2
import pytest
import trio

from tests.support.server import running_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

VALUE = "sk-given-in-a-variable"
PHRASE = "the-master-phrase"
POLL_SECONDS = 0.05
PATIENCE_SECONDS = 20.0


def environment_of(pid):
    """What /proc shows of a process to us; nothing where the process does not let us look."""
    try:
        shown = Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        return {}
    return dict(item.split("=", 1) for item in shown.decode().split("\0") if item)


async def answering(server):
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            try:
                return await server.rest.call("GET", "/ready")
            except httpx2.TransportError:
                await trio.sleep(POLL_SECONDS)


async def test_variables_reach_the_agent_and_leave_the_server(tmp_path):
    environ = {"OSTLER_SECRET_DEMO_TOKEN": VALUE, "OSTLER_MASTER_KEY": PHRASE, "OSTLER_KEYRING": "off"}
    async with running_server(tmp_path, environ) as server:
        pid = int((server.state / "server.pid").read_text())
        assert set(environment_of(pid).values()).isdisjoint((VALUE, PHRASE))
        conversation = await server.rest.create(tmp_path, {"acp_server": "demo"})
        await server.rest.turn(conversation["id"], "hello")
        (agent,) = (await server.rest.call("GET", "/api/agents"))["agents"]
        seen = environment_of(agent["pid"])
        assert seen["DEMO_TOKEN"] == VALUE
        assert not [name for name in seen if name.startswith(("OSTLER_SECRET_", "OSTLER_MASTER"))]
        (secret,) = (await server.rest.call("GET", "/api/secrets"))["secrets"]
        assert (secret["name"], secret["where"]) == ("DEMO_TOKEN", "OSTLER_SECRET_DEMO_TOKEN")
        assert (await server.rest.call("GET", "/api/status"))["secret_key"]["source"] == "OSTLER_MASTER_KEY"
        # A server that is started again by its warden is given them again.
        os.kill(pid, 9)
        await answering(server)
        await server.rest.turn(conversation["id"], "hello again")
        (agent,) = (await server.rest.call("GET", "/api/agents"))["agents"]
        assert environment_of(agent["pid"])["DEMO_TOKEN"] == VALUE
    assert VALUE not in server.output.read_text()
    assert PHRASE not in server.output.read_text()
