"""How much tests try that make their inputs up: in `scripts/test`, with `--all`, and with `--thorough`."""

from __future__ import annotations

import os
from typing import Final, TypeVar

T = TypeVar("T")

THOROUGH: Final = os.environ.get("OSTLER_TEST_THOROUGH") == "1"
ALL: Final = THOROUGH or os.environ.get("OSTLER_TEST_ALL") == "1"
"""Whether tests run that take a tenth of what all others of a working day take."""


def everyday(few: T, all_: T) -> T:
    """`few` in `scripts/test`, `all_` with `--thorough`. Both have to fail on what the test is about."""
    return all_ if THOROUGH else few
