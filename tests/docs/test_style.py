"""The documents, and what the code says of itself, keep to the words of `docs/style.md`."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    {ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")}
    - {ROOT / "docs" / "style.md"}
)

AVOIDED = re.compile(r"(?<![`\w])(?:whoever|nobody|somebody|anew|beside)(?![`\w])", re.IGNORECASE)

WORDS = {
    "name the subject; say `again`, `next to`, `while`": AVOIDED,
    "say `is not a X`": re.compile(
        r"(?<!here )\b(?:is|are|was|were) no (?!longer|more|less|faster|slower|better|worse)[a-z]+"
    ),
    "say `requires`": re.compile(r"\bwants\b"),
    "say `unavailable`": re.compile(r"\bcannot be had\b"),
}
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_no_word_that_the_style_page_replaces(path: Path) -> None:
    text = CODE.sub("``", path.read_text())
    wrong = [
        f"{found[0]!r}: {advice}" for advice, pattern in WORDS.items() for found in pattern.finditer(text)
    ]
    assert wrong == []


def prose(source: str) -> Iterator[str]:
    """The comments and docstrings of a module, those of attributes too."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                yield str(each.value.value)


def test_no_comment_has_a_word_that_is_avoided() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {text[:80]}"
        for top in ("supervisor", "gateway")
        for path in (ROOT / top).rglob("*.py")
        for text in prose(path.read_text())
        if AVOIDED.search(text)
    ]
    assert found == []
    assert [bool(AVOIDED.search(each)) for each in prose("# anew\nx = 1\n'beside'\ny = 'nobody'\n")] == [
        True
    ] * 2
