"""`docs/operations.md` names every file that Ostler keeps in its state directory."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()

CONSTANT = re.compile(r"([A-Z_]*_)?(FILE|DIR)")
NAME = re.compile(r"[a-z][a-z0-9-]*(\.(json|sqlite3|key|key\.new|lock|log|pid|sock))?")

BELOW = {"files", "logins", "memory"}
"""Directories below `data/`."""

WORDS = {"file"}
"""Constants that name no file."""


def kept() -> Iterator[str]:
    """The names of files and directories in module constants that are called FILE or DIR."""
    for top in ("supervisor", "gateway"):
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                target = node.target if isinstance(node, ast.AnnAssign) else None
                if isinstance(node, ast.Assign) and len(node.targets) == 1:
                    target = node.targets[0]
                value = getattr(node, "value", None)
                if (
                    isinstance(target, ast.Name)
                    and CONSTANT.fullmatch(target.id)
                    and isinstance(value, ast.Constant)
                    and isinstance(value.value, str)
                    and NAME.fullmatch(value.value)
                ):
                    yield value.value


def test_every_file_of_the_state_directory_is_documented() -> None:
    table = OPERATIONS[OPERATIONS.index("| path | content |") :].partition("\n\n")[0]
    names = set(kept()) - BELOW - WORDS
    assert {"journal.sqlite3", "secrets.json", "server.pid", "worktrees"} <= names
    missing = [name for name in sorted(names) if not any(names_it(row, name) for row in table.splitlines())]
    assert missing == []


def names_it(row: str, name: str) -> bool:
    """By its name, or by an ending: `temporary-server.json` (with `.lock`, `.log`)."""
    stem, _, ending = name.rpartition(".")
    return re.search(rf"`{re.escape(name)}/?`", row) is not None or (
        bool(stem) and f"`{stem}." in row and f"`.{ending}`" in row
    )
