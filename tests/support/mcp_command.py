"""`ostler mcp` as a process, for tests of it without a server."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

OSTLER = Path(sysconfig.get_path("scripts")) / "ostler"


def mcp_environment(state: Path) -> dict[str, str]:
    """The variables of a command: this state directory, the directory above as HOME, no keyring."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(state.parent),
        "OSTLER_STATE": str(state),
        "OSTLER_KEYRING": "off",
    }


def start_mcp(state: Path, *arguments: str, **more: Any) -> subprocess.Popen[str]:
    """Start `ostler mcp` with pipes; `more` is for `Popen`."""
    return subprocess.Popen(
        [OSTLER, "mcp", *arguments],
        env=mcp_environment(state),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )
