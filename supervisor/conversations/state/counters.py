"""Counters for the metrics of the whole server."""

from __future__ import annotations

from collections import Counter
from typing import Final

import attrs

FAILED: Final = "failed"
"""The ending of a turn that came to nothing."""

OTHER_ENDING: Final = "other"

ENDINGS: Final = frozenset(
    {"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled", FAILED, OTHER_ENDING}
)
"""Endings of turns that are counted by their names: the protocol's stop reasons, and ours."""


@attrs.define
class Counters:
    """What is counted as it happens; one per server."""

    starts: int = 0
    restarts: int = 0
    crashes: int = 0
    turns: Counter[str] = attrs.field(factory=Counter)

    def count_turn(self, ending: str) -> None:
        """A turn ended, with a stop reason of the protocol or FAILED. Others, which agents can make up, are
        one kind: these are names of figures."""
        self.turns[ending if ending in ENDINGS else OTHER_ENDING] += 1
