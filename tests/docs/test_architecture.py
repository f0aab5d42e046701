"""The files that the architecture names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "architecture.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)`", TEXT)))


def test_many_are_named() -> None:
    assert len(NAMED) > 30


@pytest.mark.parametrize("name", NAMED)
def test_a_named_file_exists(name: str) -> None:
    found = [
        path for room in ("supervisor", "gateway", "tests", "docs") for path in ROOT.glob(f"{room}/**/{name}")
    ]
    assert found or (ROOT / name).exists()
