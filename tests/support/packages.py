"""Fills the environments of Python that are made for tests, from locks with hashes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

UV: Final = Path(__file__).resolve().parents[2] / ".cache" / "uv" / "bin" / "uv"
"""Made by `scripts/test`. For a hundred packages it takes 3 s of the processor, and pip 40."""


def make(python: Path, home: Path) -> None:
    """Make an environment of this Python, to be filled by `fill`."""
    options = ["--without-pip"] if UV.exists() else []
    subprocess.run([str(python), "-m", "venv", *options, str(home)], check=True)


def fill(python: Path, lock: Path, *options: str) -> None:
    """Install what the lock names, which is everything, for this Python of an environment."""
    command = [str(python), "-m", "pip", "install"]
    if UV.exists():
        settings = UV.parents[1] / "uv.toml"
        command = [str(UV), "pip", "install", "--config-file", str(settings), "--python", str(python)]
    command += ["-q", "--no-deps", "--require-hashes", "-r", str(lock), *options]
    subprocess.run(command, check=True)
