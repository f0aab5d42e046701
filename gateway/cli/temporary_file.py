"""The file that names a temporary server's address and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

TEMPORARY_FILE: Final = "temporary-server.json"
"""In the state directory, 0600. An object with `url`, `key`, `pid` and `started` (see `started_at`)."""


def read_known(state: Path) -> dict[str, Any] | None:
    """Return the server of the file, if it still runs."""
    try:
        known = json.loads((state / TEMPORARY_FILE).read_text())
        pid, started = int(known["pid"]), known["started"]
        whole = isinstance(known["url"], str) and isinstance(known["key"], str)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return known if whole and started_at(pid) == started else None


def key_of(state: Path) -> str | None:
    """The key of the temporary server of this directory; None if none runs."""
    known = read_known(state)
    return None if known is None else str(known["key"])


def started_at(pid: int) -> int | None:
    """When a process was started, in the kernel's ticks since the boot; None when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])
