"""Sends a prompt and waits for its answer: silence, requested logins, transient failures."""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs
import trio

from supervisor.acp import ConnectionLost, Result, RpcError, classify_error, error_text, parse_prompt_result
from supervisor.acp.errors import AUTH_REQUIRED, session_not_found
from supervisor.acp.schema.prompt import PromptResult
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.lifecycle.lifecycle import AgentLifecycle
from supervisor.conversations.agent.lifecycle.repair import SessionRepair
from supervisor.conversations.agent.session_setup import authenticate, lost, methods_of
from supervisor.conversations.agent.shared import Shared
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.state.failures import from_rpc, limit_reached
from supervisor.conversations.state.turn import Turn
from supervisor.conversations.turns.mid_turn import MidTurnMessages
from supervisor.conversations.turns.silence import SilenceWatch
from supervisor.conversations.turns.turns import Turns
from supervisor.conversations.turns.unasked import Unasked
from supervisor.patience import ended_by

STDERR_SECONDS: Final = 0.1
"""Seconds to wait for standard error that an agent wrote before its answer, since it comes by another
pipe."""


class Again(enum.Enum):
    """Why a prompt without effect is sent again: the agent required a login first, or did not find its
    session, or the failure is transient."""

    AFTER_LOGIN = "login"
    AFTER_LOAD = "load"
    AFTER_PAUSE = "pause"


@attrs.define
class _Attempt:
    """One attempt to send a prompt: how it may handle a refusal, and whether the prompt is sent `again`.

    `pause`: the seconds until it is sent again if the failure may pass. `refusal`: the agent's answer.
    `forgotten`: the turn failed, since the agent does not find its session.
    """

    may_log_in: bool
    may_load: bool
    pause: float | None
    again: Again | None = None
    refusal: RpcError | None = None
    forgotten: bool = False
    failure: AgentFailure | None = None
    """Why the turn fails, without a cause: the agent may have written one on standard error."""
    answer: PromptResult | None = None
    """The agent's answer, where it is to be found out before the end what became of a no."""


class Prompting:
    """Drives one turn at a time. `turns` records its end, with the agent's answer or without."""

    def __init__(
        self,
        shared: Shared,
        turns: Turns,
        lifecycle: AgentLifecycle,
        repair: SessionRepair,
        silence: SilenceWatch,
        mid_turn: MidTurnMessages,
        unasked: Unasked,
    ) -> None:
        self._deadlines = shared.context.deadlines
        self._queue = shared.queue
        self._turns = turns
        self._lifecycle = lifecycle
        self._repair = repair
        self._recorder = shared.recorder
        self._silence = silence
        self._mid_turn = mid_turn
        self._unasked = unasked

    async def prompt(
        self,
        agent: Incarnation,
        turn: Turn,
        content: Sequence[Mapping[str, Any]],
        own: Mapping[str, Any] | None = None,
    ) -> None:
        """Send `content` (ACP blocks) as a prompt, and wait for the end of the turn. `own`: what it gets
        besides.

        Returns when the turn has ended: its end is recorded, and an agent that is no longer usable is being
        ended.

        Raises JournalError.

        Cancellation leaves the turn open; only the end of the conversation's task does that.
        """
        assert agent.session is not None
        # Interrupted while its hand-over was stored: nothing was sent.
        if self._queue.interrupted:
            self._turns.hand_over_again(turn)
            self._turns.finish(turn, "cancelled")
            return
        self._turns.prompted()
        params: dict[str, Any] = {"sessionId": agent.session.session_id, "prompt": content}
        if own is not None:
            params["_meta"] = {"ostler": own}
        pauses = list(self._deadlines.retry)
        logged_in = loaded = False
        while True:
            attempt = _Attempt(
                may_log_in=not logged_in, may_load=not loaded, pause=pauses[0] if pauses else None
            )
            silent = await self._ask(agent, turn, params, attempt)
            if silent is not None and self._queue.turn is turn:
                self._turns.fail(turn, _too_silent(silent, self._silence.reason(turn)))
                # It may still answer the prompt that was given up.
                self._lifecycle.drop(agent)
            if attempt.answer is not None:
                await self._unasked.look()
                self._turns.finish(turn, attempt.answer.stop_reason, attempt.answer)
                return
            if attempt.failure is not None:
                await self._fail_with_stderr_tail(turn, attempt.failure)
                return
            if attempt.again is Again.AFTER_LOGIN:
                logged_in = True
                assert attempt.refusal is not None
                if not await self._log_in(agent, turn, attempt.refusal):
                    return
            elif attempt.again is Again.AFTER_LOAD:
                loaded = True
                assert attempt.refusal is not None
                if not await self._load(agent, turn, attempt.refusal):
                    return
            elif attempt.again is Again.AFTER_PAUSE:
                with trio.move_on_after(pauses.pop(0)):
                    await self._queue.called_off.wait()
                if turn.cancelling:
                    self._turns.finish(turn, "cancelled")
                    return
            else:
                if attempt.forgotten:
                    self._repair.forgotten(agent)
                return

    async def _ask(
        self, agent: Incarnation, turn: Turn, params: Mapping[str, Any], attempt: _Attempt
    ) -> float | None:
        """Send the prompt and wait for its answer. Returns the seconds of silence if that ended the wait."""
        silent: float | None = None
        self._silence.touch()

        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal silent
                silent = await self._silence.lasts_too_long(turn)
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            if self._mid_turn.applies(agent):
                nursery.start_soon(self._mid_turn.send, agent, turn)
            try:
                await agent.connection.request(
                    "session/prompt",
                    params,
                    # Turns may take hours: `watch` bounds the silence instead.
                    timeout=math.inf,
                    # The reader calls it in order of arrival: an update behind the answer belongs to no turn.
                    on_response=partial(self._answered, turn, attempt, params["sessionId"]),
                )
            except RpcError:
                pass  # handled in order by _answered
            except ConnectionLost as error:
                self._agent_gone(agent, turn, error)
            nursery.cancel_scope.cancel()
        return silent

    def _answered(self, turn: Turn, attempt: _Attempt, session_id: str, result: Result) -> None:
        """Handle the prompt's answer, in order among the updates. Synchronous."""
        if self._queue.turn is not turn:
            return
        error = result.error
        if error is None:
            answer = parse_prompt_result(result.value)
            if self._unasked.unsure:
                attempt.answer = answer
            else:
                self._turns.finish(turn, answer.stop_reason, answer)
        elif turn.cancelling:
            self._turns.finish(turn, "cancelled")
        # Without updates the agent has done nothing with the message, so sending it again does nothing twice.
        elif error.code == AUTH_REQUIRED and not turn.updates and attempt.may_log_in:
            attempt.again, attempt.refusal = Again.AFTER_LOGIN, error
        elif not turn.updates and session_not_found(error, session_id):
            if attempt.may_load:
                attempt.again, attempt.refusal = Again.AFTER_LOAD, error
            else:
                attempt.forgotten = True
                self._turns.fail(turn, from_rpc(error, "ACPPromptError"))
        elif classify_error(error) == "transient" and not turn.updates and attempt.pause is not None:
            again = f"The message is sent again in {attempt.pause:g} s."
            self._recorder.write([self._recorder.state("agent_retry", f"{_sentence(error)} {again}")])
            attempt.again = Again.AFTER_PAUSE
        else:
            failure = from_rpc(error, "ACPPromptError")
            if failure.unexplained:
                attempt.failure = failure
            else:
                self._turns.fail(turn, failure)

    async def _fail_with_stderr_tail(self, turn: Turn, failure: AgentFailure) -> None:
        """Fail the turn, with the agent's stderr output during it."""
        await trio.sleep(STDERR_SECONDS)
        failure.add_stderr_tail([line for _, line in self._lifecycle.output.tail(turn.begun)])
        if turn.cancelling:
            self._turns.finish(turn, "cancelled")
        else:
            self._turns.fail(turn, failure)

    async def _load(self, agent: Incarnation, turn: Turn, refusal: RpcError) -> bool:
        """Load the session that the agent does not find, once. Returns False if that ended the turn."""
        failure = from_rpc(refusal, "ACPPromptError")
        words = f"{_sentence(refusal)} Its session is loaded, and the message is sent again."
        self._recorder.write([self._recorder.state("agent_retry", words)])
        try:
            done = await self._unless_called_off(partial(self._repair.load_again, agent))
        except AgentFailure as error:
            failure.detail = f"{failure.detail} Loading the session fails, too: {error}"
            if turn.cancelling:
                self._turns.finish(turn, "cancelled")
            else:
                self._turns.fail(turn, failure)
            self._repair.forgotten(agent)
            return False
        except ConnectionLost as error:
            self._agent_gone(agent, turn, error)
            return False
        return self._may_resend(agent, turn, done)

    async def _log_in(self, agent: Incarnation, turn: Turn, refusal: RpcError) -> bool:
        """Send `authenticate`. Returns False if that ended the turn."""
        assert agent.initialized is not None
        log_in = partial(
            authenticate,
            agent.connection,
            methods_of(agent.initialized, refusal),
            agent.plan.login,
            self._deadlines,
            error_text(refusal),
        )
        try:
            done = await self._unless_called_off(log_in)
        except AgentFailure as failure:
            if turn.cancelling:
                self._turns.finish(turn, "cancelled")
            else:
                self._turns.fail(turn, failure)
            return False
        except ConnectionLost as error:
            self._agent_gone(agent, turn, error)
            return False
        return self._may_resend(agent, turn, done)

    async def _unless_called_off(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do what a turn waits for, unless the turn is called off meanwhile. Returns whether it was done.

        Raises what the work raises.
        """
        done = False
        async with ended_by(self._queue.called_off.wait):
            await work()
            done = True
        return done  # noqa: RET504 - the block may be cancelled

    def _may_resend(self, agent: Incarnation, turn: Turn, done: bool) -> bool:
        """Whether to send the prompt again; else the turn was called off, and ends. An agent that is still
        busy with a step is ended, too, since it may not read its input again."""
        if self._queue.interrupted or turn.cancelling:
            self._turns.finish(turn, "cancelled")
            if not done:
                self._lifecycle.drop(agent)
            return False
        return True

    def _agent_gone(self, agent: Incarnation, turn: Turn, error: ConnectionLost) -> None:
        agent.turn = turn
        if turn.cancelling:
            self._turns.finish(turn, "cancelled")  # ended by the interrupt: not a crash
        elif not self._turns.outlive(turn):
            hit = agent.process.limits.hit
            self._turns.fail(turn, lost(error, "ACPAgentExited") if hit is None else limit_reached(hit))
        self._lifecycle.drop(agent)


def _sentence(error: RpcError) -> str:
    """What the agent answered, as a sentence."""
    return f"{error_text(error).removesuffix('.')}."


def _too_silent(seconds: float, reason: str | None) -> AgentFailure:
    return AgentFailure(
        "ACPPromptError",
        f"The agent was silent for {seconds:.1f} s; Ostler ended its turn. "
        + (reason or "Send a message to continue; acp_prompt_timeout allows longer silence."),
        kind="transient",
        retryable=True,
        user_action="retry",
    )
