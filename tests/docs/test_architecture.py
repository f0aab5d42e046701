"""The files that the architecture and the decisions name are there, and the decisions have one shape."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
PAGES = [ROOT / "docs" / "architecture.md", *DECISIONS]
NAMED = sorted({name for page in PAGES for name in re.findall(r"`([\w/]+\.py)`", page.read_text())})


def test_many_are_named() -> None:
    assert len(NAMED) > 60


@pytest.mark.parametrize("name", NAMED)
def test_a_named_file_exists(name: str) -> None:
    found = [
        path for room in ("supervisor", "gateway", "tests", "docs") for path in ROOT.glob(f"{room}/**/{name}")
    ]
    assert found or (ROOT / name).exists()


def test_decisions_are_numbered_without_gaps() -> None:
    titles = [page.read_text().partition("\n")[0].removeprefix("# ") for page in DECISIONS]
    assert [title[:4] for title in titles] == [f"{number:04}" for number in range(1, len(DECISIONS) + 1)]
    assert [page.name[:4] for page in DECISIONS] == [title[:4] for title in titles]


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.name)
def test_a_decision_has_its_parts(page: Path) -> None:
    shape = (
        r"# \d{4} .+\n\n\d{4}-\d\d-\d\d\n"
        r"\n\*\*Context\.\*\* .+\n\n\*\*Decision\.\*\* .+\n\n\*\*Consequence\.\*\* .+"
    )
    assert re.fullmatch(shape, page.read_text(), re.DOTALL)
