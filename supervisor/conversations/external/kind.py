"""The `AgentKind` of external agents, which speak plain ACP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final

import attrs
import structlog
import trio

from supervisor.acp import AcpError
from supervisor.acp.schema import text_block
from supervisor.conversations.agent.kind import AgentKind, Live
from supervisor.conversations.agent.opening import may_repeat
from supervisor.conversations.agent.side.side_session import ask, end_session, forked_session
from supervisor.conversations.history import inbox, prompt
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.recording.usage import USAGE_ID, stats
from supervisor.conversations.state.errors import AgentFailure, NotAccepted, NotPossible
from supervisor.conversations.state.queue import Queued, TurnQueue
from supervisor.conversations.state.secret_box import SecretBox
from supervisor.events import Message, MessageEvent, TextContent, new_event_id
from supervisor.settings.exposure import REDACTED, replace_secrets
from supervisor.settings.wire_aliases import settings_on_wire

log = structlog.get_logger(__name__)

SYSTEM_PROMPT: Final = "The external agent manages its own system prompt, model and tools."
"""Clients expect a system prompt as the first event, but external agents do not reveal theirs."""

NO_CONDENSER: Final = "Cannot condense conversation: No condenser configured"
OWN_MODELS: Final = (
    "An external agent has language models of its own. "
    "Use switch_acp_model to choose one of those that it offers."
)
NO_PLUGINS: Final = (
    "An external agent loads no plugins of this server. Configure plugins in the agent itself."
)
"""Why an external agent loads no plugins."""


@attrs.frozen
class External(AgentKind):
    """An external agent, which speaks plain ACP."""

    system_prompt: ClassVar[str | None] = SYSTEM_PROMPT

    def shown(self) -> dict[str, Any]:
        record = self.record
        settings = replace_secrets(record.written_agent, lambda _: REDACTED)
        wire = settings_on_wire(settings)
        return {
            "kind": "ACPAgent",
            "llm": {"model": record.reported.current_model or USAGE_ID, "usage_id": self._usage_id},
            "tools": [],
            "mcp_config": settings["mcp_config"],
            "include_default_tools": [],
            **{name: value for name, value in wire.items() if name.startswith("acp_")},
        }

    def usage(self) -> dict[str, Any]:
        return stats(self.record.reported.usage, self._usage_id)

    @property
    def _usage_id(self) -> str:
        return str(self.record.extra.get("usage_id") or USAGE_ID)

    async def take_up_again(self, recorder: Recorder, queue: TurnQueue) -> bool:
        """Repeat the message if it had no effect, else ask the agent to continue."""
        record = self.record
        if queue.waiting or queue.busy:
            return True
        if record.now.retry_seq is not None:
            stored = await recorder.log.read(record.now.retry_seq - 1, 1)
            if stored and not queue.waiting:
                queue.waiting.append(inbox.queued(stored[0]))
        elif record.now.unfinished:
            message = Message(role="user", content=(TextContent(text=prompt.CONTINUE),))
            event = MessageEvent(id=new_event_id(), source="environment", llm_message=message)
            seq = recorder.write([event])
            queue.waiting.append(Queued(seq, event.id, message, by_user=False))
        return bool(queue.waiting)

    async def ask(self, live: Live, question: str) -> str:
        record = self.record
        async with live.at_hand() as run:

            async def transcript() -> list[Mapping[str, Any]]:
                return [text_block(await live.transcript())] if record.now.prompted_seq >= 0 else []

            # A fork would have the open call, too, and might run it with the question.
            pending = live.calling and run.plan.descriptor.resumes_calls is not False
            return await ask(
                run,
                record.start.working_dir,
                live.deadlines,
                question=[text_block(prompt.SIDE_HEAD + question)],
                transcript=transcript,
                remembers=record.now.remembers and not self._may_repeat(live) and not pending,
            )

    async def fork(self, live: Live, conversation_id: str, leaf: str | None, *, asks: bool) -> str | None:
        """Possible only for the whole branch, and without waiting. The fork's agent process finds the session
        in shared or copied data."""
        record, launcher = self.record, live.launcher
        session_id = None
        if leaf is None or (leaf == record.leaf_event_id and not asks):
            session_id = await self._session(live)
        if session_id is None:
            await launcher.files.hand_down(
                record, launcher.descriptor(record), conversation_id, sessions=False
            )
            return None
        async with self._copying(live) as possible:
            complete = possible and await launcher.files.hand_down(
                record, launcher.descriptor(record), conversation_id, sessions=True
            )
        run = live.ready
        if run is not None and run.usable and run.plan.private:
            await end_session(run.connection, run.initialized, session_id, live.deadlines)
        if not complete:
            log.info("agent's sessions cannot be copied", conversation_id=record.id)
        return session_id if complete else None

    async def _session(self, live: Live) -> str | None:
        """Fork its session and close the fork, so that another process can restore it; return its id. None if
        that requires waiting for a turn or longer than `acp_startup_timeout` (for admission, for example), or
        if the session may contain more than is recorded."""
        record, queue = self.record, live.queue
        if self._in_use(live) or queue.waiting or self._may_repeat(live) or not record.reported.hands_over:
            return None
        before, session_id = record.now.prompted_seq, None
        try:
            with trio.move_on_after(record.agent.acp_startup_timeout):
                async with live.at_hand() as run:
                    # Check again: a start may result in a new session.
                    if not self._in_use(live):
                        async with forked_session(
                            run, record.start.working_dir, live.deadlines, keep=True
                        ) as side:
                            session_id = side.session_id
        except (AcpError, AgentFailure) as error:
            log.info("agent did not fork its session", conversation_id=record.id, error=str(error))
            return None
        return None if self._in_use(live) or record.now.prompted_seq != before else session_id

    def _may_repeat(self, live: Live) -> bool:
        return may_repeat(self.record, live.launcher.descriptor(self.record))

    def _in_use(self, live: Live) -> bool:
        """Whether it is busy, or has no memory that could be forked."""
        return live.queue.busy or not self.record.now.remembers

    @asynccontextmanager
    async def _copying(self, live: Live) -> AsyncIterator[bool]:
        """Yields whether its sessions can be copied while the block runs: those in a private data directory.
        If they are in a database, an idle agent hibernates first."""
        run = live.ready
        if not live.launcher.descriptor(self.record).sessions_at_rest or (
            run is not None and not run.plan.private
        ):
            yield True
            return
        async with live.at_rest() as resting:
            yield resting

    async def condense(self, live: Live) -> None:
        raise NotPossible(NO_CONDENSER)

    async def load_plugin(self, live: Live, plugin_ref: str) -> None:
        raise NotAccepted(NO_PLUGINS)

    async def with_model(self, box: SecretBox, llm: Mapping[str, Any]) -> Callable[[], None]:
        raise NotAccepted(OWN_MODELS)
