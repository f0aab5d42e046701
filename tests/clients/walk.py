"""Runs the walk through the web UI in front of a server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.clients.canvas_package import HERE, CanvasPackage
from tests.support.scripted import scripted_command

WALK_SECONDS = 400  # it takes about three minutes
PARTS = (
    "first visit",
    "scripted profile",
    "conversation",
    "model chip",
    "workspace",
    "settings",
    "mcp",
    "confirmations",
    "restart",
    "built-in agent",
)
"""Of the walk with a scripted agent, in this order; `canvas/walk.mjs` has them."""

Asks = Mapping[str, Callable[[], None]]
"""What the walk can ask for by name, as it cannot do it itself: `kill` and `start` the server."""


def free_port() -> int:
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        port: int = any_socket.getsockname()[1]
        return port


def run_walk(
    canvas: CanvasPackage,
    chromium: str,
    backend: str,
    directory: Path,
    asks: Asks,
    parts: Sequence[str] = PARTS,
    seconds: float = WALK_SECONDS,
) -> list[dict[str, Any]]:
    """Its steps; the pictures are in `shots` below the directory."""
    command = scripted_command(log=directory / "scripted.jsonl", home=directory / "sessions")
    home = directory / "browser-home"
    home.mkdir()
    with canvas.served(backend, free_port()) as url:
        arguments = [str(HERE / "walk.mjs"), str(canvas.packages.directory), chromium, url, str(directory)]
        return _walk(
            [canvas.packages.node, *arguments, json.dumps(command), *parts],
            {"PATH": os.environ["PATH"], "HOME": str(home), "TRACE": os.environ.get("TRACE", "")},
            directory / "walk.log",
            asks,
            seconds,
        )


def _walk(
    command: Sequence[str], environment: Mapping[str, str], log: Path, asks: Asks, seconds: float
) -> list[dict[str, Any]]:
    """Answer what it asks, a line for a line, until it prints its steps."""
    steps: list[dict[str, Any]] | None = None
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = threading.Timer(seconds, process.kill)
        watchdog.start()
        try:
            for line in process.stdout:
                said = json.loads(line)
                if "steps" in said:
                    steps = said["steps"]
                    continue
                asks[said["ask"]]()
                print("done", file=process.stdin, flush=True)
        finally:
            watchdog.cancel()
            process.kill()
    assert steps is not None, f"the walk did not come to its end\n{log.read_text()[-8000:]}"
    return steps
