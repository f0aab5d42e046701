"""Which option of a permission request says yes or no, and the answer that chooses it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from supervisor.acp.schema.updates import PermissionOption

CANCELLED: Final[dict[str, Any]] = {"outcome": {"outcome": "cancelled"}}
"""The answer without a decision (ACP's word)."""

ALLOWING: Final = ("allow_once", "allow_always")
REJECTING: Final = ("reject_once", "reject_always")
"""Kinds of options that mean yes and no, the narrowest first."""


def _selected(option: PermissionOption) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": option.option_id}}


def _first(options: Sequence[PermissionOption], kinds: Sequence[str]) -> PermissionOption | None:
    for kind in kinds:
        for option in options:
            if option.kind == kind:
                return option
    return None


def once(options: Sequence[PermissionOption]) -> PermissionOption | None:
    """The option that allows this one call: the only one that is chosen without a person."""
    return _first(options, ("allow_once",))


def matching(options: Sequence[PermissionOption], accept: bool) -> PermissionOption | None:
    """The option for a person's yes or no without a named option: the narrowest one."""
    return _first(options, ALLOWING) if accept else _first(options, REJECTING)


def allow(options: Sequence[PermissionOption]) -> dict[str, Any] | None:
    """The answer that allows this one call; None if the agent offers no such option."""
    option = once(options)
    return None if option is None else _selected(option)


def reject(options: Sequence[PermissionOption]) -> dict[str, Any]:
    """The answer that rejects: the agent's rejecting option, else `cancelled`."""
    return answer_of(matching(options, accept=False))


def answer_of(option: PermissionOption | None) -> dict[str, Any]:
    """The answer that chooses this option; None: the answer without a decision."""
    return CANCELLED if option is None else _selected(option)
