"""What runs inside a step: its tools, sub-agents, and the child conversations that a tool starts.

Sub-agents are separate conversations, which run while a tool of their parent waits for them. The SDK runs
them without confirmation and without the parent's hooks, regardless of the parent's policy, and an interrupt
does not reach them. Here a person is asked about their actions as about the parent's, the parent's hooks see
their tools, and an interrupt ends them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NamedTuple

from openhands.sdk.agent.parallel_executor import ParallelToolExecutor
from openhands.sdk.conversation.impl.local_conversation import LocalConversation
from openhands.sdk.conversation.state import ConversationExecutionStatus, ConversationState
from openhands.sdk.event import ActionEvent, Event
from openhands.sdk.hooks import HookConfig
from openhands.sdk.security.confirmation_policy import ConfirmationPolicyBase
from openhands.sdk.security.risk import SecurityRisk
from openhands.tools.child_conversation import StartChildConversationExecutor
from openhands.tools.child_conversation.definition import StartChildConversationObservation
from openhands.tools.delegate.impl import DelegateExecutor
from openhands.tools.task.manager import TaskManager

STOPPED = "The turn was interrupted."

Ask = Callable[[str, ActionEvent, str | None], Awaitable[str | None]]
"""Asks whether an action of the sub-agent of this name may run: returns None, or the reason why not. The last
argument is the event of the conversation's own action that waits for the sub-agent, where that is known."""

Start = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Starts a child and waits for it: from `task`, `title` and `isolation` to the tool's result. Raises
RpcError, TimeoutError."""

SUB_AGENT = "Only the agent of the conversation itself can start a child conversation, not its sub-agents."

ACTING: ContextVar[str | None] = ContextVar("acting", default=None)
"""The event of the action for which a tool runs; a sub-agent that the tool starts inherits it."""


class Executor(ParallelToolExecutor):
    """Runs the tools of a step; an interrupt does not wait for tools that do not stop.

    The SDK's executor waits in the event loop for every thread of a batch, and takes threads for single calls
    from a small pool, which tools that never end would exhaust.
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
            ACTING.set(action.id)  # each call runs in a separate context
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


class _Running(NamedTuple):
    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[Any]
    action_id: str | None


class Children:
    """The sub-agents that run for one conversation, and their sub-agents."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._running: dict[LocalConversation, _Running] = {}
        self._stopped = False

    def begin(self) -> None:
        """Start a turn of the parent."""
        self._stopped = False

    def interrupt(self) -> None:
        """Interrupt them, in the middle of a model's answer or of a tool. May be called from any thread."""
        with self._lock:
            self._stopped = True
            for child, each in self._running.items():  # under the lock, so no loop is closed meanwhile
                token = child.cancel_token
                if token is not None:
                    token.cancel()
                with suppress(RuntimeError):  # its loop is closed: it has ended
                    each.loop.call_soon_threadsafe(each.task.cancel)

    async def run(self, name: str, child: LocalConversation, parent: LocalConversation) -> None:
        """Run one until it stops. Raises RuntimeError when the turn is interrupted."""
        if getattr(child, "children", None) is None:
            child.children = self  # type: ignore[attr-defined]
            _guard(child, parent.state.hook_config)
        _confirm(child, parent)
        child.agent._parallel_executor = Executor(max_workers=child.agent.tool_concurrency_limit)
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            if self._stopped:
                raise RuntimeError(STOPPED)
            above = self._running.get(parent)
            action_id = ACTING.get() if above is None else above.action_id
            self._running[child] = _Running(asyncio.get_running_loop(), task, action_id)
        try:
            await self._steps(name, child, action_id)
        except asyncio.CancelledError:
            raise RuntimeError(STOPPED) from None
        finally:
            with self._lock:
                del self._running[child]

    async def _steps(self, name: str, child: LocalConversation, action_id: str | None) -> None:
        state = child.state
        while True:
            await child.arun()
            if self._stopped:
                raise RuntimeError(STOPPED)
            if state.execution_status is not ConversationExecutionStatus.WAITING_FOR_CONFIRMATION:
                return
            pending = ConversationState.get_unmatched_actions(state.active_branch())
            if not pending:
                return
            answers = await asyncio.gather(*(self._ask(name, action, action_id) for action in pending))
            reason = next((each for each in answers if each is not None), None)
            if reason is not None:
                child.reject_pending_actions(reason)


def _guard(child: LocalConversation, hooks: HookConfig | None) -> None:
    """Make the parent's hooks see the child's tool uses, before the child's own hooks."""
    if hooks is None or not (hooks.pre_tool_use or hooks.post_tool_use):
        return
    guard = HookConfig(pre_tool_use=hooks.pre_tool_use, post_tool_use=hooks.post_tool_use)
    running = child._hook_processor
    if running is None:
        child._merge_runtime_plugin_hooks(guard)
    else:
        merged = HookConfig.merge([guard, running.hook_manager.config])
        running.hook_manager.config = child.state.hook_config = merged


def _confirm(child: LocalConversation, parent: LocalConversation) -> None:
    """Make the child ask when its parent would. Its definition, which may be a file of the workspace, can
    only make it ask more often. Risks are judged as for the parent."""
    policy = parent.state.confirmation_policy
    if not _stricter(child.state.confirmation_policy, policy):
        child.set_confirmation_policy(policy)
    child.set_security_analyzer(parent.state.security_analyzer)


def _stricter(policy: ConfirmationPolicyBase, other: ConfirmationPolicyBase) -> bool:
    """Whether it asks wherever the other one does."""
    return all(policy.should_confirm(risk) or not other.should_confirm(risk) for risk in SecurityRisk)


def install() -> None:
    """Make the SDK's tools run their sub-agents here, and ask Ostler for child conversations."""
    for tool in (DelegateExecutor, TaskManager):
        _run_sub_agents_of(tool)
    _replace_launcher()


def _run_sub_agents_of(tool: Any) -> None:
    run = tool._run_until_finished

    def run_until_finished(self: Any, name: str, conversation: LocalConversation) -> None:
        parent = self.parent_conversation
        children = getattr(parent, "children", None)
        if children is None:
            run(self, name, conversation)
        else:
            asyncio.run(children.run(name, conversation, parent))

    tool._run_until_finished = run_until_finished


def _replace_launcher() -> None:
    """Make the tool `start_child_conversation` ask Ostler over this program's wire, unless its settings name
    another launcher (`launch_url`). The SDK would send a request to the server that runs it, with an address
    and a key from its environment; this program has neither."""
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
