"""A virtual environment with the peer's SDK, locked by hash and kept between test sessions."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.packages import fill, make

SCRIPTS = Path(__file__).resolve().parent / "peer"
REQUIREMENTS = SCRIPTS / "requirements.txt"
VERSIONS = ("3.12", "3.13")
SCRIPT_TIMEOUT_S = 180  # importing the SDK alone takes some seconds
# Its model library fetches a price list at import, and where it cannot, again in a thread that imports
# modules meanwhile: where the import takes long, the two end in a deadlock. And it prints a banner.
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENHANDS_SUPPRESS_BANNER": "1"}


def find_python(versions: Sequence[str] = VERSIONS) -> Path | None:
    """An interpreter of one of these versions (by default, that can run the peer's SDK), from PATH or from
    pyenv."""
    for version in versions:
        candidates = [shutil.which(f"python{version}")]
        pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
        candidates += sorted(map(str, pyenv.glob(f"{version}.*/bin/python{version}")), reverse=True)
        for candidate in candidates:
            if candidate and _runs(candidate, version):
                return Path(candidate)
    return None


def _runs(candidate: str, version: str) -> bool:
    """A shim on PATH may exist and still refuse: only a run tells."""
    code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version


@dataclass(frozen=True)
class PeerEnvironment:
    """The interpreter of the environment."""

    python: Path

    @classmethod
    def prepare(cls, python: Path, cache: Path, requirements: Path = REQUIREMENTS) -> PeerEnvironment:
        """Create it unless a session before did; the lock file's hash is part of its name."""
        digest = hashlib.sha256(requirements.read_bytes() + str(python).encode()).hexdigest()[:12]
        home = cache / digest
        environment = cls(home / "bin" / "python")
        ready = home / "ready"
        if ready.exists():
            return environment
        shutil.rmtree(home, ignore_errors=True)
        make(python, home)
        fill(environment.python, requirements)
        ready.touch()
        return environment

    def run(self, script: str | Path, *arguments: str, home: Path) -> list[dict[str, object]]:
        """Run a script, one of `peer/` by its name; its standard output are JSON lines, its status must
        be 0."""
        home.mkdir(parents=True, exist_ok=True)
        status, out, err = self._outcome(SCRIPTS / script, arguments, home)
        assert status == 0, f"{script} ended with {status}\n{out}\n{err}"
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    def _outcome(self, path: Path, arguments: tuple[str, ...], home: Path) -> tuple[int, str, str]:
        """Exit status, output and errors of a script that runs with this HOME."""
        done = subprocess.run(
            [str(self.python), str(path), *arguments],
            capture_output=True,
            text=True,
            timeout=SCRIPT_TIMEOUT_S,
            env={"PATH": os.environ["PATH"], "HOME": str(home), **QUIET},
            check=False,
        )
        return done.returncode, done.stdout, done.stderr
