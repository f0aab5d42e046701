"""Recovers a conversation after a crash of the server: the end of its log, and a turn without an end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import orjson

from supervisor.conversations.history.history import OpenCalls
from supervisor.conversations.history.inbox import after
from supervisor.conversations.recording import permission_log
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.state.failures import error_event
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.state import CallsCutOff, CutOffByServer
from supervisor.conversations.state.status import AgentPhase, CutOff
from supervisor.events import Event
from supervisor.journal.log import Log
from supervisor.journal.rows import Stored

IN_TURN: Final = "The server stopped while this turn was running; the agent's last actions are unknown."
IN_QUESTION: Final = (
    "The server stopped while a person was asked about what the agent wanted to do. Nothing of that has "
    "begun. Run the conversation, or send a message, to continue."
)
IN_HOOKS: Final = "The server stopped while a hook was running after the agent's turn."
"""The description of the interruption for people."""


async def find_leaf(recorder: Recorder) -> None:
    """Find the newest timestamp, and the newest event other than a state: the parent of the next events.

    Raises JournalError.
    """
    log, record = recorder.log, recorder.record
    newest = await log.newest()
    leaf = await log.newest(besides="ConversationStateUpdateEvent")
    if newest is not None:
        recorder.last_timestamp = newest.timestamp
    moves = record.moves
    if leaf is not None and not (moves and await _seq(log, leaf.id) < moves[-1][0]):
        record.leaf_event_id = leaf.id


async def ended_one(log: Log, actions: Sequence[Stored]) -> bool:
    """Whether one of these actions has a result. Then the agent has received the answer, and the state of the
    other actions is unknown. Raises JournalError."""
    calls = OpenCalls()
    for item in actions:
        calls.take(orjson.loads(item.body), len(item.body))
    asked = calls.open
    async for item in after(log, min((each.seq for each in actions), default=0)):
        if item.kind in OpenCalls.KINDS:
            calls.take(orjson.loads(item.body), len(item.body))
    return not asked <= calls.open


async def report_cut_off(recorder: Recorder, detail: str, asked: Collection[str] = ()) -> None:
    """Record the end of a turn that a server crash cut off: its open calls end as interrupted, followed by an
    error event. `asked`: ids of the calls that a person was asked about. Raises JournalError."""
    record = recorder.record
    calls = OpenCalls()
    async for item in after(recorder.log, record.now.prompted_seq):
        if item.kind in OpenCalls.KINDS:
            calls.take(orjson.loads(item.body), len(item.body))
    events: list[Event] = calls.closing(asked)
    if asked and calls.open <= set(asked):
        detail = IN_QUESTION
    if events:
        recorder.apply(CallsCutOff(CutOff.UNKNOWN))
    elif record.now.turn_open and record.now.cut_off is None:
        recorder.apply(CallsCutOff(CutOff.UNSEEN))
    events.append(error_event(_stopped(detail)))
    record.reported.agent_state["phase"] = AgentPhase.STOPPED
    recorder.apply(CutOffByServer(events))


def question_ended(record: ConversationRecord) -> AgentFailure:
    """The failure of a run that an orderly stop of the server ends while a person is asked: a question that
    does not wait on says so, and what to do, as after a kill."""
    allowed = permission_log.allowed_calls(record)  # one of these may have run while it was asked about again
    asked_again = allowed & permission_log.waiting_calls(record)
    return _stopped(IN_TURN if asked_again else IN_QUESTION)


def _stopped(detail: str) -> AgentFailure:
    return AgentFailure("ServerRestarted", detail, kind="transient", retryable=True, user_action="retry")


async def _seq(log: Log, event_id: str) -> int:
    stored = await log.get(event_id)
    return -1 if stored is None else stored.seq
