"""The supervisor: owns the nursery of all conversations of a server."""

from __future__ import annotations

import os
import sys
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import attrs
import orjson
import structlog
import trio

from supervisor.agents.containment.containment import containment_level, kill_agents
from supervisor.agents.containment.marker import take_snapshot
from supervisor.agents.restart import RestartPolicy
from supervisor.conversations.agent.admission import DEFAULT_SPARES, Admission, Limits, Places
from supervisor.conversations.agent.context import Context
from supervisor.conversations.agent.warm.pool import Spares
from supervisor.conversations.kinds import kind_of
from supervisor.conversations.recording.bounds.attachments import Allowance
from supervisor.conversations.resource.resource import Listed
from supervisor.conversations.state.counters import Counters
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import ConversationClosing, InvalidStart, UnknownConversation
from supervisor.conversations.state.record import ConversationRecord, Start
from supervisor.conversations.state.secret_box import SecretBox, split_secrets
from supervisor.conversations.state.start import StartRequest, choose_vocabulary
from supervisor.conversations.state.status import LIVE_STATUSES, AgentPhase
from supervisor.events import Message, TextContent, Vocabulary, timestamp_now
from supervisor.hooks.config import HOOK_CONFIG, HookSource
from supervisor.hooks.project import read_project_hooks
from supervisor.journal import (
    AlreadyExists,
    Journal,
    JournalError,
    JournalUnavailable,
    Listing,
    LogDeleted,
)
from supervisor.journal import UnknownConversation as NotInJournal
from supervisor.reading.shapes import as_json
from supervisor.settings.agent import AgentSettings

if TYPE_CHECKING:
    from supervisor.acp import TraceLine
    from supervisor.conversations.agent.launch import Launcher
    from supervisor.conversations.agent.side.model_discovery import ModelDiscovery
    from supervisor.conversations.agent.warm.fork_parent import ForkParent
    from supervisor.conversations.agent.warm.process import Spare
    from supervisor.conversations.children import Worktrees
    from supervisor.conversations.conversation import Conversation
    from supervisor.conversations.forking import ForkRequest
    from supervisor.conversations.views import AgentView, Figures, SpareView

log = structlog.get_logger(__name__)

NOT_LISTED: Final = frozenset({AgentPhase.NONE, AgentPhase.STOPPED, AgentPhase.EXITED})
"""Phases of agents that are not listed: no process, no waiting start, no fault."""

RECENT_MAX: Final = 256
"""Idle conversations kept loaded, the most recently used ones.

Each takes some kilobytes, and a client polls its own every few seconds.
"""

DRAIN_LOOK_SECONDS: Final = 0.05
"""Seconds between two checks for running turns while draining."""

DROP_SECONDS: Final = 5.0
"""Seconds for removing the worktree of a child that was not created: the server's stop may wait for it. After
that, the rest stays."""

RECOVER_PAUSE_SECONDS: Final = 1.0
"""Seconds before the recovery is retried, so that a flapping journal does not cause a busy loop."""

SHUTDOWN_SECONDS: Final = 8.0
"""Seconds for stopping all conversations; the rest is then cancelled without recording cancelled turns."""

MACHINERY: Final = (
    "supervisor.conversations.built_in.kind",
    "supervisor.conversations.conversation",
    "supervisor.conversations.external.kind",
    "supervisor.conversations.forking",
    "supervisor.conversations.resource.resource",
)
"""Modules that a server without conversations does not load; they import a third of all modules."""


async def _close(conversation: Conversation) -> None:
    """Close one of many conversations: a fault with one must not keep the others from closing."""
    try:
        await conversation.close(leaving=True)
    except Exception:
        log.exception("conversation not closed in order", conversation_id=conversation.id)


class Supervisor:
    """The conversations of one server: loaded on demand, kept while they are active."""

    def __init__(
        self,
        context: Context,
        default_agent: Callable[[], Awaitable[AgentSettings]],
        forced_vocabulary: Vocabulary | None = None,
        hooks: HookSource = HookSource.REQUEST,
    ) -> None:
        self._hooks = hooks
        self._context = context
        self._default_agent = default_agent
        self._forced_vocabulary = forced_vocabulary
        self._loaded: WeakValueDictionary[str, Conversation] = WeakValueDictionary()
        self._recent: OrderedDict[str, Conversation] = OrderedDict()
        self._listed = Listed()
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        self._used: Callable[[Conversation], None] | None = None
        self._models: ModelDiscovery | None = None
        self._hurried = trio.Event()
        self._killing = trio.Event()
        self._machinery = False
        self._loading_machinery = trio.Lock()
        self._worktrees: Callable[[str], Worktrees] | None = None
        context.children.start = self._start_for_agent

    async def prepare(self) -> None:
        """Import what conversations need; otherwise the first request for a conversation waits for it.

        Cancellation waits for the end of the import.
        """
        if self._machinery:
            return
        async with self._loading_machinery:
            if any(name not in sys.modules for name in MACHINERY):
                # In a thread: it takes a tenth of a second.
                await trio.to_thread.run_sync(lambda: [import_module(name) for name in MACHINERY])
            self._machinery = True

    def _lock(self, conversation_id: str) -> trio.Lock:
        lock = self._locks.get(conversation_id)
        if lock is None:
            lock = self._locks[conversation_id] = trio.Lock()
        return lock

    async def create(self, request: StartRequest) -> tuple[Conversation, bool]:
        """Create a conversation, or find the one with the given id.

        Returns the conversation, and whether it is new. For an existing one the rest of the request is
        ignored.

        Raises InvalidStart, and AtCapacity where there is a first message; then nothing is created. Raises
        JournalUnavailable, which says whether it is.
        """
        await self.prepare()
        from supervisor.conversations.conversation import Conversation

        conversation_id = request.conversation_id or str(uuid.uuid4())
        async with self._lock(conversation_id):
            try:
                return await self._get(conversation_id), False
            except UnknownConversation:
                pass
            if request.initial_message is not None:
                self._context.admission.check()
            parent = await self._parent(request)
            agent = request.agent if request.agent is not None else await self._default_agent()
            now = timestamp_now()
            values, lookups = split_secrets(request.secrets)
            record = ConversationRecord(
                id=conversation_id,
                start=Start(
                    working_dir=_absolute(request.working_dir),
                    created_at=now,
                    vocabulary=choose_vocabulary(request, self._forced_vocabulary),
                    max_iterations=request.max_iterations,
                    stuck_detection=request.stuck_detection,
                    parent_conversation_id=request.parent_conversation_id,
                    launched_agent_profile=request.launched_agent_profile,
                    mcp_only=None if request.mcp_only is None else list(request.mcp_only),
                ),
                updated_at=now,
                agent=await self._context.secret_box.seal_settings(agent),
                title=request.title,
                autotitle=request.autotitle,
                tags=dict(request.tags),
                confirmation_policy=dict(request.confirmation_policy),
                security_analyzer=request.security_analyzer,
                heedless=request.heedless,
                secrets=await self._context.secret_box.seal(values),
                lookups=await self._context.secret_box.seal_lookups(lookups),
                extra=await self._with_hooks(request),
            )
            await self._context.secret_box.seal_parts(record)
            record.secrets, record.lookups = record.allowed(record.secrets), record.allowed(record.lookups)
            descriptor = self._context.launcher.descriptor(record)
            record.start = attrs.evolve(
                record.start,
                vocabulary=self._context.kinds(record).vocabulary or record.start.vocabulary,
                preset_command=tuple(agent.acp_command) == descriptor.command,
            )
            try:
                journal_log = await self._context.journal.create(
                    conversation_id,
                    record.dump(),
                    status=record.now.execution_status,
                    title=record.title,
                    created_at=now,
                    updated_at=now,
                    parent_id=record.start.parent_conversation_id,
                )
            except AlreadyExists:
                return await self._get(conversation_id), False
            conversation = Conversation(self._context, record, journal_log)
            self._keep(conversation)
        if parent is not None:
            await parent.add_child(conversation_id, by_agent=request.by_agent)
        if request.initial_message is not None:
            try:
                await conversation.begin(request.initial_message)
            except JournalUnavailable as error:
                raise JournalUnavailable(f"Conversation {conversation_id} is created. {error}") from error
        return conversation, True

    async def _with_hooks(self, request: StartRequest) -> dict[str, Any]:
        """The fields that are echoed, with the hooks that the conversation will run. A project's file is read
        now, before an agent works there."""
        extra = dict(request.extra)
        if self._hooks is HookSource.OFF:
            extra.pop(HOOK_CONFIG, None)
        elif self._hooks is HookSource.PROJECT and extra.get(HOOK_CONFIG) is None:
            found = await read_project_hooks(_absolute(request.working_dir))
            if found is not None:
                extra[HOOK_CONFIG] = as_json(found)
        return extra

    async def fork(self, source_id: str, request: ForkRequest) -> Conversation:
        """Make a conversation that begins with the events of another one; idle. See `forking`.

        Raises UnknownConversation, UnknownEvent, ConversationExists, JournalUnavailable, JournalError.
        """
        source = await self.get(source_id)
        source.accept()
        from supervisor.conversations.forking import fork, taken

        conversation_id = request.conversation_id or str(uuid.uuid4())
        if conversation_id == source_id:
            raise taken(conversation_id)
        async with self._lock(conversation_id):
            try:
                await self._get(conversation_id)
            except UnknownConversation:
                pass
            else:
                raise taken(conversation_id)
            try:
                await fork(self._context, source, conversation_id, request)
            except NotInJournal as error:
                raise UnknownConversation(f"Conversation not found: {source_id}") from error
            return await self._get(conversation_id)

    async def start_child(
        self,
        parent_id: str,
        task: str,
        *,
        title: str | None,
        worktree: Worktrees | None,
        by_agent: bool = False,
    ) -> Conversation:
        """Start a conversation with the parent's agent and settings on a task.

        `worktree`: makes one of the parent's workspace; where it makes none, both share the workspace. It
        stays when the conversation is deleted, and is removed where none comes of it.

        Raises UnknownConversation, AtCapacity, JournalUnavailable.
        """
        parent = await self.get(parent_id)
        # Check before anything is made, so that a refusal leaves nothing behind.
        parent.accept()
        self._context.admission.check()
        child_id = str(uuid.uuid4())
        place = None if worktree is None else await worktree.make(child_id)
        try:
            return await self._start_child(parent, child_id, place, task, title, by_agent=by_agent)
        except BaseException:
            if worktree is not None and place is not None:
                with trio.move_on_after(DROP_SECONDS, shield=True), suppress(JournalError):
                    (stored,) = await self._context.journal.get_records([child_id])
                    if stored is None:
                        await worktree.drop(child_id)
            raise

    async def _start_child(
        self,
        parent: Conversation,
        child_id: str,
        place: Path | None,
        task: str,
        title: str | None,
        *,
        by_agent: bool,
    ) -> Conversation:
        record, box = parent.record, self._context.secret_box
        await box.open_parts(record)
        request = StartRequest(
            working_dir=record.start.working_dir if place is None else str(place),
            conversation_id=child_id,
            agent=await box.open_settings(record.agent),
            spelled_out=True,
            event_vocabulary=record.start.vocabulary,
            initial_message=Message(role="user", content=(TextContent(text=task),)),
            confirmation_policy=dict(record.confirmation_policy),
            security_analyzer=record.security_analyzer,
            max_iterations=record.start.max_iterations,
            stuck_detection=record.start.stuck_detection,
            heedless=record.heedless,
            tags=dict(record.tags),
            secrets={**await box.open(record.secrets), **await box.open_lookups(record.lookups)},
            title=title,
            parent_conversation_id=parent.id,
            by_agent=by_agent,
            launched_agent_profile=record.start.launched_agent_profile,
            mcp_only=None if record.start.mcp_only is None else tuple(record.start.mcp_only),
            extra=dict(record.extra),
        )
        parent.accept()  # it may have begun to close meanwhile
        child, _ = await self.create(request)
        return child

    def make_worktrees(self, of: Callable[[str], Worktrees]) -> None:
        """Set the factory of worktrees for children that agents start; it takes the parent's id."""
        self._worktrees = of

    async def _start_for_agent(self, parent_id: str, params: Any) -> dict[str, Any]:
        from supervisor.conversations.children import start_for_agent

        worktree = None if self._worktrees is None else self._worktrees(parent_id)
        return await start_for_agent(self, parent_id, params, worktree)

    async def models(
        self, agent: AgentSettings, secrets: Mapping[str, str], *, refresh: bool = False
    ) -> dict[str, Any]:
        """The models that an agent offers, as clients read them; see `ModelDiscovery.models`."""
        return await self._discovery().models(agent, secrets, refresh=refresh)

    async def try_model(self, llm: Mapping[str, Any]) -> dict[str, Any]:
        """Whether a language model answers, as clients read it; see `ModelDiscovery.try_model`."""
        return await self._discovery().try_model(llm)

    def _discovery(self) -> ModelDiscovery:
        if self._models is None:
            from supervisor.conversations.agent.side.model_discovery import ModelDiscovery

            self._models = ModelDiscovery(self._context)
        return self._models

    async def _parent(self, request: StartRequest) -> Conversation | None:
        if request.parent_conversation_id is None:
            return None
        try:
            return await self.get(request.parent_conversation_id)
        except UnknownConversation as error:
            raise InvalidStart(str(error), ("parent_conversation_id",)) from error

    async def get(self, conversation_id: str) -> Conversation:
        """Return the conversation with this (dashed) id. Raises UnknownConversation."""
        loaded = self._loaded.get(conversation_id)
        if loaded is not None:
            self._keep(loaded)
            return loaded
        async with self._lock(conversation_id):
            return await self._get(conversation_id)

    async def _get(self, conversation_id: str) -> Conversation:
        loaded = self._loaded.get(conversation_id)
        if loaded is not None:
            return loaded
        try:
            journal_log = await self._context.journal.log(conversation_id)
            with trio.move_on_after(self._context.deadlines.durable):
                await journal_log.flushed()  # the record on its way to the file counts
            if not journal_log.settled:
                journal_log.accept()
                raise JournalUnavailable("The conversation is still being written. Try again later.")
        except (NotInJournal, LogDeleted) as error:
            raise UnknownConversation(f"Conversation not found: {conversation_id}") from error
        stored = (await self._context.journal.get_records([conversation_id]))[0]
        if stored is None:
            raise UnknownConversation(f"Conversation not found: {conversation_id}")
        await self.prepare()
        from supervisor.conversations.conversation import Conversation

        conversation = Conversation(self._context, ConversationRecord.load(stored.record), journal_log)
        await conversation.recover()
        self._keep(conversation)
        return conversation

    def _keep(self, conversation: Conversation) -> None:
        """Keep the most recently used ones. An active one stays loaded since its task refers to it."""
        self._loaded[conversation.id] = conversation
        self._recent[conversation.id] = conversation
        self._recent.move_to_end(conversation.id)
        if self._used is not None:
            self._used(conversation)
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)

    def watch(self, used: Callable[[Conversation], None] | None) -> None:
        """Call `used` with each loaded conversation now, and with each requested one later; None ends that.
        It must not block."""
        self._used = used
        if used is not None:
            for conversation in list(self._loaded.values()):
                used(conversation)

    async def recover(self) -> None:
        """After a start: correct the state of every conversation that an earlier server left running."""
        await self._recover([found async for found in self._left_running()])

    async def forget_left(self) -> None:
        """Remove agents' data of conversations that do not exist: an earlier server was killed while it made
        a fork or deleted a conversation."""
        left = await self._context.launcher.unsettled()
        if left:
            await self.prepare()
        for conversation_id in left:
            from supervisor.conversations.forking import forget_unless_there

            async with self._lock(conversation_id):
                await forget_unless_there(self._context, conversation_id)

    async def _recover(self, ids: Sequence[str]) -> None:
        later: list[str] = []
        for conversation_id in ids:
            try:
                await self.get(conversation_id)
            except JournalUnavailable:
                later.append(conversation_id)
            except UnknownConversation:
                continue  # deleted while it waited
        if later:
            log.warning("recovering conversations once the journal is writable", count=len(later))
            self._context.nursery.start_soon(self._recover_later, later)

    async def _recover_later(self, ids: Sequence[str]) -> None:
        try:
            await self._context.journal.writable()
            await trio.sleep(RECOVER_PAUSE_SECONDS)
            await self._recover(ids)
        except JournalError as error:
            log.warning("conversations not recovered", error=str(error))

    async def _left_running(self) -> AsyncIterator[str]:
        for status in sorted(LIVE_STATUSES):
            page_id = None
            while True:
                page = await self._context.journal.search_records(status=status, page=page_id, limit=100)
                for stored in page.items:
                    yield stored.id
                page_id = page.next_page_id
                if page_id is None:
                    break

    async def listing(self, *, status: str | None, order: str, page: str | None, limit: int) -> Listing:
        """Return a page of conversation resources, as JSON with commas between them. Each is as it was on the
        disk after the call began. `order` is one of the journal's record orders."""
        found = await self._context.journal.search_records(status=status, order=order, page=page, limit=limit)
        if found.items:
            await self.prepare()
        bodies = [self._listed.json(each.id, each.record, self._json) for each in found.items]
        return Listing(bodies=b",".join(bodies), next_page_id=found.next_page_id)

    def _json(self, stored: bytes) -> bytes:
        from supervisor.conversations.resource.resource import conversation_info

        record = ConversationRecord.load(stored)
        info = conversation_info(record, self._context.launcher.data, hooks=self._context.hooks)
        return orjson.dumps(info)

    async def count(self, *, status: str | None = None) -> int:
        """Count the conversations, of one execution status or of all."""
        return await self._context.journal.count_records(status=status)

    async def delete(self, conversation_id: str, closed: Callable[[], Awaitable[None]] | None = None) -> None:
        """Delete a conversation: interrupt it, stop its agent, remove its events and its agent's data.

        `closed` is called in between: nothing more happens in the conversation, and its log is still there.

        Raises UnknownConversation, JournalError, AgentTimeout; then it still exists.

        Cancellation leaves it whole, or deleted; its agent is stopped.
        """
        conversation = await self.get(conversation_id)
        try:
            await conversation.close()
            if closed is not None:
                await closed()
            async with self._lock(conversation_id):
                self._drop(conversation)
                await self._context.launcher.unsettle(conversation_id)
                await self._context.journal.delete(conversation_id)
        finally:
            # A closed object must be loaded again if the conversation still exists. If its agent did not end,
            # the object stays and accepts nothing, so that no second agent can start.
            if conversation.closed:
                self._drop(conversation)
        with trio.CancelScope(shield=True):  # bounded; else the data stays until the next start
            await self._context.launcher.forget(conversation_id)

    def _drop(self, conversation: Conversation) -> None:
        self._listed.forget(conversation.id)
        if self._loaded.get(conversation.id) is conversation:
            del self._loaded[conversation.id]
        if self._recent.get(conversation.id) is conversation:
            del self._recent[conversation.id]

    # -- for operators ----------------------------------------------------------------------------------

    async def agents(self) -> list[AgentView]:
        """List the agents that run, wait to start, or are parked; measured now."""
        known = [found for found in self._loaded.values() if found.agent_phase not in NOT_LISTED]
        known.sort(key=lambda each: each.record.start.created_at)
        return await self._views(known)

    async def _views(self, conversations: Iterable[Conversation]) -> list[AgentView]:
        """Views of the agents of these conversations, from one snapshot of the processes and of the
        secrets."""
        from supervisor.conversations.views import view

        level, seen = containment_level(), await take_snapshot()
        secrets = await self._context.launcher.global_secrets()
        return [await view(each, level, seen, secrets) for each in conversations]

    async def spares(self) -> list[SpareView]:
        """List the spares, and after them the parents that fork them; measured now."""
        pool = self._context.spares
        waiting: list[Spare | ForkParent] = [*pool.waiting, *pool.parents]
        if not waiting:
            return []
        from supervisor.conversations.views import view_spare

        level, seen = containment_level(), await take_snapshot()
        return [await view_spare(each, level, seen) for each in waiting]

    async def agent(self, conversation_id: str) -> AgentView:
        """Return the agent of one conversation, in any state. Raises UnknownConversation."""
        (found,) = await self._views([await self.get(conversation_id)])
        return found

    async def restart_agent(self, conversation_id: str, *, force: bool = False) -> None:
        """Restart an agent with its session. Its turn is cancelled cleanly or, with `force`, at once.

        Earlier crashes no longer count. Raises UnknownConversation, AgentFailure, JournalUnavailable.
        """
        conversation = await self.get(conversation_id)
        await conversation.restart_agent(force=force)

    async def stop_agent(self, conversation_id: str) -> None:
        """Stop an agent in order; the next message starts it again. Raises UnknownConversation."""
        await (await self.get(conversation_id)).stop_agent()

    async def stderr(self, conversation_id: str) -> list[str]:
        """The last lines of an agent's standard error. Raises UnknownConversation."""
        return (await self.get(conversation_id)).agent.stderr_tail()

    async def trace(self, conversation_id: str) -> list[TraceLine]:
        """The last frames between server and agent, session ids masked. Raises UnknownConversation."""
        return (await self.get(conversation_id)).agent.trace()

    @property
    def journal(self) -> Journal:
        """The journal of all conversations. The caller that opened it closes it."""
        return self._context.journal

    def figures(self) -> Figures:
        """Counts and limits of the whole server."""
        from supervisor.conversations.views import figures

        context = self._context
        return figures(list(self._loaded.values()), context.admission, context.counters)

    def hurry(self, *, kill: bool = False) -> None:
        """Make `close` stop waiting for turns, also while it runs already.

        With `kill`, it kills the agents first instead of stopping them in order.
        """
        self._hurried.set()
        if kill:
            self._killing.set()

    async def close(self, drain_seconds: float = 0.0) -> None:
        """Let running turns end within a deadline, then stop every agent, all at the same time.

        Turns that last longer are interrupted; their output is kept. Shielded from cancellation, and bounded.
        """
        with trio.CancelScope(shield=True):
            self._context.spares.close()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._kill_when_told)
                await self._stop_goals()
                with trio.move_on_after(drain_seconds):
                    await self._drained()
                with trio.move_on_after(SHUTDOWN_SECONDS):
                    async with trio.open_nursery() as stopping:
                        for conversation in list(self._loaded.values()):
                            if conversation.active:
                                stopping.start_soon(_close, conversation)
                nursery.cancel_scope.cancel()

    async def _stop_goals(self) -> None:
        """Stop all goals, which would begin one turn after another."""

        async def stop(conversation: Conversation) -> None:
            with suppress(JournalError, ConversationClosing):
                await conversation.stop_goal()

        async with trio.open_nursery() as nursery:
            for conversation in list(self._loaded.values()):
                nursery.start_soon(stop, conversation)

    async def _drained(self) -> None:
        """Wait until no turn is running, or `hurry` is called."""
        # While nothing can be stored, turns do not end.
        while self._context.journal.trouble is None and any(
            conversation.busy and not conversation.outlasting for conversation in self._loaded.values()
        ):
            with trio.move_on_after(DRAIN_LOOK_SECONDS):
                await self._hurried.wait()
                return

    async def _kill_when_told(self) -> None:
        await self._killing.wait()
        # Turns are being interrupted by then, so that none is taken for one whose agent crashed.
        await trio.sleep(DRAIN_LOOK_SECONDS)
        while True:
            await kill_agents()
            await trio.sleep(DRAIN_LOOK_SECONDS)


def _absolute(path: str) -> str:
    """Make the path absolute: agents require that, and it must not depend on where a later server starts."""
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - without resolving links


@asynccontextmanager
async def open_supervisor(
    *,
    journal: Journal,
    launcher: Launcher,
    secret_box: SecretBox,
    default_agent: Callable[[], Awaitable[AgentSettings]],
    deadlines: Deadlines | None = None,
    forced_vocabulary: Vocabulary | None = None,
    restart: RestartPolicy | None = None,
    limits: Limits | None = None,
    terminals: Places | None = None,
    drain_seconds: float = 0.0,
    allowance: Allowance | None = None,
    hooks: HookSource = HookSource.REQUEST,
    spares: Mapping[str, int] = DEFAULT_SPARES,
) -> AsyncIterator[Supervisor]:
    """Supervise conversations while the block runs.

    `default_agent`: returns the settings' agent, for requests that name none; it may raise InvalidStart.

    `terminals`: places for terminals, where others take of them, too.

    `drain_seconds`: how long running turns may continue at the end before they are interrupted.

    `hooks`: whose hooks run.

    `spares`: how many processes of an agent wait for the next conversation, by its key.

    Owns the nursery of all conversations: leaving the block, also by cancellation, stops every agent.
    """
    async with trio.open_nursery() as nursery:
        admission, counters = Admission(limits or Limits(), terminals), Counters()
        deadlines = deadlines or Deadlines()
        context = Context(
            journal=journal,
            launcher=launcher,
            secret_box=secret_box,
            deadlines=deadlines,
            restart=restart or RestartPolicy(),
            admission=admission,
            spares=Spares(
                launcher=launcher,
                admission=admission,
                deadlines=deadlines,
                secret_box=secret_box,
                counters=counters,
                nursery=nursery,
                default_agent=default_agent,
                numbers=spares,
            ),
            counters=counters,
            nursery=nursery,
            kinds=kind_of,
            allowance=allowance or Allowance(),
            hooks=hooks is not HookSource.OFF,
        )
        supervisor = Supervisor(context, default_agent, forced_vocabulary, hooks)
        await supervisor.recover()
        nursery.start_soon(supervisor.forget_left)
        nursery.start_soon(context.admission.watch)
        nursery.start_soon(context.spares.watch)
        try:
            yield supervisor
        finally:
            await supervisor.close(drain_seconds)
            nursery.cancel_scope.cancel()
