"""docs/troubleshooting.md quotes what the code says: a message that is reworded must be reworded there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()

HOLE = "\N{HORIZONTAL ELLIPSIS}"
QUOTE = re.compile(r"`([^`]+)`")

NO_MESSAGE = re.compile(
    r"OSTLER_\w+(=\w+|_?\.\.\.)?|[a-z_.]+[a-z]|--?[a-z][\w-]*( [A-Z\d.]+)?|/\w+|ostler [^:]*|[A-Z]+|"
    r"(chmod|ss|ulimit|ps|pip|pidns|Delegate)[ =].*|[A-Z]\w+-[\w-]+|Upgrade|Connection|ConversationErrorEvent"
)
"""Names of variables, states, options, paths, commands and headers."""


def quotes() -> list[str]:
    """What stands in code in the first column of the tables, and in the page's other messages."""
    found = [text for line in PAGE.splitlines() if line.startswith("| ") for text in QUOTE.findall(line)]
    return list(dict.fromkeys(text for text in found if not NO_MESSAGE.fullmatch(text)))


@cache
def said() -> str:
    """All that the code says, to search in at once: no quote goes over the end of a line."""
    return "\n".join(literals())


@cache
def literals() -> tuple[str, ...]:
    return tuple(text for room in ("gateway", "supervisor") for path in (ROOT / room).rglob("*.py")
                 for text in _literals(path))  # fmt: skip


def _literals(path: Path) -> Iterator[str]:
    """Strings of a module that are not docstrings; what an f-string fills in is a hole."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = (str(value.value) if isinstance(value, ast.Constant) else HOLE for value in node.values)
            yield "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            yield node.value if isinstance(node.value, str) else node.value.decode(errors="replace")


def matches(quote: str, literal: str) -> bool:
    """Whether the code says this: a hole of the quote stands for anything, holes of the code included."""
    pattern = ".*".join(re.escape(piece) for piece in quote.split(HOLE))
    return re.search(pattern, literal) is not None


@pytest.mark.parametrize("quote", quotes())
def test_the_code_says_what_the_page_quotes(quote: str) -> None:
    assert matches(quote, said())


def test_messages_are_found() -> None:
    assert len(quotes()) > 45
    assert not matches("the server is not known by this name", said())


def test_every_code_of_a_failed_conversation_is_on_the_page() -> None:
    table = PAGE.partition("## Error codes of a conversation")[2]
    listed = set(re.findall(r"`([A-Z]\w+)`", table))
    for code in listed - {"OSTLER_PARKED_SECONDS"}:
        assert code in literals()
    source = "".join(path.read_text() for path in (ROOT / "supervisor" / "conversations").rglob("*.py"))
    used = set(re.findall(r"(?:AgentFailure|fail|lost|from_rpc)\([^)]*?\"([A-Z]\w+)\"", source))
    assert len(used) >= 5
    assert used <= listed
