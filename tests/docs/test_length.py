"""The documents stay short enough to be read."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"

WORDS_MAX = 30_000
"""Of all pages together. Bars and rules of tables count, as they do for `wc -w`."""

PAGE_WORDS_MAX = 4_000
"""Of one page: what a reader can look through."""


def test_the_documents_keep_their_bound() -> None:
    words = {page: len(page.read_text().split()) for page in DOCS.rglob("*.md")}
    assert len(words) > 50
    assert sum(words.values()) <= WORDS_MAX, "say a fact once, and link to it; cut what --help and /docs say"
    assert [page.name for page, count in words.items() if count > PAGE_WORDS_MAX] == []
