"""How much tests try that make their inputs up: in `scripts/test`, and in `scripts/test --thorough`."""

from __future__ import annotations

import os
from typing import Final, TypeVar

T = TypeVar("T")

THOROUGH: Final = os.environ.get("OSTLER_TEST_THOROUGH") == "1"


def everyday(few: T, all_: T) -> T:
    """`few` in `scripts/test`, `all_` with `--thorough`. Both have to fail on what the test is about."""
    return all_ if THOROUGH else few
