"""Maps protocol errors to failures of the conversation, in one table. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from supervisor.acp import RpcError, classify_error, error_text
from supervisor.acp.errors import says_nothing
from supervisor.acp.schema import cut
from supervisor.agents.limits.hits import LimitHit
from supervisor.conversations.state.errors import AgentFailure
from supervisor.events import ConversationErrorEvent, ErrorClassification, new_event_id
from supervisor.events.parts import FailureKind, UserAction

DETAIL_CHARS: Final = 64 * 1024
"""Longest detail of a failure, in characters: eight lines of at most 4 KiB of an agent's last words, and the
cause."""

WAYS_LISTED: Final = 10
"""The most login methods that a failure's text names; a client has all of them as data."""

WHAT_TO_DO: Final = " - Log in to the agent or store its key as a secret, then run again."
"""After the agent's own words about credentials."""

_CLASSES: Final[Mapping[str, tuple[str | None, FailureKind, bool, UserAction]]] = {
    # class of the error: (code or None for the caller's, classification, retryable, what the user may do)
    "auth": ("ACPAuthRequired", "auth", False, "settings"),
    "rate_limit": (None, "rate_limit", True, "retry"),
    "usage_policy": ("UsagePolicyRefusal", "agent_action", False, "none"),
    "transient": (None, "transient", True, "retry"),
    "not_found": (None, "config", False, "settings"),
    "invalid_params": (None, "config", False, "settings"),
    "method_not_found": (None, "config", False, "settings"),
    "cancelled": (None, "agent_action", True, "retry"),
    "internal": (None, "internal", False, "retry"),
}


def from_rpc(error: RpcError, code: str) -> AgentFailure:
    """The failure for an error response; `code` is that of the step (ACPInitError, ACPPromptError ...)."""
    own, kind, retryable, action = _CLASSES[classify_error(error)]
    text = error_text(error)
    if kind == "auth":
        text = f"{text}{WHAT_TO_DO}"
    failure = AgentFailure(own or code, text, kind=kind, retryable=retryable, user_action=action)
    failure.unexplained = says_nothing(error)
    return failure


def auth_required(detail: str, choices: Mapping[str, Any]) -> AgentFailure:
    """The failure of an agent that requires credentials.

    `detail` is the agent's own text. `choices` (see `Login.needed`) are the methods that it offers; the
    failure names them too, and says what to do.
    """
    text = f"{detail}{WHAT_TO_DO}{what_would_help(choices)}"
    return AgentFailure(
        "ACPAuthRequired", text, kind="auth", retryable=False, user_action="settings", choices=choices
    )


def what_would_help(choices: Mapping[str, Any]) -> str:
    """What an agent offers to log in, which secrets would help, and which do not since it has them: the end
    of a text, or nothing. `choices`: see `Login.needed`."""
    ways = ", ".join(method["name"] for method in choices["methods"][:WAYS_LISTED])
    parts = [f"the agent offers: {ways}"] if ways else []
    if choices["secrets"]:
        parts.append(f"secrets that would help: {', '.join(choices['secrets'][:WAYS_LISTED])}")
    if choices.get("given"):
        parts.append(f"it was given, and does not accept: {', '.join(choices['given'][:WAYS_LISTED])}")
    return f" ({'; '.join(parts)})" if parts else ""


def limit_reached(hit: LimitHit) -> AgentFailure:
    """The failure for an agent that a limit of its process tree ended."""
    return AgentFailure("AgentLimit", hit.text, kind="config", retryable=True, user_action="settings")


def error_event(failure: AgentFailure) -> ConversationErrorEvent:
    """The event that reports a failure."""
    return ConversationErrorEvent(
        id=new_event_id(),
        source="environment",
        code=failure.code,
        detail=cut(failure.detail, DETAIL_CHARS),
        classification=ErrorClassification(
            kind=failure.kind, retryable=failure.retryable, user_action=failure.user_action
        ),
    )
