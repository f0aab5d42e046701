"""What the TypeScript client got from Ostler, held against what it got from the peer's server.

Both went through the same script. An answer is the same when it has the same keys, types and values; of an
error the status, and of a validation error also the fields and kinds. Words for people (`detail`, `message`)
are each server's own, except that "Not Found" alone, for an unknown route, is never the answer where the peer
gives a reason. An event that one of them alone tells is one difference, and those around it are compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import attrs

RECORDING = Path(__file__).resolve().parent / "typescript" / "peer.json"
WORDS = frozenset({"detail", "message", "error"})
PEOPLE = WORDS | {"msg"}
NO_ROUTE = {"detail": "Not Found"}
NONE = "(none)"
SAID = "(words)"
"""Stands for words in what a row of the table allows."""


@attrs.frozen
class Difference:
    """One place where Ostler's answer is not the peer's."""

    label: str
    path: str
    peer: Any
    ostler: Any

    def __str__(self) -> str:
        return f"{self.label} at {self.path or 'all'}: peer {_short(self.peer)}, Ostler {_short(self.ostler)}"


@attrs.frozen
class Allowed:
    """A difference that is better, or by design: at these labels and paths (with wildcards) Ostler gives
    exactly this."""

    label: str
    path: str
    ostler: Any
    reason: str

    def covers(self, difference: Difference) -> bool:
        path = self.path.replace("[", "[[]")
        return (
            fnmatchcase(difference.label, self.label)
            and fnmatchcase(difference.path, path)
            and without_words(difference.ostler) == self.ostler
        )


def without_words(value: Any) -> Any:
    """The value, its words for people replaced by a sign for them."""
    if isinstance(value, dict):
        return {
            key: SAID if key in PEOPLE and isinstance(item, str) else without_words(item)
            for key, item in value.items()
        }
    return [without_words(item) for item in value] if isinstance(value, list) else value


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) < 400 else text[:400] + "..."


def differences(peer: list[dict[str, Any]], ostler: list[dict[str, Any]]) -> list[Difference]:
    """Of all steps, in order."""
    theirs = {step["label"]: step for step in ostler}
    found: list[Difference] = []
    for step in peer:
        other = theirs.pop(step["label"], None)
        found += _of_step(step, other)
    found += [Difference(label, "", None, step) for label, step in theirs.items()]
    return found


def _of_step(peer: dict[str, Any], ostler: dict[str, Any] | None) -> Iterator[Difference]:
    label = peer["label"]
    mine = _outcome(peer)
    if ostler is None:
        yield Difference(label, "", mine, None)
    elif ("error" in peer) != ("error" in ostler) or peer.get("status") != ostler.get("status"):
        yield Difference(label, "", mine, _outcome(ostler))
    elif "error" in peer:
        yield from _of_error(label, peer["error"], ostler["error"])
    else:
        yield from _of_value(label, "", peer["value"], ostler["value"])


def _outcome(step: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in step.items() if key not in ("label", "requests", "fields")}


def _of_error(label: str, peer: Any, ostler: Any) -> Iterator[Difference]:
    if ostler == NO_ROUTE != peer:
        yield Difference(label, "", peer, ostler)
        return
    if _fields(peer) != _fields(ostler):
        yield Difference(label, "detail", peer, ostler)


def _fields(error: Any) -> Any:
    """Fields and kinds of a validation error; of any other what kind of thing the detail is."""
    detail = error.get("detail") if isinstance(error, dict) else error
    if isinstance(detail, list):
        return sorted((item.get("loc"), item.get("type")) for item in detail)
    return type(detail).__name__


def _of_value(label: str, path: str, peer: Any, ostler: Any) -> Iterator[Difference]:
    if isinstance(peer, dict) and isinstance(ostler, dict):
        for key in sorted(peer.keys() | ostler.keys()):
            below = f"{path}.{key}" if path else key
            if key not in peer or key not in ostler:
                yield Difference(label, below, peer.get(key, NONE), ostler.get(key, NONE))
            elif key in WORDS and isinstance(peer[key], str) and isinstance(ostler[key], str):
                continue
            else:
                yield from _of_value(label, below, peer[key], ostler[key])
    elif _names(peer) and _names(ostler):
        for name in sorted(set(peer) ^ set(ostler)):
            there = name in peer
            yield Difference(label, f"{path}[{name}]" if path else f"[{name}]", there, not there)
    elif _kinds(peer) and _kinds(ostler) and _kinds(peer) != _kinds(ostler):
        yield from _of_events(label, path, peer, ostler)
    elif isinstance(peer, list) and isinstance(ostler, list) and len(peer) == len(ostler):
        for at, (one, other) in enumerate(zip(peer, ostler, strict=True)):
            yield from _of_value(label, f"{path}#{at}", one, other)
    elif peer != ostler:
        yield Difference(label, path, peer, ostler)


def _names(value: Any) -> bool:
    """Whether it is a list of names without order, as the script gives for an object's keys."""
    return (
        isinstance(value, list)
        and all(isinstance(item, str) for item in value)
        and value == sorted(set(value))
    )


def _kinds(value: Any) -> list[tuple[str, ...]]:
    """Of each event of a list what it is and whose; nothing for anything else."""
    if isinstance(value, list) and all(isinstance(item, dict) and "kind" in item for item in value):
        return [(item["kind"], str(item.get("source")), *item.get("keys", ())) for item in value]
    return []


def _of_events(label: str, path: str, peer: list[Any], ostler: list[Any]) -> Iterator[Difference]:
    """Those that one of the two has alone, and within the others; numbered as Ostler's."""
    matcher = SequenceMatcher(None, _kinds(peer), _kinds(ostler), autojunk=False)
    for what, begin, end, from_, to in matcher.get_opcodes():
        if what == "equal":
            for one, at in zip(peer[begin:end], range(from_, to), strict=True):
                yield from _of_value(label, f"{path}#{at}", one, ostler[at])
        else:
            for one in peer[begin:end]:
                yield Difference(label, f"{path}-{one['kind']}", one, NONE)
            for one in ostler[from_:to]:
                yield Difference(label, f"{path}+{one['kind']}", NONE, one)
