"""Faults that were found, reported, and not mended yet. Whoever mends one takes its line out of here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

FAILURES: Final[Mapping[str, re.Pattern[str]]] = {}
"""By target: what the failure says."""

LOGGED: Final[tuple[re.Pattern[str], ...]] = ()
"""Exceptions in the server's log."""
