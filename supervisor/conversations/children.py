"""Child conversations, which an agent starts for a task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol

import attrs

from supervisor.acp import RpcError
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.errors import ConversationError, UnknownConversation
from supervisor.journal.errors import JournalError
from supervisor.reading.decode import decode
from supervisor.reading.model import Invalid, Model
from supervisor.reading.rules import Limit


@attrs.frozen
class Worktrees:
    """Makes worktrees for conversations, by id. `make` returns the path, or None if there is no worktree;
    `drop` removes a new one."""

    make: Callable[[str], Awaitable[Path | None]]
    drop: Callable[[str], Awaitable[None]]


CHILDREN_MAX: Final = 32
"""The most existing children that one conversation's agent has started: more than a person can follow.
Children started by clients do not count."""

GENERATIONS_MAX: Final = 3
"""The most generations of children, so that one agent cannot fill the server with descendants."""

TASK_CHARACTERS: Final = 100_000
TITLE_CHARACTERS: Final = 200


class Conversations(Protocol):
    """The part of the supervisor that this module needs (`conversations.supervisor.Supervisor`)."""

    async def get(self, conversation_id: str) -> Conversation:
        """Return a conversation. Raises UnknownConversation."""

    async def start_child(
        self,
        parent_id: str,
        task: str,
        *,
        title: str | None,
        worktree: Worktrees | None,
        by_agent: bool = False,
    ) -> Conversation:
        """Start a child conversation with the task as its first message."""


@attrs.frozen(kw_only=True)
class Wanted(Model):
    """The parameters of `_ostler/start_child`, without the session."""

    task: Annotated[str, Limit(min_length=1, max_length=TASK_CHARACTERS)]
    title: Annotated[str, Limit(min_length=1, max_length=TITLE_CHARACTERS)] | None = None
    isolation: Literal["worktree", "shared"] = "worktree"


def describe_child(child: Mapping[str, Any], parent: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a new child for the agent, from the resources of both conversations."""
    workspace = child["workspace"]["working_dir"]
    return {
        "conversation_id": child["id"],
        "parent_conversation_id": parent["id"],
        "status": child["execution_status"],
        "title": child["title"],
        "url": None,
        "workspace": workspace,
        "isolation": "shared" if workspace == parent["workspace"]["working_dir"] else "worktree",
    }


async def start_for_agent(
    conversations: Conversations, parent_id: str, params: Any, worktree: Worktrees | None
) -> dict[str, Any]:
    """Start a child at the request of a conversation's agent; return its description. Raises RpcError with a
    reason for the agent."""
    given = {name: value for name, value in dict(params).items() if name != "sessionId"}
    try:
        wanted = decode(Wanted, given)
        parent = await conversations.get(parent_id)
        above = parent
        for _ in range(GENERATIONS_MAX):
            if above.record.start.parent_conversation_id is None:
                break
            try:
                above = await conversations.get(above.record.start.parent_conversation_id)
            except UnknownConversation:
                break  # it was deleted
        else:
            raise _refused(f"Child conversations have at most {GENERATIONS_MAX} generations.")
        if len(parent.record.started) >= CHILDREN_MAX:
            gone = [each for each in parent.record.started if not await _is_there(conversations, each)]
            parent.record.started = [each for each in parent.record.started if each not in gone]
        # No checkpoint between check and reservation: an agent may send many requests concurrently.
        if len(parent.record.started) + parent.starting_children >= CHILDREN_MAX:
            raise _refused(f"The conversation has {CHILDREN_MAX} child conversations already.")
        parent.starting_children += 1
        try:
            child = await conversations.start_child(
                parent_id,
                wanted.task,
                title=wanted.title,
                worktree=worktree if wanted.isolation == "worktree" else None,
                by_agent=True,
            )
        finally:
            parent.starting_children -= 1
        return describe_child(await child.durable_info(), parent.info())
    except (Invalid, ConversationError, JournalError) as error:
        raise _refused(str(error)) from error


async def _is_there(conversations: Conversations, conversation_id: str) -> bool:
    try:
        await conversations.get(conversation_id)
    except UnknownConversation:
        return False
    return True


def _refused(why: str) -> RpcError:
    return RpcError.invalid_params(why)
