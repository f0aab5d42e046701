"""What is wrong with the database, and whether it passes. Pure.

There are three kinds of errors. One that *passes* is retried, and everything queued is kept: a full disk, a
lock of another process, a disk that fails for a moment, a database that is away. An error of the write's
*own* - a value that the database refuses, an id that exists already - costs one conversation its queued
writes, and no other. An error that *lasts* ends the journal: the file is not a database, is damaged,
read-only, or gone.
"""

from __future__ import annotations

import enum

import attrs

FIRST_PAUSE = 0.05
"""Seconds before the first retry: many locks are gone by then."""

LONGEST_PAUSE = 1.0
"""Longest pause in seconds between retries: a person or another program ends the trouble, and writing should
resume soon after that."""

LOG_SECONDS = 60.0
"""Trouble is logged once in so many seconds, however often it comes and goes."""


class Nature(enum.Enum):
    """The consequence of a failure."""

    PASSES = "passes"
    OWN = "own"
    LASTS = "lasts"


@attrs.frozen
class Trouble:
    """Why nothing can be written now. `since` is in seconds since the epoch, `attempts` counts the failed
    writes."""

    reason: str
    since: float
    attempts: int
