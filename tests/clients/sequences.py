"""Plays the conversations of `python/scenarios.py` with a server, and writes their recording.

    python -m tests.clients.sequences peer URL DIRECTORY PYTHON
    python -m tests.clients.sequences ostler URL DIRECTORY PYTHON

PYTHON has the SDK. What is written is docs/compatibility/sequences.json, of which scripts/compatibility makes
a part of docs/compatibility.md.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from scripts.sequences import RECORDING, load
from tests.interop.peer_environment import QUIET

SCRIPT = Path(__file__).resolve().parent / "python" / "scenarios.py"
PLAY_SECONDS = 600.0
SAID_CHARS = 2000
"""What is shown of the words of a client that failed."""


def titles() -> dict[str, str]:
    """The scenarios, in order, with the first line of what each says of itself; without importing the SDK."""
    return {
        node.name: (ast.get_docstring(node) or "").splitlines()[0].rstrip(".")
        for node in ast.parse(SCRIPT.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(mark, ast.Name) and mark.id == "scenario" for mark in node.decorator_list)
    }


def play(python: Path, url: str, directory: Path, *names: str) -> dict[str, dict[str, Any]]:
    """Play them. Returns by scenario its `events` and `statuses`, and `error` where one failed."""
    home = directory / "client-home"
    home.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [str(python), str(SCRIPT), url, str(directory / "places"), *names],
        capture_output=True,
        text=True,
        timeout=PLAY_SECONDS,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), **QUIET},
    )
    assert done.returncode == 0, done.stderr[-SAID_CHARS:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"scenario"')]
    return {each["scenario"]: each for each in found}


def main() -> None:
    """Record one of the two servers."""
    who, url, directory, python = sys.argv[1:]
    played = play(Path(python), url, Path(directory))
    known = load() if RECORDING.exists() else {"version": "1.58.0", "peer": {}, "ostler": {}}
    for name, title in titles().items():
        each = played[name]
        if "error" in each:
            raise SystemExit(f"{name}: {each['error']}")
        known[who][name] = {"title": title, "events": each["events"], "statuses": each["statuses"]}
    RECORDING.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
