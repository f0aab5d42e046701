"""How risky a tool call is, from what its agent says of it: one table. Pure.

An agent over ACP reports no risk. What it does report is the kind of a call and the files that it is about,
and the worst that a call of that kind can do is known. It is the agent's program that says so, not its
model: whoever does not trust the program confirms everything (`AlwaysConfirm`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, Final

from supervisor.events import SecurityRisk

RISKS: Final[Mapping[str, SecurityRisk]] = {
    "read": SecurityRisk.LOW,  # these change nothing
    "search": SecurityRisk.LOW,
    "think": SecurityRisk.LOW,
    "fetch": SecurityRisk.MEDIUM,  # an address that is asked for can carry anything out
    "edit": SecurityRisk.MEDIUM,  # files of the workspace, where a change can be seen and taken back
    "move": SecurityRisk.MEDIUM,
    "delete": SecurityRisk.HIGH,  # what is gone is gone
    "execute": SecurityRisk.HIGH,  # a command can do whatever its user can
    "switch_mode": SecurityRisk.HIGH,  # what comes after it may not be asked about
}
"""By the protocol's kinds. `other`, none, and kinds that are not known are `UNKNOWN`."""

OUTSIDE: Final[Mapping[SecurityRisk, SecurityRisk]] = {
    SecurityRisk.LOW: SecurityRisk.MEDIUM,
    SecurityRisk.MEDIUM: SecurityRisk.HIGH,
}
"""What becomes of a risk where a call is about a file outside of the workspace: a change there can be one of
how the whole machine works, and what is read there may be a secret."""

PLACES_MAX: Final = 1_000
"""Files of one update that are looked at. A call about more is taken for one that leads out."""


def risk_of(kind: str | None, *, outside: bool) -> SecurityRisk:
    """The risk of a call of that kind; `outside` tells that it is about a file outside of the workspace."""
    risk = RISKS.get(kind or "", SecurityRisk.UNKNOWN)
    return OUTSIDE.get(risk, risk) if outside else risk


def leads_out(update: Mapping[str, Any], workspace: str) -> bool:
    """Whether what an update says of a call names a file outside of the workspace, in its locations or its
    diffs. By name alone: no link is followed. What cannot be read as a path counts as outside."""
    for number, place in enumerate(_places(update), 1):
        if number > PLACES_MAX or not isinstance(place, str) or not _within(place, workspace):
            return True
    return False


def _places(update: Mapping[str, Any]) -> Iterator[Any]:
    locations = update.get("locations")
    if isinstance(locations, list):
        for location in locations:
            yield location.get("path") if isinstance(location, Mapping) else None
    elif locations is not None:
        yield None
    content = update.get("content")
    for block in content if isinstance(content, list) else ():
        if isinstance(block, Mapping) and block.get("type") == "diff":
            yield block.get("path")


def _within(path: str, workspace: str) -> bool:
    if path.startswith("~") or "://" in path:
        return False
    root = posixpath.normpath(workspace)
    named = posixpath.normpath(posixpath.join(root, path))
    return named == root or named.startswith(root.rstrip("/") + "/")
