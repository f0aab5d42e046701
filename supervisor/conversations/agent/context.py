"""The state that all conversations of a server share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import attrs
import trio

from supervisor.agents.restart import RestartPolicy
from supervisor.conversations.agent.admission import Admission
from supervisor.conversations.agent.launch.launcher import Launcher
from supervisor.conversations.agent.warm.pool import WarmPool
from supervisor.conversations.recording.bounds.attachments import Allowance
from supervisor.conversations.state.counters import Counters
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.secret_box import SecretBox
from supervisor.documents.port import Documents
from supervisor.journal.journal import Journal

if TYPE_CHECKING:  # the one is loaded with the first conversation, the other with OSTLER_DATABASE
    from supervisor.conversations.agent.kind import AgentKind
    from supervisor.machines.machines import Machines


@attrs.define
class Children:
    """The callback with which an agent starts a child conversation; the supervisor sets it."""

    start: Callable[[str, Any], Awaitable[dict[str, Any]]] | None = None
    """Takes the conversation's id and the parameters of `_ostler/start_child`. Raises RpcError."""


@attrs.frozen(kw_only=True)
class Context:
    """What the conversations of one supervisor share. The fields are fixed, but the objects are mutable:
    counters, warm processes, admission, journal. Runners live in `nursery`, which the supervisor owns."""

    journal: Journal
    launcher: Launcher
    documents: Documents
    secret_box: SecretBox
    deadlines: Deadlines
    restart: RestartPolicy
    admission: Admission
    warm_pool: WarmPool
    counters: Counters
    nursery: trio.Nursery
    kinds: Callable[[ConversationRecord], AgentKind]
    """Chooses the kind of a conversation's agent, once for each conversation."""
    allowance: Allowance = attrs.field(factory=Allowance)
    """The limit of attachments for each conversation."""
    hooks: bool = True
    """Whether hooks run."""
    children: Children = attrs.field(factory=Children)
    deleted_later: dict[str, float] = attrs.field(factory=dict)
    """Conversations that are deleted at a time (seconds since the epoch), and do nothing until then."""
    begun: set[str] = attrs.field(factory=set)
    """Ids of the conversations whose SessionStart hooks have run: once, however often they are loaded."""
    machines: Machines | None = None
    """The servers that share the journal, where there are several: who has a conversation."""
    sessions: set[object] = attrs.field(factory=set)
    """Conversations that stay loaded because SessionEnd hooks must run at their end."""
