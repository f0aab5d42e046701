"""The wall clock of a machine jumps while its server works: no lease, conversation or event depends on it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from supervisor.database.address import Database
from tests.machines.clock import Clock, library, tidy
from tests.machines.servers import connected
from tests.machines.service import LEASE_S, service, volumes
from tests.support.client import answer_text

HOUR_S = 3600.0
ABOUT_S = 60.0  # a busy machine
RENEWED_S = 30.0  # a hang

SHOWS = """
import json, os, sys, threading, time
for line in sys.stdin:
    begun = time.monotonic()
    time.sleep(0.05)
    threading.Event().wait(0.05)
    with open("file", "w") as file:
        file.write("x")
    shown = {"waited": time.monotonic() - begun, "file": os.stat("file").st_mtime}
    print(json.dumps({**shown, "wall": time.time(), "monotonic": time.monotonic()}), flush=True)
"""


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[Clock]:
    found = library()
    if found is None:
        pytest.skip("libfaketime is not installed")
    yield Clock(tmp_path, found)
    tidy()


def test_only_the_wall_clock_jumps(tmp_path: Path, clock: Clock) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SHOWS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clock.environment,
        cwd=tmp_path,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for ahead in (0.0, HOUR_S, -HOUR_S, 0.0):
            clock.set(ahead)
            process.stdin.write("look\n")
            process.stdin.flush()
            shown = json.loads(process.stdout.readline())
            assert shown["wall"] - time.time() == pytest.approx(ahead, abs=ABOUT_S)
            assert shown["file"] - time.time() == pytest.approx(0.0, abs=ABOUT_S)
            assert shown["monotonic"] - time.monotonic() == pytest.approx(0.0, abs=ABOUT_S)
            assert 0.1 <= shown["waited"] < ABOUT_S
        process.stdin.close()


@pytest.mark.guarantee(name="another-takes-over")
async def test_a_server_whose_clock_jumps_keeps_what_it_has(
    tmp_path: Path, database: Database, clock: Clock
) -> None:
    async with service(tmp_path, database) as servers:
        shared = volumes(tmp_path)
        a = await servers.start("a", **shared, **clock.environment)
        b = await servers.start("b", **shared)
        pid = a.pid
        made = [await servers.converse(a, f"volume-work/{number}") for number in range(2)]
        for each in made:
            await a.rest.turn(each, "before")
        agents = servers.living_agents()
        assert len(agents) == len(made)
        for ahead in (HOUR_S, -HOUR_S):
            before = await b.rest.events(made[0])
            await a.rest.send(made[0], f"!slow 20 50\nat {ahead}")  # it goes on while the clock jumps
            clock.set(ahead)
            await renewed(database, "a")
            assert f"at {ahead}" in answer_text(await b.rest.settle(made[0], len(before)))
            await b.rest.turn(made[0], "and again")
            events = await b.rest.events(made[0])
            assert events[: len(before)] == before
            late = await servers.converse(a, "volume-work/late")
            begun = datetime.fromisoformat((await b.rest.info(late))["created_at"]).timestamp()
            assert begun - time.time() == pytest.approx(ahead, abs=ABOUT_S)
            await a.rest.call("DELETE", f"/api/conversations/{late}")
        assert states(await b.rest.call("GET", "/api/servers")) == {"a": "alive", "b": "alive"}
        assert a.pid == pid
        assert servers.living_agents() == agents  # none was idle for an hour
        events = await b.rest.events(made[0])
        times = [each["timestamp"] for each in events]
        assert times == sorted(set(times))
        keys = [each.get("key") for each in events]
        assert (keys.count("server"), keys.count("clock_behind")) == (0, 1)
        with connected(database) as connection:
            logs = connection.execute(
                "SELECT name, count(seq), min(seq), max(seq), last_seq FROM heads "
                "JOIN servers ON owner = servers.id JOIN events ON conversation = heads.key "
                "GROUP BY heads.key, name, last_seq"
            ).fetchall()
        assert [(name, first) for name, _, first, _, _ in logs] == [("a", 0)] * len(made)
        assert all(count == last + 1 == head + 1 for _, count, _, last, head in logs)


def states(found: Any) -> dict[str, str]:
    return {each["name"]: each["state"] for each in found["servers"]}


async def renewed(database: Database, name: str) -> None:
    """Wait until the lease of this server ends a whole lease later than now."""
    with connected(database) as connection, trio.fail_after(RENEWED_S):

        def lasts() -> float:
            row = connection.execute(
                "SELECT extract(epoch FROM expires)::float8 FROM servers WHERE name = %s", (name,)
            ).fetchone()
            assert row is not None
            return float(row[0])

        begun = lasts()
        while lasts() < begun + LEASE_S:
            await trio.sleep(0.05)
