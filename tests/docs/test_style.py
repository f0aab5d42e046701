"""The documents, and what the code says of itself, keep to the words of `docs/style.md`."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    {ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")}
    - {ROOT / "docs" / "style.md"}
)

AVOIDED = re.compile(r"(?<![`\w])(?:whoever|nobody|somebody|anew|beside)(?![`\w])", re.IGNORECASE)

WORDS = {
    "name the subject; say `again`, `next to`, `while`": AVOIDED,
    "say `is not a X`": re.compile(
        r"(?<!here )\b(?:is|are|was|were) no (?!longer|more|less|faster|slower|better|worse)[a-z]+"
    ),
    "say `requires`": re.compile(r"\bwants\b"),
    "say `unavailable`": re.compile(r"\bcannot be had\b"),
}
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_no_word_that_the_style_page_replaces(path: Path) -> None:
    text = CODE.sub("``", path.read_text())
    wrong = [
        f"{found[0]!r}: {advice}" for advice, pattern in WORDS.items() for found in pattern.finditer(text)
    ]
    assert wrong == []


IN_CODE = re.compile(
    rf"{AVOIDED.pattern}|(?<![`\w])(?:told|spares?|whatever|(?:go|goes|going|went|gone) on)(?![`\w])",
    re.IGNORECASE,
)
"""What the documents' rules forbid, and private words (`PRIVATE`) that are no other word's part."""

QUOTED = re.compile(r"`[^`\n]*`")
"""Names of the wire and of the code, which stay as they are."""


def prose(source: str) -> Iterator[str]:
    """The comments, docstrings (those of attributes too) and messages of a module, without what they quote.

    A message is a string with a space in it: names on the wire and in stored files have none.
    """
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield QUOTED.sub("``", token.string)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield QUOTED.sub("``", node.value)


def test_no_comment_docstring_or_message_has_a_private_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {word[0]!r} in {text[:80]!r}"
        for top in ("supervisor", "gateway")
        for path in (ROOT / top).rglob("*.py")
        for text in prose(path.read_text())
        if (word := IN_CODE.search(text))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("x = 1  # made anew", 1),
        ("class A:\n    '''Beside it.'''\n    b = 1\n    '''What it was told.'''", 2),
        ("log.info('a spare agent waits')", 1),
        ("text = f'{name}: whatever it says'", 1),
        ("raise E('nobody ' 'looks')", 1),
        ("x = 'told'; y = {'spares': 1}", 0),
        ("# the state `spare`, and `OSTLER_WARM_SPARES`", 0),
        ("# it retold the beginning of a goal", 0),
    ],
)
def test_a_private_word_in_prose_is_found(source: str, count: int) -> None:
    assert sum(bool(IN_CODE.search(each)) for each in prose(source)) == count


PRIVATE = {
    "told": "native, reported, recorded",
    "outs": "effects",
    "own_requests": "extension requests",
    "spares?": "warm process; reserved",
    "(?:add|last|stderr|with)_words|words_(?:lines|seconds)": "stderr tail",
    "incoming": "agent handler; received",
    "lent|lend|lends|lending|g[ai]v(?:e|en|es|ing)_back": "checkout, release",
    "steer|steers|steering": "mid-turn message",
    "reports": "status publisher",
    "(?:go|goes|gone|going|went)_ons?": "resume, continue",
    "spoken": "on_wire, wire aliases",
    "process_(?:mark|tag)s?|(?:marks?|tags?)_of_(?:a_)?process|brand(?:ed|s)?": "process marker",
    "noise|noisy": "non-protocol output",
}
"""Words of the code's own, as parts of identifiers, and the field's words for them."""

PLACES = {"places": "slots"}
"""The same in these rooms; elsewhere they are positions in a text, or directories."""
IN_CONVERSATIONS = ("supervisor/conversations/", "supervisor/acp/")

STAYING = {
    "silence_told": "`OSTLER_DEADLINE_SILENCE_TOLD` is read by the name of the field",
    "process_tag": "the resource limit that is one part of a process marker (docs/decisions/0012)",
}
"""Identifiers that stay, and why. Strings, as names on the wire and in stored files, are not looked at."""


def identifiers(source: str) -> Iterator[str]:
    """All names in a module. Not those of keyword arguments: parameters are counted where the function is
    defined, and others are keys of a log line or of an object on the wire."""
    for node in ast.walk(ast.parse(source)):
        for field in ("name", "asname", "id", "attr", "rest"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                yield from value.split(".")
        match node:
            case ast.arg(arg=name):
                yield name
            case ast.ImportFrom(module=str(module)):
                yield from module.split(".")


def private(name: str, words: dict[str, str]) -> Iterator[str]:
    """The advice for each private word in an identifier."""
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    for word, advice in words.items():
        if name not in STAYING and re.search(f"(?:^|_)(?:{word})(?:$|_)", parts):
            yield f"{name}: say {advice}"


def test_identifiers_have_the_words_of_the_field() -> None:
    found = {
        f"{path}: {advice}"
        for top in ("supervisor", "gateway")
        for file in (ROOT / top).rglob("*.py")
        for path in [file.relative_to(ROOT).as_posix()]
        for name in {*identifiers(file.read_text()), *file.relative_to(ROOT).with_suffix("").parts}
        for advice in private(name, PRIVATE | (PLACES if path.startswith(IN_CONVERSATIONS) else {}))
    }
    assert sorted(found) == []


@pytest.mark.parametrize(
    "source",
    [
        "def f(told): pass",
        "self._outs = []",
        "class SpareView: pass",
        "from supervisor.conversations.turns import incoming",
        "import a.steering as b",
        "x = f'{item.goes_on}'",
        "match x:\n    case [*going_on]: pass",
        "async def give_back(): pass",
        "process_mark = LAST_WORDS_SECONDS = 1",
        "try: pass\nexcept E as noise: pass",
    ],
)
def test_a_private_word_is_found(source: str) -> None:
    assert [advice for name in identifiers(source) for advice in private(name, PRIVATE)] != []


def test_the_same_words_in_other_uses_are_not_private() -> None:
    source = "@pytest.mark.slow\ndef words(silence_told, places, tag, token): log.info('told', spare=1)"
    assert [advice for name in identifiers(source) for advice in private(name, PRIVATE)] == []
