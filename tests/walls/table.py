"""`python3 -m tests.walls.table` writes what each level stops into `SECURITY.md`, and a test compares it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from string import ascii_lowercase

from tests.walls.escapes import ATTEMPTS, KINDS
from tests.walls.expected import EXPECTED, LEVELS, USERS, Outcome

PAGE = Path(__file__).resolve().parents[2] / "SECURITY.md"
BEGIN = "<!-- walls: written by python3 -m tests.walls.table -->"
END = "<!-- walls end -->"
OFF, *WALLED = LEVELS
TITLES = {"landlock": "`strict` by Landlock"}


def outcome(name: str, user: str, level: str) -> Outcome:
    found: Outcome = getattr(getattr(EXPECTED[name], user), level)
    return found


def of_kind(kind: str) -> list[str]:
    """The attempts of a kind, in their order."""
    return [name for name, each in ATTEMPTS.items() if each.kind == kind]


def gaps() -> dict[str, list[str]]:
    """The reasons for what a level does not stop, and the attempts that escape for it."""
    found: dict[str, list[str]] = {}
    for name in (name for kind in KINDS for name in of_kind(kind)):
        reached = [outcome(name, user, level) for level in WALLED for user in USERS]
        for why in dict.fromkeys(each.why for each in reached if each.escapes):
            found.setdefault(why, []).append(name)
    return found


def cell(names: Sequence[str], level: str) -> str:
    """What becomes of these attempts at a level: of an ordinary user and, where that differs, of root."""
    said = [_of_user(names, user, level) for user in USERS]
    return " / ".join(dict.fromkeys(said))


def _of_user(names: Sequence[str], user: str, level: str) -> str:
    tried = [outcome(name, user, level) for name in names if outcome(name, user, OFF).escapes]
    reached = [each for each in tried if each.escapes]
    if not tried:
        return "-"
    letters = dict(zip(gaps(), ascii_lowercase, strict=False))
    reasons = ", ".join(dict.fromkeys(f"({letters[each.why]})" for each in reached if each.why))
    word = "reached" if len(reached) == len(tried) else "stopped"
    return f"{word} {reasons}".strip()


def lines() -> Iterator[str]:
    """The table, and the gaps with the letters that it has."""
    yield "| | " + " | ".join(TITLES.get(level, f"`{level}`") for level in LEVELS) + " |"
    yield "| --- |" + " --- |" * len(LEVELS)
    for kind, title in KINDS.items():
        names = of_kind(kind)
        yield f"| {title} | " + " | ".join(cell(names, level) for level in LEVELS) + " |"
    yield ""
    for letter, (why, names) in zip(ascii_lowercase, gaps().items(), strict=False):
        whole = {kind for kind in KINDS if set(of_kind(kind)) <= set(names)}
        texts = [each.text for name in names if (each := ATTEMPTS[name]).kind not in whole]
        what = f": {'; '.join(texts)}" if texts else ""
        yield f"* ({letter}) {why[0].upper()}{why[1:]}{what}."


def page() -> str:
    """The page with the table of today."""
    before, found, rest = PAGE.read_text().partition(BEGIN)
    _, ended, after = rest.partition(END)
    assert found
    assert ended
    table = "\n".join(lines())
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page())
