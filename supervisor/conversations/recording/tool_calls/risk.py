"""How risky a tool call is, from what its agent says of it: one table. Pure.

An agent over ACP reports no risk, but it reports the kind and the files of a call, which determine the worst
that the call can do. The report comes from the agent's program, not its model. Users who do not trust the
program should confirm everything (`AlwaysConfirm`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping
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
    "execute": SecurityRisk.HIGH,  # a command can do everything that its user can
    "switch_mode": SecurityRisk.HIGH,  # what comes after it may not be asked about
}
"""By the protocol's kinds. `other`, none, and kinds that are not known are `UNKNOWN`."""

OUTSIDE: Final[Mapping[SecurityRisk, SecurityRisk]] = {
    SecurityRisk.LOW: SecurityRisk.MEDIUM,
    SecurityRisk.MEDIUM: SecurityRisk.HIGH,
}
"""What becomes of a risk where a call is about a file outside of the workspace: a change there can be one of
how the whole machine works, and what is read there may be a secret."""

_UNKNOWN: Final = SecurityRisk.UNKNOWN
"""A member of an enumeration is slow to look up, and each call asks for it."""

PLACES_MAX: Final = 1_000
"""Files of one update that are looked at. A call about more is taken for one that leads out."""


def risk_of(kind: str | None, *, outside: bool) -> SecurityRisk:
    """The risk of a call of that kind; `outside` tells that it is about a file outside of the workspace."""
    risk = RISKS.get(kind or "", _UNKNOWN)
    return OUTSIDE.get(risk, risk) if outside else risk


def together(risks: Collection[SecurityRisk]) -> SecurityRisk:
    """The risk of several calls that one answer decides: the highest. UNKNOWN together with a risk above LOW
    may be HIGH; otherwise it stays UNKNOWN, and the policy decides."""
    highest = max(risks, default=SecurityRisk.UNKNOWN)
    if SecurityRisk.UNKNOWN in risks:
        return SecurityRisk.HIGH if highest > SecurityRisk.LOW else SecurityRisk.UNKNOWN
    return highest


def leads_out(update: Mapping[str, Any], workspace: str) -> bool:
    """Whether what an update says of a call names a file outside of the workspace, in its locations or its
    diffs. By name alone: no link is followed. What cannot be read as a path counts as outside."""
    locations, content = update.get("locations"), update.get("content")
    if not locations and not content:
        return False
    places = _places(locations, content)
    if not places:
        return False
    return len(places) > PLACES_MAX or not all(_within(place, workspace) for place in places)


def _places(locations: Any, content: Any) -> list[Any]:
    """The first files that are named, None for what is not a name; one more than are looked at."""
    if not locations:
        places: list[Any] = []
    elif not isinstance(locations, list):
        places = [None]
    else:
        most = locations[: PLACES_MAX + 1]
        places = [each.get("path") if isinstance(each, dict) else None for each in most]
    if isinstance(content, list):
        places += [
            each.get("path") for each in content if isinstance(each, dict) and each.get("type") == "diff"
        ]
    return places


def _within(path: Any, workspace: str) -> bool:
    if not isinstance(path, str) or path.startswith("~") or "://" in path:
        return False
    if ".." not in path and path.startswith(workspace) and path[len(workspace) :].startswith("/"):
        return True  # the usual case
    root = posixpath.normpath(workspace)
    named = posixpath.normpath(posixpath.join(root, path))
    return named == root or named.startswith(root.rstrip("/") + "/")
