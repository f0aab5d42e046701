"""Distinguishes a hung agent from a quiet one: how long a turn may be silent, and when clients get
warnings."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import attrs
import trio

from supervisor.acp.schema import WORDS_CHARS, cut
from supervisor.acp.schema.failing import FAILING, CallFailure
from supervisor.conversations.agent.lifecycle.lifecycle import AgentLifecycle
from supervisor.conversations.agent.shared import Shared
from supervisor.conversations.recording.effects import Effect
from supervisor.conversations.state.turn import Turn
from supervisor.conversations.turns.permissions import Permissions
from supervisor.events import Event, Message, MessageEvent, TextContent, new_event_id

CPU_SHARE: Final = 0.05
"""CPU seconds per second of the whole process tree from which on an agent counts as working.

Idle Node.js processes use a hundredth of that.
"""

WAITING_PART: Final = 0.05
"""Part of the limit after which silence is checked again while a person is asked."""

FAILURES_EACH = 8
"""Failed calls that are recorded one by one: more than the attempts of one call of most agents."""


@attrs.frozen(kw_only=True)
class Silence:
    """The inputs for judging a turn's silence. All times are on Trio's clock, in seconds.

    `touched`: the agent's last sign of life. `allowed`: how long it may be silent now (longer while a tool
    runs). `longest`: the absolute limit. `waiting`: whether a person or the journal is waited for, which does
    not count. `calling`: whether a tool runs, during which silence says nothing. `cpu`: the CPU time of the
    process tree. `tell`: called with the seconds of silence so far and the seconds left, after `notice`
    seconds and each time that the silence is twice as long; and once more, as the last word, after the part
    `warning` of the limit.
    """

    touched: Callable[[], float]
    allowed: Callable[[], float]
    longest: float
    warning: float
    notice: float
    waiting: Callable[[], bool]
    calling: Callable[[], bool]
    cpu: Callable[[], Awaitable[float]]
    tell: Callable[[float, float, bool], None]

    async def lasts_too_long(self) -> float:
        """Return, with the seconds of silence, once it has lasted too long. Ends by cancellation else."""
        since, due = -math.inf, self.notice
        while True:
            begin, allowed = self.touched(), self.allowed()
            if begin > since:
                since, due = begin, self.notice
            # The notices double: an hour of silence brings six of them, not sixty.
            due = await self._tell_until(begin + allowed * self.warning, begin, due, allowed)
            if self.touched() != begin:
                continue
            if self.waiting():
                await trio.sleep(min(allowed * WAITING_PART, self.notice))
            elif await self._passes_limit(begin, allowed):
                return trio.current_time() - begin

    async def _tell_until(self, end: float, begin: float, due: float, allowed: float) -> float:
        """Wait until `end`, or a sign of life, and tell of the silence meanwhile: when it has lasted `due`
        seconds, and so on. Returns when to tell of it next."""
        while begin + due < end:
            if not await self._quiet_until(begin + due, begin):
                return due
            silent = trio.current_time() - begin
            if begin + silent < end and not self.waiting() and not self.calling():
                self.tell(silent, allowed - silent, False)
            while due <= silent:
                due *= 2
        await self._quiet_until(end, begin)
        return due

    async def _passes_limit(self, begin: float, allowed: float) -> bool:
        """Wait from the warning to the limit. False if there was a sign of life. CPU use extends the time."""
        since, end, cap = begin + allowed * self.warning, begin + allowed, begin + self.longest
        spent = await self.cpu()
        self.tell(since - begin, end - since, True)
        while True:
            if not await self._quiet_until(end, begin) or self.waiting():
                return False
            now = await self.cpu()
            # A build or a model on this machine uses the processor and says nothing for long.
            if now - spent < (end - since) * CPU_SHARE or end >= cap:
                return True
            spent, since, end = now, end, min(end + allowed, cap)

    async def _quiet_until(self, end: float, begin: float) -> bool:
        """Wait until `end`. False if there was a sign of life: soon after it, before the silence that begins
        with it is to be reported."""
        while self.touched() == begin:
            now = trio.current_time()
            if now >= end:
                return True
            await trio.sleep_until(min(end, now + self.notice))
        return False


class SilenceWatch:
    """Watches one conversation's agent during its turns. Signs of life come by `touch`; `permissions` knows
    when a person is asked."""

    def __init__(self, shared: Shared, lifecycle: AgentLifecycle, permissions: Permissions) -> None:
        self._voice = shared.voice
        self._deadlines = shared.context.deadlines
        self._lifecycle = lifecycle
        self._recorder = shared.recorder
        self._translator = shared.translator
        self._permissions = permissions
        self._touched = 0.0
        self._failing: _Failing | None = None

    def touch(self) -> None:
        """Note a sign of life: silence counts from here."""
        self._touched = trio.current_time()

    def _calling(self) -> bool:
        return self._translator.calling or self._voice.calling

    async def lasts_too_long(self, turn: Turn) -> float:
        """Return, with the seconds of silence, once it has lasted too long. Ends by cancellation else.

        The limits are those that the conversation's settings have at its beginning.
        """
        limit = self._recorder.record.agent.acp_prompt_timeout or self._deadlines.silence
        longest = limit * self._deadlines.tool_factor
        silence = Silence(
            touched=lambda: max(self._touched, self._permissions.touched),
            allowed=lambda: longest if self._calling() else limit,
            longest=longest,
            warning=self._deadlines.silence_warning,
            notice=self._deadlines.silence_told,
            waiting=lambda: (
                self._permissions.waiting
                or self._permissions.asking_hooks
                or self._recorder.log.trouble is not None
            ),
            calling=self._calling,
            cpu=self._cpu,
            tell=partial(self._tell, turn),
        )
        return await silence.lasts_too_long()

    async def _cpu(self) -> float:
        await self._lifecycle.measure()
        return self._lifecycle.cpu_seconds

    def failed(self, turn: Turn, failure: CallFailure) -> list[Effect]:
        """The agent says that a call of its model failed. Returns what to record: each of the first
        FAILURES_EACH, then each of twice as many, so that an agent cannot fill the log with them."""
        times = self._failing.times + 1 if self.failing(turn) and self._failing is not None else 1
        self._failing = _Failing(failure, times, trio.current_time(), (turn.token, turn.updates))
        if times > FAILURES_EACH and times & (times - 1):
            return []
        return self._translator.state("model_call_failed", self._failing.value(turn))

    def failing(self, turn: Turn | None) -> bool:
        """Whether its calls of its model fail: it has done no work since it said so. Anything else that it
        sends meanwhile is not a sign of life."""
        known = self._failing
        return known is not None and turn is not None and known.of == (turn.token, turn.updates)

    def reason(self, turn: Turn) -> str | None:
        """What the agent said of the calls of its model that fail, if it is silent since."""
        if self._failing is None or not self.failing(turn):
            return None
        return _failing_in_words(self._failing.reported(turn))

    def _tell(self, turn: Turn, silent: float, left: float, last_word: bool) -> None:
        tail, now = self._lifecycle.output.tail, trio.current_time()
        words = tail(turn.begun, FAILING) or tail(turn.begun)
        at, line = max(words, key=lambda word: word[0]) if words else (None, None)
        failing = self._failing if self.failing(turn) else None
        value: dict[str, Any] = {
            "silent_seconds": round(silent, 1),
            "ends_in_seconds": round(left, 1),
            "message_id": turn.message_id,
            "updates": turn.updates,
            "last_line": line,
            "last_line_seconds_ago": None if at is None else round(max(0.0, now - at), 1),
            "failed_call": None if failing is None else failing.reported(turn),
        }
        events: list[Event] = [self._recorder.state("agent_silent", value)]
        if last_word or silent >= 2 * turn.silence_reported:
            # The message is for people who see no states. An agent that thinks for long at each step does not
            # fill the conversation with it: within a turn, only longer silences are worth another one.
            turn.silence_reported = silent
            message = Message(role="assistant", content=(TextContent(text=_in_words(value)),))
            events.append(MessageEvent(id=new_event_id(), source="environment", llm_message=message))
        self._recorder.write(events)


@attrs.frozen
class _Failing:
    """Calls of the model that failed, without work of the agent in between: the last one, how many, and when
    (Trio's clock). `of`: the turn's token and its updates until then."""

    last: CallFailure
    times: int
    at: float
    of: tuple[int, int]

    def value(self, turn: Turn) -> dict[str, Any]:
        what = {"message_id": turn.message_id, "updates": turn.updates, "times": self.times}
        return {**what, **attrs.asdict(self.last)}

    def reported(self, turn: Turn) -> dict[str, Any]:
        """With how long ago it was."""
        return {**self.value(turn), "seconds_ago": round(trio.current_time() - self.at, 1)}


def _in_words(value: Mapping[str, Any]) -> str:
    """What is known of a silence (`agent_silent`), for a person."""
    since = "its last word" if value["updates"] else "it got the message"
    known = "It has written nothing else in this turn, either."
    if value["failed_call"] is not None:
        known = _failing_in_words(value["failed_call"])
    elif value["last_line"] is not None:
        ago = value["last_line_seconds_ago"]
        known = f"{ago:.0f} s ago it wrote to its log: {cut(value['last_line'], WORDS_CHARS)}"
    return (
        f"The agent has said nothing for {value['silent_seconds']:.0f} s, since {since}. {known}\n"
        "Interrupt it, or wait: its turn is given up after another "
        f"{value['ends_in_seconds']:.0f} s of silence."
    )


def _failing_in_words(call: Mapping[str, Any]) -> str:
    """What an agent said of its calls that fail: what, how often, and when next."""
    often = "once" if call["times"] == 1 else f"{call['times']} times"
    known = f"Its call of the model failed {often}, last {call['seconds_ago']:.0f} s ago: {call['words']}"
    if call["attempt"] is not None and call["attempts"] is not None:
        known += f" (attempt {call['attempt']} of {call['attempts']})"
    known = known.removesuffix(".") + "."
    if call["next_seconds"] is not None:
        known += f" It tries again in {max(0.0, call['next_seconds'] - call['seconds_ago']):.0f} s."
    return known
