"""The parts of a loaded conversation, what it shows, and the checks that frame each change."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio

from supervisor.acp import mode_option, model_option
from supervisor.conversations.agent.context import Context
from supervisor.conversations.agent.kind import AgentKind
from supervisor.conversations.agent.lifecycle.lifecycle import AgentLifecycle
from supervisor.conversations.history import prompt
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.resource.resource import conversation_info, full_state
from supervisor.conversations.state.errors import (
    ToBeDeleted,
    UnknownConversation,
)
from supervisor.conversations.state.queue import TurnQueue
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.status import AgentPhase
from supervisor.conversations.turns.runner import Runner
from supervisor.events import (
    Message,
    Vocabulary,
)
from supervisor.journal.errors import JournalUnavailable
from supervisor.journal.log import Log

T = TypeVar("T")


class Core:
    """A loaded conversation without its operations. `runner` is the part with an agent, made on first use."""

    def __init__(self, context: Context, record: ConversationRecord, journal_log: Log) -> None:
        self.context = context
        self.record = record
        self.log = journal_log
        self.recorder = Recorder(journal_log, record)
        self.kind = context.kinds(record)
        self.queue = TurnQueue()
        self._live: Runner | None = None

    @property
    def id(self) -> str:
        """The conversation's id, in dashed form."""
        return self.record.id

    @property
    def vocabulary(self) -> Vocabulary:
        """The event vocabulary: which clients its events are written for."""
        return self.record.start.vocabulary

    @property
    def runner(self) -> Runner:
        """Its live part, made on first use: most loaded conversations are only read."""
        if self._live is None:
            self._live = Runner(self.context, self.recorder, self.queue, self.kind, owner=self)
        return self._live

    @property
    def agent(self) -> AgentLifecycle:
        """The lifecycle of its agent, over all incarnations."""
        return self.runner.agent

    @property
    def presence(self) -> AgentLifecycle | None:
        """The same, or None while no agent was needed; does not create the live part."""
        return None if self._live is None else self._live.agent

    @property
    def agent_phase(self) -> AgentPhase:
        """The phase of its agent; does not create the live part."""
        return AgentPhase.NONE if self._live is None else self._live.agent.phase

    @property
    def busy(self) -> bool:
        """Whether a turn is running or about to begin."""
        return self.queue.busy

    @property
    def waiting(self) -> bool:
        """Whether a permission request waits for a person."""
        return self._live is not None and self._live.waiting

    @property
    def cancelling(self) -> bool:
        """Whether a cancelled turn has not ended yet."""
        return self._live is not None and self._live.cancelling

    @property
    def queued(self) -> list[Message]:
        """The messages that wait, in order."""
        return [item.message for item in self.queue.waiting]

    @property
    def closed(self) -> bool:
        """Whether it was closed and all its tasks have ended."""
        return self._live is not None and self._live.closed

    def offered(self) -> dict[str, Any]:
        """The modes, models and options of the agent's open session, as the agent's answer to `session/new`
        has them; empty without one."""
        run = None if self._live is None else self._live.ready
        if run is None or run.session is None:
            return {}
        result = run.session.result
        options = result.config_options or ()
        found: dict[str, Any] = {}
        for name, member, option, older in (
            ("modes", "currentModeId", mode_option(options), result.modes),
            ("models", "currentModelId", model_option(options), result.models),
        ):
            if result.raw.get(name):
                # Where an option chooses it, the older block is as the agent sent it first.
                current = older and older.current if option is None else option.current
                found[name] = {**result.raw[name], **({member: current} if current else {})}
        if result.config_options is not None:
            found["configOptions"] = [option.raw for option in result.config_options]
        return found

    def accept(self) -> None:
        """Check that a change is allowed now. Raises ConversationClosing, JournalUnavailable."""
        self.refuse_closing()
        self.log.accept()

    def refuse_closing(self) -> None:
        """Raise ConversationClosing if so, or ToBeDeleted. Call it again after each wait before a change."""
        if self.id in self.context.deleted_later:
            raise ToBeDeleted(self.id)
        if self._live is not None:
            self._live.refuse_closing()

    def info(self) -> dict[str, Any]:
        """The present conversation resource, with nulls. It may not be durable yet."""
        return conversation_info(self.kind, self.context.launcher.data, hooks=self.context.hooks)

    def full_state(self) -> bytes:
        """The state snapshot as an event that is not journalled; see `info`."""
        return full_state(self.kind, self.context.launcher.data, hooks=self.context.hooks)

    async def durable_info(self) -> dict[str, Any]:
        """The conversation resource as it is on disk. Raises JournalError."""
        return await self._durable_view(partial(conversation_info, hooks=self.context.hooks))

    async def durable_state(self) -> bytes:
        """The state snapshot as it is on disk. Raises JournalError."""
        return await self._durable_view(partial(full_state, hooks=self.context.hooks))

    async def _durable_view(self, show: Callable[[AgentKind, Path], T]) -> T:
        """Return the present state once it is durable (milliseconds), or else the last durable one."""
        if self.recorder.unsaved and self.log.trouble is None:
            self.recorder.save(quiet=True)  # a read is not a change
        data = self.context.launcher.data
        shown = show(self.kind, data)
        if self.log.settled and not self.recorder.unsaved:
            await trio.lowlevel.checkpoint()
            return shown
        with trio.move_on_after(self.context.deadlines.shown):
            if await self.log.flushed_unless_troubled():
                return shown
        (stored,) = await self.context.journal.get_records([self.id])
        if stored is None:
            raise UnknownConversation(f"Conversation not found: {self.id}")
        return show(self.context.kinds(ConversationRecord.load(stored.record)), data)

    def not_taken(self, message: Message) -> list[tuple[int, str]]:
        """The parts of a message that the agent does not accept: (index, missing prompt capability). Empty
        before the agent's first start."""
        takes = self.record.reported.agent_state.get(prompt.TAKES)
        return [] if takes is None else prompt.not_taken(message, takes)

    async def durable(self) -> None:
        """Wait until everything recorded is on disk, for at most `Deadlines.durable`.

        Raises JournalUnavailable after that; the writes stay queued.
        """
        with trio.move_on_after(self.context.deadlines.durable) as limit:
            await self.log.flushed()
        if limit.cancelled_caught:
            trouble = self.log.trouble
            reason = "the disk does not answer" if trouble is None else trouble.reason
            raise JournalUnavailable(
                f"The message is queued, but it is not on the disk yet: {reason}. "
                "Ostler stores it as soon as it can. Do not send it again."
            )
