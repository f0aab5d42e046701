"""The documents stay short enough to be read."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"

WORDS_MAX = 30_000
"""Of all pages together."""

PAGE_WORDS_MAX = 4_000
"""Of one page: what a reader can look through."""


def words(text: str) -> int:
    """How many words a page has, code and addresses included. Bars and rules of tables are not words."""
    return sum(1 for each in text.split() if re.search(r"\w", each))


def test_the_documents_keep_their_bound() -> None:
    found = {page: words(page.read_text()) for page in DOCS.rglob("*.md")}
    assert len(found) > 50
    assert sum(found.values()) <= WORDS_MAX, "say a fact once, and link to it; cut what --help and /docs say"
    assert [page.name for page, count in found.items() if count > PAGE_WORDS_MAX] == []


def test_what_is_a_word() -> None:
    assert words("| `key` | a value, or 3 |\n| --- | ---: |\n* [link](page.md) -") == 6
