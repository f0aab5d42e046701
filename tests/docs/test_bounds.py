"""All that holds something for others - bytes, places, processes, files - is in the table of bounds."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "guarantees.md"
PLACES = Path(__file__).with_name("bounds.toml")
"""The places in the code by the first cell of their row."""

HOLDERS = frozenset(
    {
        # bytes and items that gather
        "bytearray", "deque", "open_memory_channel", "BytesIO", "StringIO",
        # places, and what counts them
        "CapacityLimiter", "KeyedLimiters", "Semaphore",
        "ConnectionLimits", "Downloads", "Slots", "Subscribers",
        # processes
        "Popen", "open_process",
        # disk
        "NamedTemporaryFile", "SpooledTemporaryFile", "TemporaryDirectory", "TemporaryFile", "memfd_create",
        "mkdtemp", "mkstemp", "create_private", "replace_private", "write_private", "write_bytes",
        "write_text", "O_CREAT",
        # databases
        "sqlite3.connect",
    }
)  # fmt: skip
"""What makes something that can grow, counts what can, or writes to a disk. What gathers in a list or a
dictionary is not found by this; what it may hold is bytes that came through one of these, or rows of the
journal."""

OUTSIDE = (
    "gateway/cli/",
    "supervisor/agents/builtin/",
    "supervisor/agents/catalog/",
    "supervisor/agents/demo/",
    # Of commands: the server imports none of them.
    "supervisor/offline/probe.py",
    "supervisor/offline/agents.py",
    "supervisor/offline/copying/",
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
    if isinstance(node, ast.Attribute) and node.attr == "O_CREAT":
        return True
    if not isinstance(node, ast.Call):
        return False
    # A function that is given to a thread counts as called there.
    made = [node.func, *node.args, *(each.value for each in node.keywords if each.arg == "factory")]
    return any(_last(each) in HOLDERS or ast.unparse(each) in HOLDERS for each in made)


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
    return {row: each for row, each in tomllib.loads(PLACES.read_text()).items() if row != "figures"}


def constants() -> dict[str, list[str]]:
    """By row: each figure with what it is in the code, `FIGURE = module:expression`."""
    return dict(tomllib.loads(PLACES.read_text())["figures"])


FIGURE = re.compile(r"\d+(?:,\d{3})*(?: (?:bytes|KiB|MiB|GiB|hours))?")
UNITS = {"": 1, "bytes": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "hours": 3600}


def figures(row: list[str]) -> list[str]:
    """The figures of a row in order. Names in backticks may hold digits."""
    return FIGURE.findall(re.sub("`[^`]*`", "", " ".join(row[1:])))


def amount(figure: str) -> int:
    """In bytes, or in seconds."""
    number, _, unit = figure.partition(" ")
    return int(number.replace(",", "")) * UNITS[unit]


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


def test_figures_are_those_of_the_code() -> None:
    named = constants()
    found = {row[0]: figures(row) for row in rows()}
    assert {row: [each.partition(" = ")[0] for each in named.get(row, [])] for row in found} == found
    assert sorted(set(named) - set(found)) == []
    for row, each in named.items():
        for line in each:
            figure, _, place = line.partition(" = ")
            module, _, expression = place.partition(":")
            value = eval(expression, vars(importlib.import_module(module)))
            # A secret fills 32 pages but for its name.
            assert abs(value - amount(figure)) <= amount(figure) / 1000, f"{row}: {line} is {value}"


def test_every_row_has_its_places() -> None:
    named = [row[0] for row in rows()]
    assert sorted(named) == sorted(places())
    assert all(places().values())


@pytest.mark.parametrize(
    "text",
    [
        "slots = admission.Slots(limits.terminals)",
        "held: deque[int] = attrs.field(factory=deque)",
        "os.open(path, os.O_RDWR | os.O_CREAT)",
        "path.write_bytes(content)",
        "await trio.to_thread.run_sync(write_private, path, text)",
        "sqlite3.connect(path)",
    ],
)
def test_what_is_found(text: str) -> None:
    assert any(map(_makes_one, ast.walk(ast.parse(text))))


def test_what_reads_alone_is_not_found() -> None:
    assert not any(map(_makes_one, ast.walk(ast.parse("stream.connect(path.read_bytes(), os.O_RDONLY)"))))
