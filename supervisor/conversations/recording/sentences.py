"""Whether a piece of text goes on with a sentence. Pure."""

from __future__ import annotations

from typing import Final

ENDS: Final = frozenset(".!?:…。")
"""What a sentence, or the announcement of something, ends with."""

GOES_ON: Final = frozenset(",.;:!?)]}'\"-")
"""What a piece of text begins with that goes on with a sentence."""


def continues(before: str, text: str) -> bool:
    """Whether a piece of text goes on with the sentence that the one before has begun. Between the two the
    agent did something; most say what they have to say before and after it, some while it goes on."""
    if before.rstrip(" ")[-1:] in ENDS or before.endswith("\n"):
        return False
    return before.endswith(" ") or text[:1].isspace() or text[:1] in GOES_ON
