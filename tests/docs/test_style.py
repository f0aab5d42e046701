"""The documents keep to the words of `docs/style.md`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    {ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")}
    - {ROOT / "docs" / "style.md"}
)

WORDS = {
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
