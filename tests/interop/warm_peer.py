"""The peer's environment, with its SDK imported once: it takes six seconds of the processor."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.interop.peer_environment import QUIET, SCRIPT_TIMEOUT_S, SCRIPTS, PeerEnvironment


@dataclass(frozen=True)
class WarmPeer(PeerEnvironment):
    """Its scripts run in children of one process, one after the other."""

    process: subprocess.Popen[str]

    def _outcome(self, path: Path, arguments: tuple[str, ...], home: Path) -> tuple[int, str, str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        out, err = home / "peer.out", home / "peer.err"
        asked = {
            "argv": [str(path), *arguments],
            "environment": {"PATH": os.environ["PATH"], "HOME": str(home), **QUIET},
            "out": str(out),
            "err": str(err),
        }
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], SCRIPT_TIMEOUT_S)
        if not ready:  # neither it nor its child is of use any more
            os.killpg(self.process.pid, signal.SIGKILL)
        status = self.process.stdout.readline()
        return int(status or -signal.SIGKILL), out.read_text(), err.read_text()


@contextmanager
def warm(peer: PeerEnvironment, home: Path) -> Iterator[WarmPeer]:
    """Start it; it imports while the first test prepares. Nothing of it is left afterwards."""
    process = subprocess.Popen(
        [str(peer.python), str(SCRIPTS / "forks.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(home), **QUIET},
        start_new_session=True,
    )
    try:
        yield WarmPeer(peer.python, process)
    finally:
        with process:
            os.killpg(process.pid, signal.SIGKILL)
