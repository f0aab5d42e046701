"""The rooms of the code: no import goes in a circle, not even one that only a type checker follows."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def modules(*packages: str) -> dict[str, Path]:
    """The modules of these packages, by name."""
    found = {}
    for path in (each for package in packages for each in (ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(source: str) -> Iterator[tuple[str, str | None]]:
    """Every import, wherever it stands: the module and, where one is named, what is taken from it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((each.name, None) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ((str(node.module), each.name) for each in node.names)


def graph(found: Mapping[str, Path]) -> dict[str, set[str]]:
    """Which of the modules imports which of them."""
    edges: dict[str, set[str]] = {}
    for name, path in found.items():
        targets = {
            f"{module}.{member}" if f"{module}.{member}" in found else module
            for module, member in imported(path.read_text())
        }
        edges[name] = (targets & found.keys()) - {name}
    return edges


def test_no_import_goes_in_a_circle() -> None:
    found = modules("supervisor", "gateway")
    assert len(found) > 250
    edges = graph(found)
    assert edges["supervisor.conversations.supervisor"]
    TopologicalSorter(edges).prepare()


def test_a_circle_would_be_found() -> None:
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"c"}, "c": {"a"}}).prepare()
    text = "if TYPE_CHECKING:\n    from a.b import c\ndef late():\n    import d.e\n"
    assert list(imported(text)) == [("a.b", "c"), ("d.e", None)]
