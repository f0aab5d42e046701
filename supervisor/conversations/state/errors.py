"""Errors of a conversation, as types. The gateway maps them to statuses in one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from supervisor.events.parts import FailureKind, UserAction


class ConversationError(Exception):
    """Base of the errors of conversations. The message is one line, fit for a client."""


class UnknownConversation(ConversationError):
    """There is no conversation with this id (404)."""


class UnknownEvent(ConversationError):
    """The conversation has no event with this id (404)."""


class ConversationExists(ConversationError):
    """The id that a fork was to have is taken (409)."""


class NotPossible(ConversationError):
    """The conversation, or its agent, cannot do that; the message says why (409)."""


class ToBeDeleted(NotPossible):
    """The conversation waits for its deletion, which can still be undone (409)."""

    def __init__(self, conversation_id: str) -> None:
        super().__init__(
            "The conversation is being deleted. "
            f"POST /api/conversations/{conversation_id}/restore brings it back."
        )


class NotAccepted(ConversationError):
    """A value of the request is refused, by the agent perhaps (400)."""


class AlreadyRunning(ConversationError):
    """A run was requested while one is running (409)."""


class InvalidStart(ConversationError):
    """A start request names something that cannot be started (422).

    `loc` is the path of the offending field below the request body.
    """

    def __init__(self, message: str, loc: tuple[str | int, ...]) -> None:
        super().__init__(message)
        self.loc = loc


class AtCapacity(ConversationError):
    """A limit of the server is reached; the caller may try again after `retry_after` seconds (503)."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyQuestions(ConversationError):
    """As many side questions as are allowed are waiting for their answers already (429)."""


class QueueFull(ConversationError):
    """The conversation's queue is full (429)."""

    def __init__(self, waiting: int) -> None:
        super().__init__(
            f"The queue is full: {waiting} messages wait. Try again when the agent has taken some."
        )


class AgentFailure(ConversationError):
    """The agent could not be started, or it ended a turn with a failure.

    `code`: the code of the ConversationErrorEvent (clients of the agent-server wire know these codes).

    `kind`, `retryable`, `user_action`: the classification. The code ACPAuthRequired (missing or refused
    credentials) and the kind `rate_limit` are not crashes.

    `choices`: what a person can do about missing credentials, as JSON (see `Login.needed`).

    `unexplained`: the agent's error names no cause; its last output may.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        kind: FailureKind = "internal",
        retryable: bool = False,
        user_action: UserAction = "none",
        choices: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.kind = kind
        self.retryable = retryable
        self.user_action = user_action
        self.choices = choices
        self.unexplained = False

    def add_stderr_tail(self, lines: Sequence[str]) -> None:
        """Add the agent's last output to the detail."""
        if lines:
            self.detail = "\n".join([f"{self.detail} Its last words:", *lines])


class ConversationClosing(AgentFailure):
    """The conversation is being deleted, or the server ends: it accepts nothing any more (409)."""

    def __init__(self) -> None:
        super().__init__("ACPAgentExited", "The conversation is being closed.", retryable=True)


class ModelRefused(AgentFailure):
    """The built-in agent's library refuses a language model as it is written (422)."""


class AgentTimeout(AgentFailure):
    """The agent did not answer in time (504)."""
