"""The SDK's tool `start_child_conversation`: Ostler starts the conversation, over this program's own wire.

The SDK sends a request to the server that runs it, at an address and with a key of its environment. This
program has neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from openhands.tools.child_conversation import StartChildConversationExecutor
from openhands.tools.child_conversation.definition import StartChildConversationObservation

Start = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Has a child started, and waits for it: `task`, `title` and `isolation` to what the tool tells. Raises
RpcError, TimeoutError."""

SUB_AGENT = "Only the agent of the conversation itself can start a child conversation, not its sub-agents."


def install() -> None:
    """Let the tool ask Ostler, unless its settings name another launcher (`launch_url`)."""
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
