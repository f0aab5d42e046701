"""A log line that others can cause at will, written at most once per interval with a count."""

from __future__ import annotations

import time
from typing import Any, Final

COMPLAINT_SECONDS: Final = 60.0
"""Between two of the same: enough to be seen, too little to fill a disk."""


class ThrottledLog:
    """One such line.

    `level`: a method of the logger, looked up at each use, since a module's logger is not configured at
    import time. The line carries the number of its occurrences.
    """

    def __init__(self, log: Any, level: str, event: str) -> None:
        self._log = log
        self._level = level
        self._event = event
        self._last = -COMPLAINT_SECONDS
        self._times = 0

    def say(self, **fields: object) -> None:
        """Say it, or count it until it is said again."""
        self._times += 1
        now = time.monotonic()
        if now - self._last >= COMPLAINT_SECONDS:
            getattr(self._log, self._level)(self._event, **fields, times=self._times)
            self._last, self._times = now, 0
