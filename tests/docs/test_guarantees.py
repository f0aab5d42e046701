"""The guarantees and the threat model name the tests that show them: those tests have to be there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent

REFERENCE = re.compile(r"`(?P<file>(?:[\w/]+/)?test_\w+\.py)?(?:::(?P<test>\w+))?`")
"""`FILE::TEST`, `FILE`, or `::TEST` for one of the file named last."""


@pytest.mark.parametrize(("document", "at_least"), [("docs/guarantees.md", 40), ("SECURITY.md", 15)])
def test_every_test_that_is_named_is_there(document: str, at_least: int) -> None:
    file, missing, found = "", [], 0
    for match in REFERENCE.finditer((ROOT / document).read_text()):
        file = match["file"] or file
        path = TESTS / file
        if not path.is_file() or (match["test"] and f"def {match['test']}(" not in path.read_text()):
            missing.append(match[0])
        found += 1
    assert missing == []
    assert found > at_least
