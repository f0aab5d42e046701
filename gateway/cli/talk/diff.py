"""Edits of files in a tool call, as lines of a diff. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from gateway.cli.text import clean

MOST_CHARS: Final = 100_000
"""Most characters of either side of a change that are compared; comparing takes quadratic time."""

MOST_LINES: Final = 60
"""Most lines of one diff that are shown."""

CONTEXT_LINES: Final = 2

PATHS: Final = ("path", "file_path", "filePath", "filename", "abs_path")
OLD: Final = ("old_text", "oldText", "old_string", "oldString", "old_str")
NEW: Final = ("new_text", "newText", "new_string", "newString", "new_str", "content", "file_text")
PATCH: Final = ("unified_diff", "diff", "patch")
"""Names of these in agents' tool inputs."""


class Edit(NamedTuple):
    """A change of one file: what was there (None: nothing) and what is then, or a patch of the agent's."""

    path: str
    old: str | None
    new: str
    patch: str | None = None


def edits(content: object, raw_input: object) -> list[Edit]:
    """The edits of a call: those in its content, else those derived from its input."""
    blocks = content if isinstance(content, list) else []
    shown = [
        Edit(_text(block, PATHS) or "", _text(block, OLD), _text(block, NEW) or "")
        for block in blocks
        if isinstance(block, Mapping) and block.get("type") == "diff"
    ]
    return shown or list(_from_input(raw_input))


def _from_input(raw: object) -> Iterator[Edit]:
    if not isinstance(raw, Mapping):
        return
    changes = raw.get("changes")
    if isinstance(changes, Mapping):  # by path
        for path, change in changes.items():
            if isinstance(change, Mapping):
                yield from _from_input({"path": str(path), **change})
        return
    several = raw.get("edits")
    if isinstance(several, list):
        for each in several:
            if isinstance(each, Mapping):
                yield from _from_input({"path": _text(raw, PATHS) or "", **each})
        return
    path, patch, new = _text(raw, PATHS), _text(raw, PATCH), _text(raw, NEW)
    if patch is not None:
        yield Edit(path or "", None, "", patch)
    elif path is not None and new is not None:
        yield Edit(path, _text(raw, OLD), new)


def _text(obj: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((obj[name] for name in names if isinstance(obj.get(name), str)), None)


def lines(edit: Edit, most: int = MOST_LINES) -> list[str]:
    """The diff, line by line: the first character is +, - or a space, or @ between places."""
    import difflib

    if edit.patch is not None:
        found = [line for line in edit.patch.splitlines() if not line.startswith(("---", "+++"))]
    elif max(len(edit.old or ""), len(edit.new)) > MOST_CHARS:
        return [f"  ({len(edit.old or '')} characters become {len(edit.new)})"]
    else:
        old, new = (edit.old or "").splitlines(), edit.new.splitlines()
        compared = difflib.unified_diff(old, new, lineterm="", n=CONTEXT_LINES)
        found = [line for line in compared if not line.startswith(("--- ", "+++ "))]
        if edit.old is None:
            found = [line for line in found if not line.startswith("@@")]
    shown = [clean(line).expandtabs(4) for line in found[:most]]
    if len(found) > most:
        shown.append(f"  ... {len(found) - most} more lines")
    return shown
