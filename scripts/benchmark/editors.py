"""Cases: what an editor has of an agent through `ostler acp`, and directly."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.benchmark.cases import Figure, Target, case, percentile
from scripts.benchmark.client import WAIT_SECONDS, BenchError
from scripts.benchmark.servers import AGENT

STAMP = re.compile(rb"sent_ns=(\d+)")
RATE = 200


class Editor:
    """An ACP agent on standard streams, and its one session."""

    def __init__(self, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
        self._agent = subprocess.Popen(
            command, cwd=directory, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._last = 0
        self.ask("initialize", {"protocolVersion": 1})
        opened = self.ask("session/new", {"cwd": str(directory / "project"), "mcpServers": []})
        self._session = opened["sessionId"]

    def ask(self, method: str, params: Mapping[str, Any], stamps: list[float] | None = None) -> Any:
        """Return a result; the milliseconds of stamped lines before it go to `stamps`."""
        stdin, stdout = self._agent.stdin, self._agent.stdout
        assert stdin is not None
        assert stdout is not None
        self._last += 1
        request = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}
        stdin.write(json.dumps(request).encode() + b"\n")
        stdin.flush()
        until = time.monotonic() + WAIT_SECONDS
        while line := stdout.readline():
            arrival = time.monotonic_ns()
            stamp = STAMP.search(line)
            if stamp is not None:
                if stamps is not None:
                    stamps.append((arrival - int(stamp[1])) / 1e6)
                continue
            message = json.loads(line)
            if message.get("id") == self._last and "method" not in message:
                if "error" in message:
                    raise BenchError(f"{method}: {message['error']['message']}")
                return message["result"]
            if time.monotonic() > until:
                break
        raise BenchError(f"{method} was not answered")

    def deltas(self, seconds: float) -> list[float]:
        """Milliseconds from the agent's write of a piece of text to its arrival."""
        found: list[float] = []
        text = {"type": "text", "text": f"!pacedtext {RATE} {seconds}"}
        self.ask("session/prompt", {"sessionId": self._session, "prompt": [text]}, found)
        return found

    def close(self) -> None:
        assert self._agent.stdin is not None
        self._agent.stdin.close()
        self._agent.wait(WAIT_SECONDS)


@case(
    "editor",
    Figure("editor_delta_ms", "text delta to an editor, p50", "ms", "200 a second through `ostler acp`"),
    Figure(
        "editor_added_ms",
        "what `ostler acp` adds to a text delta, p50",
        "ms",
        "the same less that of a pipe to the agent, in alternation",
        aim=1.0,
    ),
    targets=frozenset({"ostler"}),
)
def editor(target: Target, part: float) -> Mapping[str, float]:
    server = target.standing()
    agent = [sys.executable, "-SE", str(AGENT)]
    settings = {"agent_kind": "acp", "acp_server": "custom", "acp_command": agent}
    server.client.call("PATCH", "/api/settings", {"agent_settings_diff": settings})
    bridge = [str(target.program), "acp", "--url", f"http://127.0.0.1:{server.client.port}"]
    editors = [Editor(each, server.directory, server.environment()) for each in (bridge, agent)]
    found: list[list[float]] = [[], []]
    try:
        for _ in range(3):
            for times, each in zip(found, editors, strict=True):
                times += each.deltas(max(0.3, 1.5 * part))
    finally:
        for each in editors:
            each.close()
    through, directly = (percentile(times, 50) for times in found)
    return {"editor_delta_ms": through, "editor_added_ms": through - directly}
