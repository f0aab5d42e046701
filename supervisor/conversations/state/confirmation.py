"""Which calls a confirmation policy sends to a person. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from supervisor.events import SecurityRisk

CONFIRMATION: Final = "confirmation"
"""The member of `agent_state`, and the key of state events, that says whether the agent asks: `mode`, `asks`,
`set` (see `agent/asking_mode.py`), and `unasked`, the first call that ran without."""


def asks_a_person(policy: Mapping[str, Any], risk: SecurityRisk) -> bool:
    """Whether `policy` (an object with `kind`, as clients send it) requires a person's confirmation of a call
    of that risk (see `recording/tool_calls/asked.py`).

    `ConfirmRisky` asks from its `threshold` on (HIGH where it names none), and about an UNKNOWN risk unless
    its `confirm_unknown` is false.
    """
    kind = policy.get("kind")
    if kind == "AlwaysConfirm":
        return True
    if kind == "ConfirmRisky":
        if risk is SecurityRisk.UNKNOWN:
            return bool(policy.get("confirm_unknown", True))
        return risk >= SecurityRisk(policy.get("threshold") or SecurityRisk.HIGH)
    return False


def may_ask(policy: Mapping[str, Any]) -> bool:
    """Whether there is any call that `policy` sends to a person."""
    return any(asks_a_person(policy, risk) for risk in SecurityRisk)
