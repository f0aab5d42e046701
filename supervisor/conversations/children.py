"""A conversation that the agent of another one starts on a task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol

import attrs

from supervisor.acp import RpcError
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.errors import ConversationError, UnknownConversation
from supervisor.journal import JournalError
from supervisor.reading import Invalid, Limit, Model, decode


@attrs.frozen
class Worktrees:
    """Gives conversations worktrees, by their ids. `make` returns where it is, if there is one; `drop`
    removes one that was just made."""

    make: Callable[[str], Awaitable[Path | None]]
    drop: Callable[[str], Awaitable[None]]


CHILDREN_MAX: Final = 32
"""Conversations that the agent of one has started, and that are there: more than a person can follow. Those
that clients started are not counted."""

GENERATIONS_MAX: Final = 3
"""Generations of conversations that agents start, so that one cannot fill the server by its children."""

TASK_CHARACTERS: Final = 100_000
TITLE_CHARACTERS: Final = 200


class Conversations(Protocol):
    """Those of a server, as far as this needs them (`conversations.supervisor.Supervisor`)."""

    async def get(self, conversation_id: str) -> Conversation:
        """One of them. Raises UnknownConversation."""

    async def start_child(
        self,
        parent_id: str,
        task: str,
        *,
        title: str | None,
        worktree: Worktrees | None,
        by_agent: bool = False,
    ) -> Conversation:
        """A new one, which has begun with the task."""


@attrs.frozen(kw_only=True)
class Wanted(Model):
    """The parameters of `_ostler/start_child`, without the session."""

    task: Annotated[str, Limit(min_length=1, max_length=TASK_CHARACTERS)]
    title: Annotated[str, Limit(min_length=1, max_length=TITLE_CHARACTERS)] | None = None
    isolation: Literal["worktree", "shared"] = "worktree"


def child_told(child: Mapping[str, Any], parent: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of a child that was started, from the resources of both."""
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
    """Start a child that the agent of a conversation asks for; what is said of it. Raises RpcError, which
    says why not in words for the agent."""
    given = {name: value for name, value in dict(params).items() if name != "sessionId"}
    try:
        wanted = decode(Wanted, given)
        parent = await conversations.get(parent_id)
        above = parent
        for _ in range(GENERATIONS_MAX):
            if above.record.parent_conversation_id is None:
                break
            try:
                above = await conversations.get(above.record.parent_conversation_id)
            except UnknownConversation:
                break  # it was deleted
        else:
            raise _refused(f"Child conversations have at most {GENERATIONS_MAX} generations.")
        if len(parent.record.started) >= CHILDREN_MAX:
            gone = [each for each in parent.record.started if not await _is_there(conversations, each)]
            parent.record.started = [each for each in parent.record.started if each not in gone]
        # Nothing waits between the look and the reservation: an agent may ask for many at the same time.
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
        return child_told(await child.durable_info(), parent.info())
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
