"""What differs between the versions of Python that `setup.cfg` names, and is not written for that reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

NUMBERED = re.compile(r"\b(?:SELECT|INSERT|UPDATE|DELETE|VALUES|WHERE)\b.*\?[0-9]", re.DOTALL)


def sources() -> Iterator[tuple[Path, ast.Module]]:
    """Every Python file of the repository."""
    for directory in ("supervisor", "gateway", "tests", "scripts"):
        for path in sorted((ROOT / directory).rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_bytes())


def raises_in_groups(tree: ast.AST) -> Iterator[int]:
    """Lines of a `raise` in an `except*` block: up to Python 3.11.3 it comes out in a group."""
    for node in ast.walk(tree):
        if isinstance(node, ast.TryStar):
            blocks = [each for handler in node.handlers for each in handler.body]
            yield from (
                found.lineno for each in blocks for found in ast.walk(each) if isinstance(found, ast.Raise)
            )


def numbered_places(tree: ast.AST) -> Iterator[int]:
    """Lines of a statement with `?1`: up to Python 3.12.3 that is deprecated with a sequence of values."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NUMBERED.search(node.value):
            yield node.lineno


def unclosed_databases(tree: ast.AST) -> Iterator[int]:
    """Lines of `with sqlite3.connect(...)`, which ends a transaction and closes nothing: 3.13 warns of it."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.withitem) or not isinstance(node.context_expr, ast.Call):
            continue
        if ast.unparse(node.context_expr.func) == "sqlite3.connect":
            yield node.context_expr.lineno


@pytest.mark.parametrize("rule", [raises_in_groups, numbered_places, unclosed_databases])
def test_nothing_stands_on_one_version(rule) -> None:
    parsed = list(sources())
    assert len(parsed) > 500
    assert [f"{path}:{line}" for path, tree in parsed for line in rule(tree)] == []


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (
            raises_in_groups,
            "try:\n    pass\nexcept* OSError as group:\n    if group:\n        raise KeyError",
        ),
        (numbered_places, "x = (\n    'SELECT key FROM events '\n    'WHERE key = ?' '1')"),
        (unclosed_databases, "with open(a), sqlite3.connect(a) as b:\n    pass"),
    ],
)
def test_the_rules_find_it(rule, source: str) -> None:
    assert len(list(rule(ast.parse(source)))) == 1
