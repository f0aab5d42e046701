"""All that holds something for others - bytes, places, processes, files - is in the table of bounds."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "guarantees.md"
PLACES = Path(__file__).with_name("bounds.toml")
"""The places in the code by the first cell of their row."""

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
    # Of `ostler agents`: the server imports neither.
    "supervisor/offline/probe.py",
    "supervisor/offline/agents.py",
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


def rows() -> list[list[str]]:
    """The cells of the table, without its head."""
    section = TABLE.read_text().partition("\n## What holds how much\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def places() -> dict[str, list[str]]:
    return tomllib.loads(PLACES.read_text())


def test_every_place_that_holds_something_has_a_row() -> None:
    told = [place for each in places().values() for place in each]
    found, named = set(holders()), {place for place in told if "::" in place}
    assert sorted(found - named) == [], "without a row in tests/docs/bounds.toml and docs/guarantees.md"
    assert sorted(named - found) == [], "named in tests/docs/bounds.toml, and not there any more"
    assert len(told) == len(set(told))
    assert [place for place in told if not (ROOT / place.partition("::")[0]).is_file()] == []


def test_every_row_says_its_bounds() -> None:
    assert len(rows()) > 20
    for row in rows():
        assert len(row) == 4, row
        assert all(row), row


def test_every_row_has_its_places() -> None:
    named = [row[0] for row in rows()]
    assert sorted(named) == sorted(places())
    assert all(places().values())
