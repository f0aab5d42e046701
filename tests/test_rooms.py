"""The rooms of the code: no import goes in a circle, not even one that only a type checker follows."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

MODULES_MAX = 15
"""In one room. More are no longer seen at a glance: they have a concept of their own, and so a room."""

ASKING_MAX = 5
"""Places that may ask which kind of agent there is; others ask what its kind does."""

KIND = re.compile(
    r"isinstance\([^)]*(BuiltIn|NativeEvents|External)|\.native_events|\.by_updates|is_built_in\("
)

KNOWS_KINDS = re.compile(
    r"supervisor\.(conversations\.(built_in|external|agent\.kind)|settings|agents\.catalog)(\.|$)"
)
"""What implements a kind, the port, and where kinds are described. The settings stand here since the
interface requires their `agent_kind`, a discriminator whose values clients send: they read and write it, as
the gateway reads `kind` in a start request. That is the interface's vocabulary, which no port of ours can
take away. So comparisons with its values are not counted, while every question to an object of ours is."""

BUILT_IN = ROOT / "supervisor/agents/builtin"
"""A program of its own, in an environment that does not know the server."""


def modules(*packages: str) -> dict[str, Path]:
    """The modules of these packages, by name."""
    found = {}
    for path in (each for package in packages for each in (ROOT / package).rglob("*.py")):
        if BUILT_IN in path.parents:
            continue
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


def loaded_by_name(source: str) -> Iterator[str]:
    """The modules that `import_module` is given by a whole name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "id", getattr(node.func, "attr", None))
            if called == "import_module" and isinstance(node.args[0].value, str):
                yield node.args[0].value


def named(source: str, package: str, found: Collection[str]) -> Iterator[str]:
    """The modules that strings name, alone or in a table: by a whole name, or, before the name of a function,
    by one below a package that the module is in (`run="talk.run:run"`)."""
    parts = package.split(".")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name, colon, _ = node.value.partition(":")
            above = [".".join(parts[: n + 1]) + "." for n in range(len(parts))] if colon else []
            yield from {each + name for each in ["", *above] if "." in each + name} & set(found)


def relative(source: str, package: str) -> Iterator[tuple[str, str]]:
    """The relative imports of a module of this package: the module, and the name that is taken from it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = package.split(".")[: len(package.split(".")) - node.level + 1]
            yield from ((".".join([*parts, *filter(None, [node.module])]), each.name) for each in node.names)


def graph(found: Mapping[str, Path]) -> dict[str, set[str]]:
    """Which of the modules imports which of them."""
    edges: dict[str, set[str]] = {}
    for name, path in found.items():
        targets = {
            f"{module}.{member}" if f"{module}.{member}" in found else module
            for module, member in imported(path.read_text())
        }
        targets.update(loaded_by_name(path.read_text()))
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        targets.update(named(path.read_text(), package, found))
        edges[name] = (targets & found.keys()) - {name}
    return edges


def test_no_import_goes_in_a_circle() -> None:
    found = modules("supervisor", "gateway")
    assert len(found) > 250
    edges = graph(found)
    assert edges["supervisor.conversations.supervisor"]
    assert "supervisor.events.builtin_actions" in edges["supervisor.events.families"]
    assert "gateway.cli.talk.run" in edges["gateway.cli.client_arguments"]
    TopologicalSorter(edges).prepare()


def test_a_circle_would_be_found() -> None:
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"c"}, "c": {"a"}}).prepare()
    assert list(loaded_by_name("importlib.import_module('a.b').run()")) == ["a.b"]
    assert list(named("T = ['a.b', 'a:d', 'c:run', 'a.c']", "a.x", {"a.b", "a.x.c"})) == ["a.b", "a.x.c"]
    assert list(relative("from ..b import c\nfrom . import d", "a.x")) == [("a.b", "c"), ("a.x", "d")]
    text = "if TYPE_CHECKING:\n    from a.b import c\ndef late():\n    import d.e\n"
    assert list(imported(text)) == [("a.b", "c"), ("d.e", None)]


def test_no_import_of_the_built_in_agent_goes_in_a_circle() -> None:
    found = {
        ".".join(path.relative_to(BUILT_IN).with_suffix("").parts): path for path in BUILT_IN.rglob("*.py")
    }
    edges = {}
    for name, path in found.items():
        package = ".".join(["top", *name.split(".")[:-1]])
        targets = set()
        for module, member in relative(path.read_text(), package):
            named = {module.removeprefix("top."), f"{module}.{member}".removeprefix("top.")}
            assert named & found.keys(), f"{path}: {module}.{member} is not there"  # a late import fails late
            targets |= named
        edges[name] = (targets & found.keys()) - {name}
    assert "wire" in edges["session"]
    TopologicalSorter(edges).prepare()


def test_few_places_ask_which_kind_of_agent_there_is() -> None:
    found = [
        f"{name}: {line.strip()}"
        for name, path in modules("supervisor", "gateway").items()
        if not KNOWS_KINDS.match(name)
        for line in path.read_text().splitlines()
        if KIND.search(line)
    ]
    assert 0 < len(found) <= ASKING_MAX, found


def test_no_room_has_too_many_modules() -> None:
    rooms = Counter(
        path.parent
        for top in ("supervisor", "gateway")
        for path in (ROOT / top).rglob("*.py")
        if path.name != "__init__.py"
    )
    assert {str(room.relative_to(ROOT)): count for room, count in rooms.items() if count > MODULES_MAX} == {}


def test_the_built_in_agent_and_the_server_do_not_import_each_other() -> None:
    for path in BUILT_IN.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (isinstance(node, ast.ImportFrom) and node.level == 0) or isinstance(node, ast.Import):
                names = (
                    [node.module or ""] if isinstance(node, ast.ImportFrom) else [n.name for n in node.names]
                )
                assert not any(name.split(".")[0] in ("supervisor", "gateway") for name in names), path
    for name, path in modules("supervisor", "gateway").items():
        targets = {module for module, _ in imported(path.read_text())}
        assert not any(each.startswith("supervisor.agents.builtin") for each in targets), name
