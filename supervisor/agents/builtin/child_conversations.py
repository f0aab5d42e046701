"""The SDK's tool `start_child_conversation`: Ostler starts the conversation, over this program's wire.

The SDK would send a request to the server that runs it, with an address and a key from its environment. This
program has neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from openhands.tools.child_conversation import StartChildConversationExecutor
from openhands.tools.child_conversation.definition import StartChildConversationObservation

Start = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Starts a child and waits for it: from `task`, `title` and `isolation` to the tool's result. Raises
RpcError, TimeoutError."""

SUB_AGENT = "Only the agent of the conversation itself can start a child conversation, not its sub-agents."


def install() -> None:
    """Make the tool ask Ostler, unless its settings name another launcher (`launch_url`)."""
    send = StartChildConversationExecutor.__call__

    def call(self: Any, action: Any, conversation: Any = None) -> StartChildConversationObservation:
        if self.launch_url:
            return send(self, action, conversation)
        start: Start | None = getattr(conversation, "start_child", None)
        if start is None:
            return _failed(SUB_AGENT)
        try:
            child = start({"task": action.task, "title": action.title, "isolation": action.isolation})
        except Exception as error:  # noqa: BLE001 - the model gets the reason of every failure
            return _failed(f"Child conversation launch failed: {error}")
        text = f"Started child conversation {child['conversation_id']} (status: {child['status']})."
        return StartChildConversationObservation.from_text(text=text, **child)

    StartChildConversationExecutor.__call__ = call  # type: ignore[method-assign]


def _failed(text: str) -> StartChildConversationObservation:
    return StartChildConversationObservation.from_text(text=text, is_error=True)
