"""The content blocks of a tool call, as clients read them; the change of a file as a unified diff. Pure."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from supervisor.acp.schema import WORDS_CHARS, cut


def text_of(block: Any) -> str:
    """The text of a block, as an agent sent it; empty if it has none."""
    if not isinstance(block, dict):
        return ""
    if block.get("type") == "diff":
        return change(block)
    text = inner_of(block).get("text")
    return text if isinstance(text, str) else ""


def inner_of(block: Any) -> Mapping[str, Any]:
    """The content that a block of a call wraps, or is; empty where it is neither."""
    inner = block.get("content") if isinstance(block, dict) and block.get("type") == "content" else block
    return inner if isinstance(inner, dict) else {}


def diffs_of(blocks: Any) -> list[Any]:
    """The diffs among blocks."""
    if not isinstance(blocks, list):
        return []
    return [block for block in blocks if isinstance(block, dict) and block.get("type") == "diff"]


def terminals_of(blocks: Any) -> list[str]:
    """The ids of the terminals that blocks name."""
    if not isinstance(blocks, list):
        return []
    return [
        block["terminalId"]
        for block in blocks
        if isinstance(block, dict)
        and block.get("type") == "terminal"
        and isinstance(block.get("terminalId"), str)
    ]


def has_text(blocks: list[Any] | None) -> bool:
    """Whether a block is content, and not a diff or a terminal."""
    return any(block.get("type") == "content" for block in blocks or [] if isinstance(block, dict))


def text_block(text: str) -> dict[str, Any]:
    """A text in the shape that clients expect inside a call's content."""
    return {
        "type": "content",
        "content": {"type": "text", "text": text, "annotations": None, "field_meta": None},
        "field_meta": None,
    }


def snake_blocks(blocks: list[Any] | None) -> list[Any] | None:
    """Tool content as clients read it: snake_case keys, nulls kept, bare content blocks wrapped."""
    if blocks is None:
        return None
    return [_snake_block(block) for block in blocks]


def _snake_block(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    kind = block.get("type")
    if kind == "diff":
        return {
            "type": "diff",
            "path": block.get("path"),
            "old_text": block.get("oldText"),
            "new_text": block.get("newText"),
            "field_meta": block.get("_meta"),
        }
    if kind == "terminal":
        return {"type": "terminal", "terminal_id": block.get("terminalId"), "field_meta": block.get("_meta")}
    inner = block.get("content") if kind == "content" else block
    return {
        "type": "content",
        "content": _snake_content(inner),
        "field_meta": block.get("_meta") if kind == "content" else None,
    }


_SNAKE: Final = {"mimeType": "mime_type", "_meta": "field_meta"}


def _snake_content(inner: Any) -> Any:
    if not isinstance(inner, dict):
        return inner
    out = dict(inner)
    if "mimeType" in inner or "_meta" in inner:
        out = {_SNAKE.get(key, key): value for key, value in inner.items()}
    out.setdefault("annotations", None)
    out.setdefault("field_meta", None)
    if isinstance(out.get("resource"), dict):
        out["resource"] = {_SNAKE.get(key, key): value for key, value in out["resource"].items()}
    return out


def describe(content: Mapping[str, Any]) -> str:
    """A content block other than text, in words: links as links, the rest named, with the blob that has its
    bytes. Empty for a kind that the protocol does not have."""
    kind = content.get("type")
    if kind == "resource_link":
        return f"[{_words(content.get('name') or content.get('uri'))}]({_words(content.get('uri'))})"
    if kind == "resource" and isinstance(content.get("resource"), dict):
        inner = content["resource"]
        words = inner.get("text")
        if isinstance(words, str):
            return words
        return _named("resource", inner.get("uri"), inner.get("mimeType"), inner.get("blob_uri"))
    if kind in ("image", "audio"):
        return _named(kind, content.get("mimeType"), None if content.get("data") else content.get("uri"))
    return ""


def _named(*words: Any) -> str:
    return f"[{' '.join(filter(None, map(_words, words)))}]"


def _words(value: Any) -> str:
    """A name or an address as it is shown within a text."""
    return cut(value, WORDS_CHARS) if isinstance(value, str) else str(value) if isinstance(value, int) else ""


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
    found = _hunks((old or "").splitlines(), new.splitlines())
    lines: list[str] = []
    for line in found:
        if len(lines) == LINES_MAX:
            return [*lines, f"[... more than {LINES_MAX} lines ...]"]
        lines.append(line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}[... {len(line)} characters]")
    return lines


def _hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
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
