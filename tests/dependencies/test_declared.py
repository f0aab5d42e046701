"""What is imported is declared in setup.cfg, and what is declared is imported."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.support.requirements import ROOT, RUNTIME, TEST, normal

OTHER_ENVIRONMENTS = (
    "supervisor/agents/builtin/",
    "tests/interop/peer",
    "tests/interop/custom_agents/deepagents/",
    "tests/clients/python/",
    "tests/console/",
    "scripts/record_console.py",
    "scripts/mutate.py",
    "scripts/site/",
)
"""Run in environments of their own: with requirements/browser.txt, the built-in agent's lock, the peer's SDK
(tests/interop/peer_environment.py), with the requirements of a custom agent, with mutmut, with MkDocs."""

TOOLS = {
    "pytest-trio": "a plugin of pytest",
    "pytest-cov": "a plugin of pytest",
    "pytest-xdist": "a plugin of pytest",
}


@cache
def modules_of(path: Path) -> list[str]:
    return list(modules(ast.parse(path.read_text())))


def modules(tree: ast.AST) -> Iterator[str]:
    """Modules that code imports anywhere, in functions too, and by `import_module` with a name."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(name), level=0):
                yield name
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name
            case ast.Call(args=[ast.Attribute(attr="import_module"), ast.Constant(value=str(name)), *_]):
                yield name  # handed to a thread


def imported(*directories: str) -> dict[str, set[str]]:
    """The distributions that are imported below these directories, and in which files.

    A module that no distribution brings, and that is none of ours, counts by its own name.
    """
    known = packages_distributions()
    ours = {"tests", "scripts"}
    for name in ("tests", "scripts"):
        ours |= {path.stem for path in (ROOT / name).rglob("*") if path.suffix != ".md"}
    found: dict[str, set[str]] = defaultdict(set)
    for directory in directories:
        for path in (ROOT / directory).rglob("*.py"):
            file = str(path.relative_to(ROOT))
            if file.startswith(OTHER_ENVIRONMENTS):
                continue
            for module in modules_of(path):
                top = module.partition(".")[0]
                if top in sys.stdlib_module_names or "ostler" in known.get(top, []):
                    continue
                if top not in known and top in ours:
                    continue
                for distribution in known.get(top, [top]):
                    found[normal(distribution)].add(file)
    return found


def undeclared(found: Mapping[str, set[str]], *known: Mapping[str, str]) -> dict[str, list[str]]:
    names = {name for each in known for name in each}
    return {name: sorted(files) for name, files in found.items() if name not in names}


def test_every_import_of_ostler_is_declared() -> None:
    missing = undeclared(imported("supervisor", "gateway"), RUNTIME)
    assert not missing, f"imported, but not in install_requires or an extra of setup.cfg: {missing}"


def test_every_import_of_tests_and_scripts_is_declared() -> None:
    missing = undeclared(imported("tests", "scripts"), RUNTIME, TEST)
    assert not missing, (
        f"imported, but neither in install_requires nor in the test extra of setup.cfg: {missing}"
    )


def test_what_is_declared_is_imported() -> None:
    unused = RUNTIME.keys() - imported("supervisor", "gateway").keys()
    assert not unused, f"in install_requires or an extra of setup.cfg, but not imported: {sorted(unused)}"
    unused = TEST.keys() - imported("tests", "scripts").keys() - TOOLS.keys()
    assert not unused, f"in the test extra of setup.cfg, but not imported: {sorted(unused)}"


def test_every_requirement_has_a_lower_bound() -> None:
    for line in (*RUNTIME.values(), *TEST.values()):
        assert ">=" in line, line


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import a.b", ["a.b"]),
        ("def f():\n    from a import b", ["a"]),
        ("from . import a\nfrom .b import c", []),
        ("importlib.import_module('a.b')\nimport_module(f'{x}')", ["a.b"]),
        ("to_thread.run_sync(importlib.import_module, 'a')", ["a"]),
        ("if TYPE_CHECKING:\n    import a", ["a"]),
    ],
)
def test_imports_are_found(code: str, expected: list[str]) -> None:
    assert list(modules(ast.parse(code))) == expected
