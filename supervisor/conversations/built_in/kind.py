"""The `AgentKind` of the built-in agent."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import attrs
import structlog
import trio

from supervisor.agents.catalog import Descriptor
from supervisor.agents.environment import concerning
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.kind import AgentKind, Live, Voice
from supervisor.conversations.agent.launch.launcher import Furnished, Launcher
from supervisor.conversations.agent.launch.plan import Plan
from supervisor.conversations.built_in import memory, requests
from supervisor.conversations.built_in.memory import RECALLED, recalled
from supervisor.conversations.built_in.voice import NativeEvents
from supervisor.conversations.history import inbox
from supervisor.conversations.history.prompt import Blocks
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.state.errors import AgentFailure, NotAccepted, NotPossible
from supervisor.conversations.state.queue import Queued, TurnQueue
from supervisor.conversations.state.secret_box import SecretBox
from supervisor.events import Vocabulary
from supervisor.journal.log import Log
from supervisor.settings.agent import AgentSettings, BuiltInSettings
from supervisor.settings.built_in import document_secrets, hidden, secrets_within, with_model
from supervisor.settings.exposure import REDACTED, replace_secrets

log = structlog.get_logger(__name__)


@attrs.frozen
class BuiltIn(AgentKind):
    """The built-in agent."""

    vocabulary: ClassVar[Vocabulary | None] = Vocabulary.EXTENDED
    asks_by_policy: ClassVar[bool] = True
    takes_servers_whole: ClassVar[bool] = True
    runs_hooks: ClassVar[bool] = True
    takes_changes: ClassVar[bool] = True
    starts_children: ClassVar[bool] = True
    sends_usage: ClassVar[bool] = True
    pauses: ClassVar[bool] = True

    @property
    def messages_in_a_run(self) -> float:
        return math.inf  # it counts its own steps

    def voice(self) -> Voice:
        return NativeEvents(self.record)

    # -- what clients see of it ---------------------------------------------------------------------------

    def shown(self) -> dict[str, Any]:
        record = self.record
        assert isinstance(record.agent, BuiltInSettings)
        servers = record.written_agent["mcp_config"]
        redacted = replace_secrets({"mcp_config": servers}, lambda _: REDACTED)
        return {**record.agent.shown, **redacted, **record.reported.native_states.get("agent", {})}

    def usage(self) -> dict[str, Any]:
        return self.record.reported.native_states.get("stats") or {"usage_to_metrics": {}}

    # -- what it is started and prompted with -------------------------------------------------------------

    def among(self, own: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
        return dict(own)

    async def furnish(
        self, launcher: Launcher, settings: AgentSettings, given: Mapping[str, str], own: Collection[str]
    ) -> Furnished:
        assert isinstance(settings, BuiltInSettings)
        record, data = self.record, launcher.data
        parts = await launcher.secret_box.open_parts(record)
        routing = {} if launcher.routing is None else await launcher.routing()
        # It gets only the conversation's secrets that concern it, not those for all agents.
        named = concerning(launcher.descriptor(record), own & given.keys(), launcher.catalog)
        has = {name: value for name, value in given.items() if name in named}
        made = requests.parameters(record, settings, has, routing, data, project_hooks=launcher.project_hooks)
        with suppress(OSError):  # leftovers are removed with the conversation at the latest
            await memory.drop_copies(data, record, launcher.forks)
        return Furnished(has, made, {*document_secrets(settings), *parts, *secrets_within(routing)})

    async def recall(self, plan: Plan, log: Log, voice: Voice) -> Plan:
        assert plan.own is not None
        assert isinstance(voice, NativeEvents)
        found = await recalled(log, self.record)
        voice.know(found.known)
        kept = {name: value for name, value in plan.own.items() if name not in RECALLED}
        return attrs.evolve(plan, own={**kept, **found.own})

    async def configure(self, run: Incarnation, change: Mapping[str, Any], seconds: float) -> None:
        await requests.request(run, requests.CONFIGURE, change, seconds)

    def prompted_with(self, item: Queued, before: str | None, enclosed: Blocks) -> dict[str, Any]:
        return requests.built_in_prompt(item, before, enclosed)

    def takes_messages(self, descriptor: Descriptor) -> bool:
        return descriptor.takes_messages

    async def send_mid_turn(self, run: Incarnation, item: Queued, enclosed: Blocks) -> None:
        given = requests.built_in_prompt(item, None, enclosed)
        await requests.request(run, requests.MESSAGE, given, math.inf)

    # -- runs ---------------------------------------------------------------------------------------------

    def ends_first(self, queue: TurnQueue) -> bool:
        return queue.ending and not queue.more and queue.turn is None  # else it continues after its step

    async def take_up_again(self, recorder: Recorder, queue: TurnQueue) -> bool:
        """Repeat the message if the agent reported nothing since, else continue without one. The message of a
        failed turn, which the agent may lack, comes before the waiting ones."""
        record = self.record
        seq = record.now.retry_seq
        again = None if seq is None else next(iter(await recorder.log.read(seq - 1, 1)), None)
        if queue.busy or record.now.retry_seq != seq:
            return True
        if again is not None and (queue.waiting or record.now.unfinished):
            if not any(item.seq == seq for item in queue.waiting):
                queue.waiting.insert(0, inbox.queued(again))
        elif not queue.waiting and record.now.unfinished:
            queue.waiting.append(inbox.resumption(record))
        return bool(queue.waiting)

    def resume_paused(self, queue: TurnQueue) -> None:
        if queue.turn is not None or (not queue.waiting and self.record.now.unfinished):
            # Paused, but its step or run has not ended yet: continue after that.
            queue.waiting.insert(0, inbox.resumption(self.record))

    async def pause(self, live: Live) -> None:
        """Ask the agent to stop after its current step. Its turn may end before."""
        run = live.ready
        if run is not None and run.usable and run.session is not None:
            with suppress(AgentFailure, NotAccepted):
                await requests.request(run, requests.PAUSE, {}, live.deadlines.option)

    # -- besides the turns ----------------------------------------------------------------------------------

    async def _request(
        self, live: Live, method: str, params: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Send a request that the agent answers with the help of a model."""
        async with live.at_hand() as run:
            return await requests.request(run, method, params or {}, live.deadlines.side_question)

    async def ask(self, live: Live, question: str) -> str:
        answer = await self._request(live, requests.ASK, {"question": question})
        return str(answer.get("response", ""))

    async def title(self, live: Live) -> str | None:
        title = (await self._request(live, requests.TITLE, requests.title_parameters(self.record))).get(
            "title"
        )
        return title if isinstance(title, str) else None

    async def navigate(self, live: Live, event_id: str | None, refuse: Callable[[], None]) -> bool:
        """Impossible for events that Ostler wrote, which the agent does not know."""
        if not self.record.now.remembers:
            return False

        async def move(run: Incarnation) -> None:
            await requests.request(run, requests.NAVIGATE, {"event_id": event_id}, live.deadlines.option)

        try:
            await live.move(move, refuse)
        except (NotAccepted, AgentFailure) as error:
            log.info("agent did not move to an event", conversation_id=self.record.id, error=str(error))
            return False
        return True

    async def fork(self, live: Live, conversation_id: str, leaf: str | None, *, asks: bool) -> str | None:
        """Copy the agent's memory. Impossible while it runs, or if it does not know the event."""
        record, queue = self.record, live.queue
        if queue.busy or not record.now.remembers:
            return None
        before = record.now.prompted_seq, record.now.turns
        try:
            await self._copy_memory(live, conversation_id, leaf)
        except (NotAccepted, AgentFailure, OSError) as error:
            log.info("agent did not fork its memory", conversation_id=record.id, error=str(error))
            return None
        if leaf is None and (live.queue.busy or before != (record.now.prompted_seq, record.now.turns)):
            await live.launcher.files.forget(conversation_id)
            return None
        return conversation_id

    async def _copy_memory(self, live: Live, conversation_id: str, leaf: str | None) -> None:
        record, data, forks = self.record, live.launcher.data, live.launcher.forks
        wanted = {"conversation_id": conversation_id, **({} if leaf is None else {"from_event_id": leaf})}
        params = {"cwd": record.start.working_dir, "mcpServers": [], "_meta": {"ostler": wanted}}
        forks.add(conversation_id)  # if the agent restarts, it must not remove the copy
        try:
            async with live.at_hand() as run:
                await requests.request(run, "session/fork", params, live.deadlines.load_session)
            await memory.move_memory(data, record.id, conversation_id)
        except BaseException:
            with trio.CancelScope(shield=True), suppress(OSError):
                await memory.drop_copy(data, record.id, conversation_id)
            raise
        finally:
            forks.discard(conversation_id)

    async def condense(self, live: Live) -> None:
        live.check_room()
        try:
            await self._request(live, requests.CONDENSE)
        except NotAccepted as error:
            raise NotPossible(f"Cannot condense conversation: {error}") from error

    async def load_plugin(self, live: Live, plugin_ref: str) -> None:
        live.check_room()
        await self._request(live, requests.LOAD_PLUGIN, {"plugin_ref": plugin_ref})

    async def with_model(self, box: SecretBox, llm: Mapping[str, Any]) -> Callable[[], None]:
        record = self.record
        opened = await box.open_settings(record.agent)
        assert isinstance(opened, BuiltInSettings)
        sealed = await box.seal_settings(with_model(opened, llm))

        def note() -> None:
            record.agent = sealed
            record.reported.native_states["agent"] = {
                **record.reported.native_states.get("agent", {}),
                "llm": hidden(llm),
            }

        return note

    def check_choice(self) -> None:
        raise NotAccepted(
            "The built-in agent has no models, modes and options of ACP. Use switch_llm or switch_profile "
            "for another model."
        )
