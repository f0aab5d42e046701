"""Asks `/health` all the time, in a process of its own: a test that builds megabytes would hold itself up.

    python -m tests.support.liveness PORT PID

It writes a line for each answer: when it was asked for, by the monotonic clock, how long it took, and how
much of that the server's threads and this process waited for a processor. Seconds.
"""

from __future__ import annotations

import bisect
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import trio

from tests.support.processes import waited_by_thread

ROOT = Path(__file__).parents[2]
REQUEST = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
ENDS = b'"}'
PAUSE_S = 0.003
LOOK_S = 0.01


def ask(port: int, pid: int) -> None:
    """Until it is killed."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        me = os.getpid()
        while True:
            before, own = waited_by_thread(pid), waited_by_thread(me)
            begun = time.monotonic()
            connection.sendall(REQUEST)
            answer = b""
            while not answer.endswith(ENDS):
                data = connection.recv(65536)
                if not data:
                    sys.exit("the server ended the connection")
                answer += data
            took = time.monotonic() - begun
            if not answer.startswith(b"HTTP/1.1 200 "):
                sys.exit(f"not alive: {answer[:500]!r}")
            after = waited_by_thread(pid)
            waited = sum(after[thread] - seconds for thread, seconds in before.items() if thread in after)
            waited += sum(waited_by_thread(me).values()) - sum(own.values())
            print(begun, took, waited, flush=True)
            time.sleep(PAUSE_S)


class Watch:
    """How soon a server answers while a test does what it names. Around a block of it."""

    def __init__(self, url: str, pid: int, told: Path) -> None:
        self._command = [sys.executable, "-m", "tests.support.liveness", url.rpartition(":")[2], str(pid)]
        self._path = told
        self._begun: list[float] = []
        self._names: list[str] = []

    def __enter__(self) -> Watch:
        self.what = "nothing"
        with self._path.open("wb") as told:
            self._process = subprocess.Popen(self._command, stdout=told, cwd=ROOT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def what(self) -> str:
        """What is done just now."""
        return self._names[-1]

    @what.setter
    def what(self, name: str) -> None:
        self._begun.append(time.monotonic())
        self._names.append(name)

    async def settle(self) -> None:
        """Wait for the answer under way, and one after it."""
        now, seen = time.monotonic(), 0
        while seen < 2:
            assert self._process.poll() is None, "it ended: its error is above"
            await trio.sleep(LOOK_S)
            seen = sum(begun > now for begun, _, _ in self._answers())

    def slowest(self) -> list[tuple[float, float, str]]:
        """For each thing that was done: the longest answer, without what was waited for a processor and with
        it, and what was done. The longest first."""
        most: dict[str, tuple[float, float]] = {}
        for begun, took, waited in self._answers():
            first = bisect.bisect_right(self._begun, begun) - 1
            last = bisect.bisect_right(self._begun, begun + took)
            for name in self._names[max(0, first) : last]:
                own, whole = most.get(name, (0.0, 0.0))
                most[name] = max(own, took - waited), max(whole, took)
        return sorted(((*found, name) for name, found in most.items()), reverse=True)

    def _answers(self) -> list[tuple[float, float, float]]:
        lines = self._path.read_text().split("\n")[:-1]
        return [(float(a), float(b), float(c)) for a, b, c in map(str.split, lines)]


if __name__ == "__main__":
    ask(int(sys.argv[1]), int(sys.argv[2]))
