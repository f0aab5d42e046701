"""Where the four clients come from: npm and PyPI, by locks with hashes; acp.el, which no registry has, is
named by its directory."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.interop.editors.clients import HERE, Client
from tests.interop.npm import Packages
from tests.interop.npm import install as install_from_npm
from tests.interop.peer_environment import PeerEnvironment
from tests.support.once import one_at_a_time
from tests.support.packages import UV

ACP_EL = "OSTLER_TEST_ACP_EL"
ACP_EL_HASHES = {
    "acp.el": "82dba062066445cbedc3f829aa40d7ad833cb391442a8447f1b32dfb32131611",
    "acp-traffic.el": "4f2c04b48a83ee369b820d65d66b16d86395673f8362bd8967d0bd74ca868a5a",
}
"""Of version 0.14.2."""

EXAMPLE = "examples/client.py"
TYPESCRIPT_SDK = Path("node_modules", "@agentclientprotocol", "sdk")
ACPX = Path("node_modules", "acpx", "dist", "cli.js")


def packages(cache: Path) -> Packages:
    """acpx and the TypeScript SDK."""
    with one_at_a_time(cache / "editors-npm"):
        return install_from_npm(HERE / "npm", cache / "editors-npm")


def typescript(cache: Path) -> Client:
    found = packages(cache)
    return Client(
        "typescript", (found.node, str(HERE / "npm" / "drive.mjs"), str(found.directory / TYPESCRIPT_SDK))
    )


def _environment(cache: Path) -> Path:
    with one_at_a_time(cache / "editors-python"):
        requirements = HERE / "python" / "requirements.txt"
        python = Path(sys.executable)
        return PeerEnvironment.prepare(python, cache / "editors-python", requirements).python


def python(cache: Path) -> Client:
    return Client("python", (str(_environment(cache)), str(HERE / "python" / "drive.py")))


def example_client(cache: Path) -> tuple[str, str]:
    """The Python SDK's example client, as it is in the SDK's sources."""
    environment = _environment(cache)
    place = environment.parent.parent / "sources"
    with one_at_a_time(cache / "editors-python"):
        if not (place / EXAMPLE).exists():
            options = ["--no-deps", "--no-binary=:all:", "--no-build-isolation", "--require-hashes"]
            lock = str(HERE / "python" / "example.txt")
            download = ["download", "-q", *options, "-r", lock, "-d", str(place)]
            pip = UV.parent / "python" if UV.exists() else environment
            subprocess.run([str(pip), "-m", "pip", "--python", str(environment), *download], check=True)
            (archive,) = place.glob("*.tar.gz")
            with tarfile.open(archive) as sources:
                name = next(each for each in sources.getnames() if each.endswith(EXAMPLE))
                content = sources.extractfile(name)
                assert content is not None
                (place / EXAMPLE).parent.mkdir()
                (place / EXAMPLE).write_bytes(content.read())
    return str(environment), str(place / EXAMPLE)


def emacs(_: Path) -> Client:
    """Emacs with acp.el from the directory in OSTLER_TEST_ACP_EL; skips the test where either is missing."""
    program, place = shutil.which("emacs"), os.environ.get(ACP_EL)
    if program is None:
        pytest.skip("no Emacs on PATH (on Debian: apt-get install emacs-nox)")
    if not place:
        pytest.skip(f"no package registry has acp.el: set {ACP_EL} to a directory with its version 0.14.2")
    for name, wanted in ACP_EL_HASHES.items():
        found = hashlib.sha256((Path(place) / name).read_bytes()).hexdigest()
        assert found == wanted, f"{name} in {place} is not that of acp.el 0.14.2"
    return Client("emacs", (program, "-Q", "--batch", "-L", place, "-l", str(HERE / "emacs" / "drive.el")))
