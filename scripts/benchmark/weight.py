"""Cases: how long a server takes to start, and what it and its conversations weigh."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from scripts.benchmark import peer_store
from scripts.benchmark.cases import EVERYBODY, Figure, Target, Unable, case
from scripts.benchmark.client import BenchError
from scripts.benchmark.driving import ASKED_AT_ONCE, warmed
from scripts.benchmark.servers import Server, running

SETTLE_SECONDS = 1.0
"""Between the last answer and a look at memory."""
HIBERNATE_SECONDS = 90.0
FURTHER_ROUNDS = 2
"""Of conversations that become live and hibernate. What the first round took is partly free again within the
process: that is the price of so many at once, and no part of those that rest."""

Values = Mapping[str, "float | Unable"]


@case(
    "start",
    Figure(
        "cold_start_s",
        "cold start",
        "s",
        "start of the process to the first 200 on `/health`; an empty state, a warm disk",
        aim=0.40,
    ),
    Figure("idle_mb", "memory, idle", "MB", "all processes of the server, a second later", aim=50),
    fresh=True,
    targets=EVERYBODY,
    slow_rounds=2,
)
def start(target: Target, part: float) -> Values:
    times = []
    for _ in range(1 if target.slow or part < 1 else 3):
        with running(target.kind, target.program) as server:
            times.append(server.started_in)
            time.sleep(SETTLE_SECONDS)
            memory = server.memory_mb()
    return {"cold_start_s": min(times), "idle_mb": memory}


@case(
    "conversations",
    Figure(
        "stored_kb",
        "memory per conversation without an agent",
        "KB",
        "made, never prompted; without what comes from files, of which agents take a share",
    ),
    Figure(
        "live_kb",
        "memory per live conversation",
        "KB",
        "the same, after a turn; the agent's own memory is not in it",
    ),
    Figure(
        "hibernated_kb",
        "memory per hibernated conversation",
        "KB",
        "the same, when its agent was stopped; of each further one, after fifty have been live at once",
    ),
    fresh=True,
    rounds=1,
)
def conversations(target: Target, part: float) -> Values:
    found: dict[str, float | Unable] = {}
    made, live = (20, 8) if target.slow else (max(20, int(400 * part)), max(10, int(50 * part)))
    settings = {} if target.slow else {"OSTLER_IDLE_SECONDS": "15"}
    with running(target.kind, target.program, **settings) as server:
        for _ in range(2):  # what the first ones bring is not theirs
            warmed(server)
            server.conversation()
        empty = weigh(server)
        for _ in range(made):
            server.conversation()
        found["stored_kb"] = (weigh(server) - empty) * 1024 / made
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            before = weigh(server)
            list(pool.map(lambda _: warmed(server), range(live)))
        found["live_kb"] = (weigh(server) - before) * 1024 / live
        if target.slow:
            found["hibernated_kb"] = Unable("keeps each agent until its conversation or the server ends")
            return found
        hibernated = []
        for further in range(1 + FURTHER_ROUNDS):
            if further:
                with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
                    list(pool.map(lambda _: warmed(server), range(live)))
            until = time.monotonic() + HIBERNATE_SECONDS
            while server.agents():
                if time.monotonic() > until:
                    raise BenchError("the agents were not hibernated")
                time.sleep(0.1)
            hibernated.append(weigh(server))
        found["hibernated_kb"] = (hibernated[-1] - hibernated[0]) * 1024 / (live * FURTHER_ROUNDS)
    return found


def weigh(server: Server) -> float:
    time.sleep(SETTLE_SECONDS)
    return server.own_mb()


def stored(server: Server, count: int) -> None:
    """Give the server so many conversations, each made by a request; it runs afterwards."""
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        list(pool.map(lambda _: server.conversation(), range(count)))


@case(
    "restart",
    Figure(
        "restart_100_s",
        "start with 100 conversations",
        "s",
        "start of the process to the first 200 on `/health`",
    ),
    Figure("restart_10000_s", "start with 10,000 conversations", "s", "the same", aim=0.6),
    Figure("list_10000_ms", "page of 100 of 10,000 conversations", "ms", "the newest; median of 20"),
    fresh=True,
    rounds=1,
)
def restart(target: Target, part: float) -> Values:
    found: dict[str, float | Unable] = {}
    many = int(10_000 * part)
    with running(target.kind, target.program) as server:
        if target.slow:
            server.conversation()
        else:
            stored(server, 100)
        for count, key in ((100, "restart_100_s"), (many, "restart_10000_s")):
            if not target.slow:
                stored(server, count - 100)
            server.stop()
            if target.slow:
                peer_store.multiply_conversations(server.directory, count)
            try:
                server.start()
            except BenchError as error:
                found[key] = Unable(str(error).splitlines()[0])
                return found
            found[key] = server.started_in
        times = []
        for _ in range(3 if target.slow else 20):
            begin = time.perf_counter()
            server.client.raw("GET", "/api/conversations/search?limit=100&sort_order=UPDATED_AT_DESC")
            times.append((time.perf_counter() - begin) * 1000)
        found["list_10000_ms"] = sorted(times)[len(times) // 2]
    return found
