"""Counters for the metrics of the whole server."""

from __future__ import annotations

from collections import Counter
from typing import Final

import attrs

FAILED: Final = "failed"
"""The name under which failed turns are counted."""

OTHER_ENDING: Final = "other"

ENDINGS: Final = frozenset(
    {"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled", FAILED, OTHER_ENDING}
)
"""Ends of turns that are counted by name: ACP's stop reasons, and FAILED."""


@attrs.define
class Counters:
    """The counters of one server."""

    starts: int = 0
    restarts: int = 0
    crashes: int = 0
    warm_used: int = 0
    """Starts that took a process which waited for them."""
    warm_lost: int = 0
    """Warm processes that ended by themselves."""
    turns: Counter[str] = attrs.field(factory=Counter)
    hooks: Counter[str] = attrs.field(factory=Counter)
    """Hooks that ran, by outcome: succeeded, blocked or failed."""

    def count_turn(self, ending: str) -> None:
        """Count the end of a turn, by ACP's stop reason or FAILED. All other reasons count as one, since
        agents can invent them."""
        self.turns[ending if ending in ENDINGS else OTHER_ENDING] += 1
