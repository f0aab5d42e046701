"""The SDK's conversation, with what Ostler needs of it and it does not have."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from openhands.sdk.agent.parallel_executor import ParallelToolExecutor
from openhands.sdk.conversation.impl.local_conversation import LocalConversation
from openhands.sdk.event import ActionEvent, Event, MessageEvent
from openhands.sdk.llm import Message

if TYPE_CHECKING:
    from .child_conversations import Start
    from .children import Children


class Conversation(LocalConversation):
    """A conversation whose user's messages may have been given their ids before.

    Ostler has written such a message, with its id, before this process hears of it; the SDK's event has to be
    the same one.
    """

    children: Children
    """Its sub-agents; set by the code that makes it."""

    start_child: Start
    """Starts a conversation beside it; set by the code that makes it."""

    def send(self, message: Message, sender: str | None, message_id: str | None) -> None:
        """Append the user's message; one whose id is in the log already came before, and is the last now."""
        if message_id is not None and message_id in self._state.events:
            if all(event.id != message_id for event in self._state.active_branch()):
                self.navigate_to(message_id)
            return
        self._given.id = message_id
        try:
            self.send_message(message, sender)
        finally:
            self._given.id = None

    @property
    def _on_event(self) -> Callable[[Event], None]:
        return self._with_given_id

    @_on_event.setter
    def _on_event(self, callback: Callable[[Event], None]) -> None:
        # The SDK sets it anew when hooks are loaded, in the middle of sending the first message.
        self._emit = callback
        if "_given" not in self.__dict__:
            self._given = threading.local()

    def _with_given_id(self, event: Event) -> None:
        given = getattr(self._given, "id", None)
        if given is not None and isinstance(event, MessageEvent) and event.source == "user":
            event = event.model_copy(update={"id": given})
            self._given.id = None
        self._emit(event)


ACTING: ContextVar[str | None] = ContextVar("acting", default=None)
"""The event of the action that a tool of a conversation runs for; a sub-agent that it starts inherits it."""


class Executor(ParallelToolExecutor):
    """Runs the tools of a step; an interrupt does not wait for those that do not stop.

    The SDK's own waits in the event loop for every thread of a batch, and takes threads for single calls
    from a small pool, which tools that never end would use up.
    """

    async def aexecute_batch(
        self,
        action_events: Sequence[ActionEvent],
        tool_runner: Callable[[ActionEvent], list[Event]],
        tools: Any = None,
        cancel_token: Any = None,
        span_owner: object | None = None,
    ) -> list[list[Event]]:
        """Run the tools of a batch, as many at once as the agent may; results in the order of the actions."""

        def run(action: ActionEvent) -> list[Event]:
            ACTING.set(action.id)  # in a context of its own
            return tool_runner(action)

        pool = ThreadPoolExecutor(max(1, self._max_workers), thread_name_prefix="tool")
        try:
            return list(
                await asyncio.gather(
                    *(
                        self._arun_safe(
                            action,
                            run,
                            tools.get(action.tool_name) if tools else None,
                            cancel_token,
                            pool,
                            span_owner,
                        )
                        for action in action_events
                    )
                )
            )
        finally:
            pool.shutdown(wait=False)
