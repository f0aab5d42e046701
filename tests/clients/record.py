"""Records what the peer's server gives to the TypeScript client and the web UI.

    .cache/test/bin/python -m tests.clients.record

Makes an environment with the peer's server from `peer_server/requirements.txt` (once, some minutes and
1 GB), starts it with
an empty home, and writes `typescript/peer.json` and `canvas/peer.json`. Look at what has changed before
you commit it.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.clients.browser import find_chromium
from tests.clients.canvas_package import HERE as CANVAS
from tests.clients.canvas_package import CanvasPackage
from tests.clients.comparison import RECORDING
from tests.clients.typescript_script import run_script
from tests.clients.walk import free_port, run_walk
from tests.interop.npm import install
from tests.interop.peer_environment import QUIET, PeerEnvironment, find_python

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache"
STARTS_SECONDS = 120.0
SWITCHED_OFF = {
    "DO_NOT_TRACK": "1",
    "OH_TELEMETRY_ENABLED": "false",
    "OH_ENABLE_VSCODE": "false",
    "OH_ENABLE_VNC": "false",
    "OH_PRELOAD_TOOLS": "false",
    "OH_SECRET_KEY": "the-key-of-a-recording-0123456789",
}


@contextmanager
def peer_server(environment: PeerEnvironment, directory: Path) -> Iterator[str]:
    """A started server of the peer; gives its URL."""
    port = free_port()
    home = directory / "home"
    home.mkdir(parents=True)
    with (directory / "server.log").open("w") as log:
        process = subprocess.Popen(
            [
                str(environment.python),
                "-m",
                "openhands.agent_server",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
            ],
            cwd=directory,
            env={"PATH": os.environ["PATH"], "HOME": str(home), **QUIET, **SWITCHED_OFF},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + STARTS_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{url}/alive", timeout=5):
                    break
            except OSError:
                assert time.monotonic() < until, (directory / "server.log").read_text()[-4000:]
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    python = find_python()
    assert python is not None, "needs Python 3.12 or 3.13"
    environment = PeerEnvironment.prepare(
        python, CACHE / "peer-server", HERE / "peer_server" / "requirements.txt"
    )
    with tempfile.TemporaryDirectory(prefix="ostler-record-") as name:
        place = Path(name)
        (place / "typescript").mkdir()
        with peer_server(environment, place / "server-1") as url:
            packages = install(HERE / "typescript", CACHE / "typescript-client")
            write(RECORDING, run_script(packages, url, place / "typescript"))
        (place / "canvas").mkdir()
        with peer_server(environment, place / "server-2") as url:
            canvas = CanvasPackage.prepare(CACHE / "canvas")
            write(CANVAS / "peer.json", {"steps": run_walk(canvas, find_chromium(), url, place / "canvas")})


def write(path: Path, result: object) -> None:
    path.write_text(json.dumps(result, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
