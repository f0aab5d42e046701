"""Keeping the secrets that an agent was given out of what operators and clients read of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

import orjson

HIDDEN: Final = "<secret-hidden>"
"""What stands for a secret; the word of the wire's servers."""

SHORTEST: Final = 8
"""Values below so many characters are not looked for: they would be found in ordinary words."""


def masker(secrets: Iterable[str]) -> Callable[[str], str]:
    """A function that replaces every secret, also as it stands inside JSON, in a text."""
    forms = set()
    for secret in secrets:
        if len(secret) >= SHORTEST:
            forms |= {secret, orjson.dumps(secret).decode()[1:-1]}
    if not forms:
        return lambda text: text
    pattern = re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)))
    return lambda text: pattern.sub(HIDDEN, text)
