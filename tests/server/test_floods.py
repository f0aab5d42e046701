"""Real servers with agents that say very much: memory stays, others go on, and it is told what is gone."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.support.client import of_kind, rest_client
from tests.support.processes import cpu_seconds
from tests.support.scripted import scripted_command
from tests.support.server import running_server, shared_server
from tests.support.thorough import everyday

FLOOD_BYTES = everyday(40_000_000, 128_000_000)
KINDS = everyday(
    ("text", "output", "updates", "calls"),
    ("text", "thoughts", "output", "shown", "content", "updates", "calls"),
)
"""Thoughts are text, and what is shown and content are output, as far as memory goes."""
PEAK_BYTES = 150_000_000
"""What a flood may take of the server's memory while it goes on: a blob or two on their way to the disk, and
what the journal lets gather. Without bounds it took five times the flood."""
AFTER_BYTES = 75_000_000
"""What may be left of that when it is over, in pieces that the allocator keeps for the next time."""
LOOK_S = 0.02
PATIENCE_S = 120.0
OTHERS_CPU_S = 5.0
"""Of the server's processor time, for a turn of another conversation meanwhile: the machine may be busy with
other things. Quadratic work took minutes."""


def pid_of(server):
    """The server process, which is a child of the one that was started."""
    return int((server.state / "server.pid").read_text())


def resident(server):
    """Bytes that it has in memory."""
    status = Path(f"/proc/{pid_of(server)}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


@asynccontextmanager
async def watched(server):
    """The largest size that the server has meanwhile, as a list of one."""
    peak = [0]

    async def watch():
        while True:
            peak[0] = max(peak[0], resident(server))
            await trio.sleep(LOOK_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        yield peak
        nursery.cancel_scope.cancel()


async def conversation(server, name):
    agent = {"acp_server": "custom", "acp_command": scripted_command(home=server.directory / f"{name}-home")}
    created = await server.rest.create(server.directory / name, agent)
    await server.rest.turn(created["id"], "hello")
    return created["id"]


async def settled(rest, conversation):
    with trio.fail_after(PATIENCE_S):
        while await rest.status(conversation) == "running":
            await trio.sleep(0.1)


CUT = re.compile(
    r"\[\.\.\. (\d+) bytes cut; the first (\d+) bytes are in blobs (\S+) to (\S+)-(\d+), the next (\d+)"
)


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_flood_takes_no_memory_and_holds_up_nobody(tmp_path, kind):
    async with running_server(tmp_path) as server:
        rest = server.rest
        flooding, other = await conversation(server, "flooding"), await conversation(server, "other")
        before = resident(server)
        async with watched(server) as peak:
            await rest.send(flooding, f"!pour {kind} {FLOOD_BYTES}")
            slowest = 0.0
            while await rest.status(flooding) == "running":
                began = cpu_seconds(pid_of(server))
                await rest.turn(other, "and you?", timeout=PATIENCE_S)
                slowest = max(slowest, cpu_seconds(pid_of(server)) - began)
            await settled(rest, flooding)
        assert peak[0] - before < PEAK_BYTES
        assert slowest < OTHERS_CPU_S
        with trio.fail_after(PATIENCE_S):
            while resident(server) - before > AFTER_BYTES:
                await trio.sleep(LOOK_S)
        assert await rest.status(flooding) == "finished"


POURED_BYTES = everyday(18_000_000, 30_000_000)
BLOB_BYTES = POURED_BYTES * 2 // 3
"""How much of it a turn may keep in blobs: several of them."""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    variables = {"OSTLER_MAX_TURN_BLOB_BYTES": str(BLOB_BYTES)}
    with shared_server(tmp_path_factory.mktemp("told"), variables) as server:
        yield server


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize("kind", everyday(("text", "output"), ("text", "thoughts", "output")))
async def test_it_is_told_what_was_cut_and_where_it_is(told, kind):
    async with rest_client(told.url) as rest:
        told.rest = rest
        flooding = await conversation(told, f"{kind}-flooding")
        found = await rest.turn(flooding, f"!pour {kind} {POURED_BYTES}", timeout=PATIENCE_S)
        if kind == "output":
            (_, end) = of_kind(found, "ACPToolCallEvent")
            words = end["content"][-1]["content"]["text"]
        else:
            finish = of_kind(found, "ActionEvent")[-1]
            words = finish["action"]["message"] if kind == "text" else finish["reasoning_content"]
        note = CUT.search(words)
        assert note is not None, words[:200]
        cut, kept, first, last, blobs, lost = note.groups()
        assert first == last
        poured = -(-POURED_BYTES // 65536) * 65536
        assert int(kept) + int(lost) == poured
        assert int(kept) <= BLOB_BYTES
        assert int(cut) < poured
        base = f"/api/conversations/{flooding}/blobs/{first}"
        pieces = [
            (await rest.http.get(base if number == 1 else f"{base}-{number}")).content
            for number in range(1, int(blobs) + 1)
        ]
        assert sum(map(len, pieces)) == int(kept)
        assert pieces[0].startswith(b"0000")
        assert b"\n0001" not in pieces[0][:100]


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
async def test_a_start_with_very_much_to_tell_is_small_for_clients(tmp_path):
    async with running_server(tmp_path) as server:
        rest = server.rest
        command = scripted_command("models=12000", "described=5000000", home=server.directory / "home")
        created = await rest.create(
            server.directory / "work", {"acp_server": "custom", "acp_command": command}
        )
        await rest.turn(created["id"], "hello", timeout=PATIENCE_S)
        answer = await rest.http.get("/api/conversations/search")
        assert answer.status_code == 200
        assert len(answer.content) < 512 * 1024
        (info,) = answer.json()["items"]
        assert {"model_id": "large", "name": "Large", "description": None} in info["available_models"]
        notes = " ".join(info["agent_state"]["acp_notes"])
        assert "items" in notes
        assert "characters left out" in notes
