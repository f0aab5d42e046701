"""Cases: reading what was said, among 10,000 and 1,000,000 events; whether an event costs the same then."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

from scripts.benchmark import peer_store
from scripts.benchmark.cases import Figure, Target, Unable, case
from scripts.benchmark.client import Socket, read_until
from scripts.benchmark.driving import warmed
from scripts.benchmark.servers import Server, running

PAGE = 100
BATCH = 500
TIMES, FEW_TIMES = 30, 3
BURST_CALLS = 25_000
"""Tool calls of one turn while a million events are made; each is two events."""
WINDOW_CALLS = 5_000
KIND = "ACPToolCallEvent"
RARE = "MessageEvent"

READS: tuple[tuple[str, str, str, float | None], ...] = (
    ("page", "page of 100", "the fifth from the end; median of 30 requests", 1),
    ("batch", "batch of 500 by id", "ids of five pages in a row; median of 30 requests", 4),
    ("count", "count", "all events", None),
    ("count_kind", "count by kind", "the kind of nearly all events", 0.5),
    ("search_kind", "search by kind", "a page of the kind of few events, newest first", None),
    (
        "search_body",
        "body search",
        "text of one event; a page, which looks for half a second at most",
        None,
    ),
)


def read_figures(key: str, words: str) -> tuple[Figure, ...]:
    return tuple(
        Figure(f"{name}_{key}_ms", f"{label} among {words}", "ms", how, aim=aim)
        for name, label, how, aim in READS
    )


def fill(server: Server, conversation: str, calls: int) -> tuple[float, float]:
    """Let the agent make so many tool calls. Return the seconds and the server's processor time that took."""
    reader = Socket(server.client.port, conversation)
    before, begin = server.cpu_seconds(), time.perf_counter()
    server.say(conversation, f"!burst tools {calls}")
    read_until([reader])
    took = time.perf_counter() - begin
    reader.close()
    return took, server.cpu_seconds() - before


def measured(server: Server, conversation: str, key: str, times: int) -> dict[str, float]:
    """The reads of this module, each in milliseconds."""
    base = f"/api/conversations/{conversation}/events"
    request = server.client.request
    ids, page_id = last_ids(server, base)
    first_page = f"{base}/search?limit={PAGE}&page_id={page_id}"
    reads: dict[str, bytes] = {
        "page": request("GET", first_page),
        "batch": request("GET", base, ids),
        "count": request("GET", f"{base}/count"),
        "count_kind": request("GET", f"{base}/count?kind={KIND}"),
        "search_kind": request("GET", f"{base}/search?kind={RARE}&sort_order=TIMESTAMP_DESC"),
        "search_body": request("GET", f"{base}/search?body=file-4711%22"),
    }
    found = {}
    for name, read in reads.items():
        spent = []
        for _ in range(times if name != "search_body" else FEW_TIMES):
            begin = time.perf_counter()
            server.client.send(read)
            spent.append((time.perf_counter() - begin) * 1000)
        found[f"{name}_{key}_ms"] = statistics.median(spent)
    return found


def last_ids(server: Server, base: str) -> tuple[list[str], str]:
    """The ids of the last five pages in their order, and the first of them."""
    ids: list[str] = []
    more = ""
    for _ in range(BATCH // PAGE):
        answer = server.client.call("GET", f"{base}/search?limit={PAGE}&sort_order=TIMESTAMP_DESC{more}")
        ids += [event["id"] for event in answer["items"]]
        more = f"&page_id={answer['next_page_id']}"
    return ids[::-1], ids[-1]


@case("history", *read_figures("10k", "10,000"), fresh=True)
def history(target: Target, part: float) -> Mapping[str, float]:
    events = int(10_000 * part)
    with running(target.kind, target.program) as server:
        conversation = warmed(server)
        if target.slow:
            fill(server, conversation, 5)
            server.stop()
            peer_store.multiply_events(server.directory, conversation, events)
            server.start()
        else:
            fill(server, conversation, events // 2)
        return measured(server, conversation, "10k", FEW_TIMES if target.slow else TIMES)


@case(
    "million",
    *read_figures("1m", "1,000,000"),
    Figure(
        "growth_cpu",
        "processor time per event, at 1,000,000 to at 1,000",
        "x",
        "of the server; windows of 10,000 tool events",
    ),
    Figure("growth_rate", "time per event, at 1,000,000 to at 1,000", "x", "the same by the clock"),
    fresh=True,
    rounds=1,
)
def million(target: Target, part: float) -> Mapping[str, float | Unable]:
    keys = [*(f"{name}_1m_ms" for name, *_ in READS), "growth_cpu", "growth_rate"]
    if target.slow:
        return dict.fromkeys(keys, Unable("a million files; hours at the rate at which it relays"))
    with running(target.kind, target.program) as server:
        conversation = warmed(server)
        fill(server, conversation, 500)
        first = [fill(server, conversation, WINDOW_CALLS) for _ in range(3)]
        for _ in range(int(1_000_000 * part) // (2 * BURST_CALLS) - 1):
            fill(server, conversation, BURST_CALLS)
        last = [fill(server, conversation, WINDOW_CALLS) for _ in range(3)]
        found: dict[str, float | Unable] = {**measured(server, conversation, "1m", TIMES)}
    found["growth_rate"] = min(seconds for seconds, _ in last) / min(seconds for seconds, _ in first)
    found["growth_cpu"] = min(cpu for _, cpu in last) / min(cpu for _, cpu in first)
    return found
