"""Runs the walk through the web UI in front of a server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

from tests.clients.canvas_package import HERE, CanvasPackage
from tests.support.scripted import scripted_command

WALK_SECONDS = 300  # it takes one to two minutes


def free_port() -> int:
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        port: int = any_socket.getsockname()[1]
        return port


def run_walk(canvas: CanvasPackage, chromium: str, backend: str, directory: Path) -> list[dict[str, Any]]:
    """Its steps; the pictures are in `shots` below the directory."""
    command = scripted_command(log=directory / "scripted.jsonl", home=directory / "sessions")
    home = directory / "browser-home"
    home.mkdir()
    with canvas.served(backend, free_port()) as url:
        done = subprocess.run(
            [
                canvas.packages.node,
                str(HERE / "walk.mjs"),
                str(canvas.packages.directory),
                chromium,
                url,
                str(directory),
                json.dumps(command),
            ],
            capture_output=True,
            text=True,
            timeout=WALK_SECONDS,
            env={"PATH": os.environ["PATH"], "HOME": str(home)},
            check=False,
        )
    assert done.returncode == 0, f"the walk ended with {done.returncode}\n{done.stderr[-8000:]}"
    steps: list[dict[str, Any]] = json.loads(done.stdout)["steps"]
    return steps
