"""Cases and table of `scripts/bench --database`: SQLite, PostgreSQL, three servers over one PostgreSQL."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from scripts.benchmark.cases import Figure, Target, case, percentile
from scripts.benchmark.client import Client, Socket
from scripts.benchmark.driving import say_all, warmed
from scripts.benchmark.relaying import TOOL
from scripts.benchmark.results import HEADS, NOTHING, Results, Row, aligned, number
from scripts.benchmark.shared import Three

CONVERSATIONS = 3
CALLS = 3_000
"""Tool calls of each of them; each is two events."""
REQUESTS = 100
"""To each of the two servers. Messages that wait are a part of the record: more would take longer."""
FILE = "small.txt"
SYNCS = 50
SYNC_BYTES = 8192
"""What PostgreSQL writes at once of its log, at least."""

CHOSEN = ("start", "turn", "tools", "tools-of-three", "turns-at-once", "history", "forwarded")
"""What `--database` measures."""

GOALS: Mapping[str, float] = {"tools_1": 0.6, "turn_p50_ms": 1.5, "page_10k_ms": 2, "batch_10k_ms": 2}
"""PostgreSQL's figure, divided by SQLite's: at least so much of a rate, at most so much of a time."""

HEADINGS = {**HEADS, "ostler": "SQLite"}


@case(
    "tools-of-three",
    Figure(
        "tools_of_three",
        "tool events, 3 conversations at once",
        "/s",
        "of all; from the first message to the last event, a socket each",
        True,
    ),
    targets=frozenset({"ostler", "postgres", "three"}),
)
def tools_of_three(target: Target, part: float) -> Mapping[str, float]:
    server = target.standing()
    conversations = [warmed(server) for _ in range(CONVERSATIONS)]
    readers = [Socket(server.client.port, each) for each in conversations]
    arrivals: list[int] = []

    def seen(frame: bytes, arrival: int) -> None:
        if TOOL in frame:
            arrivals.append(arrival)

    begin = time.monotonic_ns()
    say_all(server, conversations, f"!burst tools {max(100, int(CALLS * part))}", readers, seen)
    for each in readers:
        each.close()
    return {"tools_of_three": len(arrivals) * 1e9 / (arrivals[-1] - begin)}


def forwarding_figures(key: str, words: str, how: str) -> tuple[Figure, ...]:
    return (
        Figure(f"direct_{key}_ms", f"{words}, at its server", "ms", f"{how}; median"),
        Figure(f"forwarded_{key}_ms", f"{words}, at another server", "ms", "the same, which is forwarded"),
        Figure(f"more_{key}_ms", f"{words}: what forwarding adds", "ms", "the difference", aim=1.5),
    )


@case(
    "forwarded",
    *forwarding_figures("get", "small file of a workspace", "request to answer"),
    *forwarding_figures("message", "message", "request to answer, which tells that it is durable; no turn"),
    targets=frozenset({"three"}),
)
def forwarded(target: Target, part: float) -> Mapping[str, float]:
    server = target.standing()
    assert isinstance(server, Three)
    _, owner, other = server.servers
    (owner.directory / "project" / FILE).write_text("small")
    body = {"role": "user", "content": [{"type": "text", "text": "a message"}], "run": False}
    found = {}
    for key, method, path, content in (
        ("get", "GET", f"workspace/{FILE}", None),
        ("message", "POST", "events", body),
    ):
        request = owner.client.request(method, f"/api/conversations/{owner.conversation()}/{path}", content)
        direct, more = [], []
        for _ in range(max(10, int(REQUESTS * part))):
            direct.append(asked(owner.client, request))
            more.append(asked(other.client, request))
        found[f"direct_{key}_ms"] = percentile(direct, 50)
        found[f"forwarded_{key}_ms"] = percentile(more, 50)
        found[f"more_{key}_ms"] = percentile(more, 50) - percentile(direct, 50)
    return found


def sync_ms() -> float:
    """Milliseconds until the disk has a small commit of PostgreSQL's. Those of SQLite do not wait for it."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(SYNC_BYTES))
        os.fsync(file.fileno())
        times = []
        for _ in range(SYNCS):
            begin = time.perf_counter()
            os.pwrite(file.fileno(), bytes(SYNC_BYTES), 0)
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - begin) * 1000)
    return percentile(times, 50)


def asked(client: Client, request: bytes) -> float:
    """Milliseconds until the answer."""
    begin = time.perf_counter()
    client.send(request)
    return (time.perf_counter() - begin) * 1000


def quotient(row: Row) -> float | None:
    """PostgreSQL's figure, divided by SQLite's. None where one of them has none."""
    above, below = row.values.get("postgres"), row.values.get("ostler")
    return None if above is None or not below else above / below


def judged(row: Row) -> tuple[str, bool] | None:
    """The goal of a row in words, and whether it is met. None without a goal, or without figures for it."""
    if row.figure.key in GOALS:
        found, goal = quotient(row), GOALS[row.figure.key]
        words = f"{'at least' if row.figure.more_is_better else 'at most'} {number(goal)}"
    elif "ostler" not in row.values and row.figure.aim is not None:
        found, goal = row.values.get("three"), row.figure.aim
        words = f"at most {number(goal)} {row.figure.unit}"
    else:
        return None
    if found is None:
        return None
    return words, (found >= goal if row.figure.more_is_better else found <= goal)


def table(results: Results) -> str:
    """For people."""
    lines = [["", *(HEADINGS[name] for name in results.targets), "unit", "PostgreSQL / SQLite", "goal"]]
    for row in results.rows:
        ratio, goal = quotient(row), judged(row)
        lines.append(
            [
                row.figure.words,
                *(row.cell(name) for name in results.targets),
                row.figure.unit,
                NOTHING if ratio is None else number(ratio),
                NOTHING if goal is None else goal[0] + ", missed" * (not goal[1]),
            ]
        )
    machine = results.machine
    about = (
        f"The disk takes {number(machine['sync_ms'])} ms for each commit of PostgreSQL. Load of the machine: "
        f"{machine['load_before']} before, {machine['load_after']} after."
    )
    return "\n".join([*aligned(lines), "", about, *results.reasons()])


def as_json(results: Results) -> dict[str, Any]:
    """For programs: what `Results` has, and by figure what PostgreSQL takes of SQLite's, and the goals."""
    found: dict[str, Any] = {}
    for row in results.rows:
        goal = judged(row)
        found[row.figure.key] = {"postgres_to_sqlite": quotient(row)} | (
            {} if goal is None else {"goal": goal[0], "met": goal[1]}
        )
    return {**results.as_json(), "database": found}
