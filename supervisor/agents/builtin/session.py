"""One conversation of the SDK as one session of ACP."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from openhands.sdk.conversation.exceptions import ConversationRunError
from openhands.sdk.conversation.impl.local_conversation import LocalConversation
from openhands.sdk.conversation.state import ConversationExecutionStatus, ConversationState
from openhands.sdk.event import ActionEvent, Event, MessageEvent
from openhands.sdk.event.conversation_state import ConversationStateUpdateEvent
from openhands.sdk.event.llm_completion_log import LLMCompletionLogEvent

from . import setup
from .frames import Teller
from .wire import INVALID_PARAMS, RpcError, Wire

ACCEPT = "accept"
REJECT = "reject"
OPTIONS = [
    {"optionId": ACCEPT, "name": "Accept", "kind": "allow_once"},
    {"optionId": REJECT, "name": "Reject", "kind": "reject_once"},
]

REJECTED = "User rejected the action"
"""The reason of a rejection when the person gave none."""


class Conversation(LocalConversation):
    """The SDK's conversation, with ids for the user's messages that were given before.

    Ostler has written such a message, with its id, before this process hears of it; the SDK's event has to be
    the same one.
    """

    given_id: str | None = None
    """The id of the next message of the user."""

    @property
    def _on_event(self) -> Callable[[Event], None]:
        return self._with_given_id

    @_on_event.setter
    def _on_event(self, callback: Callable[[Event], None]) -> None:
        self._emit = callback

    def _with_given_id(self, event: Event) -> None:
        if self.given_id is not None and isinstance(event, MessageEvent) and event.source == "user":
            event = event.model_copy(update={"id": self.given_id})
            self.given_id = None
        self._emit(event)


class Session:
    """A conversation that is open in this process. Its methods are called on the event loop."""

    def __init__(self, wire: Wire, session_id: str, cwd: str, servers: list[Any], given: Mapping[str, Any]) -> None:
        """Build the conversation, or take up the one in its directory. Slow; called on a thread.

        `given`: what Ostler sends beside ACP's own parameters (docs/built-in-agent.md). Raises RpcError.
        """
        self._wire = wire
        self.id = session_id
        self._turn: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._messages: set[str] = set()
        self.teller = Teller(wire, session_id)
        self.teller.leave_out(self._messages.__contains__)
        self.conversation = Conversation(
            agent=setup.agent_of(given, servers),
            workspace=cwd,
            plugins=setup.plugins_of(given.get("plugins")),
            persistence_dir=given["persistence_dir"],
            conversation_id=uuid.UUID(session_id),
            callbacks=[self.teller.event],
            stream_callbacks=[self.teller.progress],
            max_iteration_per_run=given.get("max_iterations") or 500,
            max_budget_per_run=given.get("max_budget_per_run"),
            stuck_detection=given.get("stuck_detection", True),
            visualizer=None,
            secrets=given.get("secrets") or {},
            hook_config=setup.hooks_of(given.get("hook_config")),
            tags=given.get("tags") or {},
        )
        self.configure(given)
        state = self.conversation.state
        state.set_on_state_change(self._changed)
        self._settle(state)
        self._listen()

    def configure(self, given: Mapping[str, Any]) -> None:
        """Take over what may change while the conversation is open. Raises RpcError."""
        if given.get("confirmation_policy") is not None:
            self.conversation.set_confirmation_policy(setup.policy_of(given["confirmation_policy"]))
        if "security_analyzer" in given:
            self.conversation.set_security_analyzer(setup.analyzer_of(given["security_analyzer"]))
        if given.get("secrets"):
            self.conversation.update_secrets(given["secrets"])
        if given.get("llm") is not None:
            self.conversation.switch_llm(setup.llm_of(given["llm"]))
            self._listen()

    async def prompt(self, message_id: str | None, message: Any, blocks: list[Any], sender: str | None) -> dict[str, Any]:
        """Run until the agent stops: the answer to `session/prompt`. Raises RpcError while another prompt runs."""
        if self._turn is not None:
            raise RpcError(INVALID_PARAMS, "The session is busy. Wait for the end of the turn, or cancel it.")
        self._cancelled = False
        self._turn = asyncio.current_task()
        try:
            if message is not None or blocks:
                if message_id is not None:
                    self._messages.add(message_id)
                    self.conversation.given_id = message_id
                said = setup.message_of(message, blocks)
                await asyncio.to_thread(self.conversation.send_message, said, sender)
            return await self._run()
        finally:
            self._turn = None

    def cancel(self) -> None:
        """Interrupt the turn, in the middle of a model's answer or a tool. Called on any thread."""
        self._cancelled = True
        self.conversation.interrupt()

    def close(self) -> None:
        """Release tools and their processes. Slow; called on a thread."""
        self.conversation.close()

    async def _run(self) -> dict[str, Any]:
        state = self.conversation.state
        while not self._cancelled:
            try:
                await self.conversation.arun()
            except ConversationRunError:
                break  # the SDK has written the error into the log
            if state.execution_status is not ConversationExecutionStatus.WAITING_FOR_CONFIRMATION:
                break
            reason = await self._confirm()
            if self._cancelled:
                break
            if reason is not None:
                await asyncio.to_thread(self.conversation.reject_pending_actions, reason)
                break
        status = "paused" if self._cancelled else state.execution_status.value
        stop = "cancelled" if self._cancelled else "end_turn"
        return {"stopReason": stop, "_meta": {"ostler": {"status": status}}}

    async def _confirm(self) -> str | None:
        """Ask for every action that waits; None when all may run, else the reason of the rejection."""
        pending = ConversationState.get_unmatched_actions(self.conversation.state.active_branch())
        answers = await asyncio.gather(*(self._ask(action) for action in pending))
        refused = [reason for reason in answers if reason is not None]
        return refused[0] if refused else None

    async def _ask(self, action: ActionEvent) -> str | None:
        answer = await self._wire.ask(
            "session/request_permission",
            {
                "sessionId": self.id,
                "toolCall": {
                    "toolCallId": action.tool_call_id,
                    "title": action.summary or action.tool_name,
                    "rawInput": action.action.model_dump(mode="json", exclude_none=True) if action.action else {},
                    "_meta": {"ostler": {"eventId": action.id}},
                },
                "options": OPTIONS,
            },
        )
        outcome = answer.get("outcome") or {}
        if outcome.get("outcome") == "selected" and outcome.get("optionId") == ACCEPT:
            return None
        meta = (answer.get("_meta") or {}).get("ostler") or {}
        return str(meta.get("reason") or REJECTED)

    def _changed(self, event: Event) -> None:
        if isinstance(event, ConversationStateUpdateEvent):
            self.teller.state(event.key, event.value)

    def _settle(self, state: ConversationState) -> None:
        """Close what a process that died left open: an action whose result nobody will write."""
        if state.execution_status in (
            ConversationExecutionStatus.RUNNING,
            ConversationExecutionStatus.WAITING_FOR_CONFIRMATION,
        ):
            with state:
                self.conversation._emit_orphaned_action_errors()
                state.execution_status = ConversationExecutionStatus.IDLE

    def _listen(self) -> None:
        """Hear of usage, and of the logs of completions, from every model of the agent."""
        for llm in self.conversation.agent.get_all_llms():
            llm.telemetry.set_stats_update_callback(self._used)
            if llm.log_completions:
                usage, model = llm.usage_id, llm.model

                def log(name: str, data: str, usage: str = usage, model: str = model) -> None:
                    self.teller.event(
                        LLMCompletionLogEvent(filename=name, log_data=data, model_name=model, usage_id=usage)
                    )

                llm.telemetry.set_log_completions_callback(log)

    def _used(self) -> None:
        self.teller.state("stats", self.conversation.state.stats)
