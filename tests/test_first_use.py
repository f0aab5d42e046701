"""Packages whose names are imported at their first use."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(
    ".".join(path.parent.relative_to(ROOT).parts)
    for path in (ROOT / "supervisor").rglob("__init__.py")
    if "names_of(" in path.read_text()
)


def said(package):
    """Where the type checker finds each name: what stands below TYPE_CHECKING."""
    tree = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for each in node.names:
            if each.name != "*":
                found[each.asname or each.name] = (node.module, each.name)
    return found


def test_there_are_such_packages():
    assert {"supervisor.events", "supervisor.agents"} <= set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_name_is_the_one_that_the_type_checker_sees(package):
    module = import_module(package)
    names = said(package)
    assert set(names) <= set(module.__all__)
    for name, (home, there) in names.items():
        assert getattr(module, name) is getattr(import_module(home), there), name
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_is_that_of_a_module(package):
    """Whoever imported the module would put it in the name's place."""
    directory = ROOT / package.replace(".", "/")
    modules = {path.stem for path in directory.glob("*.py")}
    modules |= {path.parent.name for path in directory.glob("*/__init__.py")}
    assert not modules & set(import_module(package).__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_loads_nothing_by_itself(package):
    code = f"import sys, {package}; print(sum(name.startswith('supervisor.') for name in sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=ROOT).stdout
    assert int(out) <= 4  # itself, where it is, what it is made with
