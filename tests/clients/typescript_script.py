"""Runs the TypeScript client's script against a server."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.interop.npm import Packages
from tests.support.scripted import scripted_command

SCRIPT = Path(__file__).resolve().parent / "typescript" / "script.mjs"
PACKAGE = Path("node_modules", "@openhands", "typescript-client")
SCRIPT_SECONDS = 300  # it takes less than one minute


def run_script(packages: Packages, url: str, directory: Path) -> dict[str, Any]:
    """What came of its steps, and which public methods it did not call."""
    command = scripted_command(log=directory / "scripted.jsonl", home=directory / "sessions")
    home = directory / "client-home"
    home.mkdir()
    done = subprocess.run(
        [
            packages.node,
            str(SCRIPT),
            str(packages.directory / PACKAGE),
            url,
            str(directory / "place"),
            json.dumps(command),
        ],
        capture_output=True,
        text=True,
        timeout=SCRIPT_SECONDS,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "DO_NOT_TRACK": "1"},
        cwd=home,
        check=False,
    )
    assert done.returncode == 0, (
        f"the script ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr}"
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result
