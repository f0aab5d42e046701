"""The conversations that both servers held with the SDK's own client (tests/clients/python/scenarios.py):
what came of them, and the part of docs/compatibility.md about it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
RECORDING: Final = ROOT / "docs/compatibility/sequences.json"
REASONS: Final = ROOT / "docs/compatibility/sequences.toml"

EVENTS, STATUSES = "events", "statuses"

HEAD: Final = """
## Conversations with the built-in agent

One script drives both servers with the peer's own client (`RemoteConversation` with an `Agent`, {version})
and the same answers of a model. Compared are each conversation's events in order (kind, source, tool, kind of
action or observation, error code) and the statuses that the client saw. `tests/clients/sequences.py` writes
[compatibility/sequences.json](compatibility/sequences.json). Numbers refer to the differences below, with
reasons from [compatibility/sequences.toml](compatibility/sequences.toml).
"""


def load(path: Path = RECORDING) -> dict[str, Any]:
    """The recording: `version`, and of `peer` and `ostler` by scenario its title, events and statuses."""
    return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def reasons(path: Path = REASONS) -> dict[str, dict[str, str]]:
    """Why a difference is there, by scenario (`*` for all of them) and difference."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def differences(peer: Mapping[str, Any], ostler: Mapping[str, Any]) -> list[str]:
    """What one of the two has and the other has not, in order: `peer: WHAT` and `Ostler: WHAT`."""
    return [line for part in (EVENTS, STATUSES) for line in _differences(peer[part], ostler[part], part)]


def _differences(peer: Sequence[str], ostler: Sequence[str], part: str) -> Iterator[str]:
    said = "" if part == EVENTS else "status "
    matcher = SequenceMatcher(None, peer, ostler, autojunk=False)
    for kind, first, last, begin, end in matcher.get_opcodes():
        if kind != "equal":
            yield from (f"peer: {said}{each}" for each in peer[first:last])
            yield from (f"Ostler: {said}{each}" for each in ostler[begin:end])


def explained(
    scenario: str, found: Sequence[str], known: Mapping[str, Mapping[str, str]]
) -> list[str | None]:
    """The reason of each difference; None for one that nobody has explained."""
    return [known.get(scenario, {}).get(each) or known.get("*", {}).get(each) for each in found]


def section(recording: Mapping[str, Any], known: Mapping[str, Mapping[str, str]]) -> str:
    """The part of the page."""
    by_result: dict[str, list[str]] = {}
    notes: list[str] = []
    for name, peer in recording["peer"].items():
        ostler = recording["ostler"].get(name)
        if ostler is None:
            by_result.setdefault("not recorded", []).append(peer["title"])
            continue
        found = differences(peer, ostler)
        said = []
        for difference, reason in zip(found, explained(name, found, known), strict=True):
            note = f"{difference}: {reason or 'not explained'}"
            if note not in notes:
                notes.append(note)
            said.append(notes.index(note) + 1)
        numbers = ", ".join(str(number) for number, _ in groupby(sorted(said)))
        by_result.setdefault(f"differs: {numbers}" if said else "same", []).append(peer["title"])
    lines = [HEAD.format(version=recording["version"])]
    lines += ["| Ostler | Conversations |", "|---|---|"]
    lines += [f"| {result} | {'<br>'.join(titles)} |" for result, titles in by_result.items()]
    lines += ["", *(f"{number}. {note}" for number, note in enumerate(notes, 1))]
    return "\n".join(lines).rstrip() + "\n"
