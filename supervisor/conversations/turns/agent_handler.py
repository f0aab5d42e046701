"""Handles the agent's messages: updates become events in order of arrival, requests are answered.

The connection's reader task makes all these calls, and handles the prompt's answer (`prompting`) in the same
order. The calls are synchronous, so no other task runs between two of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import attrs
import trio

from supervisor.acp import (
    AgentMessageChunk,
    AgentThoughtChunk,
    ConfigOptionsUpdate,
    CurrentMode,
    Oversize,
    Repeats,
    RpcError,
    ToolCall,
    ToolCallUpdate,
    parse_update,
)
from supervisor.acp.repeats import RepeatLimiter
from supervisor.acp.schema import METHODS, NAME_CHARS, Update, cut
from supervisor.acp.schema.extension import PREFIX
from supervisor.acp.schema.failing import CallFailure, failure_in, failure_in_update
from supervisor.conversations.agent.context import Children
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.kind import NotRecorded, Unreadable
from supervisor.conversations.agent.lifecycle.lifecycle import AgentLifecycle
from supervisor.conversations.agent.shared import Shared
from supervisor.conversations.agent.side.discarding import at_once
from supervisor.conversations.agent.side.side_session import refuse
from supervisor.conversations.recording.bounds.large import Relieved, relieve
from supervisor.conversations.recording.effects import Effect, Recorded
from supervisor.conversations.recording.tool_calls.rejections import given_of
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.state.state import MessagesTaken, Worked
from supervisor.conversations.state.turn import FileReader
from supervisor.conversations.turns.debouncer import Debouncer
from supervisor.conversations.turns.permissions import CHECKED, RUN, Permissions
from supervisor.conversations.turns.silence import SilenceWatch
from supervisor.conversations.turns.turns import Turns
from supervisor.journal.errors import JournalError
from supervisor.patience import ended_by

PROTOCOL: Final = "$/"
"""The prefix of notifications about the protocol itself, such as `$/cancel_request`."""

START_CHILD: Final = "_ostler/start_child"

READ: Final = "fs/read_text_file"

WORK: Final = frozenset({AgentMessageChunk, AgentThoughtChunk, ToolCall, ToolCallUpdate})
"""Updates that show that an agent worked on a prompt; commands and usage come at any time."""


class AgentHandler:
    """The connection's `Handler`, for every incarnation of a conversation's agent."""

    def __init__(
        self,
        shared: Shared,
        turns: Turns,
        lifecycle: AgentLifecycle,
        permissions: Permissions,
        silence: SilenceWatch,
        held: Debouncer,
        children: Children | None,
    ) -> None:
        self._recorder = shared.recorder
        self._record = shared.record
        self._translator = shared.translator
        self._turns = turns
        self._lifecycle = lifecycle
        self._permissions = permissions
        self._silence = silence
        self._held = held
        self._queue = shared.queue
        self._journal = shared.context.journal
        self._voice = shared.voice
        self._children = children
        self._effects: list[Effect] = []
        """The results that `flush` will write."""
        self._heard = False
        """Whether the agent gave a sign of life since the last `flush`."""
        self._refused = RepeatLimiter("refused", lambda _: None)
        self._logger = shared.recorder.logger

    @property
    def _replaying(self) -> bool:
        agent = self._lifecycle.current
        return agent is not None and agent.replaying

    def prepare(self, method: str, params: Any) -> Sequence[Any]:
        """Cut large messages. Runs in a worker thread, while this agent's reader waits for it."""
        return relieve(method, params, self._recorder.mask, self._translator.originals.apart())

    def _kept(self, params: Any) -> Any:
        """Return the parameters; their attachments are on the way into the journal. Raises JournalError."""
        if isinstance(params, Relieved):
            if not self._replaying:
                # What came before, first: attachments are stored, too, and the order is that of arrival.
                self._write()
                self._translator.originals.charge(sum(len(each.body) for each in params.attachments))
                self._recorder.emit(params.attachments)
            return params.params
        return params

    def notification(self, method: str, params: Any) -> None:
        """Handle an update, or an extension notification of the built-in agent, in order of arrival. Other
        notifications are recorded unchanged.

        Raises JournalError.
        """
        try:
            if method == "session/update":
                self._take_update(params)
            elif method.startswith(PREFIX):
                self._write()
                self._take_native(method, params)
            elif method not in METHODS and not method.startswith(PROTOCOL):
                self._take_other(method, self._kept(params))
        except JournalError:
            raise
        except Exception as error:  # noqa: BLE001 - logged there
            self._break_down(error)

    def _break_down(self, error: Exception) -> None:
        """An internal error over one update ends the turn with a failure, not the connection."""
        self._logger.error("update failed", exc_info=error)
        try:
            self._write()  # what came before it
        except JournalError:
            raise
        except Exception:
            self._logger.exception("updates before it failed, too")
        if self._queue.turn is not None:
            self._turns.break_down(error)
        if self._lifecycle.current is not None:
            self._lifecycle.drop(self._lifecycle.current)

    def _take_native(self, method: str, params: Any) -> None:
        """Record an extension notification of the built-in agent (docs/built-in-agent.md).

        The first few rejected ones are logged. An unreadable event fails the turn, since the log would lack
        what happened.
        """
        agent = self._lifecycle.current
        if agent is None:
            return
        try:
            heard = self._voice.take(
                method, params, None if agent.session is None else agent.session.session_id
            )
        except Unreadable as error:
            self._logger.warning("agent sent an event that cannot be read", reason=str(error))
            if self._queue.turn is not None:
                self._turns.fail(self._queue.turn, _unreadable(error))
            self._lifecycle.drop(agent)
            return
        except (ValueError, NotRecorded) as error:
            self._refuse(method, str(error))
            return
        self._silence.touch()
        turn = self._queue.turn
        if turn is not None and heard.work:
            turn.updates += 1
            self._note_use()
        if heard.has_messages and self._record.now.joined:
            self._recorder.apply(MessagesTaken())
        if heard.joins is not None:
            self._turns.join(heard.joins)
        if heard.at_once:
            self._recorder.write([each for each in heard.effects if isinstance(each, Recorded)])
            return
        self._recorder.emit(heard.effects)
        self._recorder.unsaved = self._recorder.unsaved or heard.changed

    def _note_use(self) -> None:
        """The agent works on a message: note that its session has something to remember."""
        now = self._record.now
        if now.session_used and now.retry_seq is None:
            return
        if not now.session_used:
            self._write()
        self._recorder.apply(Worked())
        if not now.session_used:
            self._recorder.save()

    def _refuse(self, method: str, reason: str) -> None:
        if self._refused.should_report(0, trio.current_time()):
            self._logger.warning("refused a native event", method=method[:NAME_CHARS], reason=reason)

    def _take_update(self, params: Any) -> None:
        agent = self._lifecycle.current
        # What a side session says is not part of the conversation.
        side = None if agent is None else agent.side_of(_plain(params))
        if side is not None:
            side.take(_plain(params))
            return
        session_id, update = parse_update(params if type(params) is dict else self._kept(params))
        ready = self._lifecycle.ready
        if ready is not None and ready.session is not None and session_id != ready.session.session_id:
            return  # a sub-session that the agent opened itself
        if agent is not None and agent.replaying:
            self._heard = True
            return  # what the journal already holds
        self._recorder.updates.add(update.raw)
        failure = failure_in_update(update)
        # A thought that reports a failed call is the agent's program speaking, and no work of its model.
        if type(update) in WORK and (failure is None or type(update) is not AgentThoughtChunk):
            self._heard = True
            if not self._voice.by_updates:
                return
            turn = self._queue.turn
            if turn is not None:
                turn.updates += 1
                self._note_use()
            self._note_failure(failure)
        else:
            self._note_failure(failure)
            # An agent that repeats a failing call of its model says much and does nothing.
            self._heard = self._heard or not self._silence.failing(self._queue.turn)
            self._note_offer(agent, update)
        self._effects += self._translator.update(update)

    def _note_failure(self, failure: CallFailure | None) -> None:
        """The agent says that a call of its model failed."""
        if failure is not None and self._queue.turn is not None:
            self._effects += self._silence.failed(self._queue.turn, failure)

    def _note_offer(self, agent: Incarnation | None, update: Update) -> None:
        """Keep the session's options and mode, which the agent has changed."""
        if agent is not None and agent.session is not None:
            result, modes = agent.session.result, agent.session.result.modes
            if type(update) is ConfigOptionsUpdate:
                result = attrs.evolve(result, config_options=update.options)
                agent.session = attrs.evolve(agent.session, result=result)
            elif type(update) is CurrentMode and modes is not None:
                modes = attrs.evolve(modes, current=update.mode_id)
                agent.session = attrs.evolve(agent.session, result=attrs.evolve(result, modes=modes))

    def _take_other(self, method: str, params: Any) -> None:
        """Record an unknown notification, unless it is about another session than the conversation's, or part
        of a replay."""
        agent = self._lifecycle.current
        if not self._voice.by_updates or agent is None or agent.replaying:
            return
        session_id = params.get("sessionId") if isinstance(params, dict) else None
        if session_id is not None and (agent.session is None or session_id != agent.session.session_id):
            return
        self._note_failure(failure_in(method, params))
        self._effects += self._translator.notification(cut(method, NAME_CHARS), params)

    def flush(self) -> None:
        """Write the results of the updates since the last call as one batch, which is cheaper.

        Raises JournalError.
        """
        if self._heard:
            self._heard = False
            self._silence.touch()
            if self._translator.holding or self._queue.turn is None:
                self._held.note()
        try:
            self._write()
            self._recorder.updates.settle()
        except JournalError:
            raise
        except Exception as error:  # noqa: BLE001 - logged there
            self._break_down(error)

    def _write(self) -> None:
        if self._effects:
            effects, self._effects = self._effects, []
            self._recorder.emit(effects)

    def request(self, method: str, params: Any) -> Awaitable[Any]:
        """Handle a request in order among the updates; a separate task answers it.

        Raises RpcError for a method that is not offered, JournalError.
        """
        if self._lifecycle.side_of(_plain(params)) is not None:
            refused = refuse(method, _plain(params))
            if refused is not None:
                return at_once(refused)
        elif method == "session/request_permission":
            return self._permissions.ask(self._kept(params))
        run = self._lifecycle.current
        if method == START_CHILD and self._children is not None and self._children.start is not None:
            return self._children.start(self._record.id, _plain(params))
        if run is not None and run.services.serves(method):
            turn = self._queue.turn
            if method == READ and turn is not None and turn.reads is not None:
                return self._read(run, turn.reads, params)
            # What a person has rejected must not run when the agent asks Ostler to run it.
            if method in CHECKED and isinstance(params, Mapping):
                self._compare(method, params)
            return run.services.handle(method, params)
        raise RpcError.method_not_found(method)

    async def _read(self, run: Incarnation, reads: FileReader, params: Any) -> Any:
        """Read a file from the editor that sent the running message, or else from the disk."""
        asked = params if isinstance(params, Mapping) else {}
        run.plan.jail.locate(str(asked.get("path")))  # the workspace is the limit for both
        content = await reads(asked)
        return content if content is not None else await run.services.handle(READ, params)

    def _compare(self, method: str, params: Mapping[str, Any]) -> None:
        """Refuse a rejected command or file, and use a command as the input of a call that has none."""
        inputless = method == RUN and self._translator.inputless is not None
        given = given_of(params) if inputless or self._permissions.refuses else None
        if given is not None:
            given = self._recorder.mask.value(given)
            self._permissions.check(method, given)
            if inputless:
                given.pop("path", None)
                self._recorder.emit(self._translator.runs(given))

    def non_protocol_output(self, line: bytes) -> None:
        """Log a line that is not a message; only the first few are logged."""
        self._logger.info("agent wrote a line that is not a message", line=line[:200])

    def oversize(self, frame: Oversize) -> None:
        """Report to the conversation that a message over a limit was dropped.

        Raises JournalError.
        """
        self._logger.warning(
            "agent sent a message that is too large",
            size=frame.size,
            reason=frame.reason,
        )
        value = {"kind": "oversize_frame", "size": frame.size, "method": frame.method}
        if frame.reason is not None:
            value["reason"] = frame.reason
        self._recorder.emit(self._translator.state("acp_dropped", value))

    def repeated(self, counted: Repeats) -> None:
        """Report the count of repeated occurrences; dropped messages are reported to the conversation,
        too."""
        self._logger.info(
            "agent repeated itself",
            what=counted.what,
            count=counted.count,
            bytes=counted.size,
        )
        if counted.what == "oversize":
            value = {"kind": "oversize_frames", "count": counted.count, "size": counted.size}
            with suppress(JournalError):  # at the end of a connection there may be none any more
                self._recorder.emit(self._translator.state("acp_dropped", value))

    async def backpressure(self) -> None:
        """Wait while the journal is behind, so that the pipe blocks the agent (backpressure).

        While the journal is not writable at all, a working agent is blocked immediately, unless its turn is
        cancelled: then Ostler keeps reading for its answer.

        Raises JournalError. Cancellation changes nothing. It is no checkpoint if there is no need to wait:
        the next read is one.
        """
        journal_log = self._recorder.log
        if journal_log.roomy:
            return
        await journal_log.room()
        while self._at_work and journal_log.trouble is not None:
            async with ended_by(self._queue.called_off.wait):
                await self._journal.writable()
            self._silence.touch()  # blocked time is not silence

    @property
    def _at_work(self) -> bool:
        turn = self._queue.turn
        return turn is not None and not turn.cancelling


def _unreadable(error: Unreadable) -> AgentFailure:
    return AgentFailure(
        "AgentEventUnreadable",
        f"The agent sent something that Ostler cannot record: {error}. What it did is not known here. "
        "Send a message to continue.",
        kind="internal",
        retryable=True,
        user_action="retry",
    )


def _plain(params: Any) -> Any:
    """The parameters without their attachments."""
    return params.params if isinstance(params, Relieved) else params
