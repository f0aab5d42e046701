"""The task of a live conversation: it owns the agent, takes messages from the queue, and drives turns.

Everything that an agent says is handled in arrival order by one task, the connection's reader, through
`notification` and the prompt's answer; both are synchronous, so nothing can come between two of them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from supervisor.acp import (
    AgentMessageChunk,
    AgentThoughtChunk,
    ConnectionLost,
    Oversize,
    Result,
    RpcError,
    ToolCall,
    ToolCallUpdate,
    classify_error,
    error_text,
    parse_permission,
    parse_prompt_result,
    parse_update,
)
from supervisor.acp.schema import Usage as TokenUsage
from supervisor.acp.schema import text_block
from supervisor.events import (
    Event,
    InterruptEvent,
    Message,
    MessageEvent,
    PauseEvent,
    SystemPromptEvent,
    TextContent,
    new_event_id,
)
from supervisor.journal import JournalError

from . import permissions, prompt, usage
from .agent import AgentRun, run_agent
from .cards import Recorded
from .confirmations import Confirmations
from .errors import AgentFailure
from .failures import error_event, from_rpc
from .hold import HoldTimer
from .launcher import Plan
from .session import AUTH_REQUIRED, Memory, authenticate, lost, startup_timeout
from .starting import note_session, open_agent
from .translate import Close, Delta, Opened, Out, Title, Translator, Usage
from .turn import Turn

if TYPE_CHECKING:
    from .conversation import Conversation, Queued

log = structlog.get_logger(__name__)

SYSTEM_PROMPT: Final = "The external agent manages its own system prompt, model and tools."
"""Stands where the built-in agent of the wire's servers has its prompt."""

SILENCE_STEPS: Final = 100
"""Silence is measured to this part of its limit."""

TITLE_CHARS: Final = 200
"""Longest title taken from an agent: as long as one that a person may set."""

LAST_WORDS_SECONDS: Final = 1.0
"""After an agent's exit: for the rest of its output and its exit status to reach what waits for them. Its
pipes end a quarter of a second after it at the latest."""

DETAIL_CHARS: Final = 500
"""Longest detail of an error that we did not foresee."""

WORK: Final = (AgentMessageChunk, AgentThoughtChunk, ToolCall, ToolCallUpdate)
"""Updates that show that an agent did something about a prompt; commands and figures come anyway."""


class Again(enum.Enum):
    """Why a prompt is sent again, of which nothing happened: the agent wanted a login first, or the failure
    is one that passes."""

    AFTER_LOGIN = "login"
    AFTER_PAUSE = "pause"


class Runner:
    """Runs one conversation while it has an agent or work to do.

    Its task is started in the supervisor's nursery by `want` and ends by itself when there is neither;
    cancelling it stops the agent's process tree. It implements the connection's `Handler`.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._record = conversation.record
        self._recorder = conversation.recorder
        self._deadlines = conversation.context.deadlines
        self._wanted = False
        self._wake = trio.Event()
        self._active = False
        self._scope: trio.CancelScope | None = None
        self._done: trio.Event | None = None
        self._nursery: trio.Nursery | None = None
        self._current: AgentRun | None = None
        self._agent: AgentRun | None = None
        self._translator = self._new_translator()
        self._turn: Turn | None = None
        self._turns = 0
        self._settled = trio.Event()
        self._start_scope: trio.CancelScope | None = None
        self._silence_scope: trio.CancelScope | None = None
        self._interrupted = False
        self._again: Again | None = None
        self._logged_in = False
        self._cancelled = trio.Event()
        self._replaying = False
        self._transcript: str | None = None
        self._confirmations = Confirmations()
        self._held = HoldTimer(self._deadlines.hold, self._deadlines.hold_at_most, self._held_long_enough)

    def _new_translator(self) -> Translator:
        return Translator(
            core=not self._recorder.extended,
            confirming=permissions.asks_a_person(self._record.confirmation_policy),
            session=max(0, self._record.sessions - 1),
        )

    # -- what the conversation asks for ---------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a turn is under way, or is about to be."""
        return self._active or (self._wanted and bool(self._conversation.inbox))

    @property
    def _silence(self) -> float:
        return self._record.agent.acp_prompt_timeout or self._deadlines.silence

    @property
    def pid(self) -> int | None:
        """Process id of the live agent, if there is one."""
        return None if self._agent is None else self._agent.pid

    @property
    def waiting(self) -> bool:
        """Whether a person's confirmation is waited for."""
        return bool(self._confirmations)

    def want(self) -> None:
        """Take up the queue. Idempotent; starts the task when there is none."""
        self._wanted = True
        if self._conversation.inbox and self._turn is None:
            self._set_status("running")  # true from here on: who asks next must not see an old state
        self._wake.set()
        if self._done is None:
            self._done = trio.Event()
            self._conversation.context.nursery.start_soon(self._main)

    def hold(self) -> None:
        """Take nothing more from the queue after the turn under way."""
        self._wanted = False

    def policy_changed(self) -> None:
        """The confirmation policy is another one now; it counts from the next request on."""
        self._translator.confirming = permissions.asks_a_person(self._record.confirmation_policy)

    def decide(self, accept: bool, reason: str) -> bool:
        """Answer everything that waits for a person. False when nothing waits."""
        if not self._confirmations:
            return False
        if accept:
            self._confirmations.accept()
        else:
            for key in self._confirmations.reject():
                self._emit(self._translator.reject(key, reason))
        self._set_status("running")
        return True

    async def interrupt(self) -> None:
        """Cancel the turn under way: returns when it has settled, at the latest after `interrupt_answer`.

        Cancelling this call does not take the interrupt back.
        """
        self._wanted = False
        settled = self._settled
        if not self._active:
            self._paused()  # it had not begun
        elif not self._interrupted:
            self._interrupted = True
            self._cancelled.set()
            if self._turn is not None and self._agent is not None and self._agent.session is not None:
                if self._turn.cancel():
                    # Answer first: an agent that waits for a permission may look at nothing else.
                    self._confirmations.cancel()
                    self._agent.connection.notify(
                        "session/cancel", {"sessionId": self._agent.session.session_id}
                    )
                    assert self._nursery is not None
                    self._nursery.start_soon(self._grace, self._turn, self._agent)
            elif self._start_scope is not None:
                self._start_scope.cancel()
        with trio.move_on_after(self._deadlines.interrupt_answer):
            while self._active and self._settled is settled:
                await settled.wait()
        if self._record.execution_status != "paused":
            # Not settled in time: control returns all the same, and the state tells what still goes on.
            self._record.agent_state["phase"] = "cancelling"
            self._record_paused()
            self._conversation.publish_state()
        await self._recorder.log.flushed()

    async def _grace(self, turn: Turn, agent: AgentRun) -> None:
        with trio.move_on_after(self._deadlines.cancel_grace):
            while self._turn is turn:
                await self._settled.wait()
        if self._turn is turn:
            log.warning("agent did not end a cancelled turn in time; ending its process", pid=agent.pid)
            agent.scope.cancel()

    async def stop(self) -> None:
        """End the task and the agent with it. Returns when both are gone; shielded, since it cleans up."""
        self._wanted = False
        with trio.CancelScope(shield=True):
            while self._done is not None:
                if self._scope is not None:
                    self._scope.cancel()
                await self._done.wait()

    # -- the task ---------------------------------------------------------------------------------------

    async def _main(self) -> None:
        done = self._done
        assert done is not None
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._scope = nursery.cancel_scope
                nursery.start_soon(self._held.run)
                while True:
                    self._wake = trio.Event()
                    await self._take_queue()
                    if self._agent is None and not self._wanted:
                        break
                    await self._wake.wait()
                nursery.cancel_scope.cancel()
        except Exception as error:
            # A fault of ours stays in its conversation; its siblings go on.
            log.exception("conversation failed", conversation=self._record.id)
            self._broke_down(error)
        except BaseException:
            self._wanted = False  # cancelled: nothing is taken up any more
            raise
        finally:
            self._nursery = self._scope = self._done = None
            self._active = False
            done.set()
            if self._wanted:
                self.want()

    def _broke_down(self, error: Exception) -> None:
        failure = AgentFailure("InternalError", f"{type(error).__name__}: {error}"[:DETAIL_CHARS])
        self._wanted = False
        try:
            if self._turn is not None:
                self._end_with_failure(self._turn, failure)
            else:
                self._fail(failure)
        except JournalError:
            log.exception("the failure could not be recorded", conversation=self._record.id)

    async def _take_queue(self) -> None:
        inbox = self._conversation.inbox
        while self._wanted and inbox:
            self._active = True
            self._interrupted = False
            self._settled = trio.Event()
            self._cancelled = trio.Event()
            self._logged_in = False
            if self._record.execution_status != "running":
                self._set_status("running")
            try:
                await self._one_turn(inbox[0])
            finally:
                self._active = False
                self._start_scope = None
                self._settled.set()
        self._wanted = False

    async def _one_turn(self, item: Queued) -> None:
        conversation = self._conversation
        with trio.CancelScope() as starting:
            self._start_scope = starting
            try:
                agent = await self._ensure_agent()
            except AgentFailure as failure:
                self._fail(failure)
                return
        self._start_scope = None
        if starting.cancelled_caught or self._interrupted:
            self._paused()  # the message stays queued: nothing of it reached the agent
            return
        assert agent.session is not None
        # From here on the message counts as handed over: should the server die now, it is reported.
        conversation.inbox.remove(item)
        self._record.prompted_seq = item.seq
        self._record.unfinished = True
        self._record.retry_seq = None
        self._held_long_enough()  # late words of the turn before are not the beginning of this one's
        self._turns += 1
        self._turn = turn = Turn(self._turns, item.seq)
        self._recorder.save()
        await self._recorder.log.flushed()
        images = agent.initialized is not None and agent.initialized.capabilities.image
        content = prompt.blocks(item.message, images=images)
        if self._transcript is not None:
            content = [text_block(self._transcript), *content]
            self._transcript = None
        await self._prompt(agent, turn, content)

    async def _prompt(self, agent: AgentRun, turn: Turn, content: list[dict[str, Any]]) -> None:
        assert agent.session is not None
        if self._interrupted:
            self._end_turn(turn, "cancelled", None)
            return
        params = {"sessionId": agent.session.session_id, "prompt": content}
        pauses = list(self._deadlines.retry)
        while True:
            with trio.CancelScope(deadline=trio.current_time() + self._silence) as scope:
                self._silence_scope = scope
                try:
                    await agent.connection.request(
                        "session/prompt",
                        params,
                        timeout=math.inf,
                        on_response=partial(self._prompt_answered, turn, retries=len(pauses)),
                    )
                except RpcError:
                    pass  # dealt with in its place, by _prompt_answered
                except ConnectionLost as error:
                    self._agent_gone(agent, turn, error)
                finally:
                    self._silence_scope = None
            if scope.cancelled_caught:
                self._end_with_failure(
                    turn,
                    AgentFailure(
                        "ACPPromptError",
                        f"The agent was silent for {self._silence:g} s; its turn was given up.",
                        kind="transient",
                        retryable=True,
                        user_action="retry",
                    ),
                )
                agent.scope.cancel()
            again, self._again = self._again, None
            if again is Again.AFTER_LOGIN:
                if not await self._log_in(agent, turn):
                    return
            elif again is Again.AFTER_PAUSE:
                with trio.move_on_after(pauses.pop(0)):
                    await self._cancelled.wait()
                if turn.cancelling:
                    self._end_turn(turn, "cancelled", None)
                    return
            else:
                return

    async def _log_in(self, agent: AgentRun, turn: Turn) -> bool:
        assert agent.initialized is not None
        try:
            await authenticate(
                agent.connection,
                agent.initialized,
                agent.plan.login,
                self._deadlines,
                "Authentication required",
            )
        except AgentFailure as failure:
            self._end_with_failure(turn, failure)
            return False
        except ConnectionLost as error:
            self._agent_gone(agent, turn, error)
            return False
        return True

    def _agent_gone(self, agent: AgentRun, turn: Turn, error: ConnectionLost) -> None:
        if turn.cancelling:
            self._end_turn(turn, "cancelled", None)  # ended by the interrupt: not a crash
        else:
            self._end_with_failure(turn, lost(error, "ACPAgentExited"))
        agent.scope.cancel()

    # -- starting the agent -----------------------------------------------------------------------------

    async def _ensure_agent(self) -> AgentRun:
        agent = self._agent
        if agent is not None and agent.usable:
            return agent
        if agent is not None:
            # One process at a time holds a session: the old one is gone before the new one starts.
            agent.scope.cancel()
            await agent.gone.wait()
        assert self._nursery is not None
        self._phase("installing")
        plan = await self._conversation.context.launcher.plan(self._record, self._progress)
        self._phase("starting")
        run: AgentRun = await self._nursery.start(self._own_agent, plan)
        self._current = run
        ready = False
        limit = self._record.agent.acp_startup_timeout
        try:
            with trio.fail_after(limit):
                await self._open(run)
            ready = True
        except trio.TooSlowError as error:
            raise startup_timeout("get ready", limit) from error
        except ConnectionLost as error:
            if run.initialized is not None and self._record.session_used:
                self._record.failed_restores += 1
                self._recorder.save()
            raise lost(error, "ACPInitError") from error
        finally:
            if not ready:
                run.scope.cancel()
        self._agent = run
        self._phase("ready")
        return run

    def _progress(self, line: str) -> None:
        log.info("installing agent", conversation=self._record.id, step=line)

    async def _own_agent(
        self, plan: Plan, task_status: trio.TaskStatus[AgentRun] = trio.TASK_STATUS_IGNORED
    ) -> None:
        run: AgentRun | None = None
        try:
            async with run_agent(plan, self) as run:
                task_status.started(run)
                await run.process.exited.wait()
                with trio.move_on_after(LAST_WORDS_SECONDS):
                    await run.connection.closed.wait()  # what waits for an answer is told why there is none
        finally:
            if run is not None and self._agent is run:
                self._agent = None
                self._phase("exited" if run.process.exited.is_set() else "stopped")
            if run is not None:
                run.gone.set()
            self._wake.set()

    async def _open(self, run: AgentRun) -> None:
        started = await open_agent(run, self._record, self._deadlines, self._replay)
        note_session(self._record, run, started)
        self._translator.new_session(self._record.sessions - 1)
        self._recorder.write([self._recorder.state("agent_state", dict(self._record.agent_state))])
        if started.session.result.config_options:
            options = [option.raw for option in started.session.result.config_options]
            self._emit(self._translator.state("config_options", options))
        if started.session.memory in (Memory.NEW, Memory.LOST):
            # Clients expect a system prompt first; an external agent keeps its own to itself.
            prompt_event = SystemPromptEvent(system_prompt=TextContent(text=SYSTEM_PROMPT), tools=())
            self._recorder.write([prompt_event])
        if started.session.memory is Memory.LOST:
            self._transcript = await self._conversation.transcript()
            self._recorder.write(
                [
                    _environment_message(
                        f"The agent's memory of this conversation could not be restored "
                        f"({started.session.reason}). "
                        "A new session goes on from a transcript of what was said."
                    )
                ]
            )

    def _replay(self, going_on: bool) -> None:
        self._replaying = going_on

    def _phase(self, phase: str) -> None:
        if self._record.agent_state.get("phase") != phase:
            self._record.agent_state["phase"] = phase
            self._recorder.write([self._recorder.state("agent_phase", phase)])

    # -- the end of a turn ------------------------------------------------------------------------------

    def _prompt_answered(self, turn: Turn, result: Result, *, retries: int) -> None:
        """The prompt's answer, in its place among the updates. Synchronous."""
        if self._turn is not turn:
            return
        error = result.error
        if error is None:
            answer = parse_prompt_result(result.value)
            self._end_turn(turn, answer.stop_reason, answer.usage)
        elif turn.cancelling:
            self._end_turn(turn, "cancelled", None)
        elif error.code == AUTH_REQUIRED and not turn.updates and not self._logged_in:
            self._logged_in = True
            self._again = Again.AFTER_LOGIN
        elif classify_error(error) == "transient" and not turn.updates and retries:
            log.info("a prompt is sent again", conversation=self._record.id, error=error_text(error))
            self._again = Again.AFTER_PAUSE
        else:
            self._end_with_failure(turn, from_rpc(error, "ACPPromptError"))

    def _end_turn(self, turn: Turn, stop_reason: str, tokens: TokenUsage | None) -> None:
        if self._turn is not turn:
            return
        outcome = turn.settle(stop_reason)
        record = self._record
        if tokens is not None:
            record.usage = usage.with_tokens(record.usage, tokens)
        self._emit(self._translator.end_turn(Close.FINISH if outcome.finish else Close.MESSAGE, outcome.note))
        self._clear_turn()
        record.unfinished = not outcome.finish
        record.agent_state["stop_reason"] = stop_reason
        if outcome.error is not None:
            code, detail = outcome.error
            self._fail(AgentFailure(code, detail, kind="agent_action"))
        elif self._interrupted:
            self._paused()
        elif record.execution_status == "paused":
            self._close_run("paused")
        elif not (self._wanted and self._conversation.inbox):
            self._close_run(outcome.status)

    def _end_with_failure(self, turn: Turn, failure: AgentFailure) -> None:
        if self._turn is not turn:
            return
        self._emit(self._translator.end_turn(Close.MESSAGE))
        self._clear_turn()
        self._record.agent_state["stop_reason"] = "failed"
        if failure.code == "ACPAuthRequired":
            if not turn.updates:
                self._record.retry_seq = turn.prompt_seq
            if self._agent is not None:
                self._agent.scope.cancel()  # it comes back with what credentials there are then
        self._fail(failure)

    def _clear_turn(self) -> None:
        self._turn = None
        self._confirmations.cancel()

    def _fail(self, failure: AgentFailure) -> None:
        self._wanted = False
        log.warning("turn failed", conversation=self._record.id, code=failure.code)
        self._close_run("error", [error_event(failure)])

    def _paused(self) -> None:
        if self._record.execution_status != "paused":
            self._record_paused()
        self._close_run("paused")

    def _record_paused(self) -> None:
        # The core vocabulary has no word for an interrupt but that of a pause.
        mark: Event = (
            InterruptEvent(id=new_event_id()) if self._recorder.extended else PauseEvent(id=new_event_id())
        )
        self._record.execution_status = "paused"
        self._recorder.write([mark, self._recorder.state("execution_status", "paused")])

    def _close_run(self, status: str, events: Sequence[Event] = ()) -> None:
        """The events of a run's end, the new status, the figures; then the snapshot that unblocks clients."""
        record = self._record
        closing: list[Event] = list(events)
        if record.execution_status != status:
            record.execution_status = status
            closing.append(self._recorder.state("execution_status", status))
        closing.append(self._recorder.state("stats", usage.stats(record.usage)))
        closing.append(self._recorder.state("agent_state", dict(record.agent_state)))
        self._recorder.write(closing)
        self._conversation.publish_state()
        self._conversation.context.nursery.start_soon(self._echo_state, self._turns)

    async def _echo_state(self, turns: int) -> None:
        """Send the state after a run again, a little later, unless another turn has begun."""
        begin = trio.current_time()
        for after in self._deadlines.echo:
            await trio.sleep_until(begin + after)
            if self._turns != turns or self.busy:
                return
            try:
                self._conversation.publish_state()
            except JournalError:
                return  # the conversation is deleted, or the server is at its end

    def _set_status(self, status: str) -> None:
        if self._record.execution_status != status:
            self._record.execution_status = status
            self._recorder.write([self._recorder.state("execution_status", status)])

    # -- the connection's handler -----------------------------------------------------------------------

    def notification(self, method: str, params: Any) -> None:
        """An update, in arrival order. Other notifications are the agents' own and mean nothing here."""
        if method != "session/update":
            return
        try:
            self._take_update(params)
        except JournalError:
            raise
        except Exception as error:
            # A fault of ours over one update ends the turn truthfully, not the connection by surprise.
            log.exception("an update could not be taken in", conversation=self._record.id)
            if self._turn is not None:
                self._broke_down(error)
            if self._current is not None:
                self._current.scope.cancel()

    def _take_update(self, params: Any) -> None:
        session_id, update = parse_update(params)
        agent = self._agent
        if agent is not None and agent.session is not None and session_id != agent.session.session_id:
            return  # a child session of the agent's own
        self._touch()
        if self._replaying:
            return  # what the journal already holds
        if self._turn is not None and isinstance(update, WORK):
            self._turn.updates += 1
            if not self._record.session_used:
                self._record.session_used = True
                self._recorder.save()
        self._emit(self._translator.update(update))
        if self._translator.holding or self._turn is None:
            self._held.note()

    def _emit(self, outs: Sequence[Out]) -> None:
        recorded: list[Event | Recorded] = []
        for out in outs:
            if isinstance(out, Recorded):
                recorded.append(out)
                continue
            if recorded:
                self._recorder.relay(recorded)
                recorded = []
            if isinstance(out, Delta | Opened):
                self._recorder.stream(out)
            elif isinstance(out, Usage):
                self._record.usage = usage.with_report(self._record.usage, out)
            elif isinstance(out, Title):
                self._retitle(out.text[:TITLE_CHARS])
        if recorded:
            self._recorder.relay(recorded)

    def _retitle(self, title: str) -> None:
        if self._record.autotitle and self._record.title != title:
            self._record.title = title
            self._recorder.write([self._recorder.state("title", title)])

    def request(self, method: str, params: Any) -> Awaitable[Any]:
        """A request of the agent's: looked at in its place among the updates, answered by a task of its own.

        Raises RpcError for what is not offered.
        """
        if method == "session/request_permission":
            return self._permission(params)
        if self._current is not None and self._current.services.serves(method):
            return self._current.services.handle(method, params)
        raise RpcError.method_not_found(method)

    def noise(self, line: bytes) -> None:
        """A line that is no message: survived, and shown in the log."""
        log.info("agent wrote a line that is no message", conversation=self._record.id, line=line[:200])

    def oversize(self, frame: Oversize) -> None:
        """A message over the size cap was thrown away: its conversation is told, and goes on."""
        log.warning("agent sent a message over the size cap", conversation=self._record.id, size=frame.size)
        value = {"kind": "oversize_frame", "size": frame.size, "method": frame.method}
        self._emit(self._translator.state("acp_dropped", value))

    async def backpressure(self) -> None:
        """Stop reading while the journal is behind: the pipe then holds the agent back."""
        await self._recorder.log.room()

    # -- permissions ------------------------------------------------------------------------------------

    def _permission(self, params: Any) -> Awaitable[Mapping[str, Any]]:
        request = parse_permission(params)
        if self._turn is None or self._turn.cancelling:
            return _at_once(permissions.CANCELLED)
        if not permissions.asks_a_person(self._record.confirmation_policy):
            self._emit(self._translator.allowed(request.tool_call.raw))
            allowed = permissions.allow(request.options)
            if allowed is not None:
                return _at_once(allowed)
            key, outs = self._translator.ask(request.tool_call.raw)
            self._emit(
                [*outs, *self._translator.reject(key, "The agent offered no way to allow this call once.")]
            )
            return _at_once(permissions.reject(request.options))
        key, outs = self._translator.ask(request.tool_call.raw)
        pending = self._confirmations.add(key, request.options)
        self._emit(outs)
        self._set_status("waiting_for_confirmation")
        self._conversation.publish_state()
        self._touch()
        return self._confirmations.wait(pending, self._waited)

    def _waited(self) -> None:
        if self._confirmations:
            return
        self._touch()
        if self._record.execution_status == "waiting_for_confirmation" and self._turn is not None:
            self._set_status("running")

    def _touch(self) -> None:
        """The agent gave a sign of life, or a person's answer: silence counts from here."""
        scope = self._silence_scope
        if scope is None:
            return
        if self._confirmations:
            scope.deadline = math.inf
            return
        deadline = trio.current_time() + self._silence
        # Moving a deadline costs more than all the rest of a streamed word: it is moved in coarse steps.
        if not 0 <= deadline - scope.deadline < self._silence / SILENCE_STEPS:
            scope.deadline = deadline

    # -- events that are held back ----------------------------------------------------------------------

    def _held_long_enough(self) -> None:
        self._emit(self._translator.release())
        if self._turn is None:
            self._emit(self._translator.close_text())


async def _at_once(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    return answer


def _environment_message(text: str) -> MessageEvent:
    return MessageEvent(
        id=new_event_id(),
        source="environment",
        llm_message=Message(role="assistant", content=(TextContent(text=text),)),
    )
