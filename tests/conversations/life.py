"""One server's life with one conversation, without Trio, processes and files: for `test_state_machine.py`.

What decides is the product's: `Recorder`, `Turns`, `StatusPublisher`, `Permissions`, both kinds, the queue,
the stages, `inbox` and `recovery`. A method here is what `Conversation`, `Runner`, `Prompting` and
`AgentHandler` do between two waits, so that anything can happen in between. `Journal` is the log: a death may
cut off its last writes."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar, cast

import attrs
import orjson
import trio

from supervisor.acp import PermissionRequest
from supervisor.conversations.agent import opening
from supervisor.conversations.agent.kind import AgentKind, Ending, Question, Voice
from supervisor.conversations.agent.shared import Shared
from supervisor.conversations.built_in.kind import BuiltIn
from supervisor.conversations.conversation import MOVED
from supervisor.conversations.external.kind import External
from supervisor.conversations.history import inbox, recovery
from supervisor.conversations.history.prompt import MCP_COMMAND, is_command
from supervisor.conversations.recording import permission_log
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.recording.tool_calls.calls import ToolCallState
from supervisor.conversations.recording.tool_calls.events import Recorded
from supervisor.conversations.resource.status_publisher import StatusPublisher
from supervisor.conversations.state.branch import Branch, active, moved
from supervisor.conversations.state.counters import Counters
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.state.queue import Phase, Queued, TurnQueue
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.stage import Stage, Stages
from supervisor.conversations.state.state import (
    INTERRUPTED,
    MemoryLost,
    MessagesTaken,
    Navigated,
    Paused,
    PersonAsked,
    RestoreFailed,
    RunBegun,
    Sent,
    SessionOpened,
    State,
    TurnEnded,
    Withdrawn,
    Worked,
)
from supervisor.conversations.state.status import LIVE_STATUSES, CutOff, ExecutionStatus, Memory
from supervisor.conversations.state.turn import Turn
from supervisor.conversations.turns.permissions import Permissions
from supervisor.conversations.turns.turns import Turns
from supervisor.events import Message, MessageEvent, PauseEvent, SecurityRisk, TextContent, new_event_id
from supervisor.journal.log import Log
from supervisor.journal.rows import RecordUpdate, Row, Stored

T = TypeVar("T")

OPTIONS: Final = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]

LOSS: Final = b"memory of this conversation could not be restored"


@attrs.frozen
class Mind:
    """What is true of the agent's memory. `worked`: the agent did something in its present session. `lost`:
    it lost what was before. `notices`: how often clients got a message about that loss. `cut`: how a turn of
    the session left a call open. `sessions`: how many were new."""

    worked: bool = False
    lost: bool = False
    notices: int = 0
    cut: CutOff | None = None
    sessions: int = 0
    pending: tuple[str, ...] = ()
    """The messages that the agent, or Ostler in its place, has yet to get."""
    retry: int | None = None
    """The message that was handed over without effect."""
    unfinished: bool = False
    """Whether the agent's last turn has not ended well."""
    crashes: int = 0
    """How often the agent crashed as it restored the session."""
    joined: tuple[str, ...] = ()
    """What the built-in agent was handed since it reported anything."""


@attrs.frozen
class Write:
    """A transaction. `mind` is what was true then."""

    events: Sequence[Stored]
    record: bytes | None
    mind: Mind


class Journal:
    """Stands for the log."""

    def __init__(self, mind: Mind, writes: Sequence[Write] = ()) -> None:
        self.mind = mind
        self.writes = list(writes)
        self.events = [event for write in writes for event in write.events]
        self.durable = len(self.writes)
        self.suspends = False
        """Whether the next read waits."""
        self.trouble = None
        self.settled = True
        self.shows_updates = False

    @property
    def last_seq(self) -> int:
        return len(self.events) - 1

    @property
    def stored(self) -> tuple[bytes, Mind]:
        """The record as it was written last, and what was true then."""
        return next((write.record, write.mind) for write in reversed(self.writes) if write.record is not None)

    def append(
        self, rows: Sequence[Row], record: RecordUpdate | None = None, blobs: Sequence[Any] = ()
    ) -> int:
        first = len(self.events)
        events = [
            Stored(row.id, row.kind, row.source, row.timestamp, row.body, seq)
            for seq, row in enumerate(rows, first)
        ]
        for event in events:
            if LOSS in event.body:
                self.mind = attrs.evolve(self.mind, notices=self.mind.notices + 1)
            if inbox.is_asked(event):
                self.mind = attrs.evolve(self.mind, pending=(*self.mind.pending, event.id))
        self.events.extend(events)
        self.writes.append(Write(events, None if record is None else record.record, self.mind))
        return self.last_seq

    def update_record(self, record: RecordUpdate) -> None:
        self.append((), record)

    def flush(self) -> None:
        self.durable = len(self.writes)

    async def get(self, event_id: str) -> Stored | None:
        return next((event for event in self.events if event.id == event_id), None)

    async def newest(self, *, besides: str | None = None) -> Stored | None:
        return next((event for event in reversed(self.events) if event.kind != besides), None)

    async def read(
        self, seq: int, limit: int, *, kind: str | None = None, source: str | None = None
    ) -> list[Stored]:
        if self.suspends:
            self.suspends = False
            await _suspended()
        found = [
            event
            for event in self.events[max(0, seq + 1) :]
            if kind in (None, event.kind) and source in (None, event.source)
        ]
        return found[:limit]


@types.coroutine
def _suspended() -> Generator[None]:
    yield


def drive(work: Coroutine[Any, Any, T]) -> T:
    """The result of something that waits for nothing but the journal."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise AssertionError("it waits")


class QuietPublisher(StatusPublisher):
    """Without snapshots, which are not in the journal."""

    def publish(self) -> None:
        pass


class Speech(Voice):
    """Either kind's voice. The built-in agent's actions are known by their ids."""

    def __init__(self, life: Life) -> None:
        super().__init__(life.record)
        self.life = life
        self.by_updates = not life.native

    def ending(self, answer: Mapping[str, Any] | None) -> Ending | None:
        if self.by_updates:
            return None
        if answer is None:
            return Ending(ExecutionStatus.PAUSED, None, False)
        return Ending(answer["status"], None, answer["failed"])

    def question(self, request: PermissionRequest, mask: Any) -> Question | None:
        if self.by_updates:
            return None
        name = str(request.tool_call.raw["toolCallId"])
        action = SimpleNamespace(id=name, tool_call_id=name, tool_name="tool")
        return Question(cast(Any, action))

    def close(self, asked: Any) -> list[Any]:
        self.life.close_calls()
        return []


class Translating:
    """Stands for the translator: the agent speaks, and has calls open, as a test says."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.spoke = self.rejected = False
        self.tokens = None
        self.gathered = 0

    @property
    def calling(self) -> bool:
        return not self.life.native and bool(self.life.calls)

    def new_turn(self) -> None:
        self.spoke = False

    def end_turn(self, *_: object) -> Sequence[Any]:
        if not self.life.native:
            self.life.close_calls()
        return ()

    def requested(self, asked: Mapping[str, Any], more: Any) -> tuple[Any, Sequence[Any]]:
        return SimpleNamespace(title="", risk=SecurityRisk.HIGH, several=False, of=asked["toolCallId"]), ()

    def calls_of(self, inquiry: Any) -> Sequence[Any]:
        call = ToolCallState(inquiry.of, inquiry.of)
        return (call,)

    def __getattr__(self, name: str) -> Callable[..., Sequence[Any]]:
        return lambda *_, **__: ()


class At(enum.Enum):
    """Where the task of the conversation waits."""

    NOWHERE = "there is no task"
    IDLE = "for something to do"
    ANSWERING = "for what Ostler answers itself"
    STARTING = "for an agent"
    STORING = "until the hand-over is on disk"
    PROMPTED = "for the agent's answer"
    HOLDING = "for hooks after the turn"
    ENDED = "for nothing: it goes on when it gets its turn"


class Life:
    """The conversation in one server. `native`: its agent is the built-in one."""

    def __init__(self, native: bool, record: ConversationRecord, journal: Journal) -> None:
        self.native = native
        self.record = record
        self.journal = journal
        self.calls: list[str] = []
        """The calls that are open."""
        self.agent: SimpleNamespace | None = None
        self.at = At.NOWHERE
        self.item: Queued | None = None
        self.took = False
        """Whether the task has taken a message up since it looked at an empty queue."""
        self.called_off = False
        self.interrupting: trio.Event | None = None
        """Set while an interrupt waits for the end of its turn."""
        self.interrupted = self.stopped = False
        """Whether nothing was to run since; and whether it was a turn that was interrupted."""
        self.running: Coroutine[Any, Any, None] | None = None
        """A client's run that reads the log."""
        self.queue = TurnQueue()
        self.stages = Stages()
        self._turns_before = 0
        self.recorder = Recorder(cast(Log, journal), record)
        self.kind: AgentKind = BuiltIn(record) if native else External(record)
        nursery = cast(Any, SimpleNamespace(start_soon=lambda *_: None))
        self.publisher = QuietPublisher(self.recorder, self.kind, self.queue, nursery, (), Path("/data"))
        self.voice = Speech(self)
        self.translator = Translating(self)
        context = SimpleNamespace(counters=Counters(), nursery=nursery, deadlines=Deadlines())
        shared = Shared(
            context=cast(Any, context),
            recorder=self.recorder,
            queue=self.queue,
            kind=self.kind,
            voice=self.voice,
            translator=cast(Any, self.translator),
            publisher=self.publisher,
        )
        self.permissions = Permissions(shared, clock=float)
        self.permissions._rejections = cast(Any, self.translator)
        self.permissions.gone = lambda: self.agent is None
        self.holds = False
        self.turns = Turns(
            shared,
            cast(Any, self),
            self.permissions,
            None if native else cast(Any, SimpleNamespace(holds=lambda: self.holds)),
            clock=float,
        )

    @property
    def now(self) -> State:
        return self.record.now

    @property
    def branch(self) -> Branch:
        return active(self.record.moves, self.journal.last_seq)

    def believe(self, **changed: Any) -> None:
        self.journal.mind = attrs.evolve(self.journal.mind, **changed)

    def taken(self, item: Queued) -> None:
        """A message waits no more."""
        if not item.resumes:
            pending = self.journal.mind.pending
            self.believe(pending=tuple(each for each in pending if each != item.event_id))

    # -- what stands for the lifecycle --------------------------------------------------------------------

    @property
    def ready(self) -> Any:
        return self.agent

    def drop(self, run: object) -> None:
        self.agent = None

    output = SimpleNamespace(tail=lambda *_: [])

    # -- clients --------------------------------------------------------------------------------------------

    @property
    def keeps_waiting(self) -> bool:
        return self.permissions.waiting and self.queue.turn is None

    def send(self, text: str, *, run: bool) -> Queued:
        self.stages.refuse_closing()
        run = run and not self.keeps_waiting
        message = Message(role="user", content=(TextContent(text=text),))
        event = MessageEvent(id=new_event_id(), source="user", llm_message=message)
        begins = run and self.queue.turn is None
        seq = self.recorder.apply(Sent(Recorded(event, ()), event.id, begins))
        queued = Queued(seq, event.id, message)
        self.queue.put(queued)
        if run:
            self._run()
        return queued

    def withdraw(self, item: Queued) -> None:
        """A message that waits is taken back."""
        assert self.queue.withdraw(item.event_id) is item
        self.taken(item)
        if self.journal.mind.retry == item.seq:
            self.believe(retry=None, unfinished=False)
        self.recorder.apply(Withdrawn(item.seq, item.event_id))
        if not self.queue.busy and self.now.execution_status in LIVE_STATUSES:
            self.publisher.run_paused()

    def _run(self) -> None:
        self.interrupted = self.stopped = False
        if self.queue.busy and self.now.execution_status is ExecutionStatus.PAUSED:
            self.recorder.apply(RunBegun())
        self.want()

    async def run(self, asked: Callable[[], None]) -> None:
        """A client's run. `asked`: it is one that takes up what there is."""
        self.stages.refuse_closing()
        if self.permissions.waiting:
            self.answer(accept=True)
        elif self.queue.busy and self.now.execution_status is not ExecutionStatus.PAUSED:
            return  # AlreadyRunning
        elif await self.kind.take_up_again(self.recorder, self.queue):
            self.stages.refuse_closing()
            asked()
            self.kind.resume_paused(self.queue)
            self._run()

    def pause(self) -> None:
        self.stages.refuse_closing()
        if self.now.execution_status in {ExecutionStatus.IDLE, ExecutionStatus.RUNNING}:
            self.queue.wanted = False
            self.recorder.apply(Paused((PauseEvent(id=new_event_id()),)))
        elif self.permissions.waiting:
            self.queue.wanted = False

    def interrupt(self) -> None:
        """The first part of a client's interrupt, until it waits for the end of the turn."""
        self.stages.refuse_closing()
        self.interrupted = True
        if self.queue.busy:
            self.interrupting = self.queue.settled
            self._interrupt()
        elif not self.permissions.keeps:
            self.queue.wanted = False
            self.pause()
        if not self.queue.busy:
            self.interrupt_returns()

    def _interrupt(self) -> None:
        self.queue.wanted = False
        if not self.queue.active:
            self.publisher.run_paused()
        elif not self.queue.interrupted:
            self.queue.interrupt()
            turn = self.queue.turn
            if turn is None:
                self.called_off = self.at in (At.STARTING, At.HOLDING)
            else:
                self.stopped = True
                if turn.cancel() and self.agent is not None:
                    self.permissions.cancel()

    def interrupt_returns(self) -> None:
        """The rest of it: the turn has ended, or two seconds have passed."""
        settled, self.interrupting = self.interrupting, None
        still_active = self.queue.active and self.queue.settled is settled
        if still_active and self.now.execution_status is not ExecutionStatus.PAUSED:
            self.publisher.interrupted()
        if self.permissions.keeps and not self.queue.busy:
            self.turns.give_up()

    def answer(self, *, accept: bool) -> bool:
        self.stages.refuse_closing()
        keeps = self.keeps_waiting
        answered = self.permissions.decide(accept, "")
        if keeps and not self.permissions.waiting:
            self.queue.waiting.insert(0, inbox.resumption(self.record))
            self._run()
        return answered

    def navigate(self, target: Stored | None, *, remembers: bool) -> None:
        self.stages.refuse_closing()
        if self.permissions.keeps:
            self.turns.give_up()
        if not remembers:
            self.agent = None
        seq = None if target is None else target.seq
        asks = target is not None and inbox.is_asked(target)
        pending = (target.id,) if target is not None and asks else ()
        self.believe(pending=pending, retry=None, unfinished=False)
        if not remembers:
            self.believe(worked=False, lost=target is not None, notices=0)
        self.record.moves = moved(self.record.moves, self.journal.last_seq, -1 if seq is None else seq)
        self.record.leaf_event_id = None if target is None else target.id
        self.recorder.apply(Navigated(seq, self.journal.last_seq, asks, None if remembers else MOVED))
        self.queue.waiting.clear()
        if target is not None and asks:
            self.queue.waiting.append(inbox.queued(target))
        self.recorder.save()

    # -- the runner -----------------------------------------------------------------------------------------

    def want(self) -> None:
        if self.stages.closing:
            return
        self.queue.wanted = True
        self._turns_before = self.queue.turns
        if self.queue.waiting and self.queue.turn is None:
            self.recorder.apply(RunBegun())
        self.start_task()

    def start_task(self) -> None:
        if self.stages.now is Stage.STOPPED:
            self.stages.move(Stage.STARTING)

    def task_begins(self) -> None:
        if not self.stages.closing:
            self.stages.move(Stage.RUNNING)
        self.look()

    def look(self) -> None:
        """The task looks at the queue, and waits at the first thing that takes a while."""
        self.item = None
        if not self.queue.more:
            self.queue.wanted = False
            took, self.took = self.took, False
            if took and self.now.execution_status in LIVE_STATUSES and not self.permissions.waiting:
                self.publisher.run_paused()
            self.at = At.IDLE
            return
        self.took = True
        self.queue.begin()
        self.recorder.apply(RunBegun())
        self.item = self.queue.waiting[0]
        self.called_off = False
        if is_command(self.item.message, MCP_COMMAND):
            self.at = At.ANSWERING
        elif self.queue.turns - self._turns_before >= self.kind.messages_in_a_run:
            self.fails("MaxIterationsReached")
        else:
            self.journal.flush()
            self.at = At.STARTING

    def fails(self, code: str) -> None:
        """The run fails before a turn."""
        self.turns.fail_before(AgentFailure(code, "It failed."))
        self.at = At.ENDED

    def answers_itself(self) -> None:
        assert self.item is not None
        self.taken(self.item)
        self.turns.answered(self.item, "There are none.")
        self.at = At.ENDED

    def open_session(self, *, restores: bool, restorable: bool) -> None:
        """The agent's session is opened. `restores`: the agent finds the earlier one. `restorable`: it would
        not run a call again that was cut off."""
        descriptor = cast(Any, SimpleNamespace(resumes_calls=None if restorable else True))
        reason = opening._given_up(self.record, may_repeat=opening.may_repeat(self.record, descriptor))
        mind = self.journal.mind
        assert not (mind.lost and reason is None), "it would restore what was lost"
        assert not (mind.cut and mind.worked and not restorable and reason is None), (
            "it would run a call again"
        )
        known = self.now.session_used and reason is None
        session_id, memory = new_event_id(), Memory.NEW
        if known and restores:
            assert self.now.session_id is not None
            session_id, memory = self.now.session_id, Memory.RESUMED
        elif known or reason is not None:
            reason, memory = reason or "the agent does not find it", Memory.LOST
        self.agent = SimpleNamespace(session_id=session_id, initialized=None)
        self.believe(crashes=0)
        if memory is not Memory.RESUMED:
            fresh = memory is Memory.LOST and not mind.lost
            self.believe(
                worked=False,
                cut=None,
                sessions=mind.sessions + 1,
                lost=memory is Memory.LOST,
                notices=0 if fresh else mind.notices,
            )
        self.recorder.apply(SessionOpened(memory, session_id, cwd="/w", at=1.0, reason=reason))
        self.publisher.session(memory, reason, self.kind.system_prompt)
        assert memory is not Memory.LOST or self.journal.mind.notices == 1, "a loss was not told once"

    def restore_crashes(self) -> None:
        if self.now.session_used:
            self.believe(crashes=self.journal.mind.crashes + 1)
            self.recorder.apply(RestoreFailed())
        self.fails("ACPInitError")

    def agent_there(self, *, blocked: bool) -> bool:
        """An agent is there, or the wait for it was called off. Returns whether a turn has begun."""
        assert self.item is not None
        at, self.at = self.at, At.ENDED
        assert at is At.STARTING
        if self._paused_before and not (self.called_off or self.queue.interrupted):
            self.publisher.run_closed(ExecutionStatus.PAUSED)
        elif self.called_off or self.queue.interrupted:
            self.publisher.run_paused()
        elif blocked:
            self.taken(self.item)
            self.turns.blocked(self.item)
        else:
            self.taken(self.item)
            handed, joined = self.native and not self.item.resumes, self.journal.mind.joined
            if handed and self.item.event_id not in joined:
                joined = (*joined, self.item.event_id)
            self.believe(retry=self.item.seq if handed else None, unfinished=True, joined=joined)
            self.turns.begin(self.item)
            self.at = At.STORING
            return True
        return False

    @property
    def _paused_before(self) -> bool:
        return self.kind.pauses and self.now.execution_status is ExecutionStatus.PAUSED

    def hand_over(self) -> bool:
        """The hand-over is on disk, or called off. Returns whether the agent has the message."""
        turn = self.queue.turn
        assert turn is not None
        if not self.queue.interrupted:
            self.journal.flush()
        if self._paused_before and not self.queue.interrupted:
            self.ends("cancelled")
        elif self.queue.interrupted:
            self._not_handed_over(turn)
            self.turns.hand_over_again(turn)
            self.ends("cancelled")
        else:
            self.turns.prompted()
            if self.agent is None:
                self.agent_gone()
                return False
            self.at = At.PROMPTED
            return True
        return False

    def _not_handed_over(self, turn: Turn) -> None:
        if not self.native:
            self.believe(retry=turn.prompt_seq)

    def works(self, *, calls: bool) -> None:
        """The agent does something with its message."""
        turn = self.queue.turn
        assert turn is not None
        turn.updates += 1
        now = self.now
        self.translator.spoke = self.voice.spoke = True
        mind = self.journal.mind
        if not mind.worked:
            self.believe(worked=True, lost=False)
        self.believe(retry=None)
        if not (now.session_used and now.retry_seq is None):
            self.recorder.apply(Worked())
            if not now.session_used:
                self.recorder.save()
        self.believe(joined=())
        if self.native and self.now.joined:
            self.recorder.apply(MessagesTaken())
        if calls:
            self.call(new_event_id())

    def call(self, call_id: str) -> None:
        """A call begins."""
        self.calls.append(call_id)
        kind = "ActionEvent" if self.native else "ACPToolCallEvent"
        self._event(
            call_id, kind, {"status": "in_progress", "tool_name": "tool", "title": "t", "tool_kind": None}
        )

    def close_calls(self) -> None:
        for call_id in self.calls:
            kind = "ObservationEvent" if self.native else "ACPToolCallEvent"
            self._event(new_event_id(), kind, {"status": "failed"}, call_id)
        self.calls = []

    def _event(self, event_id: str, kind: str, body: Mapping[str, Any], call_id: str | None = None) -> None:
        body = {"kind": kind, "id": event_id, "tool_call_id": call_id or event_id, **body}
        stamp = self.recorder.last_timestamp
        self.journal.append([Row(event_id, kind, "agent", stamp, orjson.dumps(body))])

    def asks(self, call_id: str) -> None:
        """The agent asks about a call. Its coroutine would wait for the answer."""
        params = {"sessionId": "s", "toolCall": {"toolCallId": call_id}, "options": OPTIONS}
        cast(Coroutine[Any, Any, Any], self.permissions.ask(params)).close()

    def waits_end(self) -> None:
        """What waited for answers goes on, or was cancelled with the agent: `Permissions._decision`."""
        permissions = self.permissions
        for pending in list(permissions._pending):
            if pending.answer is None and self.agent is not None and self.queue.turn is not None:
                continue  # it waits on
            if pending not in permissions._kept and (pending.answer is not None or not permissions.outlive()):
                permissions._end_wait(pending)

    def ends(self, stop_reason: str, answer: Mapping[str, Any] | None = None) -> None:
        """The turn ends with an answer of the agent, or without."""
        turn = self.queue.turn
        assert turn is not None
        result = None if answer is None else SimpleNamespace(usage=None, raw=answer)
        if not self.native:
            self._note_cut(
                self._well(stop_reason), how=CutOff.UNKNOWN if answer is None else None, of=stop_reason
            )
        if self.native:
            ended_well = answer is not None and answer["status"] == "finished"
            self.believe(retry=self.journal.mind.retry if stop_reason == "cancelled" else None)
        else:
            silent = not self.translator.spoke and (turn.cancelling or self.queue.interrupted)
            ended_well = stop_reason in ("end_turn", "max_tokens", "odd") and not silent
            if stop_reason == "cancelled":
                ended_well = not (turn.cancelling or self.queue.interrupted)
        self.believe(unfinished=not ended_well)
        self.at = At.ENDED
        self.turns.finish(turn, stop_reason, cast(Any, result))
        if self.turns.held is not None:
            self.at = At.HOLDING

    def _well(self, stop_reason: str) -> bool:
        turn = self.queue.turn
        assert turn is not None
        failed = stop_reason in ("max_turn_requests", "refusal", "cancelled")
        return not failed and not (turn.cancelling or self.queue.interrupted)

    def _note_cut(self, well: bool, *, how: CutOff | None = None, of: str = "") -> None:
        if well:
            self.believe(cut=None)
        elif self.calls and not self.native:
            self.believe(cut=how or (CutOff.CANCELLED if of == "cancelled" else CutOff.UNKNOWN))

    def turn_fails(self, code: str) -> None:
        turn = self.queue.turn
        assert turn is not None
        if turn.cancelling:
            self.ends("cancelled")
            return
        self._note_cut(False)
        if code == "ACPAuthRequired" and not turn.updates:
            self._not_handed_over(turn)
        self.at = At.ENDED
        self.turns.fail(turn, AgentFailure(code, "It failed."))

    def agent_gone(self) -> None:
        """The agent's process has ended during its turn."""
        turn = self.queue.turn
        self.agent = None
        self.at = At.ENDED
        if turn is None:
            return
        if turn.cancelling:
            self.ends("cancelled")
        elif not self.turns.outlive(turn):
            self.turn_fails("ACPAgentExited")
        self.at = At.ENDED

    def forgotten(self) -> None:
        """The agent does not find its session, nor after loading it again."""
        self.turn_fails("ACPPromptError")
        if self.now.remembers:
            self.believe(lost=True, notices=0)
            self.recorder.apply(MemoryLost("the agent does not find its session"))
            self.recorder.save()
        self.agent = None

    def breaks_down(self) -> None:
        """An update of the agent meets an error of Ostler's own."""
        self._note_cut(False)
        self.at = At.ENDED
        self.turns.break_down(RuntimeError("a fault"))
        self.agent = None

    @property
    def uncancelled(self) -> bool:
        return self.queue.turn is not None and not self.queue.turn.cancelling

    def joins(self, item: Queued) -> None:
        first = next((each for each in self.queue.waiting if not each.resumes), None)
        if first is item and self.queue.turn is not None:
            self.taken(item)
            self.believe(retry=None, joined=(*self.journal.mind.joined, item.event_id))
        self.turns.join(item.event_id)

    def hooks_end(self, *, blocked: bool) -> bool:
        """The hooks after a turn have run. Returns whether they sent the agent back."""
        sent_back = blocked and not self.queue.more and not self.called_off and not self.queue.interrupted
        if self.queue.interrupted or self.called_off:
            self.queue.interrupt()
        elif sent_back:
            message = Message(role="user", content=(TextContent(text="Go on."),))
            event = MessageEvent(id=new_event_id(), source="environment", llm_message=message)
            seq = self.recorder.write([event])
            self.queue.waiting.append(Queued(seq, event.id, message, by_user=False))
        self.turns.end_held()
        self.at = At.ENDED
        return sent_back

    def settles(self) -> None:
        """The message that was taken up has ended; the task goes on."""
        if self.queue.turn is None and not self.queue.wanted:
            self.queue.drop_resumptions()
        self.queue.end()
        self.look()

    def task_ends(self) -> None:
        """There is neither work nor an agent, or the task is cancelled."""
        if not self.stages.closing:
            self.stages.move(Stage.ENDING)
        self.agent = None
        self.turns.leave()
        self.queue.phase = Phase.NONE
        self.at = At.NOWHERE
        self.stages.task_ended()
        if self.queue.wanted:
            self.want()

    # -- the server -----------------------------------------------------------------------------------------

    def recover(self) -> None:
        """As `Conversation.recover`."""
        record = self.record
        log = cast(Log, self.journal)
        drive(recovery.find_leaf(self.recorder))
        self.queue.waiting.extend(drive(inbox.waiting(log, record, self.branch)))
        was_live = record.now.execution_status in LIVE_STATUSES
        if was_live and self._waits_on():
            return
        unanswered = permission_log.cut_off(record)
        if unanswered:
            self.recorder.write(unanswered)
        if record.now.turn_open or (was_live and not self.queue.waiting):
            if self._open_calls():
                self.believe(cut=CutOff.UNKNOWN)
            elif record.now.turn_open and record.now.cut_off is None:
                self.believe(cut=CutOff.UNSEEN)
            asked = {str(each.value["tool_call_id"]) for each in unanswered}
            asked -= permission_log.allowed_calls(record)
            drive(recovery.report_cut_off(self.recorder, recovery.IN_TURN, asked))
        elif record.now.turn is not None:
            self.recorder.apply(TurnEnded(INTERRUPTED))
        if was_live and self.queue.waiting:
            self.want()
        self.journal.flush()

    def _open_calls(self) -> bool:
        calls = recovery.OpenCalls()
        for event in self.journal.events[self.now.prompted_seq + 1 :]:
            if event.kind in recovery.OpenCalls.KINDS:
                calls.take(orjson.loads(event.body), len(event.body))
        return bool(calls.open)

    def _waits_on(self) -> bool:
        if not self.now.asked or self.now.memory_lost is not None:
            return False
        stored = [event for event in self.journal.events if event.id in self.now.asked]
        if len(stored) < len(self.now.asked):
            return False
        if drive(recovery.ended_one(cast(Log, self.journal), stored)) or not self.permissions.keep([]):
            return False
        self.recorder.save(quiet=True)
        if self.permissions.waiting:
            self.recorder.apply(PersonAsked(), quiet=True)
        else:
            self.queue.waiting.insert(0, inbox.resumption(self.record))
            self.want()
        return True
