"""Servers as real processes that are killed and stopped at random: what the database has afterwards."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from supervisor.database.address import Database
from tests.machines.servers import connected, conversation
from tests.support.processes import wait_until
from tests.support.thorough import everyday

CONVERSATIONS = 12
SECONDS = everyday(3.0, 20.0)
START_S = 60.0  # a busy machine
MODES = {"a": ["warden"], "b": [], "c": ["heedless"]}
"""The servers by name. A warden starts its server again, the test starts the others. A heedless server does
not end with its lease: the fence alone keeps it from writing."""


class Servers:
    """The processes, by name."""

    def __init__(self, database: Database, place: Path) -> None:
        self.database = database
        self.place = place
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.stopped: dict[str, tuple[int, float]] = {}
        """The PID, and when it goes on."""
        self.done: Counter[str] = Counter()

    def start(self, name: str) -> None:
        directory = self.place / name
        directory.mkdir(exist_ok=True)
        arguments = [self.database.conninfo, str(directory), name, *MODES[name]]
        command = [sys.executable, "-m", "tests.machines.writer", *arguments]
        self.processes[name] = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def pid(self, name: str) -> int | None:
        with suppress(OSError, ValueError):
            return int((self.place / name / "pid").read_text())
        return None

    def send(self, pid: int | None, number: int) -> bool:
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False

    def look_after(self) -> None:
        """Start what ended, and let go on what was stopped for long enough."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                (self.place / name / "pid").unlink(missing_ok=True)
                self.start(name)
        for name, (pid, until) in list(self.stopped.items()):
            if time.monotonic() >= until:
                del self.stopped[name]
                self.send(pid, signal.SIGCONT)

    def disturb(self, chance: random.Random) -> None:
        name = chance.choice(sorted(self.processes))
        pid = self.pid(name)
        if name in self.stopped:
            return
        if chance.random() < 0.4:
            self.done["killed"] += self.send(pid, signal.SIGKILL)
        elif self.send(pid, signal.SIGSTOP) and pid is not None:
            self.stopped[name] = pid, time.monotonic() + chance.uniform(0.1, 1.5)
            self.done["stopped"] += 1

    def end(self) -> None:
        for name in self.processes:
            self.send(self.pid(name), signal.SIGCONT)
        for process in self.processes.values():
            process.terminate()  # the warden passes it on, and starts nothing again
        for process in self.processes.values():
            process.wait()

    def joined(self) -> set[str]:
        return {each.parent.name for each in self.place.glob("*/acknowledged")}

    def acknowledged(self) -> list[tuple[int, int, str]]:
        found = []
        for name in self.joined():
            for line in (self.place / name / "acknowledged").read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # the last one may be cut
                    key, seq, identifier = line.split()
                    found.append((int(key), int(seq), identifier))
        return found


def test_no_gap_no_duplicate_and_nothing_acknowledged_is_lost(database, tmp_path):
    chance = random.Random()
    servers = Servers(database, tmp_path)
    with connected(database) as connection:

        def lasts() -> dict[int, int]:
            return dict(connection.execute("SELECT key, last_seq FROM heads").fetchall())

        def owners() -> set[int]:
            servers.look_after()
            return {owner for (owner,) in connection.execute("SELECT DISTINCT owner FROM heads").fetchall()}

        def taken_over() -> int:
            row = connection.execute("SELECT sum(generation)::int FROM heads").fetchone()
            assert row is not None
            return row[0] - CONVERSATIONS

        def goes_on(before: dict[int, int]) -> bool:
            servers.look_after()
            return all(last > before[key] for key, last in lasts().items())

        for number in range(CONVERSATIONS):
            conversation(connection, f"c{number}")
        try:
            # First what every run has to show: one that was stopped wakes up, and others have what it had.
            servers.start("c")
            assert wait_until(lambda: goes_on(dict.fromkeys(lasts(), 5)), START_S)
            servers.start("a")
            servers.start("b")
            assert wait_until(lambda: servers.joined() == set(MODES), START_S)
            late = servers.processes["c"]
            os.kill(late.pid, signal.SIGSTOP)
            before = owners()
            assert wait_until(lambda: not owners() & before, START_S)
            os.kill(late.pid, signal.SIGCONT)
            assert late.wait(START_S) != 0

            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                servers.look_after()
                servers.disturb(chance)
                time.sleep(chance.uniform(0.05, 0.4))
            assert wait_until(lambda: taken_over() > 0, START_S)
            before = lasts()
            assert wait_until(lambda: goes_on(before), START_S), "each conversation goes on somewhere"
        finally:
            servers.end()
        rows = connection.execute("SELECT conversation, seq, id FROM events").fetchall()
        print(f"{len(rows)} events, {taken_over()} takeovers, {dict(servers.done)}")
        stored = {(key, seq): identifier for key, seq, identifier in rows}
        counts = Counter(key for key, _ in stored)
        assert counts == lasts(), "the numbers are without gaps"
        assert all(stored[key, seq] for key, last in counts.items() for seq in range(1, last + 1))
        assert len(set(stored.values())) == len(rows), "no event is there twice"
        acknowledged = servers.acknowledged()
        assert len(acknowledged) > CONVERSATIONS
        assert [each for each in acknowledged if stored.get(each[:2]) != each[2]] == []
        violations = [each.read_text() for each in tmp_path.glob("*/violations")]
        assert violations == []
