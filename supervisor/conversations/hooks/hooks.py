"""The hooks of one conversation: when they run, how they are recorded, and how their answers are combined."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from supervisor.agents.environment import base_environment
from supervisor.conversations.agent.context import Context
from supervisor.conversations.hooks.execution import run_command
from supervisor.conversations.recording.bounds.truncation import unpacked
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.recording.tool_calls.calls import Ending, ToolCallState, as_arguments
from supervisor.conversations.state.queue import Queued, TurnQueue
from supervisor.events import Event, HookExecutionEvent, TextContent, new_event_id
from supervisor.events.encode import encode
from supervisor.events.payload import dumps
from supervisor.hooks.config import HOOK_CONFIG, HookConfig, HookDefinition, HookEvent, stored_hook_config
from supervisor.hooks.verdict import NO_STATUS, Ended, Verdict, environment, hook_input, judge, reason_of
from supervisor.journal.errors import JournalError

AT_ONCE: Final = 4
"""Concurrent hook processes of one conversation; others wait."""

BACKLOG: Final = 100
"""The most finished tool calls of one conversation whose hooks wait or run."""

BACKLOG_BYTES: Final = 32 * 1024 * 1024
"""Bytes of their payloads: twice the largest message of an agent."""

INPUT_BYTES: Final = 64 * 1024
"""The most bytes of a hook's input that its event repeats; the hook gets all of it."""

CONTEXT_CHARACTERS: Final = 64 * 1024
"""The most characters that hooks add to one prompt."""

STOPS_MAX: Final = 10
"""How often in a row Stop hooks may send the agent back to work, since the last message of a person."""

FEEDBACK: Final = "[Stop hook feedback]"
"""What the feedback of a Stop hook begins with; clients know it."""

INTERRUPTED: Final = "Interrupted: the hook was ended before it had decided."
CUT_OFF: Final = "The server stopped while this hook was running."
TOO_MANY: Final = f"The hook did not run: {BACKLOG} hooks, or those of so many tool calls, wait already."
NO_MODEL: Final = "The hook did not run: Ostler runs hooks of the type command only."


@attrs.frozen(kw_only=True)
class Occasion:
    """An event that runs hooks: their input, and what their events refer to.

    `given` makes the parts of their input that may be large; it runs in a thread. `shown` names the parts
    that their events repeat.
    """

    event: HookEvent
    tool_name: str | None = None
    action_id: str | None = None
    message_id: str | None = None
    given: Callable[[], Mapping[str, Any]] = dict
    shown: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Answer:
    """The combined answer of an occasion's hooks. `cancelled`: they were ended before they answered."""

    blocked: bool = False
    reason: str = ""
    context: str = ""
    cancelled: bool = False


NOTHING: Final = Answer()


@attrs.define(eq=False)
class _Backlog:
    """Hooks in the background, or tool calls whose hooks are: how many, and their bytes."""

    count: int = 0
    size: int = 0

    def full(self, size: int) -> bool:
        """Whether there is no room for one more of that size."""
        return self.count >= BACKLOG or (self.count > 0 and self.size + size > BACKLOG_BYTES)


class Hooks:
    """Runs the hooks of one conversation. A no-op without hooks.

    Processes live in the caller's task, or in the runner's nursery (`enter`). Methods that write raise
    JournalError.
    """

    def __init__(self, context: Context, recorder: Recorder, queue: TurnQueue) -> None:
        self._context = context
        self._recorder = recorder
        self._record = recorder.record
        self._queue = queue
        self._config: HookConfig | None = None
        if context.hooks and not context.kinds(recorder.record).runs_hooks:
            self._config = stored_hook_config(recorder.record.extra.get(HOOK_CONFIG))
        self._logger = recorder.logger
        self._nursery: trio.Nursery | None = None
        self._scopes: dict[trio.CancelScope, HookEvent | None] = {}
        self._behind = _Backlog()
        self._background = _Backlog()
        self._quiet = trio.Event()
        self._context_due = ""
        self.session_open = False
        """Whether the SessionStart hooks have run, and SessionEnd is still to come."""
        self.stops = 0
        """How often in a row Stop hooks sent the agent back."""

    # Made where they are used: most conversations have no hooks.

    @cached_property
    def _slots(self) -> trio.CapacityLimiter:
        return trio.CapacityLimiter(AT_ONCE)

    @cached_property
    def _background_slots(self) -> trio.CapacityLimiter:
        # A separate limit, so that background hooks do not delay hooks that decide something.
        return trio.CapacityLimiter(AT_ONCE)

    def enter(self, nursery: trio.Nursery) -> None:
        """Allow background hooks, which live in `nursery`."""
        self._nursery = nursery

    def leave(self) -> None:
        """Note that the nursery has ended, and every hook in it."""
        self._nursery = None

    def has(self, event: HookEvent) -> bool:
        """Whether there are hooks for this event."""
        return self._config is not None and self._config.has(event)

    def concerns(self, event: HookEvent, tool_name: str) -> bool:
        """Whether there are hooks for this event of this tool."""
        return self._config is not None and bool(self._config.hooks(event, tool_name))

    @property
    def active(self) -> bool:
        """Whether the conversation has any hooks."""
        return self._config is not None

    @property
    def running(self) -> bool:
        """Whether any background hook runs."""
        return self._behind.count > 0 or self._background.count > 0

    def holds(self) -> bool:
        """Whether a finished run must still wait: for Stop hooks, or for hooks of its calls."""
        return self.has(HookEvent.STOP) or self._behind.count > 0

    def cancel(self, event: HookEvent | None = None) -> None:
        """Cancel all hooks, or those of one event that has a waiter."""
        for scope, of in list(self._scopes.items()):
            if event in (None, of):
                scope.cancel()

    # -- occasions ----------------------------------------------------------------------------------------

    async def before_prompt(self, item: Queued) -> Answer:
        """Run the hooks before a message is handed to the agent: SessionStart once, UserPromptSubmit for a
        person's message."""
        if not self.session_open:
            # Once in the server's life, not once for each task of the conversation.
            if self._record.id not in self._context.begun:
                started = await self.ask(Occasion(event=HookEvent.SESSION_START), until_blocked=False)
                if started.cancelled:
                    return started
                self._context_due = started.context
            self._context.begun.add(self._record.id)
            self.session_open = True
        if not item.by_user or not self.has(HookEvent.USER_PROMPT_SUBMIT):
            return Answer(context=self._context_due)
        text = "".join(part.text for part in item.message.content if isinstance(part, TextContent))
        submitted = await self.ask(
            Occasion(
                event=HookEvent.USER_PROMPT_SUBMIT,
                message_id=item.event_id,
                given=lambda: {"message": text},
                shown=("message",),
            )
        )
        if submitted.blocked or submitted.cancelled:
            return submitted
        return Answer(context="\n".join(filter(None, (self._context_due, submitted.context))))

    def prompted(self, item: Queued) -> None:
        """Note that a message is handed over, with the context that was due."""
        self._context_due = ""
        if item.by_user:
            self.stops = 0

    def before_call(self, call: ToolCallState) -> Occasion:
        """The occasion of a permission request."""
        name, given = call.tool_name, call.raw_input
        return Occasion(
            event=HookEvent.PRE_TOOL_USE,
            tool_name=name,
            action_id=call.action_id,
            given=lambda: {"tool_input": as_arguments(given)},
            shown=("tool_name", "tool_input"),
        )

    def call_ended(self, call: ToolCallState, ending: Ending) -> None:
        """Start the PostToolUse hooks of a call that the agent reports as ended, unless the run is
        interrupted. Does not wait for them."""
        name = call.tool_name
        if self._nursery is None or ending not in (Ending.COMPLETED, Ending.FAILED):
            return
        # After an interrupt no hook begins: the person wants the agent to stop.
        if self._queue.interrupted:
            return
        if not self.concerns(HookEvent.POST_TOOL_USE, name):
            return
        call.pack()
        size = call.weight
        given, content, raw, status = call.raw_input, call.content, call.raw_output, ending.value
        shown = call.output.so_far() if call.output is not None else call.shown

        def made() -> dict[str, Any]:
            response: dict[str, Any] = {
                "status": status,
                "content": unpacked(content),
                "raw_output": unpacked(raw),
            }
            if shown is not None:
                response["output"] = unpacked(shown)
            return {"tool_input": as_arguments(given), "tool_response": response}

        occasion = Occasion(
            event=HookEvent.POST_TOOL_USE,
            tool_name=name,
            action_id=call.action_id or call.started_id,
            given=made,
            shown=("tool_name", "tool_input", "tool_response"),
        )
        if self._behind.full(size):
            assert self._config is not None
            for hook in self._config.hooks(HookEvent.POST_TOOL_USE, name):
                self._tell(hook, attrs.evolve(occasion, given=dict), _not_run(TOO_MANY), None)
            return
        work = partial(self.ask, occasion, until_blocked=False)
        self._start(self._nursery, self._behind, occasion.event, size, work)

    def _start(
        self,
        nursery: trio.Nursery,
        backlog: _Backlog,
        event: HookEvent | None,
        size: int,
        work: Callable[[], Awaitable[object]],
    ) -> None:
        """Begin work in the background, which `cancel` can cancel before it has started."""
        scope = trio.CancelScope()
        self._scopes[scope] = event
        backlog.count += 1
        backlog.size += size

        async def run() -> None:
            try:
                with scope:
                    await work()
            finally:
                del self._scopes[scope]
                backlog.count -= 1
                backlog.size -= size
                self._quiet.set()
                self._quiet = trio.Event()
                self._queue.look_again()

        nursery.start_soon(run)

    async def calls_settled(self) -> None:
        """Wait until the PostToolUse hooks have ended."""
        while self._behind.count:
            await self._quiet.wait()

    async def at_stop(self) -> Answer:
        """Run the Stop hooks; the answer's context is the feedback if they block."""
        said = await self.ask(
            Occasion(
                event=HookEvent.STOP,
                given=lambda: {"metadata": {"reason": "agent_finished"}},
                shown=("reason",),
            )
        )
        return attrs.evolve(said, context=said.context or said.reason) if said.blocked else said

    async def end_session(self) -> None:
        """End all hooks, and run those of SessionEnd within `Deadlines.session_end`, async ones too."""
        self.cancel()
        self._context.begun.discard(self._record.id)
        if not self.session_open:
            return
        self.session_open = False
        outer = self._nursery
        try:
            with trio.move_on_after(self._context.deadlines.session_end):
                async with trio.open_nursery() as self._nursery:
                    await self.ask(Occasion(event=HookEvent.SESSION_END), until_blocked=False)
        finally:
            if self._nursery is not None:  # else the outer nursery has ended meanwhile
                self._nursery = outer

    # -- running ------------------------------------------------------------------------------------------

    async def ask(self, occasion: Occasion, *, until_blocked: bool = True) -> Answer:
        """Run the hooks of an occasion one after another, `until_blocked` only to the first that blocks.

        Cancellation, and `cancel`, end the hook that runs at once; its event says so.
        """
        hooks: Sequence[HookDefinition] = ()
        if self._config is not None:
            hooks = self._config.hooks(occasion.event, occasion.tool_name)
        if not hooks:
            return NOTHING
        said: list[Verdict] = []
        with trio.CancelScope() as scope:
            self._scopes[scope] = occasion.event
            try:
                # In a thread: a call's output can have megabytes to encode.
                given, shown = await trio.to_thread.run_sync(self._input, occasion)
                for hook in hooks:
                    said.append(await self._run(hook, occasion, given, shown))
                    if until_blocked and said[-1].blocked:
                        break
            finally:
                del self._scopes[scope]
        blocking = next((each for each in said if each.blocked), None)
        contexts = [each.additional_context for each in said if each.additional_context]
        return Answer(
            blocked=blocking is not None,
            reason="" if blocking is None else reason_of(blocking),
            context="\n".join(contexts)[:CONTEXT_CHARACTERS],
            cancelled=scope.cancelled_caught,
        )

    def _input(self, occasion: Occasion) -> tuple[bytes, dict[str, Any] | None]:
        """A hook's standard input, and what its event repeats of it. For a thread."""
        made = hook_input(
            occasion.event,
            session_id=self._record.id,
            working_dir=self._record.start.working_dir,
            tool_name=occasion.tool_name,
            **occasion.given(),
        )
        whole = dumps(made)
        if not occasion.shown:
            return whole, None
        parts = {**made, **made["metadata"]}
        shown = {name: parts[name] for name in occasion.shown}
        if len(whole) > INPUT_BYTES and len(body := dumps(shown)) > INPUT_BYTES:
            shown = {"tool_name": occasion.tool_name} if occasion.tool_name else {}
            shown["truncated"] = f"{len(body)} bytes are left out here; the hook got them"
        return whole, shown

    async def _run(
        self, hook: HookDefinition, occasion: Occasion, given: bytes, shown: dict[str, Any] | None
    ) -> Verdict:
        """Run one hook, and record it."""
        if hook.type != "command":
            return self._tell(hook, occasion, _not_run(NO_MODEL), shown)
        if hook.asynchronous and self._nursery is not None:
            if self._background.full(len(given)):
                return self._tell(hook, occasion, _not_run(TOO_MANY), shown)
            work = partial(self._apart, hook, occasion, given)
            self._start(self._nursery, self._background, None, len(given), work)
            return self._tell(hook, occasion, Verdict(success=True), shown)
        number = new_event_id()
        # Stored before it starts, so that the next server can say what a kill has cut off.
        self._record.hooks_running[number] = _about(hook, occasion)
        self._recorder.save()
        try:
            ended = await self._execute(hook, occasion, given, self._slots)
        except BaseException:
            with suppress(JournalError):  # it is deleted, or nothing can be stored any more
                self._tell(hook, occasion, _not_run(INTERRUPTED), shown, number)
            raise
        return self._tell(hook, occasion, judge(ended), shown, number)

    async def _apart(self, hook: HookDefinition, occasion: Occasion, given: bytes) -> None:
        """Run a background hook."""
        ended = await self._execute(hook, occasion, given, self._background_slots)
        if ended.error is not None or ended.code:
            self._logger.info("async hook failed", hook=occasion.event.value, code=ended.code)

    async def _execute(
        self, hook: HookDefinition, occasion: Occasion, given: bytes, slots: trio.CapacityLimiter
    ) -> Ended:
        server = self._context.launcher.server_environment
        place = self._record.start.working_dir
        own = environment(
            occasion.event, session_id=self._record.id, working_dir=place, tool_name=occasion.tool_name
        )
        waits = self._context.deadlines
        async with slots:
            return await run_command(
                hook.command,
                given,
                cwd=Path(place),
                environment={**base_environment(server, isolated=False), **own},
                seconds=min(float(hook.timeout), waits.hook),
                spawn_seconds=waits.spawn,
            )

    def _tell(
        self,
        hook: HookDefinition,
        occasion: Occasion,
        verdict: Verdict,
        shown: dict[str, Any] | None,
        number: str | None = None,
    ) -> Verdict:
        """Record how a hook ended."""
        outcome = "blocked" if verdict.blocked else "succeeded" if verdict.success else "failed"
        self._context.counters.hooks[outcome] += 1
        if number is not None:
            self._record.hooks_running.pop(number, None)
        event = HookExecutionEvent(
            id=number or new_event_id(),
            **_about(hook, occasion),
            **attrs.asdict(verdict),
            hook_input=shown,
        )
        self._recorder.write([in_vocabulary(self._recorder, event)])
        return verdict


def in_vocabulary(recorder: Recorder, event: HookExecutionEvent) -> Event:
    """The event; in the core vocabulary, which lacks this kind, an equivalent state."""
    if recorder.extended:
        return event
    said = {name: value for name, value in encode(event).items() if name not in ("id", "timestamp", "kind")}
    return recorder.state("hook_execution", said)


def cut_off(recorder: Recorder) -> list[Event]:
    """The events for the hooks that ran when an earlier server stopped. Notes them as ended in the record."""
    running = recorder.record.hooks_running
    events = [
        in_vocabulary(
            recorder, HookExecutionEvent(id=number, success=False, exit_code=NO_STATUS, error=CUT_OFF, **said)
        )
        for number, said in running.items()
    ]
    running.clear()
    return events


def _about(hook: HookDefinition, occasion: Occasion) -> dict[str, Any]:
    """What an event says of a hook besides its outcome."""
    return {
        "hook_event_type": occasion.event.value,
        "hook_command": hook.label,
        "tool_name": occasion.tool_name,
        "action_id": occasion.action_id,
        "message_id": occasion.message_id,
    }


def _not_run(error: str) -> Verdict:
    return Verdict(success=False, exit_code=NO_STATUS, error=error)
