"""How conversations come to be: by a request, as a fork, or as the child of another."""

from __future__ import annotations

import os
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from supervisor.conversations.agent.context import Context
from supervisor.conversations.registry import Registry
from supervisor.conversations.state.errors import InvalidStart, ToBeDeleted, UnknownConversation
from supervisor.conversations.state.record import ConversationRecord, Start
from supervisor.conversations.state.secret_box import split_secrets
from supervisor.conversations.state.start import StartRequest, choose_vocabulary
from supervisor.events import Message, TextContent, Vocabulary, timestamp_now
from supervisor.hooks.config import HOOK_CONFIG, HookSource
from supervisor.hooks.project import read_project_hooks
from supervisor.journal.errors import AlreadyExists, JournalError, JournalUnavailable
from supervisor.journal.errors import UnknownConversation as NotInJournal
from supervisor.reading.shapes import as_json
from supervisor.settings.agent import AgentSettings

if TYPE_CHECKING:
    from supervisor.conversations.children import Worktrees
    from supervisor.conversations.conversation import Conversation
    from supervisor.conversations.forking import ForkRequest

DROP_SECONDS: Final = 5.0
"""Seconds for removing the worktree of a child that was not created: the server's stop may wait for it. After
that, the rest stays."""


class Creation(Registry):
    """A registry that makes conversations, too."""

    def __init__(
        self,
        context: Context,
        default_agent: Callable[[], Awaitable[AgentSettings]],
        forced_vocabulary: Vocabulary | None = None,
        hooks: HookSource = HookSource.REQUEST,
    ) -> None:
        super().__init__(context)
        self._default_agent = default_agent
        self._forced_vocabulary = forced_vocabulary
        self._hooks = hooks
        self._worktrees: Callable[[str], Worktrees] | None = None
        context.children.start = self._start_for_agent

    async def create(self, request: StartRequest) -> tuple[Conversation, bool]:
        """Create a conversation, or find the one with the given id.

        Returns the conversation, and whether it is new. For an existing one the rest of the request is
        ignored.

        Raises InvalidStart, ToBeDeleted, and AtCapacity where there is a first message; then nothing is
        created. Raises OwnedElsewhere where another server is to do it. Raises JournalUnavailable, which says
        whether it is created.
        """
        await self.prepare()
        from supervisor.conversations.conversation import Conversation

        conversation_id = request.conversation_id or str(uuid.uuid4())
        machines = self._context.machines
        if machines is not None:
            if request.conversation_id is None and machines.only and machines.only not in self._loaded:
                conversation_id = machines.only  # the one that this server was started for
            await machines.accept_new(conversation_id, request.parent_conversation_id)
        async with self._lock(conversation_id):
            try:
                found = await self._get(conversation_id)
            except UnknownConversation:
                pass
            else:
                if conversation_id in self.deletions.until:
                    raise ToBeDeleted(conversation_id)
                return found, False
            if request.initial_message is not None:
                self._context.admission.check()
            parent = await self._parent(request)
            agent = request.agent if request.agent is not None else await self._default_agent()
            if request.mcp_servers:
                agent = attrs.evolve(agent, mcp_config={**agent.mcp_config, **request.mcp_servers})
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
                    disk=self._context.launcher.disk_of(_absolute(request.working_dir)),
                ),
                updated_at=now,
                agent=await self._context.secret_box.seal_settings(agent),
                title=request.title,
                autotitle=request.autotitle,
                tags=dict(request.tags),
                confirmation_policy=dict(request.confirmation_policy),
                security_analyzer=request.security_analyzer,
                heedless=request.heedless,
                pardoned=request.pardoned,
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

    async def _parent(self, request: StartRequest) -> Conversation | None:
        if request.parent_conversation_id is None:
            return None
        try:
            return await self.get(request.parent_conversation_id)
        except UnknownConversation as error:
            raise InvalidStart(str(error), ("parent_conversation_id",)) from error

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
            pardoned=record.pardoned,
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


def _absolute(path: str) -> str:
    """Make the path absolute: agents require that, and it must not depend on where a later server starts."""
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - without resolving links
