"""The pattern of a matcher: a name, or a regular expression that is quick to match. Pure.

Python's `re` holds the GIL while it matches, for minutes or forever with some expressions, and both the
expression and the tool's name are untrusted. So the cost of an expression is bounded beforehand.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from typing import Final

import attrs

PATTERN_CHARACTERS: Final = 256
NAME_CHARACTERS: Final = 128
"""Characters of a tool's name that an expression is matched with; a name is cut there."""

COST_MAX: Final = 4_000_000
"""The most ways to match that an expression may have: some hundredths of a second at worst."""

TOGETHER_MAX: Final = 4 * COST_MAX
"""The same for all expressions of one event together: each is matched at every tool call."""

_META: Final = frozenset("|.*+?[]()^$\\")
"""Characters that make a matcher a regular expression, as in the OpenHands SDK."""

_TOKEN: Final = re.compile(
    r"(?P<escape>\\.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<special>\(\?(?!:))|(?P<open>\((?:\?:)?)"
    r"|(?P<close>\))|(?P<repeat>[*+]|\{\d*,?\d*\})|(?P<maybe>\?)|(?P<or>\|)|(?P<plain>.)",
    re.DOTALL,
)


class UnfitPattern(ValueError):
    """An expression is not used. The message says why, and does not quote it."""


@attrs.frozen
class Pattern:
    """A parsed matcher; `expression` is None if it is a plain name."""

    text: str
    expression: re.Pattern[str] | None
    ways: int = 0
    """At most so many ways to match a name (`cost`)."""

    def matches(self, name: str) -> bool:
        """Whether it matches the whole name."""
        if self.expression is None:
            return name == self.text
        return self.expression.fullmatch(name[:NAME_CHARACTERS]) is not None


@lru_cache(maxsize=1024)
def pattern_of(text: str) -> Pattern:
    """Read a matcher: `/expression/`, or an expression by its characters, else a name.

    A text with such characters that is not a valid expression is a name. Raises UnfitPattern.
    """
    explicit = len(text) > 2 and text.startswith("/") and text.endswith("/")
    if not explicit and not _META.intersection(text):
        return Pattern(text, None)
    source = text[1:-1] if explicit else text
    if len(source) > PATTERN_CHARACTERS:
        raise UnfitPattern(f"a pattern has at most {PATTERN_CHARACTERS} characters")
    if (found := cost(source)) is None or found > COST_MAX:
        raise UnfitPattern(
            "the pattern could take too long to match; use names, |, and at most three *, + or {}, "
            "none behind a group, without look-around and back-references"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # what a set may mean in a later Python
            return Pattern(text, re.compile(source), found)
    except re.error:
        if explicit:
            raise UnfitPattern("the pattern is not a regular expression") from None
        return Pattern(text, None)


def cost(source: str) -> int | None:
    """An upper bound of the ways to match a name of NAME_CHARACTERS; None where there is no such bound."""
    ways = 1
    branches = [1]
    before = ""
    for token in _TOKEN.finditer(source):
        kind = str(token.lastgroup)
        if kind == "special" or (kind == "escape" and token[0][1].isdigit()):
            return None
        if kind == "repeat":
            if before == "close":
                return None
            ways *= NAME_CHARACTERS
        elif kind == "maybe":
            ways *= 2
        elif kind == "open":
            branches.append(1)
        elif kind == "or":
            branches[-1] += 1
        elif kind == "close" and len(branches) > 1:
            ways *= branches.pop()
        before = kind
        if ways > COST_MAX:
            return ways
    for each in branches:
        ways *= each
    return ways
