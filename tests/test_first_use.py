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


def imported(package):
    """What the type checker finds in a package: the imports below TYPE_CHECKING."""
    tree = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    assert all(isinstance(node, ast.ImportFrom) for node in block.body)
    return [(node.module, each) for node in block.body for each in node.names]


def said(package):
    """Where the type checker finds each name that is named there."""
    names = ((module, each) for module, each in imported(package) if each.name != "*")
    return {each.asname or each.name: (module, each.name) for module, each in names}


def test_there_are_such_packages():
    assert {"supervisor.acp", "supervisor.events"} <= set(PACKAGES)


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
def test_the_type_checker_reads_the_modules_of_the_names(package):
    """Where a package lists its names once, the type checker sees all names of their modules."""
    stars = {module for module, each in imported(package) if each.name == "*"}
    if stars:
        homes = import_module(package).homes
        assert stars == {f"{package}.{module}" for module in homes}


def test_no_module_imports_a_name_that_a_package_does_not_have():
    missing = []
    for path in [*(ROOT / "supervisor").rglob("*.py"), *(ROOT / "gateway").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in PACKAGES:
                package = import_module(node.module)
                modules = {each.stem for each in (ROOT / node.module.replace(".", "/")).iterdir()}
                names = {each.name for each in node.names} - {"*"} - modules
                missing += [(path.name, name) for name in names if name not in package.__all__]
    assert missing == []


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
