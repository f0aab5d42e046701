"""Which tests show which promise: read from `@pytest.mark.guarantee(name=...)`, written to a page.

`python3 -m tests.docs.guarantees` writes `tests/GUARANTEES.md`. The name is the anchor of a heading in
`docs/guarantees.md` or `SECURITY.md`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
PAGE = TESTS / "GUARANTEES.md"
HEAD = """\
# Tests of the guarantees

`python3 -m tests.docs.guarantees` writes this page from the marks of the tests, and a test compares it.
Each line names a promise and the modules below `tests/` with tests of it. To run the tests of one promise,
without real agents and clients:

    scripts/test -m "guarantee(name='nothing-survives') and not interop and not clients"
"""
DOCUMENTS = {"docs/guarantees.md": "../docs/guarantees.md", "SECURITY.md": "../SECURITY.md"}
"""Those with promises, and how the page links to them."""


def promises(document: str) -> dict[str, str]:
    """The headings under which something is promised, by their anchors.

    In the guarantees a promise is quoted below its heading. In the threat model each attacker is one, and
    so are keys and secrets.
    """
    text = (ROOT / document).read_text()
    if document == "SECURITY.md":
        attackers = text.partition("\n## Who attacks, and what holds\n")[2].partition("\n## ")[0]
        found = [*re.findall(r"^### (.+)$", attackers, re.MULTILINE), "Keys and secrets"]
        assert "\n## Keys and secrets\n" in text
    else:
        found = re.findall(r"^## (.+)\n\n> ", text, re.MULTILINE)
    return {anchor(heading): heading for heading in found}


def anchor(heading: str) -> str:
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def marked() -> Iterator[tuple[str, str]]:
    """Each test with a mark, `file::test`, and the promise that it names. One in two parts has two."""
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text()
        if "pytest.mark.guarantee(" not in text or path == TESTS / "docs" / "test_guarantees.py":
            continue
        tree = ast.parse(text)
        whole = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        ]
        of_module = [name for value in whole for name in _names(value)]
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                names = {*of_module, *(name for each in node.decorator_list for name in _names(each))}
                for name in sorted(names):
                    yield f"{path.relative_to(TESTS).as_posix()}::{node.name}", name


def _names(value: ast.expr) -> Iterator[str]:
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.guarantee":
            (keyword,) = node.keywords  # pytest's -m looks at keywords alone
            assert keyword.arg == "name"
            assert isinstance(keyword.value, ast.Constant)
            yield str(keyword.value.value)


def page() -> str:
    modules: dict[str, set[str]] = {}
    for test, name in marked():
        modules.setdefault(name, set()).add(test.partition("::")[0].removesuffix(".py"))
    lines = [HEAD]
    for document, link in DOCUMENTS.items():
        lines.append(f"## {document}\n")
        for name, heading in promises(document).items():
            files = ", ".join(f"`{each}`" for each in sorted(modules.get(name, ())))
            lines.append(f"* [{heading}]({link}#{name}): {files}")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
