"""Cases: how much a server relays from an agent to sockets, and what that leaves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from scripts.benchmark.cases import AGENTS, EVERYBODY, Figure, Target, Unable, case
from scripts.benchmark.client import BenchError, Socket, read_until
from scripts.benchmark.driving import drain, say_all, warmed
from scripts.benchmark.servers import Server

TOOL = b'"kind":"ACPToolCallEvent"'
DELTA = b'"kind":"StreamingDeltaEvent"'
KINDS = {"tools": TOOL, "deltas": DELTA}
WORD = b"word"
"""Stands once in each piece of text that the agent sends: pieces are counted although they may be merged."""
SETTLE_SECONDS = 2.0
LONG_DELTAS = 20_000
LONG_TOOLS = 50


class Burst:
    """One burst of an agent, as one socket gets it; others take it too, and count nothing."""

    def __init__(self, server: Server, conversation: str, sockets: int) -> None:
        self.server, self.conversation = server, conversation
        self.reader = Socket(server.client.port, conversation)
        self.others = [Socket(server.client.port, conversation) for _ in range(sockets - 1)]
        self.pieces = 0
        self.cpu = 0.0
        self.seconds = 0.0

    def run(self, kind: str, count: int) -> None:
        mark = KINDS[kind]
        last = 0

        def seen(frame: bytes, arrival: int) -> None:
            nonlocal last
            if mark in frame:
                self.pieces += 1 if mark is TOOL else frame.count(WORD)
                last = arrival

        before, begin = self.server.cpu_seconds(), time.monotonic_ns()
        with ThreadPoolExecutor(1) as pool:
            others = pool.submit(drain, self.others, mark)
            self.server.say(self.conversation, f"!burst {kind} {count}")
            read_until([self.reader], seen)
            last = max(last, others.result())
        self.seconds = (last - begin) / 1e9
        self.cpu = self.server.cpu_seconds() - before
        for each in (self.reader, *self.others):
            each.close()

    @property
    def rate(self) -> float:
        return self.pieces / self.seconds


AMOUNTS = {"tools": {1: 10_000, 10: 2_500, 100: 250}, "deltas": {1: 20_000, 10: 5_000, 100: 500}}
FEWER = {"tools": {1: 100, 10: 100, 100: 50}, "deltas": {1: 2_000, 10: 500, 100: 100}}
"""What the peer's server gets: a burst takes some seconds."""


def bursts(target: Target, part: float, kind: str, per_message: int) -> dict[str, float | Unable]:
    server = target.standing()
    conversation = warmed(server)
    found: dict[str, float | Unable] = {}
    for sockets in (1, 10, 100):
        count = (FEWER if target.slow else AMOUNTS)[kind][sockets]
        count = count if target.slow else max(100, int(count * part))
        try:
            burst = Burst(server, conversation, sockets)
            burst.run(kind, count)
        except BenchError as error:
            found[f"{kind}_{sockets}"] = Unable(str(error))
            continue
        found[f"{kind}_{sockets}"] = burst.rate
        if sockets == 1:
            found[f"{kind}_cpu_s"] = burst.cpu * 1000 / max(1, burst.pieces)
            found[f"{kind}_missing"] = 100 * (1 - burst.pieces / (count * per_message))
    return found


def relay_figures(kind: str, words: str, aims: tuple[float, float], cpu: float | None) -> tuple[Figure, ...]:
    how = "one agent sends as fast as it is read; from the message to the last one on the sockets"
    return (
        Figure(f"{kind}_1", f"{words}, one socket", "/s", how, True, aims[0]),
        Figure(f"{kind}_10", f"{words}, 10 sockets", "/s", "the same; each socket gets all", True, aims[1]),
        Figure(f"{kind}_100", f"{words}, 100 sockets", "/s", "the same", True),
        Figure(
            f"{kind}_cpu_s", f"{words}, processor time per 1,000", "s", "of the server, one socket", aim=cpu
        ),
        Figure(
            f"{kind}_missing", f"{words} that one socket missed", "%", "of those that the agent sent", aim=0
        ),
    )


@case("tools", *relay_figures("tools", "tool events", (25_000, 10_000), 0.035), targets=EVERYBODY)
def tools(target: Target, part: float) -> Mapping[str, float | Unable]:
    return bursts(target, part, "tools", 2)


@case("deltas", *relay_figures("deltas", "text deltas", (30_000, 12_000), None), targets=EVERYBODY)
def deltas(target: Target, part: float) -> Mapping[str, float | Unable]:
    return bursts(target, part, "deltas", 1)


@case(
    "stalled",
    Figure(
        "stalled",
        "tool events with a stalled socket",
        "/s",
        "another socket of the conversation reads nothing",
        True,
    ),
    Figure(
        "stalled_kb",
        "memory that it keeps of 1,000 events",
        "KB",
        "of the server, two seconds later; the socket is still there",
    ),
)
def stalled(target: Target, part: float) -> Mapping[str, float]:
    server = target.standing()
    conversation = warmed(server)
    before = server.memory_mb()
    silent = Socket(server.client.port, conversation)
    burst = Burst(server, conversation, 1)
    burst.run("tools", 100 if target.slow else max(100, int(10_000 * part)))
    time.sleep(SETTLE_SECONDS)
    after = server.memory_mb()
    silent.close()
    return {"stalled": burst.rate, "stalled_kb": max(0.0, after - before) * 1024 * 1000 / burst.pieces}


@case(
    "long-turn",
    Figure(
        "long_turn_s", "a turn of 20,000 deltas and 100 tool events", "s", "message to finished on the socket"
    ),
    Figure("long_turn_mb", "memory that a long turn leaves", "MB", "of the server, two seconds later", aim=5),
    targets=AGENTS,
)
def long_turn(target: Target, part: float) -> Mapping[str, float]:
    server = target.standing()
    conversation = warmed(server)
    time.sleep(SETTLE_SECONDS)
    before = server.memory_mb()
    reader = Socket(server.client.port, conversation)
    begin = time.perf_counter()
    script = f"!burst deltas {int(LONG_DELTAS * part)}\n!burst tools {LONG_TOOLS}"
    say_all(server, [conversation], script, [reader])
    took = time.perf_counter() - begin
    reader.close()
    time.sleep(SETTLE_SECONDS)
    return {"long_turn_s": took, "long_turn_mb": server.memory_mb() - before}
