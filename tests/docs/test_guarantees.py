"""The guarantees name the tests that show them: those tests have to be there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
GUARANTEES = TESTS.parent / "docs" / "guarantees.md"

REFERENCE = re.compile(r"`(?P<file>[\w/]*(?:\.py)?)::(?P<test>\w+)`")
"""`FILE::TEST`, or `::TEST` for another of the file named last."""


def test_every_test_that_is_named_is_there() -> None:
    file, missing, found = "", [], 0
    for match in REFERENCE.finditer(GUARANTEES.read_text()):
        file = match["file"] or file
        found += 1
        path = TESTS / file
        if not path.is_file() or f"def {match['test']}(" not in path.read_text():
            missing.append(f"{file}::{match['test']}")
    assert missing == []
    assert found > 40
