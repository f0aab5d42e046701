"""What the TypeScript client got from Ostler, held against what it got from the peer's server.

Both went through the same script. An answer is the same when it has the same keys, types and values; of
an error the
status, and of a validation error also the fields and kinds. Words for people (`detail`, `message`) are
each server's own,
except that "Not Found" alone, for an unknown route, is never the answer where the peer gives a reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import attrs

RECORDING = Path(__file__).resolve().parent / "typescript" / "peer.json"
WORDS = frozenset({"detail", "message", "error"})
NO_ROUTE = {"detail": "Not Found"}


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
    """Differences that are better, or by design. Label and path may have wildcards."""

    label: str
    path: str
    reason: str

    def covers(self, difference: Difference) -> bool:
        path = self.path.replace("[", "[[]")
        return fnmatchcase(difference.label, self.label) and fnmatchcase(difference.path, path)


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
    mine = {key: value for key, value in peer.items() if key != "label"}
    if ostler is None:
        yield Difference(label, "", mine, None)
    elif ("error" in peer) != ("error" in ostler) or peer.get("status") != ostler.get("status"):
        yield Difference(label, "", mine, {key: value for key, value in ostler.items() if key != "label"})
    elif "error" in peer:
        yield from _of_error(label, peer["error"], ostler["error"])
    else:
        yield from _of_value(label, "", peer["value"], ostler["value"])


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
                yield Difference(label, below, peer.get(key, "(none)"), ostler.get(key, "(none)"))
            elif key in WORDS and isinstance(peer[key], str) and isinstance(ostler[key], str):
                continue
            else:
                yield from _of_value(label, below, peer[key], ostler[key])
    elif _names(peer) and _names(ostler):
        for name in sorted(set(peer) ^ set(ostler)):
            there = name in peer
            yield Difference(label, f"{path}[{name}]" if path else f"[{name}]", there, not there)
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
