"""Whether a piece of text continues a sentence. Pure."""

from __future__ import annotations

from typing import Final

ENDS: Final = frozenset(".!?:…。")
"""Characters that end a sentence or an announcement."""

GOES_ON: Final = frozenset(",.;:!?)]}'\"-")
"""Characters at the beginning of a text that continues a sentence."""


def continues(before: str, text: str) -> bool:
    """Whether `text` continues the sentence that `before` began. A tool call came between the two: most
    agents write complete sentences before and after it, some write while it runs."""
    if before.rstrip(" ")[-1:] in ENDS or before.endswith("\n"):
        return False
    return before.endswith(" ") or text[:1].isspace() or text[:1] in GOES_ON
