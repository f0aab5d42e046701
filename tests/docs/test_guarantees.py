"""Each promise of the guarantees and of the threat model has tests, which name it by a mark."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.guarantees import DOCUMENTS, PAGE, ROOT, TESTS, marked, page, promises

REFERENCE = re.compile(r"`(?:tests/)?(?P<file>(?:[\w/]+/)?test_\w+\.py)(?:::(?P<test>\w+))?`")
PROSE = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")})


def test_every_promise_has_tests() -> None:
    count = Counter(name for _, name in marked())
    assert {name: count[name] for each in DOCUMENTS for name in promises(each) if count[name] < 3} == {}
    assert count.total() > 700


def test_every_mark_names_a_promise() -> None:
    known = [name for each in DOCUMENTS for name in promises(each)]
    assert len(known) == len(set(known)) > 30
    assert {test: name for test, name in marked() if name not in known} == {}


def test_the_page_is_what_the_marks_say() -> None:
    assert PAGE.read_text() == page(), "write it: python3 -m tests.docs.guarantees"


def test_marks_are_read_as_pytest_reads_them(request: pytest.FixtureRequest) -> None:
    """Where pytest has collected a module with marks, both know the same."""
    items = [item for item in request.session.items if item.path != Path(__file__)]
    seen = {
        (f"{item.path.relative_to(TESTS).as_posix()}::{item.originalname}", mark.kwargs["name"])
        for item in items
        if isinstance(item, pytest.Function)
        for mark in item.iter_markers("guarantee")
    }
    assert seen <= set(marked())


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_that_is_named_is_there(path: Path) -> None:
    missing = []
    for match in REFERENCE.finditer(path.read_text()):
        files = [TESTS / match["file"]] if "/" in match["file"] else list(TESTS.rglob(match["file"]))
        texts = [each.read_text() for each in files if each.is_file()]
        if not any(not match["test"] or f"def {match['test']}(" in text for text in texts):
            missing.append(match[0])
    assert missing == []
