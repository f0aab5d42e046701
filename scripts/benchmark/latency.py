"""Cases: how long a tool event takes from the agent's write to a socket, and a message until it is stored."""

from __future__ import annotations

import json
import re
import selectors
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from scripts.benchmark.cases import AGENTS, EVERYBODY, Figure, Target, Unable, case, percentile
from scripts.benchmark.client import BenchError, Socket, read_until
from scripts.benchmark.driving import ASKED_AT_ONCE, say_all, warm, warmed
from scripts.benchmark.servers import ROOT, Server, running

PROBE = ROOT / "scripts" / "benchmark" / "commit_probe.py"
STAMP = re.compile(rb'"sent_ns": ?(\d+)')
FLOOD_WAIT_SECONDS = 20.0
"""How long the word of a calm agent may take while others flood."""
BUSY_SECONDS = 40.0
"""How long 50 agents may take to start."""


def latencies(server: Server, conversations: Sequence[str], rate: float, seconds: float) -> list[float]:
    """Milliseconds from an agent's write of a tool event to its arrival; `rate` is that of all together."""
    readers = [Socket(server.client.port, conversation) for conversation in conversations]
    found: list[float] = []

    def seen(frame: bytes, arrival: int) -> None:
        stamp = STAMP.search(frame)
        if stamp:
            found.append((arrival - int(stamp[1])) / 1e6)

    try:
        say_all(server, conversations, f"!paced {rate / len(conversations)} {seconds}", readers, seen)
    finally:
        for reader in readers:
            reader.close()
    if not found:
        raise BenchError("no tool event arrived")
    return found


def pair(key: str, words: str, how: str, aims: tuple[float | None, float | None]) -> tuple[Figure, Figure]:
    return (
        Figure(f"{key}_p50_ms", f"{words}, p50", "ms", how, aim=aims[0]),
        Figure(f"{key}_p99_ms", f"{words}, p99", "ms", how, aim=aims[1]),
    )


@case(
    "latency",
    *pair(
        "latency", "write to socket, alone", "200 tool events a second; agent's write to arrival", (0.8, 2)
    ),
    targets=EVERYBODY,
)
def alone(target: Target, part: float) -> Mapping[str, float]:
    server = target.standing()
    found = latencies(server, [warmed(server)], 200, 1 if target.slow else max(0.5, 4 * part))
    return {"latency_p50_ms": percentile(found, 50), "latency_p99_ms": percentile(found, 99)}


@case(
    "busy",
    *pair(
        "busy",
        "write to socket, 50 busy",
        "50 conversations, 1,000 tool events a second together",
        (None, None),
    ),
    targets=AGENTS,
    rounds=1,
)
def busy(target: Target, part: float) -> Mapping[str, float | Unable]:
    server = target.standing()
    conversations = warm(target, 50, BUSY_SECONDS)
    if len(conversations) < 50:
        reason = Unable(f"{len(conversations)} of 50 were live after {BUSY_SECONDS:g} s")
        return {"busy_p50_ms": reason, "busy_p99_ms": reason}
    found = latencies(server, conversations, 1000, 1 if target.slow else max(1, 4 * part))
    return {"busy_p50_ms": percentile(found, 50), "busy_p99_ms": percentile(found, 99)}


@case(
    "floods",
    *pair(
        "flood",
        "write to socket while 20 agents flood",
        "50 tool events a second of a calm agent",
        (None, None),
    ),
    *pair(
        "commit",
        "message stored while 20 agents flood",
        "request to answer, which tells that it is durable",
        (None, 20),
    ),
    fresh=True,
    rounds=1,
)
def floods(target: Target, part: float) -> Mapping[str, float | Unable]:
    seconds = max(2.0, 6 * part)
    agents = 20
    with running(target.kind, target.program) as server:
        calm = warmed(server)
        other = server.conversation()
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            wild = list(pool.map(lambda _: warmed(server), range(agents)))
        # Each with a socket that somebody reads, as a person looks at it.
        readers = [Socket(server.client.port, each) for each in wild]
        ended = threading.Event()
        reading = threading.Thread(target=swallow, args=(readers, ended))
        reading.start()
        stored: list[float] = []
        try:
            for each in wild:
                server.say(each, "!gush tools 3600")
            time.sleep(0.5)
            asking = threading.Thread(target=store, args=(server, other, stored, seconds))
            asking.start()
            reader = Socket(server.client.port, calm)
            found: list[float] = []

            def seen(frame: bytes, arrival: int) -> None:
                if stamp := STAMP.search(frame):
                    found.append((arrival - int(stamp[1])) / 1e6)

            with suppress(BenchError):
                server.say(calm, f"!paced 50 {seconds}")
                read_until([reader], seen, seconds=FLOOD_WAIT_SECONDS)
            asking.join()
        except (OSError, BenchError) as error:
            reason = Unable(f"does not answer meanwhile ({type(error).__name__})")
            return dict.fromkeys(("flood_p50_ms", "flood_p99_ms", "commit_p50_ms", "commit_p99_ms"), reason)
        finally:
            ended.set()
            server.kill()
            reading.join()
    late = Unable(f"nothing arrived within {FLOOD_WAIT_SECONDS:g} s")
    return {
        "flood_p50_ms": percentile(found, 50) if found else late,
        "flood_p99_ms": percentile(found, 99) if found else late,
        "commit_p50_ms": percentile(stored, 50) if stored else late,
        "commit_p99_ms": percentile(stored, 99) if stored else late,
    }


@case(
    "commit",
    *pair(
        "saturated",
        "event durable, with a saturated loop",
        "the journal alone in a process whose Trio loop never waits; append to durable",
        (None, 20),
    ),
    fresh=True,
    targets=frozenset({"ostler", "before"}),
)
def commit(target: Target, part: float) -> Mapping[str, float | Unable]:
    with tempfile.TemporaryDirectory(prefix="ostler-bench-") as directory:
        python = target.program.with_name("python")
        done = subprocess.run(
            [str(python), str(PROBE), directory, str(max(1.0, 6 * part))],
            capture_output=True,
            timeout=FLOOD_WAIT_SECONDS + 10,
        )
    if done.returncode:
        reason = Unable(done.stderr.decode(errors="replace").strip()[-200:])
        return {"saturated_p50_ms": reason, "saturated_p99_ms": reason}
    found = json.loads(done.stdout)
    return {"saturated_p50_ms": percentile(found, 50), "saturated_p99_ms": percentile(found, 99)}


def store(server: Server, conversation: str, found: list[float], seconds: float) -> None:
    """Send messages that run nothing, one after the other, and note the milliseconds until each answer."""
    body = {"role": "user", "content": [{"type": "text", "text": "a message"}], "run": False}
    until = time.monotonic() + seconds
    with suppress(OSError, BenchError):
        while time.monotonic() < until:
            begin = time.perf_counter()
            server.client.raw("POST", f"/api/conversations/{conversation}/events", body)
            found.append((time.perf_counter() - begin) * 1000)
            time.sleep(0.02)


def swallow(sockets: Sequence[Socket], ended: threading.Event) -> None:
    """Take what comes on sockets, in another process's stead: as little work as can be."""
    with selectors.DefaultSelector() as selector:
        for each in sockets:
            each.socket.setblocking(False)
            selector.register(each.socket, selectors.EVENT_READ)
        while not ended.is_set() and selector.get_map():
            for key, _ in selector.select(0.1):
                try:
                    if not key.fileobj.recv(1 << 20):  # type: ignore[union-attr]
                        selector.unregister(key.fileobj)
                except BlockingIOError:
                    pass
                except OSError:
                    selector.unregister(key.fileobj)
    for each in sockets:
        each.close()
