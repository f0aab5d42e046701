"""Records what the peer's server gives to the TypeScript client and the web UI.

    .cache/test/bin/python -m tests.clients.record [typescript] [canvas] [--peer PYTHON] [--part NAME]

Starts the peer's server with an empty home for each of the two, and writes `typescript/peer.json` and
`canvas/peer.json`. PYTHON is one that has the peer's server; without it an environment is made from
`peer_server/requirements.txt` (once, some minutes and 1 GB). Look at what has changed before you commit it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
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
from tests.clients.walk import PARTS, free_port, run_walk
from tests.interop.npm import install
from tests.interop.peer_environment import QUIET, PeerEnvironment, find_python

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache"
STARTS_SECONDS = 120.0
STOPS_SECONDS = 30.0
WALK_SECONDS = 1200.0  # a step that the peer fails at takes as long as the browser waits
SWITCHED_OFF = {
    "DO_NOT_TRACK": "1",
    "OH_TELEMETRY_ENABLED": "false",
    "OH_ENABLE_VSCODE": "false",
    "OH_ENABLE_VNC": "false",
    "OH_PRELOAD_TOOLS": "false",
    "OH_SECRET_KEY": "the-key-of-a-recording-0123456789",
}


class PeerServer:
    """A server of the peer's, which can be killed and started again at the same address."""

    def __init__(self, environment: PeerEnvironment, directory: Path) -> None:
        self._python = environment.python
        self._directory = directory
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        home = self._directory / "home"
        home.mkdir(parents=True, exist_ok=True)
        command = [str(self._python), "-m", "openhands.agent_server", "--host", "127.0.0.1"]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(self._port)],
                cwd=self._directory,
                env={"PATH": os.environ["PATH"], "HOME": str(home), **QUIET, **SWITCHED_OFF},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        until = time.monotonic() + STARTS_SECONDS
        while not self._answers():
            assert time.monotonic() < until, self._log.read_text()[-4000:]
            time.sleep(0.2)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def version(self) -> str:
        """What the server says of itself."""
        with urllib.request.urlopen(f"{self.url}/server_info", timeout=5) as answer:
            return str(json.load(answer)["version"])

    @property
    def _log(self) -> Path:
        return self._directory / "server.log"

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/alive", timeout=5):
                return True
        except OSError:
            return False

    def _end(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(STOPS_SECONDS)


@contextmanager
def peer_server(environment: PeerEnvironment, directory: Path) -> Iterator[PeerServer]:
    """A started one, stopped at the end."""
    server = PeerServer(environment, directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def main() -> None:
    arguments = parse()
    environment = PeerEnvironment(arguments.peer) if arguments.peer else prepared()
    recorded = arguments.what or sorted(RECORDED)
    with tempfile.TemporaryDirectory(prefix="ostler-record-") as name:
        for what in recorded:
            place = Path(name, what)
            place.mkdir()
            RECORDED[what](environment, place, arguments.part)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.clients.record")
    parser.add_argument("what", nargs="*", choices=[[], *RECORDED], help="all of them, unless named")
    parser.add_argument("--peer", type=Path, metavar="PYTHON", help="an interpreter with the peer's server")
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="of the walk; the others stay as they are recorded"
    )
    return parser.parse_args()


def prepared() -> PeerEnvironment:
    python = find_python()
    assert python is not None, "needs Python 3.12 or 3.13"
    return PeerEnvironment.prepare(python, CACHE / "peer-server", HERE / "peer_server" / "requirements.txt")


def record_typescript(environment: PeerEnvironment, place: Path, _: list[str] | None) -> None:
    packages = install(HERE / "typescript", CACHE / "typescript-client")
    with peer_server(environment, place / "server") as server:
        write(RECORDING, {"peer": server.version(), **run_script(packages, server.url, place)})


def record_canvas(environment: PeerEnvironment, place: Path, parts: list[str] | None) -> None:
    canvas = CanvasPackage.prepare(CACHE / "canvas")
    with peer_server(environment, place / "server") as server:
        asks = {"kill": server.kill, "start": server.start}
        version = server.version()
        steps = run_walk(canvas, find_chromium(), server.url, place, asks, parts or PARTS, WALK_SECONDS)
    recording = CANVAS / "peer.json"
    if parts:
        anew = {step["name"]: step for step in steps}
        known = json.loads(recording.read_text())
        assert known["peer"] == version, f"it is of {known['peer']}: record the whole walk"
        before = known["steps"]
        assert anew.keys() <= {step["name"] for step in before}, "there are new steps: record the whole walk"
        steps = [anew.get(step["name"], step) for step in before]
    write(recording, {"peer": version, "steps": steps})


RECORDED = {"typescript": record_typescript, "canvas": record_canvas}


def write(path: Path, result: object) -> None:
    path.write_text(json.dumps(result, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
