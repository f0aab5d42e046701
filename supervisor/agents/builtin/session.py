"""One conversation of the SDK as one session of ACP."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from openhands.sdk.conversation.state import ConversationExecutionStatus, ConversationState
from openhands.sdk.conversation.title_utils import extract_first_user_message, generate_title_from_message
from openhands.sdk.event import ActionEvent, Event, ObservationEvent
from openhands.sdk.event.conversation_state import ConversationStateUpdateEvent
from openhands.sdk.llm import Message

from . import recovery, setup
from .children import Children, Executor
from .frames import Reporter
from .library import changes, profiles
from .turn import Conversation, Lane, Turn
from .wire import INTERNAL_ERROR, INVALID_PARAMS, RpcError, Wire

ACCEPT = "accept"
REJECT = "reject"
OPTIONS = [
    {"optionId": ACCEPT, "name": "Accept", "kind": "allow_once"},
    {"optionId": REJECT, "name": "Reject", "kind": "reject_once"},
]

REJECTED = "User rejected the action"
"""The reason of a rejection when the person gave none."""

BUSY = "The session is busy. Wait for the end of the turn, or cancel it."

CANCEL_SECONDS = 1.5
"""Seconds that a cancelled turn may take to end before its prompt is answered; it may end after that."""

ENDING_SECONDS = 60.0
"""Seconds that a new prompt waits for a cancelled turn whose hook or tool does not end."""

CHILD_SECONDS = 300.0
"""Seconds that starting a child conversation may take, most of it for the checkout of its worktree."""

SUB_AGENTS = ("task", "workflow", "delegate")
"""Tools that wait for sub-agents."""

SKILLS = ("activated_knowledge_skills", "invoked_skills")
"""Lists that the SDK changes without reporting it."""

SAID_OF_IT = ("summary", "security_risk")
"""Arguments in which the model comments on its action."""

CANCELLED = {"stopReason": "cancelled", "_meta": {"ostler": {"status": "paused"}}}


class Session:
    """An open conversation. Its methods are called on the loop that serves the client."""

    def __init__(
        self, wire: Wire, session_id: str, cwd: str, servers: list[Any], given: Mapping[str, Any]
    ) -> None:
        """Build the conversation, or resume the one in its directory. Slow; called on a thread.

        `given`: what Ostler sends in addition to ACP's own parameters (program.py). Raises RpcError and
        ValueError.
        """
        self._wire = wire
        self.id = session_id
        self._running: tuple[Turn, Future[str]] | None = None
        self._announced = self._taken = self._cancelled_to = 0
        self._cancelled: asyncio.Event | None = None
        self._serving: asyncio.AbstractEventLoop | None = None
        self._known: set[str] = set()
        self._skills: dict[str, list[str]] = {}
        self._reporter = Reporter(wire, session_id, self._known)
        profiles.offer(given)
        wire.hide(profiles.secrets())
        changes.allow_hooks(hooks=bool(given.get("project_hooks")))
        setup.import_more_tools(given.get("tool_module_qualnames"))
        setup.register_agents(given.get("agent_definitions"))
        agent = setup.agent_of(given, servers)
        setup.check(given)
        wire.hide(setup.secrets_in(agent))
        agent._parallel_executor = Executor(max_workers=agent.tool_concurrency_limit)
        directory = Path(given["persistence_dir"], uuid.UUID(session_id).hex)
        stored = recovery.is_stored(directory)
        if stored:
            recovery.use_agent(directory, agent)
        self.conversation = Conversation(
            agent=agent,
            workspace=cwd,
            plugins=setup.read(given, "plugins"),
            persistence_dir=given["persistence_dir"],
            conversation_id=uuid.UUID(session_id),
            callbacks=[self._happened],
            stream_callbacks=[self._reporter.progress],
            max_iteration_per_run=given.get("max_iterations") or 500,
            max_budget_per_run=given.get("max_budget_per_run"),
            stuck_detection=given.get("stuck_detection", True),
            stuck_detection_thresholds=setup.read(given, "stuck_detection_thresholds"),
            visualizer=None,
            secrets=setup.secrets_of(given.get("secrets")),
            hook_config=setup.read(given, "hook_config"),
            tags=given.get("tags") or {},
            client_tools=setup.read(given, "client_tools"),
            **{name: given[name] for name in setup.OBSERVED if given.get(name) is not None},
        )
        self.conversation.children = Children(self._ask_for_child)
        self.conversation.start_child = self._start_child
        self.configure(given)
        state = self.conversation.state
        state.set_on_state_change(self._changed)
        if stored:
            for event in recovery.later_events(self.conversation, given.get("last_event_id")):
                self._reporter.event(event)
            recovery.settle(
                self.conversation, given.get("closed") or [], self._known, given.get("waiting") or []
            )
        self._skills = {key: list(getattr(state, key)) for key in SKILLS}
        self._reporter.state("agent", self.conversation.agent)  # in the form that the SDK has built
        self._listen()
        self._lane = Lane(f"conversation {session_id[:8]}")

    def configure(self, given: Mapping[str, Any]) -> None:
        """Change what may change while the conversation is open. Raises RpcError. Called on a thread."""
        self._wire.hide(setup.secrets_in(setup.secrets_of(given.get("secrets"))))
        policy = setup.read(given, "confirmation_policy")
        if policy is not None:
            self.conversation.set_confirmation_policy(policy)
        if "security_analyzer" in given:
            self.conversation.set_security_analyzer(setup.read(given, "security_analyzer"))
        if given.get("secrets"):
            self.conversation.update_secrets(setup.secrets_of(given["secrets"]))
        llm = setup.read(given, "llm")
        if llm is not None:
            self._wire.hide(setup.secrets_in(llm))
            self.conversation.switch_llm(llm)
            self._listen()

    async def prompt(
        self, message_id: str | None, message: Any, blocks: list[Any], sender: str | None
    ) -> dict[str, Any]:
        """Run until the agent stops; return the answer to `session/prompt`. Raises RpcError while another
        prompt runs."""
        self._taken += 1
        number = self._taken
        await self._free()
        send = None
        if message is not None or blocks:
            send = self._sending(setup.message_of(message, blocks), message_id, sender)
        self._serving = asyncio.get_running_loop()
        self._cancelled = asyncio.Event()
        turn = Turn(self.conversation, self._ask)
        running = self._lane.submit(turn.run(send))
        self._running = (turn, running)
        if number <= self._cancelled_to:
            self.cancel()
        if not await _ended(running, self._cancelled):
            return CANCELLED
        status = running.result()
        if turn.cancelled:
            return CANCELLED
        return {"stopReason": "end_turn", "_meta": {"ostler": {"status": status}}}

    async def take(self, message_id: str, message: Any, sender: str | None) -> bool:
        """Let the running turn read a message before its next step. Return False if it does not: then the
        message needs a separate prompt. Raises RpcError.

        What is written to the log is reported before anything that follows from it.
        """
        said = setup.message_of(message, [])
        if self._running is None or not self.busy:
            return False
        turn, _ = self._running
        if turn.cancelled:
            return False  # a prompt may wait for its end, and comes before this one
        write = self._sending(said, message_id, sender)
        return await asyncio.wrap_future(self._lane.submit(turn.inbox.take(write)))

    def announce(self) -> None:
        """Note a prompt that is on its way to `prompt`, which takes them in this order."""
        self._announced += 1

    def cancel(self) -> None:
        """Interrupt the turn, in the middle of a model's answer or a tool. Called on any thread."""
        self._cancelled_to = self._announced
        if self._running is None or self._cancelled is None or self._serving is None:
            return
        turn, running = self._running
        if running.done():
            return
        turn.cancel()
        turn.inbox.refuse()
        self._lane.loop.call_soon_threadsafe(turn.interrupt)
        self._serving.call_soon_threadsafe(self._cancelled.set)

    def leave(self) -> None:
        """Interrupt the turn, since the client has gone. Actions that wait for a person keep waiting: the
        next process asks about them again."""
        if self._running is None or not self._running[0].asking:
            self.cancel()

    @property
    def busy(self) -> bool:
        """Whether a turn runs, or is still ending."""
        return self._running is not None and not self._running[1].done()

    def condense(self) -> None:
        """Summarize the history now, between two steps of a turn that runs. Slow; called on a thread."""
        if ConversationState.get_unmatched_actions(self.conversation.state.active_branch()) and not self.busy:
            raise RpcError(INVALID_PARAMS, "An action waits for its result. Send a message first.")
        if self.conversation.state.execution_status is ConversationExecutionStatus.WAITING_FOR_CONFIRMATION:
            # The step that condenses would run the actions that wait.
            raise RpcError(INVALID_PARAMS, "Actions wait for confirmation. Accept or reject them first.")
        self.conversation.condense()
        self._used()

    def ask(self, question: str) -> str:
        """Ask the model outside the conversation's history. Slow; called on a thread."""
        answer = self.conversation.ask_agent(question)
        self._used()
        return answer

    def title(self, max_length: int, profile: str | None, prompt: str | None) -> str:
        """Make a title with the model, or with that of the named profile if there is one; `prompt` replaces
        the usual question. Slow; called on a thread."""
        message = extract_first_user_message(self.conversation.state.active_branch())
        if message is None:
            raise RpcError(INVALID_PARAMS, "The conversation has no message yet.")
        llm = (profiles.model(profile) if profile else None) or self.conversation.agent.llm
        made = generate_title_from_message(
            message, llm, max_length, call_context=self.conversation.get_llm_call_context(), prompt=prompt
        )
        self._used()
        return made

    def navigate(self, event_id: str | None) -> None:
        """Continue from another event. Raises RpcError while a turn runs."""
        if self.busy:
            raise RpcError(INVALID_PARAMS, BUSY)
        self.conversation.navigate_to(event_id)

    def close(self) -> None:
        """Release tools and their processes. Slow; called on a thread."""
        self.conversation.close()
        self._lane.end()

    def _sending(self, said: Message, message_id: str | None, sender: str | None) -> Callable[[], None]:
        """Return the function that writes a message into the log, on a thread."""
        if message_id is not None:
            self._known.add(message_id)

        def send() -> None:
            self.conversation.send(said, sender, message_id)
            self._look_at_skills()

        return send

    async def _free(self) -> None:
        if self._running is None or not self.busy:
            return
        turn, running = self._running
        if not turn.cancelled:
            raise RpcError(INVALID_PARAMS, BUSY)
        done, _ = await asyncio.wait({asyncio.wrap_future(running)}, timeout=ENDING_SECONDS)
        if not done:
            raise RpcError(
                INTERNAL_ERROR, "The cancelled turn has not ended: a hook or a tool does not stop."
            )

    async def _ask(self, action: ActionEvent) -> str | None:
        """Ask the client whether an action may run. Called on the lane, answered on the client's loop."""
        return await self._confirm(action, action.summary or action.tool_name, {"eventId": action.id})

    async def _ask_for_child(self, name: str, action: ActionEvent, action_id: str | None) -> str | None:
        """Ask about an action of a sub-agent: under the parent's action that waits for it, since the
        sub-agent's own event is only in its own log. Called on any thread."""
        waiting = ConversationState.get_unmatched_actions(self.conversation.state.active_branch())
        parents = [each for each in waiting if each.id == action_id]
        parents = parents or [each for each in waiting if each.tool_name in SUB_AGENTS] or waiting
        if not parents:
            return REJECTED
        title = f"{name}: {action.tool_name} {_arguments_of(action)}"
        risk = action.security_risk.value
        meta = {"eventId": parents[0].id, "subAgent": name, "securityRisk": risk}
        return await self._confirm(action, title, meta)

    def _start_child(self, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask Ostler to start a conversation. Called on a thread of a tool. Raises RpcError, TimeoutError."""
        if self._serving is None:
            raise RpcError(INTERNAL_ERROR, "No turn runs.")
        asked = self._wire.ask("_ostler/start_child", {"sessionId": self.id, **wanted})
        return dict(asyncio.run_coroutine_threadsafe(asked, self._serving).result(CHILD_SECONDS))

    async def _confirm(self, action: ActionEvent, title: str, meta: Mapping[str, Any]) -> str | None:
        if self._serving is None:
            return REJECTED
        request = {
            "sessionId": self.id,
            "toolCall": {
                "toolCallId": action.tool_call_id,
                "title": title,
                "rawInput": _input_of(action),
                "_meta": {"ostler": meta},
            },
            "options": OPTIONS,
        }
        asked = self._wire.ask("session/request_permission", request)
        try:
            answer = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self._serving))
        except RpcError as error:
            return f"The client did not answer: {error.message}"
        answer = answer if isinstance(answer, dict) else {}
        outcome = answer.get("outcome") or {}
        if outcome.get("outcome") == "selected" and outcome.get("optionId") == ACCEPT:
            return None
        meta = (answer.get("_meta") or {}).get("ostler") or {}
        return str(meta.get("reason") or REJECTED)

    def _happened(self, event: Event) -> None:
        self._reporter.event(event)
        if isinstance(event, ObservationEvent):
            self._look_at_skills()

    def _changed(self, event: Event) -> None:
        if isinstance(event, ConversationStateUpdateEvent):
            if event.key == "agent":
                self._listen()
            self._reporter.event(event)

    def _look_at_skills(self) -> None:
        state: ConversationState = self.conversation.state
        for key in SKILLS:
            now = list(getattr(state, key))
            if self._skills and now != self._skills[key]:
                self._skills[key] = now
                self._reporter.state(key, now)

    def _listen(self) -> None:
        """Subscribe to usage, and to the logs of completions, of every model of the agent."""
        for llm in self.conversation.agent.get_all_llms():
            llm.telemetry.set_stats_update_callback(self._used)
            if llm.log_completions:
                mask = self.conversation.state.secret_registry.mask_secrets_in_output
                changes.log_completions(llm, self._reporter.event, mask)

    def _used(self) -> None:
        self._reporter.state("stats", self.conversation.state.stats)


def _input_of(action: ActionEvent) -> dict[str, Any]:
    return action.action.model_dump(mode="json", exclude_none=True) if action.action else {}


def _arguments_of(action: ActionEvent) -> str:
    """Return an action's arguments without the model's comments: a long summary would hide the rest."""
    try:
        given = json.loads(action.tool_call.arguments)
    except ValueError:
        given = _input_of(action)
    if not isinstance(given, dict):
        return str(given)
    kept = {name: value for name, value in given.items() if name not in SAID_OF_IT}
    return json.dumps(kept, ensure_ascii=False)


async def _ended(running: Future[str], cancelled: asyncio.Event) -> bool:
    """Wait for the end of a turn; after a cancel only `CANCEL_SECONDS`. Return whether it has ended."""
    done: asyncio.Future[Any] = asyncio.wrap_future(running)
    cancelling: asyncio.Future[Any] = asyncio.create_task(cancelled.wait())
    await asyncio.wait({done, cancelling}, return_when=asyncio.FIRST_COMPLETED)
    cancelling.cancel()
    if not done.done():
        await asyncio.wait({done}, timeout=CANCEL_SECONDS)
    if done.done() and not done.cancelled():
        done.exception()  # marks it as retrieved; the result is read from `running`
    return done.done()
