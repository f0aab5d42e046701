"""The servers that are measured, each as a process with a directory of its own.

All of them speak the same wire: Ostler, the peer's server, and the floors (`relay_floor.py`,
`bare_floor.py`), which do as little of it as can be measured.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import ClassVar

from scripts.benchmark.client import BenchError, Client
from scripts.benchmark.processes import PROC, children, cpu_seconds, memory_mb, own_mb

ROOT = Path(__file__).resolve().parents[2]
AGENT = ROOT / "tests" / "fake_agent" / "scripted.py"
REPORTING = ("--mode", "usage")
"""Arguments with which it reports its usage."""

READY = re.compile(rb"listening on http://127\.0\.0\.1:(\d+)")
START_SECONDS = 90.0
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.002
"""Between two looks whether a server answers: small next to the smallest start."""
PEER_SETTINGS = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else its model library fetches a price list
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "DO_NOT_TRACK": "1",
    "OH_TELEMETRY_ENABLED": "false",
    "OH_ENABLE_VSCODE": "false",
    "OH_ENABLE_VNC": "false",
    "OH_PRELOAD_TOOLS": "false",
    "OH_WEBHOOKS": "[]",
    "OH_SECRET_KEY": "the-key-of-a-bench-0123456789abcd",
    "OH_MAX_CONCURRENT_RUNS": "1000",
}
"""What switches off of the peer's server whatever a bench does not need, and all that asks the network; and
lets it have as many turns at a time as a case asks for (its own limit is 10)."""


class Server(ABC):
    """A server that runs. `program` is what runs it: an interpreter, or the `ostler` command."""

    name: ClassVar[str]

    def __init__(self, program: Path, directory: Path, settings: Mapping[str, str]) -> None:
        self._program = program
        self.directory = directory
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.client = Client(0)
        self.started_in = 0.0
        """Seconds from the start of the process to the first answer of 200 on `/health`."""

    @abstractmethod
    def command(self, port: int) -> list[str]:
        """What starts it on this port."""

    def environment(self) -> dict[str, str]:
        """All of its environment."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.directory / "home"), **self._settings}

    def start(self) -> None:
        """Start it, or start it again on the same state."""
        (self.directory / "home").mkdir(parents=True, exist_ok=True)
        (self.directory / "project").mkdir(exist_ok=True)
        port = free_port()
        with (self.directory / "server.log").open("ab") as log:
            begin = time.perf_counter()
            self._process = subprocess.Popen(
                self.command(port),
                cwd=self.directory,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        while not healthy(port):
            if self._process.poll() is not None or time.perf_counter() - begin > START_SECONDS:
                text = (self.directory / "server.log").read_text(errors="replace")[-2000:]
                raise BenchError(f"{self.name} did not start:\n{text}")
            time.sleep(LOOK_SECONDS)
        self.started_in = time.perf_counter() - begin
        self.client = Client(port)

    def stop(self) -> None:
        """End it in order; by force, if that takes long."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def close(self) -> None:
        """End it, and what it was started with."""
        self.stop()

    def kill(self) -> None:
        """End it and its agents by force."""
        if self._process is None:
            return
        below = self._below(self._process.pid)
        self._process.kill()
        self._process.wait()
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process = None

    def processes(self) -> list[int]:
        """The server's own processes: all but the agents."""
        assert self._process is not None
        return [self._process.pid, *(pid for pid in self._below(self._process.pid) if not is_agent(pid))]

    def _below(self, pid: int) -> list[int]:
        found: list[int] = []
        for child in children(pid):
            found += [child, *self._below(child)]
        return found

    def agents(self) -> int:
        """How many agents are running."""
        assert self._process is not None
        return sum(map(is_agent, self._below(self._process.pid)))

    def memory_mb(self) -> float:
        return memory_mb(self.processes())

    def own_mb(self) -> float:
        return own_mb(self.processes())

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.processes())

    def conversation(self, *, usage: bool = True) -> str:
        """Make a conversation and return its id. Its agent starts with its first message.

        `usage`: the agent reports it in each turn, as Claude Code, Codex and Gemini CLI do.
        """
        agent = {
            "agent_kind": "acp",
            "acp_server": "custom",
            "acp_command": [sys.executable, "-SE", str(AGENT), *REPORTING * usage],
        }
        body = {"workspace": {"working_dir": str(self.directory / "project")}, "agent_settings": agent}
        return str(self.client.call("POST", "/api/conversations", body)["id"])

    def say(self, conversation: str, text: str) -> None:
        body = {"role": "user", "content": [{"type": "text", "text": text}], "run": True}
        self.client.raw("POST", f"/api/conversations/{conversation}/events", body)


class Ostler(Server):
    """`ostler serve` on an empty state directory."""

    name = "ostler"

    def command(self, port: int) -> list[str]:
        return [str(self._program), "serve", "--port", str(port), "--state", str(self.directory / "state")]

    def environment(self) -> dict[str, str]:
        return {
            "OSTLER_MAX_SUBSCRIBERS": "200",
            **super().environment(),
        }  # a case has 100 sockets; 50 is usual


class Before(Ostler):
    """The `ostler` of another checkout."""

    name = "before"


class Peer(Server):
    """The peer's server with an empty home."""

    name = "peer"

    def command(self, port: int) -> list[str]:
        return [
            str(self._program),
            "-m",
            "openhands.agent_server",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **PEER_SETTINGS}


class Floor(Server):
    """The least that relays: read, parse, encode, commit, write."""

    name = "floor"
    module: ClassVar[str] = "relay_floor"

    def command(self, port: int) -> list[str]:
        return [str(self._program), "-m", f"scripts.benchmark.{self.module}", str(port), str(self.directory)]

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PYTHONPATH": str(ROOT)}


class Bare(Floor):
    """A bare Hypercorn socket under Trio: what it sends was made before, and no agent is there."""

    name = "bare"
    module = "bare_floor"


@contextmanager
def running(kind: type[Server], program: Path, **settings: str) -> Iterator[Server]:
    """Such a server, started, in a directory that is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="ostler-bench-")).resolve()
    server = kind(program, directory, settings)
    try:
        server.start()
        yield server
    finally:
        server.close()
        shutil.rmtree(directory, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def healthy(port: int) -> bool:
    """Whether it answers 200 on `/health`."""
    connection = HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def is_agent(pid: int) -> bool:
    try:
        return str(AGENT).encode() in (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
