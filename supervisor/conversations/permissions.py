"""Who decides a permission request of an agent, and with which of the options it offered. Pure.

The rule is by option *kind*, never by position: agents list options in their own order, and the first
one may grant a standing permission or change modes. Without a person, only `allow_once` is ever chosen:
`allow_always` would outlive the call that it was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from supervisor.acp.schema import PermissionOption

CANCELLED: Final[dict[str, Any]] = {"outcome": {"outcome": "cancelled"}}
"""The answer of a client that gives no answer (the protocol's word for it)."""

_ALLOW: Final = ("allow_once",)
_REJECT: Final = ("reject_once", "reject_always")


def asks_a_person(policy: Mapping[str, Any], risk: str = "UNKNOWN") -> bool:
    """Whether `policy` (an object with `kind`, as clients send it) wants a person to confirm a call.

    `risk` is the call's SecurityRisk name. Agents report none over ACP, so it is UNKNOWN unless an
    analyzer says otherwise, and `ConfirmRisky` then follows its `confirm_unknown`.
    """
    kind = policy.get("kind")
    if kind == "AlwaysConfirm":
        return True
    if kind == "ConfirmRisky":
        if risk == "UNKNOWN":
            return bool(policy.get("confirm_unknown", True))
        order = ("LOW", "MEDIUM", "HIGH")
        threshold = policy.get("threshold", "HIGH")
        return order.index(risk) >= (order.index(threshold) if threshold in order else len(order) - 1)
    return False


def _selected(option: PermissionOption) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": option.option_id}}


def _first(options: Sequence[PermissionOption], kinds: Sequence[str]) -> PermissionOption | None:
    for kind in kinds:
        for option in options:
            if option.kind == kind:
                return option
    return None


def allow(options: Sequence[PermissionOption]) -> dict[str, Any] | None:
    """The answer that allows this one call, or None where the agent offers no such option."""
    option = _first(options, _ALLOW)
    return None if option is None else _selected(option)


def allow_standing(options: Sequence[PermissionOption]) -> dict[str, Any] | None:
    """The answer that allows for good. Only for a person who accepted and was offered nothing less."""
    option = _first(options, ("allow_always",))
    return None if option is None else _selected(option)


def reject(options: Sequence[PermissionOption]) -> dict[str, Any]:
    """The answer that rejects: an option of the agent's that rejects, else `cancelled`."""
    option = _first(options, _REJECT)
    return CANCELLED if option is None else _selected(option)
