"""Loaded at the start of a Python whose wall clock a test sets (`clock.py`): has `time.sleep` work.

libfaketime 0.9.10 takes the end of a sleep by CLOCK_MONOTONIC for one by the wall clock, and the sleep fails.
"""

import select
import time


def sleep(seconds: float) -> None:
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select((), (), (), seconds)


time.sleep = sleep
