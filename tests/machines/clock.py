"""The wall clock of one machine, which a test sets while everything works: libfaketime below its server.

It is CLOCK_REALTIME of the warden and the server alone. Monotonic clocks, waits, and the times of files stay
as they are. So does the clock of agents: Ostler passes no LD_PRELOAD on to them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tests.support.processes import alive

PLACE: Final = Path("/usr/lib")
LIBRARY: Final = "*/faketime/libfaketimeMT.so.1"  # that for threads
SHARED: Final = Path("/dev/shm")
LOADED_FIRST: Final = Path(__file__).parent / "wall_clock"


def library() -> Path | None:
    """The library; None where it is not installed, but for CI, where that is an error."""
    found = next(PLACE.glob(LIBRARY), None)
    if found is None and os.environ.get("CI") == "true":
        raise FileNotFoundError(f"{PLACE / LIBRARY}: libfaketime is not installed")
    return found


def tidy() -> None:
    """Remove what the library keeps in shared memory for processes that were killed, or became others."""
    for left in SHARED.glob("*faketime_s?m_*"):
        if not alive(int(left.name.rpartition("_")[2])):
            left.unlink(missing_ok=True)


class Clock:
    """The clock of what is started with `environment`. `ahead`: the seconds by which it is wrong."""

    def __init__(self, directory: Path, preloaded: Path) -> None:
        self._file = directory / "wall-clock"
        self._preloaded = preloaded
        self.set(0.0)

    def set(self, ahead: float) -> None:
        """Set it, at once, for all that run by it."""
        self.ahead = ahead
        written = self._file.with_suffix(".new")
        written.write_text(f"{ahead:+.3f}\n")
        written.replace(self._file)  # whole at any moment: it is read at each look at the clock

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._preloaded),
            "PYTHONPATH": str(LOADED_FIRST),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
            "FAKE_UTIME": "0",
        }
