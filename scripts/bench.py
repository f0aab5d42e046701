"""Measures Ostler's speed and weight on this machine, with a scripted agent and a real server, in one run.

The client reads sockets as cheaply as it can (it scans frames and decodes only what it needs), so that what
is measured is the server. Every load is bounded in count and time, and goes to the loopback address alone.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import re
import secrets
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

AGENT = Path(__file__).resolve().with_name("bench_agent.py")
READY = re.compile(rb"listening on http://127\.0\.0\.1:(\d+)")
WAIT_SECONDS = 60.0  # for anything; a bench that hangs must end
STAMP = re.compile(rb'"sent_ns":(\d+)')
FINISHED = b'"key":"execution_status","value":"finished"'
TOOL = b'"kind":"ACPToolCallEvent"'
DELTA = b'"kind":"StreamingDeltaEvent"'


class Server:
    """One `ostler serve` on a free port, with a state directory of its own."""

    def __init__(self, directory: Path) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": str(directory)}
        command = [str(Path(sys.executable).with_name("ostler")), "serve", "--port", "0"]
        self.state = directory / "state"
        begin = time.perf_counter()
        self.log = (directory / "server.log").open("ab")
        self.process = subprocess.Popen(
            [*command, "--state", str(self.state)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=self.log,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = READY.search(line)
        if not found:
            sys.exit(f"bench: the server did not start; see {directory / 'server.log'}: {line.decode()}")
        self.port = int(found[1])
        self.connections = threading.local()
        self.call("GET", "/alive")
        self.started_in = time.perf_counter() - begin
        self.workspace = directory / "workspace"

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request, on a connection per thread that is kept open, as clients do."""
        connection = getattr(self.connections, "open", None)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections.open = connection
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            sys.exit(f"bench: {method} {path}: {answer.status} {text[:500].decode()}")
        return json.loads(text)

    def conversation(self) -> str:
        agent = {
            "agent_kind": "acp",
            "acp_server": "custom",
            "acp_command": [sys.executable, "-SE", str(AGENT)],
        }
        body = {"workspace": {"working_dir": str(self.workspace)}, "agent_settings": agent}
        return str(self.call("POST", "/api/conversations", body)["id"])

    def say(self, conversation: str, text: str) -> None:
        body = {"content": [{"type": "text", "text": text}], "run": True}
        self.call("POST", f"/api/conversations/{conversation}/events", body)

    def rss_mb(self) -> float:
        pid = (self.state / "server.pid").read_text().strip()  # what was started is its warden
        status = Path(f"/proc/{pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()


class Socket:
    """A WebSocket that only listens. `frames` gives what has arrived, without decoding it."""

    def __init__(self, port: int, conversation: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self.socket.sendall(
            f"GET /sockets/events/{conversation} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self.buffer = bytearray()
        while b"\r\n\r\n" not in self.buffer:
            self.receive()
        head, _, rest = bytes(self.buffer).partition(b"\r\n\r\n")
        if b" 101 " not in head.partition(b"\r\n")[0]:
            sys.exit(f"bench: the socket was refused: {head.decode()}")
        self.buffer = bytearray(rest)

    def receive(self) -> None:
        data = self.socket.recv(1 << 20)
        if not data:
            sys.exit("bench: the server closed a socket")
        self.buffer += data

    def frames(self) -> Iterator[bytes]:
        """The complete frames in the buffer (servers send them unmasked, RFC 6455 section 5.1)."""
        data, at = bytes(self.buffer), 0
        while len(data) - at >= 2:
            size, begin = data[at + 1] & 127, at + 2
            if size >= 126:
                width = 2 if size == 126 else 8
                begin += width
                if len(data) < begin:
                    break
                size = int.from_bytes(data[begin - width : begin], "big")
            if len(data) < begin + size:
                break
            yield data[begin : begin + size]
            at = begin + size
        del self.buffer[:at]


def read_until_finished(sockets: Sequence[Socket], seen: Callable[[bytes, int], None]) -> None:
    """Read all sockets until each has told that its conversation finished. `seen(frame, arrival in ns)`."""
    with selectors.DefaultSelector() as selector:
        for each in sockets:
            selector.register(each.socket, selectors.EVENT_READ, each)
        until = time.monotonic() + WAIT_SECONDS
        while selector.get_map():
            if time.monotonic() > until:
                sys.exit(f"bench: not finished after {WAIT_SECONDS:g} s")
            for key, _ in selector.select(1.0):
                key.data.receive()
                arrival = time.monotonic_ns()
                for frame in key.data.frames():
                    seen(frame, arrival)
                    if FINISHED in frame:
                        selector.unregister(key.data.socket)


def relayed(server: Server, prompt: str, kind: bytes) -> float:
    """Frames of that kind per second on one socket, from the first to the last."""
    conversation = warm(server)
    reader = Socket(server.port, conversation)
    arrivals: list[int] = []

    def seen(frame: bytes, arrival: int) -> None:
        if kind in frame:
            arrivals.append(arrival)

    server.say(conversation, prompt)
    read_until_finished([reader], seen)
    reader.socket.close()
    return (len(arrivals) - 1) / ((arrivals[-1] - arrivals[0]) / 1e9)


def warm(server: Server) -> str:
    """A conversation whose agent is running."""
    conversation = server.conversation()
    reader = Socket(server.port, conversation)
    server.say(conversation, "turn")
    read_until_finished([reader], lambda frame, arrival: None)
    reader.socket.close()
    return conversation


def turn_times(server: Server, count: int) -> list[float]:
    """Milliseconds from sending a message to the word that it is finished, on a warm agent."""
    conversation = warm(server)
    reader = Socket(server.port, conversation)
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        server.say(conversation, "turn")
        read_until_finished([reader], lambda frame, arrival: None)
        times.append((time.perf_counter() - begin) * 1000)
    reader.socket.close()
    return times


def latencies(server: Server, conversations: Sequence[str], rate: float, seconds: float) -> list[float]:
    """Milliseconds from an agent's write of a tool event to its arrival at a socket; `rate` is of all."""
    readers = [Socket(server.port, conversation) for conversation in conversations]
    found: list[float] = []

    def seen(frame: bytes, arrival: int) -> None:
        stamp = STAMP.search(frame)
        if stamp:
            found.append((arrival - int(stamp[1])) / 1e6)

    prompt = f"paced {rate / len(conversations)} {seconds}"
    # In a thread, so that what the first ones send is read while the last ones are asked.
    with ThreadPoolExecutor(1) as pool:
        asked = [pool.submit(server.say, conversation, prompt) for conversation in conversations]
        read_until_finished(readers, seen)
        for each in asked:
            each.result()
    for reader in readers:
        reader.socket.close()
    return found


def turns_at_once(server: Server, conversations: Sequence[str]) -> float:
    """Seconds until all of them have had a turn that was asked for at the same time."""
    readers = [Socket(server.port, conversation) for conversation in conversations]
    begin = time.perf_counter()
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(server.say, conversation, "turn") for conversation in conversations]
        read_until_finished(readers, lambda frame, arrival: None)
        for each in asked:
            each.result()
    took = time.perf_counter() - begin
    for reader in readers:
        reader.socket.close()
    return took


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


@contextmanager
def running() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="ostler-bench-") as directory:
        server = Server(Path(directory))
        try:
            yield server
        finally:
            server.stop()


def cold_starts(count: int) -> float:
    """The median of some, in seconds; the first is left out, since it compiles."""
    times = []
    for _ in range(count + 1):
        with running() as server:
            times.append(server.started_in)
    return statistics.median(times[1:])


def measure(quick: bool) -> Iterator[tuple[str, str, float, str, float, bool]]:
    """Key, words, value, unit, aim, and whether more is better."""
    part = 0.2 if quick else 1.0
    yield "cold_start_s", "cold start to /alive", cold_starts(3 if quick else 7), "s", 0.5, False
    with running() as server:
        time.sleep(0.5)
        empty = server.rss_mb()
        yield "idle_rss_mb", "memory, idle", empty, "MB", 60, False
        idle = int(400 * part)
        for _ in range(idle):
            server.conversation()
        grown = (server.rss_mb() - empty) * 1024 / idle
        yield "idle_conversation_kb", "memory per idle conversation without agent", grown, "KB", 15, False
    with running() as server:
        tools, deltas = int(20_000 * part), int(60_000 * part)
        yield (
            "tool_events_per_s",
            "tool events to one socket",
            relayed(server, f"tools {tools}", TOOL),
            "/s",
            10_000,
            True,
        )
        yield (
            "deltas_per_s",
            "text deltas to one socket",
            relayed(server, f"deltas {deltas}", DELTA),
            "/s",
            20_000,
            True,
        )
    with running() as server:
        alone = latencies(server, [warm(server)], 200, 5 * part)
        yield "latency_p50_ms", "agent's write to socket, 200/s, p50", percentile(alone, 50), "ms", 5, False
        yield "latency_p99_ms", "agent's write to socket, 200/s, p99", percentile(alone, 99), "ms", 5, False
        times = turn_times(server, int(200 * part))
        yield "turn_p50_ms", "turn on a warm agent, p50", percentile(times, 50), "ms", 3, False
        yield "turn_p99_ms", "turn on a warm agent, p99", percentile(times, 99), "ms", 3, False
    with running() as server:
        many = [warm(server) for _ in range(50)]
        busy = latencies(server, many, 1000, 5 * part)
        yield "busy_p50_ms", "50 busy conversations, 1,000/s, p50", percentile(busy, 50), "ms", 25, False
        yield "busy_p99_ms", "50 busy conversations, 1,000/s, p99", percentile(busy, 99), "ms", 25, False
        many += [warm(server) for _ in range(50)]
        yield "turns_100_s", "100 turns at once", turns_at_once(server, many), "s", 1, False


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--quick", action="store_true", help="a fifth of the load: to see that it works")
    arguments = parser.parse_args()
    result: dict[str, float] = {}
    for key, words, value, unit, aim, more in measure(arguments.quick):
        result[key] = round(value, 3)
        if not arguments.json:
            met = "" if (value >= aim if more else value <= aim) else "   missed"
            sign = ">" if more else "<"
            print(f"{words:<44} {value:>12,.3f} {unit:<3} aim {sign} {aim:,g}{met}", flush=True)
    if arguments.json:
        print(json.dumps({"cpus": os.cpu_count(), "python": sys.version.split()[0], **result}, indent=1))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
