"""Hands one message of the queue to the agent: from the start of an agent for it to the end of its run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import trio

from supervisor.acp.schema import text_block
from supervisor.conversations.agent.kind import Live
from supervisor.conversations.history import inbox, prompt
from supervisor.conversations.history.prompt import Blocks, is_command
from supervisor.conversations.hooks.hooks import FEEDBACK, NOTHING, STOPS_MAX
from supervisor.conversations.mcp import mounting
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.state.queue import Queued
from supervisor.conversations.state.status import ExecutionStatus
from supervisor.conversations.turns.wiring import Parts
from supervisor.credentials.secret import CredentialsFailure
from supervisor.events import Message, MessageEvent, TextContent, new_event_id
from supervisor.reading.weight import LARGE_BYTES


class HandOver:
    """Takes messages from the queue, one at a time. `live`: the conversation, for its kind of agent;
    `note_session` is called before each prompt, when hooks of the session's end may be due."""

    def __init__(self, parts: Parts, live: Live, note_session: Callable[[], None]) -> None:
        shared = parts.shared
        self._live = live
        self._note_session = note_session
        self._context = shared.context
        self._kind = shared.kind
        self._recorder = shared.recorder
        self._record = shared.record
        self._queue = shared.queue
        self._publisher = shared.publisher
        self._hooks = parts.hooks
        self._agent = parts.agent
        self._turns = parts.turns
        self._prompting = parts.prompting
        self._starting: trio.CancelScope | None = None
        self._handing = trio.CancelScope()
        self._turns_before = 0

    def begin_run(self) -> None:
        """Count the messages of a run from now on."""
        self._turns_before = self._queue.turns

    def call_off(self) -> None:
        """Do not wait on for what the message waits for before it is handed over."""
        self._queue.called_off.set()
        self._handing.cancel()

    def cancel_start(self) -> None:
        """Cancel the start of an agent, or the hooks around a turn, for the message that is taken up."""
        if self._starting is not None:
            self._starting.cancel()

    def settle(self) -> None:
        """The message that was taken up has ended, with any outcome."""
        self._starting = None

    async def take(self, item: Queued) -> bool:
        """Take the first message of the queue to the end of its turn, or say why it waits on. Returns whether
        the agent was prompted. Raises JournalError. Cancellation leaves the turn open."""
        if is_command(item.message, prompt.MCP_COMMAND):
            await self._show_mcp(item)
            return False
        record = self._record
        if self._queue.turns - self._turns_before >= self._kind.messages_in_a_run:
            # The message stays queued, and the next run begins with it.
            self._turns.fail_before(_too_many_turns(record.start.max_iterations))
            return False
        # An interrupt cancels this scope: until the hand-over nothing of the message has reached the agent.
        with trio.CancelScope() as starting:
            self._starting = starting
            try:
                if not self._recorder.log.settled:
                    await self._recorder.log.flushed()  # an agent works on nothing that could be lost
                agent = await self._agent.ensure()
                # Hooks come after the start, since those of SessionStart run when the agent is ready.
                said = await self._hooks.before_prompt(item) if self._hooks.active else NOTHING
                self._note_session()
                if not (agent.usable or said.blocked or said.cancelled):
                    agent = await self._agent.ensure()  # it ended while hooks ran
                # A fork, a move and a lost session are one case: `memory_lost` stays until the agent has done
                # something in a session that got the transcript.
                transcript = await self._live.transcript() if record.now.memory_lost is not None else None
                enclosed = await inbox.enclosed(self._recorder.log, item)
                takes = record.reported.agent_state.get(prompt.TAKES, ())
                content = [] if item.resumes else await _blocks(item, takes, enclosed)
            except AgentFailure as failure:
                self._turns.fail_before(failure)
                return False
        self._starting = None
        if self._paused_before and not (starting.cancelled_caught or self._queue.interrupted):
            self._publisher.run_closed(ExecutionStatus.PAUSED)  # the message stays queued, for the next run
            return False
        if starting.cancelled_caught or self._queue.interrupted or said.cancelled:
            self._publisher.run_paused()  # the message stays queued: nothing of it reached the agent
            return False
        if said.blocked:
            self._turns.blocked(item)
            return False
        # From here on the message counts as handed over: a server that dies now reports it, and does not
        # prompt it again.
        turn = self._turns.begin(item)
        # Durable before the prompt is sent, or a crash could send it twice.
        await self._handed_over()
        if self._paused_before and not self._queue.interrupted:
            self._turns.finish(turn, "cancelled")  # a run hands it over again
            return False
        if not item.resumes and (lacking := prompt.not_taken(item.message, takes, enclosed)):
            self._recorder.write([self._recorder.state("prompt_not_taken", _not_taken(item, lacking))])
        if transcript is not None:
            content = [text_block(transcript), *content]
        if said.context:
            content = [*content, text_block(said.context)]
        self._hooks.prompted(item)
        own = self._kind.prompted_with(item, transcript, enclosed)
        await self._prompting.prompt(agent, turn, content, own)
        if self._turns.held is not None:
            await self._end_run()
        return True

    @property
    def _paused_before(self) -> bool:
        """Whether a pause came before the prompt was sent, so that the agent would ignore it."""
        return self._kind.pauses and self._record.now.execution_status is ExecutionStatus.PAUSED

    async def _end_run(self) -> None:
        """End a run that the agent has finished, after its hooks. A Stop hook may send the agent back."""
        # A run that hooks hold is not over: they come before `finished` is recorded, since clients of the
        # wire stop listening there.
        with trio.CancelScope() as ending:
            self._starting = ending
            await self._hooks.calls_settled()
            # With another message waiting the agent does not stop.
            said = NOTHING if self._queue.more else await self._hooks.at_stop()
        self._starting = None
        if self._queue.interrupted or ending.cancelled_caught or said.cancelled:
            self._queue.interrupt()
        elif said.blocked and self._hooks.stops >= STOPS_MAX:
            # A hook that never lets the agent finish would cost money without end.
            self._turns.held = None
            self._publisher.run_failed(_too_many_stops())
            return
        elif said.blocked:
            self._hooks.stops += 1
            message = Message(role="user", content=(TextContent(text=f"{FEEDBACK} {said.context}"),))
            event = MessageEvent(id=new_event_id(), source="environment", llm_message=message)
            seq = self._recorder.write([event])
            self._queue.waiting.append(Queued(seq, event.id, message, by_user=False))
        self._turns.end_held()

    async def _handed_over(self) -> None:
        """Wait until the hand-over of the message is durable, or the message is called off."""
        with trio.CancelScope() as self._handing:  # a task that waits for it would cost two passes of Trio's
            if not self._queue.called_off.is_set():
                await self._recorder.log.flushed()

    async def _show_mcp(self, item: Queued) -> None:
        """Answer `/mcp` without the agent; none is started."""
        try:
            now = await self._context.launcher.mounting(self._record)
        except (CredentialsFailure, OSError) as error:
            text = f"Cannot read the configuration: {error}"
        else:
            run = self._agent.ready
            running = None if run is None or not run.usable else (run.plan.mounting, run.mounted)
            text = mounting.overview(running, now)
        self._turns.answered(item, text)


async def _blocks(item: Queued, takes: Sequence[str], enclosed: Blocks) -> list[Mapping[str, Any]]:
    """The blocks of its prompt; in a thread where they take a while: pictures are decoded, to check them.

    Cancellation abandons the thread.
    """
    work = partial(prompt.blocks, item.message, takes, enclosed)
    if item.size <= LARGE_BYTES:
        return work()
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)


def _not_taken(item: Queued, lacking: list[tuple[int, str]]) -> dict[str, Any]:
    parts = [{"index": index, "capability": capability} for index, capability in lacking]
    return {"message_id": item.event_id, "parts": parts}


def _too_many_turns(most: int) -> AgentFailure:
    return AgentFailure(
        "MaxIterationsReached",
        f"The run took up {most} messages, as many as its max_iterations allows; more wait. "
        "Run the conversation again to continue with them.",
        retryable=True,
        user_action="retry",
        kind="config",
    )


def _too_many_stops() -> AgentFailure:
    return AgentFailure(
        "MaxIterationsReached",
        f"Stop hooks sent the agent back {STOPS_MAX} times in a row, and still do not let it finish. "
        "Send a message to continue.",
        user_action="retry",
        kind="config",
    )
