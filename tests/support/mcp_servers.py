"""Real MCP servers for tests (`mcp_server.py`), run in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

PROGRAM = Path(__file__).with_name("mcp_server.py")

STDIO = {"command": sys.executable, "args": [str(PROGRAM), "stdio"]}
"""An entry for one on standard input and output."""

TOOLS = ["secret_sum", "environment"]


@attrs.frozen
class RealServer:
    url: str
    log: Path

    def lines(self, beginning: str = "") -> list[str]:
        """What happened, oldest first."""
        if not self.log.exists():
            return []
        return [line for line in self.log.read_text().splitlines() if line.startswith(beginning)]


@contextmanager
def real_server(kind: str, directory: Path, *options: str) -> Iterator[RealServer]:
    """A server on loopback: `http`, `sse`, `oauth` or `resource`."""
    log = directory / f"{kind}.log"
    command = [sys.executable, str(PROGRAM), kind, "--log", str(log), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            yield RealServer(f"http://127.0.0.1:{port}/{'sse' if kind == 'sse' else 'mcp'}", log)
        finally:
            process.kill()
