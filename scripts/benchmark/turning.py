"""Cases: turns, first and warm, and how soon a person has control again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

from scripts.benchmark.cases import AGENTS, SERVERS, Figure, Target, Unable, case, percentile
from scripts.benchmark.client import PAUSED, RUNNING, BenchError, Socket, read_until
from scripts.benchmark.driving import say_all, turn, warm, warmed

LIVE_SECONDS = 60.0
"""How long a server may take to have its conversations live."""


@case(
    "turn",
    Figure(
        "first_turn_ms",
        "first turn",
        "ms",
        "message to finished on the socket, with the agent's start; median",
    ),
    Figure(
        "turn_p50_ms",
        "warm turn, p50",
        "ms",
        "message to finished on the socket; the agent says one word and reports its usage",
        aim=3,
    ),
    Figure("turn_p99_ms", "warm turn, p99", "ms", "the same", aim=6),
    Figure("turn_cpu_ms", "warm turn, processor time", "ms", "of the server's processes, per turn"),
    targets=AGENTS,
)
def turns(target: Target, part: float) -> Mapping[str, float]:
    server = target.standing()
    first = []
    for _ in range(2 if target.slow else 5):
        conversation = server.conversation()
        reader = Socket(server.client.port, conversation)
        first.append(turn(server, conversation, reader))
        reader.close()
    conversation = warmed(server)
    reader = Socket(server.client.port, conversation)
    turn(server, conversation, reader)
    count = 5 if target.slow else max(20, int(200 * part))
    before = server.cpu_seconds()
    times = [turn(server, conversation, reader) for _ in range(count)]
    used = server.cpu_seconds() - before
    reader.close()
    return {
        "first_turn_ms": statistics.median(first),
        "turn_p50_ms": percentile(times, 50),
        "turn_p99_ms": percentile(times, 99),
        "turn_cpu_ms": used * 1000 / count,
    }


@case(
    "turn-without-usage",
    Figure(
        "no_usage_turn_p50_ms",
        "warm turn of an agent without usage, p50",
        "ms",
        "the same, of an agent that reports no usage: the peer waits two seconds for it",
    ),
)
def turns_without_usage(target: Target, part: float) -> Mapping[str, float]:
    server = target.standing()
    conversation = warmed(server, usage=False)
    reader = Socket(server.client.port, conversation)
    turn(server, conversation, reader)
    times = [
        turn(server, conversation, reader) for _ in range(5 if target.slow else max(20, int(200 * part)))
    ]
    reader.close()
    return {"no_usage_turn_p50_ms": percentile(times, 50)}


@case(
    "interrupt",
    Figure(
        "interrupt_ms",
        "interrupt to control",
        "ms",
        "request to `paused` on the socket, of an agent that works; median",
    ),
)
def interrupt(target: Target, part: float) -> Mapping[str, float]:
    server = target.standing()
    conversation = warmed(server)
    reader = Socket(server.client.port, conversation)
    times = []
    for _ in range(2 if target.slow else max(3, int(10 * part))):
        server.say(conversation, "!paced 20 60")
        read_until([reader], end=lambda frame: RUNNING in frame)
        read_until([reader], end=lambda frame: b"sent_ns" in frame)
        begin = time.perf_counter()
        server.client.raw("POST", f"/api/conversations/{conversation}/interrupt", {})
        read_until([reader], end=lambda frame: PAUSED in frame)
        times.append((time.perf_counter() - begin) * 1000)
    reader.close()
    return {"interrupt_ms": statistics.median(times)}


@case(
    "turns-at-once",
    Figure("turns_100_s", "100 turns at once", "s", "first request to the last finished; agents are running"),
    targets=AGENTS | {"three"},
    rounds=1,
)
def at_once(target: Target, part: float) -> Mapping[str, float | Unable]:
    server = target.standing()
    count = max(10, int(100 * part))
    conversations = warm(target, count, LIVE_SECONDS)
    if len(conversations) < count:
        return {"turns_100_s": Unable(f"{len(conversations)} of {count} were live after {LIVE_SECONDS:g} s")}
    readers = [Socket(server.client.port, each) for each in conversations]
    begin = time.perf_counter()
    say_all(server, conversations, "!text done", readers)
    took = time.perf_counter() - begin
    for reader in readers:
        reader.close()
    return {"turns_100_s": took}


@case(
    "live",
    Figure("live_500_mb", "500 live conversations, memory", "MB", "all processes of the server; no agents"),
    Figure("live_500_turn_ms", "500 live conversations, warm turn, p50", "ms", "of one of them"),
    targets=SERVERS,
    rounds=1,
)
def live(target: Target, part: float) -> Mapping[str, float | Unable]:
    server = target.standing()
    count = int(500 * part)
    try:
        conversations = warm(target, count, LIVE_SECONDS)
    except BenchError as error:
        conversations = []
        reason = Unable(str(error).splitlines()[0][:100])
    else:
        reason = Unable(f"{len(conversations)} of {count} were live after {LIVE_SECONDS:g} s")
    if len(conversations) < count:
        return {"live_500_mb": reason, "live_500_turn_ms": reason}
    reader = Socket(server.client.port, conversations[-1])
    times = [turn(server, conversations[-1], reader) for _ in range(5 if target.slow else 50)]
    reader.close()
    return {"live_500_mb": server.memory_mb(), "live_500_turn_ms": percentile(times, 50)}
