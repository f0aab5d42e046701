"""Forks: a new conversation that begins with the events of another one.

The copy is atomic. The fork has a separate agent, and no two conversations share a session: the agent's
session is forked if that is possible immediately, else the new agent gets a transcript.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import attrs
import orjson
import structlog
import trio

from supervisor.conversations.agent.context import Context
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.history.history import REPEATED_BYTES, OpenCalls
from supervisor.conversations.history.inbox import is_asked
from supervisor.conversations.history.prompt import TAKES
from supervisor.conversations.recording import usage
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.state.branch import Branch, leading_to
from supervisor.conversations.state.confirmation import CONFIRMATION
from supervisor.conversations.state.errors import ConversationExists
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.state import ENDED as TURN_ENDED
from supervisor.conversations.state.state import INTERRUPTED, TURN, Forked, State, TurnEnded
from supervisor.conversations.state.status import LIVE_STATUSES, ExecutionStatus, Memory
from supervisor.conversations.state.transitions import after
from supervisor.events import Event, timestamp_now
from supervisor.journal.errors import AlreadyExists, JournalError, JournalUnavailable
from supervisor.journal.log import Log
from supervisor.journal.rows import Stored

log = structlog.get_logger(__name__)

PAGE_EVENTS: Final = 100
"""Events read at once while looking for calls that are open at the end of the fork."""

FORKED: Final = "this conversation is a fork"
"""The reason for the lost memory of a fork's agent."""

SHOWN: Final = (
    "acp_agent_name",
    "acp_agent_version",
    TAKES,
    "acp_session_cwd",
    "acp_supports_runtime_model_switch",
    "acp_model_via_config_option",
    "acp_current_model_id",
    "acp_available_models",
)
"""Members of `agent_state` that a fork takes from its source until its own agent has started."""

KEPT: Final = ("kind", "tool_call_id", "tool_name", "title", "tool_kind", "status")
"""What is kept of a large event of a call."""

FINISH: Final = "finish"
"""The name of the tool that an answer is recorded as."""

ENDED: Final = frozenset({ExecutionStatus.FINISHED, ExecutionStatus.ERROR, ExecutionStatus.IDLE})
"""Statuses that are recorded when no turn is under way: no call is open there."""


@attrs.frozen(kw_only=True)
class ForkRequest:
    """What a fork is to be. `tags`: None gives it none. `from_event_id`: its last event; None copies the
    active branch."""

    conversation_id: str | None = None
    title: str | None = None
    tags: Mapping[str, str] | None = None
    reset_metrics: bool = True
    from_event_id: str | None = None


async def fork(context: Context, source: Conversation, conversation_id: str, request: ForkRequest) -> Log:
    """Make the fork in the journal, and return its log. A running source is copied as far as it is recorded.

    Raises UnknownEvent, ConversationExists, JournalUnavailable, JournalError; then there is no fork.

    Cancellation leaves no fork, or a whole one. After a kill, the next start of the server cleans up.
    """
    try:
        # Before any file of it exists: after a kill the next start removes what is not settled.
        await context.launcher.files.unsettle(conversation_id)
        made = await _fork(context, source, conversation_id, request)
    except BaseException:
        with trio.CancelScope(shield=True):
            await forget_unless_there(context, conversation_id)
        raise
    await context.launcher.files.settle(conversation_id)
    return made


async def forget_unless_there(context: Context, conversation_id: str) -> None:
    """Remove an agent's data if its conversation does not exist: a fork that failed, or a deleted
    conversation."""
    with suppress(JournalError):
        (stored,) = await context.journal.get_records([conversation_id])
        if stored is None:
            await context.launcher.files.forget(conversation_id)
        else:
            await context.launcher.files.settle(conversation_id)


async def _fork(context: Context, source: Conversation, conversation_id: str, request: ForkRequest) -> Log:
    source.log.accept()
    asks, leaf = False, request.from_event_id
    last = None if leaf is None else await source.event(leaf)
    if last is not None:
        asks = is_asked(last)
    session_id = await source.fork_agent(conversation_id, leaf, asks=asks)
    if last is None:
        branch, leaf = source.branch, source.record.leaf_event_id
    else:
        branch = leading_to(source.record.moves, last.seq)
    record = _copy(source.record, conversation_id, request.from_event_id)
    # Only events on disk can be copied; the journal's copy reads nothing else.
    await _durable(context, source.log)
    record.title, record.tags = request.title, dict(request.tags or {})
    record.autotitle = request.title is None and record.autotitle
    record.leaf_event_id = leaf
    # The copy renumbers its events. A user's message at its end is queued.
    handed = handed_over(record.now, branch, source.branch, asks=asks)
    last_asked = await _asked_last(source.log, branch)
    forked = Forked(branch.until(handed) - 1, last_asked, session_id, FORKED, asks)
    record.now, _ = after(record.now, forked)
    _remember(record, source.record, session_id, whole=leaf == source.record.leaf_event_id)
    if request.reset_metrics:
        record.reported.usage = {}
        record.reported.native_states.pop("stats", None)
    if session_id is not None and source.record.reported.usage:
        # A forked session continues the cumulative cost of its source: only the increase counts.
        known = {**usage.empty(), **source.record.reported.usage}
        record.reported.usage = {
            **usage.empty(),
            **record.reported.usage,
            "session_cost": known["session_cost"],
        }
    closing = await _loose_ends(source.log, branch)
    recorder = Recorder(
        source.log, record, last_timestamp=source.recorder.last_timestamp, mask=source.recorder.mask
    )
    rows = recorder.rows([*closing.events, *closing.states(recorder)])
    try:
        return await context.journal.fork(
            source.id,
            conversation_id,
            record.dump(),
            parts=branch.parts,
            rows=rows,
            status=record.now.execution_status,
            title=record.title,
            created_at=record.start.created_at,
            updated_at=record.updated_at,
        )
    except AlreadyExists as error:
        raise taken(conversation_id) from error


def handed_over(state: State, branch: Branch, present: Branch, *, asks: bool) -> int:
    """The sequence number up to which a fork that ends with this `branch` waits for nothing. `asks`: its last
    event is a message to the agent. What a client moved away from is over, on a branch other than the
    `present` one: its messages were handed over, or left the queue."""
    if asks:
        return branch.last - 1
    return state.prompted_seq if branch.last in present else branch.last


def taken(conversation_id: str) -> ConversationExists:
    """The refusal of an id that another conversation has."""
    return ConversationExists(f"Conversation with id {conversation_id} already exists")


def _copy(source: ConversationRecord, conversation_id: str, event_id: str | None) -> ConversationRecord:
    """Copy the source's record for a fork up to an event (None: all), except for the agent's memory."""
    record = ConversationRecord.load(source.dump())
    record.id = conversation_id
    record.updated_at = timestamp_now()
    record.start = attrs.evolve(
        record.start,
        created_at=record.updated_at,
        parent_conversation_id=None,
        forked_from_conversation_id=source.id,
        forked_from_event_id=event_id,
    )
    record.moves = []
    record.children, record.started = [], []
    record.goal = None
    record.hooks_running = {}
    return record


async def _durable(context: Context, source: Log) -> None:
    """Wait until the source's events are on disk. Raises JournalUnavailable."""
    with trio.move_on_after(context.deadlines.durable) as limit:
        await source.flushed()
    if limit.cancelled_caught:
        source.accept()
        raise JournalUnavailable("The conversation is still being written. Try again later.")


async def _asked_last(source: Log, branch: Branch) -> str | None:
    """The id of the newest message of a user's on the branch. Raises JournalError."""
    page_id: str | None = None
    while True:
        page = await source.search(
            kind="MessageEvent", source="user", order="desc", limit=PAGE_EVENTS, page=page_id
        )
        found = next((item.id for item in page.items if item.seq in branch), None)
        page_id = page.next_page_id
        if found is not None or page_id is None:
            return found


def _remember(
    record: ConversationRecord, source: ConversationRecord, session_id: str | None, *, whole: bool
) -> None:
    """Note the fork's session and the known facts about its agent. Whether the agent asks is recorded in
    events, which a fork that is not `whole` may lack: there it is determined and recorded again."""
    shown = (*SHOWN, CONFIRMATION) if whole else SHOWN
    known = source.reported.agent_state
    state: dict[str, Any] = {name: known[name] for name in shown if name in known}
    if session_id is not None:
        state["acp_session_id"] = session_id
        state["memory"] = Memory.FORKED
    elif record.now.prompted_seq >= 0:
        state["memory"] = Memory.LOST
    record.reported.agent_state = state


@attrs.frozen
class _Closing:
    """What the fork must close: events for open calls, and whether the last recorded status is a live one."""

    events: list[Event]
    live: bool
    turn: Mapping[str, Any] | None = None
    """The turn that the cut leaves without an end."""

    def states(self, recorder: Recorder) -> list[Event]:
        ended: list[Event] = (
            []
            if self.turn is None
            else [recorder.state(TURN, TurnEnded(INTERRUPTED).update(self.turn).value)]
        )
        if self.live or self.events:
            ended.append(recorder.state("execution_status", ExecutionStatus.IDLE))
        return ended


async def _loose_ends(source: Log, branch: Branch) -> _Closing:
    """Look back from the end of the branch to where no turn was under way. Raises JournalError."""
    found: list[tuple[Mapping[str, Any], int]] = []
    live: bool | None = None
    turn: Mapping[str, Any] | None = None
    page_id: str | None = None
    while True:
        page = await source.search(order="desc", limit=PAGE_EVENTS, page=page_id)
        read = await trio.to_thread.run_sync(
            partial(_read, [item for item in page.items if item.seq in branch])
        )
        for event, size in read:
            if "turn_state" in event:
                turn = turn or event["turn_state"]
                continue
            status = event.get("status_state")
            if status is None:
                found.append((event, size))
                continue
            if live is None:
                live = status in LIVE_STATUSES
            if status in ENDED:
                page_id = None
                break
        else:
            page_id = page.next_page_id
        if page_id is None:
            break
    calls = OpenCalls()
    for event, size in reversed(found):
        calls.take(event, size)
    running = turn is not None and turn.get("status") != TURN_ENDED
    return _Closing(calls.closing(), bool(live), turn if running else None)


def _read(items: Sequence[Stored]) -> list[tuple[Mapping[str, Any], int]]:
    """In a thread: the relevant parts of these events, newest first, with their sizes."""
    read: list[tuple[Mapping[str, Any], int]] = []
    for item in items:
        if item.kind == "ConversationStateUpdateEvent":
            if b'"execution_status"' in item.body or b'"turn"' in item.body:
                state = orjson.loads(item.body)
                if state.get("key") == "execution_status":
                    read.append(({"status_state": state.get("value")}, 0))
                elif state.get("key") == TURN:
                    read.append(({"turn_state": state.get("value")}, 0))
        elif item.kind in OpenCalls.KINDS:
            event = orjson.loads(item.body)
            if event.get("tool_name") == FINISH and item.kind == "ActionEvent":
                continue  # an answer, and no call that could be open
            if len(item.body) > REPEATED_BYTES:
                event = {name: event.get(name) for name in KEPT}
            read.append((event, len(item.body)))
    return read
