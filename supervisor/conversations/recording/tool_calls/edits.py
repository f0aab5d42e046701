"""A change of a file as a unified diff. Pure, and linear in the size of the texts."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

CONTEXT_LINES: Final = 3

LINES_MAX: Final = 1_000
"""Lines of one diff; a person reads no more, and the data of the event has both texts."""

LINE_CHARS: Final = 1_000
"""Longest line of a diff, in characters."""

COMPARED_MAX: Final = 40_000
"""Old lines times new lines that are compared: some ten milliseconds at worst, since comparing takes time
with the product. Where more differs, all of the old lines are removed and all of the new ones added."""

_TEXT_CHARS: Final = 1024 * 1024
"""Characters of each side that are compared at all."""


def change(block: Mapping[str, Any]) -> str:
    """What a diff block of a tool call changes: the path, and the lines that go and come."""
    path, old, new = block.get("path"), block.get("oldText"), block.get("newText")
    what = "new file" if old is None else "changed"
    title = f"{path if isinstance(path, str) else ''} ({what})"
    lines = diff_lines(old if isinstance(old, str) else None, new if isinstance(new, str) else "")
    return "\n".join([title, *lines])


def diff_lines(old: str | None, new: str) -> list[str]:
    """The lines of a unified diff without its heads; `old` None: the file is new."""
    if max(len(old or ""), len(new)) > _TEXT_CHARS:
        return [f"({len(old or '')} characters become {len(new)})"]
    found = _places((old or "").splitlines(), new.splitlines())
    lines: list[str] = []
    for line in found:
        if len(lines) == LINES_MAX:
            return [*lines, f"[... more than {LINES_MAX} lines ...]"]
        lines.append(line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}[... {len(line)} characters]")
    return lines


def _places(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """The hunks. What is the same at both ends is not compared."""
    head = 0
    shorter = min(len(old), len(new))
    while head < shorter and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    before, after = max(0, head - CONTEXT_LINES), max(0, tail - CONTEXT_LINES)
    some_old, some_new = old[before : len(old) - after], new[before : len(new) - after]
    if len(some_old) * len(some_new) <= COMPARED_MAX:
        compared = difflib.unified_diff(some_old, some_new, lineterm="", n=CONTEXT_LINES)
        for line in itertools.islice(compared, 2, None):  # without the names of the files
            yield _moved(line, before) if line.startswith("@@") else line
        return
    if head == len(old) == len(new):
        return
    yield f"@@ -{before + 1},{len(some_old)} +{before + 1},{len(some_new)} @@"
    same, last = head - before, tail - after
    yield from (f" {line}" for line in some_old[:same])
    yield from (f"-{line}" for line in some_old[same : len(some_old) - last])
    yield from (f"+{line}" for line in some_new[same : len(some_new) - last])
    yield from (f" {line}" for line in some_old[len(some_old) - last :])


def _moved(head: str, lines: int) -> str:
    """The head of a hunk, so many lines further down."""
    _, old, new, _ = head.split(" ")

    def move(span: str) -> str:
        start, comma, count = span[1:].partition(",")
        return f"{span[0]}{int(start) + lines}{comma}{count}"

    return f"@@ {move(old)} {move(new)} @@"
