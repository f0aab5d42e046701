"""Commands of the scripted agent, and what it wrote down."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).resolve().parents[1] / "fake_agent" / "scripted.py"


def scripted_command(*modes: str, log: Path | None = None, home: Path | None = None) -> list[str]:
    """The argv that starts a scripted agent with these modes (see `scripted.py --list-modes`)."""
    # Without `site`, which takes longer than all that the agent imports itself: hundreds of them start.
    command = [sys.executable, "-S", str(PROGRAM)]
    for mode in modes:
        command += ["--mode", mode]
    if log:
        command += ["--log", str(log)]
    if home:
        command += ["--home", str(home)]
    return command


class ScriptedLog:
    """What the processes that share one log received, started and spawned, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def records(self, event: str | None = None) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        whole, _, _ = self.path.read_text().rpartition("\n")  # the last line may be half written
        records = [json.loads(line) for line in whole.splitlines()]
        return [record for record in records if event in (None, record["event"])]

    def pids(self) -> list[int]:
        """One per process started, oldest first."""
        return [record["pid"] for record in self.records("start")]

    def children(self) -> list[int]:
        """The grandchildren it started, oldest first."""
        return [record["child"] for record in self.records("spawn")]

    def seen(self) -> dict[int, float]:
        """When (Unix time) each of these processes was there, the agents' and the grandchildren's."""
        agents = {record["pid"]: record["time"] for record in self.records("start")}
        return agents | {record["child"]: record["time"] for record in self.records("spawn")}

    def received(self, method: str) -> list[dict[str, Any]]:
        """The messages with this method, oldest first."""
        messages = [record["message"] for record in self.records("received")]
        return [message for message in messages if message.get("method") == method]

    def prompts(self) -> list[str]:
        """The text of every prompt that arrived, in all processes, oldest first."""
        return [
            "\n".join(block.get("text", "") for block in message["params"]["prompt"])
            for message in self.received("session/prompt")
        ]
