"""Every relative link in the documents leads to a file, and every anchor to a heading."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.md")])

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def prose(path: Path) -> str:
    """The text without what stands in code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", path.read_text()))


@cache
def anchors(path: Path) -> frozenset[str]:
    """What GitHub makes of the headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        found.add(words if words not in found else f"{words}-1")
    return frozenset(found)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    dead = []
    for target in LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    assert dead == []


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {
        (ROOT / target.partition("#")[0]).resolve() for target in LINK.findall(prose(ROOT / "README.md"))
    }
    assert set((ROOT / "docs").glob("*.md")) - linked == set()


@pytest.mark.parametrize(
    "path",
    [each for each in DOCUMENTS if "tests" not in each.parts],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_files_of_the_code_that_are_named_are_there(path: Path) -> None:
    """Tests are named by their file below `tests/` in some documents; test_guarantees.py looks for those."""
    named = re.findall(r"`((?:gateway|supervisor|scripts|requirements)/[\w./-]+)`", path.read_text())
    assert [name for name in named if "/test_" not in name and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_shell_example_has_its_secret_replaced_by_the_shell(path: Path) -> None:
    """In double quotes a shell puts in the value of a variable, which is mostly nothing."""
    assert re.findall(r'(?:--header|--env) "[^"\n]*\$\{[^"\n]*"', path.read_text()) == []
