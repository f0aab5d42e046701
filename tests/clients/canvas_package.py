"""The web UI as it is published: its files, its own server, and the driver of a browser.

`npm install` of `@openhands/agent-canvas` fails, since one of its dependencies is not to be had. What
is built in the package
needs none of them, and its server two, which `canvas/package.json` names together with the driver.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from tests.interop.npm import Packages, install, npm

HERE = Path(__file__).resolve().parent / "canvas"
NAME = "@openhands/agent-canvas@1.20.0"
SHA512 = "uq28bmdMapsDN0ltp5ZHYm9xfuk7cHktNkd0NY38w/UTq25wJTqSKSPya+2+ky0+HpGX2vmn0uF3mHuNCoOb2w=="
"""Of the package's archive, in base64, as npm tells it."""

ROUTES = ("/api", "/sockets", "/server_info", "/alive", "/health", "/ready", "/docs", "/openapi.json")
LISTENS = re.compile(r"http://[\w.]+:(\d+)")
STARTS_SECONDS = 30.0


@attrs.frozen
class CanvasPackage:
    """Where the UI is, and the packages for it."""

    packages: Packages

    @property
    def directory(self) -> Path:
        return self.packages.directory / "ui"

    @classmethod
    def prepare(cls, cache: Path) -> CanvasPackage:
        """Fetch and unpack what is not there yet."""
        package = cls(install(HERE, cache))
        ready = package.directory / "ready"
        if not ready.exists():
            shutil.rmtree(package.directory, ignore_errors=True)
            package._unpack()
            ready.touch()
        return package

    def _unpack(self) -> None:
        home = self.packages.directory
        npm("pack", NAME, "--silent", directory=home)
        (archive,) = home.glob("openhands-agent-canvas-*.tgz")
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        assert digest == SHA512, f"{NAME} is not what it was: sha512-{digest}"
        with tarfile.open(archive) as tar:
            tar.extractall(home / "unpacked", filter="data")
        (home / "unpacked" / "package").rename(self.directory)
        archive.unlink()

    @contextmanager
    def served(self, backend: str, port: int) -> Iterator[str]:
        """The UI by its own server, in front of the one at `backend`; gives its URL.

        A browser without a key is asked for a backend, so that the UI is given one; Ostler, which has
        none, ignores it.
        """
        command = [
            self.packages.node,
            "scripts/static-server.mjs",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        command += ["--dir", "build", "--session-api-key", "none", "--disable-telemetry"]
        command += ["--reject-prefix", "/api/automation"]
        for route in ROUTES:
            command += ["--route", f"{route}={backend}"]
        environment = {"PATH": os.environ["PATH"], "DO_NOT_TRACK": "1"}
        with subprocess.Popen(
            command,
            cwd=self.directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            listening = threading.Event()
            said: list[str] = []

            def read() -> None:
                assert process.stdout is not None
                for line in process.stdout:
                    said.append(line)
                    if LISTENS.search(line):
                        listening.set()

            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            try:
                assert listening.wait(STARTS_SECONDS), "".join(said)
                yield f"http://127.0.0.1:{port}"
            finally:
                process.kill()
                reader.join(STARTS_SECONDS)
