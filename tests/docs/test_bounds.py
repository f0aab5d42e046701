"""Whatever holds something for others - bytes, places, processes, files - is in the table of bounds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "guarantees.md"

HOLDERS = frozenset(
    {
        # bytes and items that gather
        "bytearray", "deque", "open_memory_channel", "BytesIO", "StringIO",
        # places
        "CapacityLimiter", "KeyedLimiters", "Semaphore",
        # processes
        "Popen", "open_process",
        # disk
        "NamedTemporaryFile", "SpooledTemporaryFile", "TemporaryDirectory", "TemporaryFile", "memfd_create",
        "mkdtemp", "mkstemp",
    }
)  # fmt: skip
"""Calls that make something which can grow, or which counts what can. What gathers in a list or a dictionary
is not found by this; what it may hold is bytes that came through one of these, or rows of the journal."""

OUTSIDE = (
    "gateway/cli/",
    "supervisor/agents/builtin/",
    "supervisor/agents/catalog/",
    "supervisor/agents/demo/",
)
"""Programs of the user's own, in processes of their own."""


def holders() -> Iterator[str]:
    """Where one is made: the file, and the class, function or name at its top."""
    for path in sorted(ROOT.glob("gateway/**/*.py")) + sorted(ROOT.glob("supervisor/**/*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(OUTSIDE):
            continue
        for node in ast.parse(path.read_text()).body:
            if any(_makes_one(each) for each in ast.walk(node)):
                yield f"{name}::{_name(node)}"


def _makes_one(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    made = [node.func, *(each.value for each in node.keywords if each.arg == "factory")]
    return any(_last(each) in HOLDERS for each in made)


def _last(node: ast.AST) -> str | None:
    if isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Assign):
        return str(_last(node.targets[0]))
    if isinstance(node, ast.AnnAssign):
        return str(_last(node.target))
    return str(getattr(node, "name", "module"))


def listed() -> list[str]:
    section = TABLE.read_text().partition("\n## What holds how much\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return re.findall(r"`((?:gateway|supervisor)/[\w/]+\.py::\w+)`", "\n".join(rows))


@pytest.mark.guarantee(name="what-holds-how-much")
def test_every_place_that_holds_something_has_a_row() -> None:
    found, told = set(holders()), listed()
    assert sorted(found - set(told)) == [], "without a row in docs/guarantees.md, What holds how much"
    assert sorted(set(told) - found) == [], "named there, and not there any more"
    assert len(told) == len(set(told))


@pytest.mark.guarantee(name="what-holds-how-much")
def test_every_row_says_its_bounds() -> None:
    section = TABLE.read_text().partition("\n## What holds how much\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    assert len(rows) > 20
    for row in rows[1:]:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 5, row
        assert all(cells), row
