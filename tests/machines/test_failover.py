"""A fail-over of PostgreSQL to its streaming replica, under a server at work."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import trio

from supervisor.database.address import parse
from tests.machines.service import service
from tests.support.client import of_kind
from tests.support.cluster import USER
from tests.support.postgres import cluster

LEASE_S = "20"  # longer than the fail-over, which takes a second or two


@pytest.mark.guarantee(name="another-takes-over")
async def test_a_failover_to_a_synchronous_replica_loses_nothing(tmp_path: Path) -> None:
    with cluster(durable=True) as primary, cluster(durable=True, standby_of=primary) as standby:
        name = urlsplit(primary.database().conninfo).path.removeprefix("/")
        with psycopg.connect(primary.address("postgres").conninfo, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
        hosts = f"{primary.directory},{standby.directory}"
        both = parse(f"postgresql://{USER}@/{name}?host={hosts}&target_session_attrs=read-write")
        async with service(tmp_path, both) as servers:
            a = await servers.start("a", OSTLER_LEASE_SECONDS=LEASE_S)
            made = await servers.converse(a)
            first = a.pid
            acknowledged: list[str] = []
            over = trio.Event()

            async def talk() -> None:
                number = 0
                while not over.is_set():
                    number += 1
                    body = {
                        "role": "user",
                        "content": [{"type": "text", "text": f"m1-{number}"}],
                        "run": False,
                    }
                    answer = await a.rest.http.post(f"/api/conversations/{made}/events", json=body)
                    if answer.status_code in (200, 201):
                        acknowledged.append(f"m1-{number}")
                    await trio.sleep(0.01)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(talk)
                while len(acknowledged) < 20:
                    await trio.sleep(0.01)
                await trio.to_thread.run_sync(primary.stop, "immediate")
                await trio.to_thread.run_sync(standby.promote)
                with psycopg.connect(standby.address("postgres").conninfo, autocommit=True) as connection:
                    connection.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
                    connection.execute("SELECT pg_reload_conf()")
                before, began = len(acknowledged), time.monotonic()
                while len(acknowledged) < before + 20:
                    assert time.monotonic() - began < 15
                    await trio.sleep(0.01)
                over.set()
            stored = [
                block["text"]
                for event in of_kind(await a.rest.events(made), "MessageEvent")
                for block in event["llm_message"]["content"]
            ]
            assert a.pid == first
            assert [text for text in acknowledged if stored.count(text) != 1] == []
