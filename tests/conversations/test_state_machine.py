"""What a conversation is, in every order of what can happen to it: the promises of docs/guarantees.md over
`conversations/state`, with the callers of `life.py`.

`OSTLER_STATE_MACHINE_SECONDS=600 pytest -s -o faulthandler_timeout=0` with this module goes on that long."""

from __future__ import annotations

import contextlib
import operator
import os
import random
import secrets
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import attrs
import orjson
import pytest

from supervisor.conversations.forking import FORKED, handed_over
from supervisor.conversations.history import inbox
from supervisor.conversations.recording import recorder as recording
from supervisor.conversations.state.branch import active, leading_to
from supervisor.conversations.state.errors import ConversationClosing
from supervisor.conversations.state.queue import Queued
from supervisor.conversations.state.record import ConversationRecord, Start
from supervisor.conversations.state.stage import NEXT, Stage
from supervisor.conversations.state.state import (
    ENDED,
    INTERRUPTED,
    JOINED,
    RUNNING,
    TURN,
    Forked,
    Navigated,
    State,
    TurnEnded,
)
from supervisor.conversations.state.status import LIVE_STATUSES, ExecutionStatus
from supervisor.conversations.state.transitions import after
from supervisor.events import Vocabulary, new_event_id
from supervisor.journal.log import Log
from supervisor.journal.rows import Stored
from supervisor.settings.agent import AgentSettings
from tests.conversations.life import At, Journal, Life, Mind, Write, drive

EXAMPLES: Final = 200
STEPS: Final = 60
"""How many conversations an everyday run tries, and the most that happens to each: some eight seconds."""

SECONDS: Final = float(os.environ.get("OSTLER_STATE_MACHINE_SECONDS", "0"))

ENDED_RUN: Final = frozenset(
    {ExecutionStatus.IDLE, ExecutionStatus.FINISHED, ExecutionStatus.STUCK, ExecutionStatus.ERROR}
)
"""Statuses that a client reads as: no turn is under way."""

STOP_REASONS: Final = ("end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled", "odd")
ENDINGS: Final = ("finished", "paused", "error", "idle", "stuck", "odd", None)

Draw = Callable[[random.Random], Any]
Act = Callable[..., None]

ACTIONS: list[tuple[Act, Mapping[str, Draw], int]] = []
"""What can happen, what it takes, and how often it is chosen among what is possible."""


def flag(draw: random.Random) -> bool:
    return draw.random() < 0.5


def upto(most: int) -> Draw:
    return lambda draw: draw.randint(0, most)


def one_of(values: Sequence[Any]) -> Draw:
    return lambda draw: draw.choice(values)


def when(possible: Callable[[Any], object]) -> Callable[[Act], Act]:
    def note(act: Act) -> Act:
        act.__dict__.setdefault("possible", []).append(possible)
        return act

    return note


def action(weight: int, **draws: Draw) -> Callable[[Act], Act]:
    def note(act: Act) -> Act:
        act.__dict__.setdefault("possible", [])
        ACTIONS.append((act, draws, weight))
        return act

    return note


PROMISES: list[Callable[[Any], None]] = []
"""What is true after each step."""


def promise(held: Callable[[Any], None]) -> Callable[[Any], None]:
    PROMISES.append(held)
    return held


causes = 0
"""How many causes were applied."""


def counted(state: State, cause: object) -> Any:
    """`transitions.after`, and what no cause may do."""
    global causes
    causes += 1
    following, items = after(state, cause)
    assert not (following.prompted_seq < state.prompted_seq and not isinstance(cause, Navigated | Forked)), (
        f"{cause} takes prompted_seq back"
    )
    return following, items


@attrs.define
class Handed:
    """A message that left the queue. `runs`: how many runs clients had asked for by then. `worked`: the agent
    did something with it, in the server number `life`. `writes`: those of the journal with it. `before`: its
    earlier hand-over. `back`: a move put it into the queue again after that."""

    runs: int
    life: int
    writes: int
    before: Handed | None = None
    worked: bool = False
    back: bool = False

    def known(self, writes: int) -> Handed | None:
        """The last one that is in so many writes."""
        if self.writes <= writes:
            return self
        return None if self.before is None else self.before.known(writes)


class Conversations:
    """One conversation, over the lives of its servers. What is below is never taken back by a death."""

    def __init__(self, native: bool) -> None:
        self.native = native
        self.lives = 0
        self.runs = 0
        self.handed: dict[str, Handed] = {}
        self.copied, self.first = 0, 1
        """Of a fork: how many events it has of its source, and the number of its first turn of its own."""
        self.answers: dict[str, str] = {}
        """What became of the questions, by the ids of their actions: asked, answered, delivered."""
        self.read: tuple[Any, ...] = (None,)
        self.phase: tuple[Any, ...] = (None,)
        self.seen: dict[str, tuple[Any, ...]] = {}

        record = ConversationRecord(
            id="00000000-0000-0000-0000-000000000001",
            start=Start(working_dir="/w", created_at="", vocabulary=Vocabulary.EXTENDED),
            updated_at="",
            agent=AgentSettings(acp_server="custom", acp_command=("agent",)),
            confirmation_policy={"kind": "AlwaysConfirm"},
        )
        self.life = Life(native, record, Journal(Mind()))
        self.life.recorder.save()
        self.life.journal.flush()

    # -- clients --------------------------------------------------------------------------------------------

    def accepts(self) -> bool:
        return not self.life.stages.closing

    def free(self) -> bool:
        return self.accepts() and not self.life.queue.busy and not self.life.permissions.waiting

    def refused(self, request: Callable[[], object]) -> bool:
        """Whether the conversation is closing. Then a request is refused, and changes nothing."""
        if self.accepts():
            return False
        life = self.life
        before = self._all()
        with pytest.raises(ConversationClosing):
            request()
        assert self._all() == before, "a request to a closing conversation changed it"
        assert life.stages.closing
        return True

    def _all(self) -> tuple[object, ...]:
        life = self.life
        queue = tuple(life.queue.waiting), life.queue.wanted, life.queue.turn, life.queue.interrupted
        waits = life.at, life.interrupting, life.running, life.permissions.waiting
        return life.record.dump(), len(life.journal.writes), life.stages.now, *queue, *waits

    @action(4, run=flag, ours=upto(5), stored=flag)
    def client_sends(self, run: bool, ours: int, stored: bool) -> None:
        if self.refused(lambda: self.life.send("Hello", run=run)):
            return
        item = self.life.send("Hello" if ours else "/mcp", run=run)
        found = self.life.journal.events[item.seq]
        assert found.id == item.event_id, "the queue has another number than the journal"
        if stored:
            self.life.journal.flush()

    @when(lambda self: self.life.queue.waiting)
    @action(2, which=upto(5), stored=flag)
    def client_withdraws(self, which: int, stored: bool) -> None:
        life = self.life
        item = life.queue.waiting[which % len(life.queue.waiting)]
        if item.resumes or item is life.item or not self.accepts():
            return
        life.withdraw(item)
        if stored:
            life.journal.flush()

    def _asked(self) -> None:
        self.runs += 1

    @action(3, what=one_of(["run", "run", "pause", "interrupt"]), suspends=flag)
    def client_asks(self, what: str, suspends: bool) -> None:
        life = self.life
        asked: Mapping[str, Callable[[], object]] = {
            "run": lambda: drive(life.run(self._asked)),
            "pause": life.pause,
            "interrupt": life.interrupt,
        }
        if self.refused(asked[what]):
            return
        if what == "pause":
            life.pause()
        elif what == "interrupt" and life.interrupting is None:
            life.interrupt()
        elif what == "run" and life.running is None and not life.kind.ends_first(life.queue):
            if life.permissions.waiting:
                self._answers(accept=True)
                return
            life.journal.suspends = suspends
            self._go_on(life.run(self._asked))
            life.journal.suspends = False

    @when(lambda self: self.life.running is not None)
    @action(6)
    def run_goes_on(self) -> None:
        work, self.life.running = self.life.running, None
        assert work is not None
        self._go_on(work)

    def _go_on(self, work: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(StopIteration, ConversationClosing):
            work.send(None)
            self.life.running = work

    @when(lambda self: self.life.interrupting is not None)
    @action(6)
    def interrupt_returns(self) -> None:
        self.life.interrupt_returns()

    @when(lambda self: self.life.permissions.waiting)
    @action(16, accept=flag)
    def person_answers(self, accept: bool) -> None:
        if self.refused(lambda: self.life.answer(accept=accept)):
            return
        self._answers(accept=accept)

    def _answers(self, *, accept: bool) -> None:
        asked = [name for name, given in self.life.now.asked.items() if given is None]
        self.life.answer(accept=accept)
        status = self.life.now.execution_status
        assert not accept or status is not ExecutionStatus.WAITING_FOR_CONFIRMATION
        if asked:
            assert not self.life.now.waits
            assert all(self.life.now.asked[name] is not None for name in asked), "an answer is lost"
            self.answers.update(dict.fromkeys(asked, "answered"))

    @action(1, forks=flag, where=upto(20), luck=flag, stays=upto(2))
    def client_moves(self, forks: bool, where: int, luck: bool, stays: int) -> None:
        if self.refused(lambda: self.life.navigate(None, remembers=luck)):
            return
        if forks:
            self.client_forks(where, session=luck, stays=bool(stays))
        elif self.free():
            self.client_navigates(where, remembers=luck)

    def client_navigates(self, where: int, *, remembers: bool) -> None:
        target = self._target(where)
        if target is not None and target.id == self.life.record.leaf_event_id:
            return
        self.life.navigate(target, remembers=self.native and remembers and self.life.now.remembers)
        before = None if target is None else self._had(target.id)
        if target is not None and before is not None:
            writes = len(self.life.journal.writes)
            self.handed[target.id] = Handed(self.runs, self.lives, writes, before, back=True)

    def _target(self, where: int) -> Stored | None:
        events = [event for event in self.life.journal.events if event.kind != "ConversationStateUpdateEvent"]
        return events[-where] if 0 < where <= len(events) else None

    def client_forks(self, where: int, *, session: bool, stays: bool) -> None:
        """The rest happens to the fork, unless it `stays`."""
        source, leaf = self.life, self._target(where)
        record = ConversationRecord.load(source.record.dump())
        branch = source.branch if leaf is None else leading_to(record.moves, leaf.seq)
        asks = leaf is not None and inbox.is_asked(leaf)
        whole = leaf is None and not source.queue.busy and source.now.remembers
        handed = handed_over(record.now, branch, source.branch, asks=asks)
        session_id = new_event_id() if whole and session else None
        events = [event for event in source.journal.events if event.seq in branch]
        messages = [event.id for event in events if event.source == "user"]
        prompted = branch.until(handed) - 1
        last_asked = messages[-1] if messages else None
        state, items = counted(record.now, Forked(prompted, last_asked, session_id, FORKED, asks))
        assert state.execution_status is ExecutionStatus.IDLE, "a fork is not idle"
        assert not items
        assert state.turn is None
        assert not state.turn_open
        assert not state.asked, "a fork owes answers"
        assert not state.unfinished
        assert state.retry_seq is None
        assert state.turns == record.now.turns
        assert state.prompted_seq == prompted < len(events)
        assert state.session_id == session_id != record.now.session_id or session_id is None
        assert state.remembers is (session_id is not None)
        if stays:
            return
        mind = source.journal.mind
        pending = tuple(each.id for each in events if each.id in mind.pending or (asks and each is leaf))
        if branch.last not in source.branch:
            pending = ()  # it was moved away from
        if asks:
            assert leaf is not None
            pending = (leaf.id,)
            self.handed.pop(leaf.id, None)
        known = session_id is not None
        lost = not known and (prompted >= 0 or mind.lost)
        joined = mind.joined
        mind = Mind(worked=known, lost=lost, sessions=int(known), pending=pending, joined=joined)
        record.now, record.moves = state, []
        record.leaf_event_id = None
        renumbered = [
            Stored(event.id, event.kind, event.source, event.timestamp, event.body, seq)
            for seq, event in enumerate(events)
        ]
        journal = Journal(mind, [Write(renumbered, record.dump(), mind)])
        self.life = Life(self.native, record, journal)
        self.copied, self.first = len(events), state.turns + 1
        for each in self.handed.values():
            each.writes = 0
        turn = self._journalled()[1]
        recorder = self.life.recorder
        closing = [] if turn is None else [recorder.state(TURN, TurnEnded(INTERRUPTED).update(turn).value)]
        recorder.write([*closing, recorder.state("execution_status", ExecutionStatus.IDLE)])
        journal.flush()
        self.lives += 1
        self._recovers()

    def client_closes(self) -> None:
        """The conversation is closed: what runs is interrupted, and nothing is accepted any more."""
        life = self.life
        life.stages.close()
        assert life.stages.closing
        if life.queue.busy:
            life._interrupt()

    @when(lambda self: self.life.stages.closing)
    @action(6)
    def closed_conversation_ends(self) -> None:
        life = self.life
        if life.stages.now is Stage.CLOSING:
            life.task_ends()
        assert life.stages.now is Stage.CLOSED
        assert not NEXT[Stage.CLOSED]
        life.journal.flush()
        self._restarts(life.journal.writes)

    # -- the task -------------------------------------------------------------------------------------------

    def at(*where: At) -> Any:
        return when(lambda self: self.life.at in where and self.life.stages.now is not Stage.STOPPED)

    @when(lambda self: self.life.stages.now is Stage.STARTING)
    @action(20)
    def task_begins(self) -> None:
        self.life.task_begins()

    @at(At.IDLE)
    @when(lambda self: self.life.queue.wanted)
    @action(20)
    def task_looks(self) -> None:
        self.life.look()

    @at(At.IDLE)
    @when(lambda self: not self.life.queue.wanted)
    @action(2)
    def task_ends(self) -> None:
        self.life.task_ends()

    @at(At.ANSWERING)
    @action(12)
    def ostler_answers(self) -> None:
        item = self.life.item
        assert item is not None
        self.life.answers_itself()
        self._new(item)

    @at(At.STARTING)
    @action(16, blocked=upto(7), restores=flag, restorable=flag)
    def agent_is_ready(self, blocked: int, restores: bool, restorable: bool) -> None:
        life, item = self.life, self.life.item
        assert item is not None
        if life.agent is None and not life.called_off:
            life.open_session(restores=restores, restorable=restorable)
        blocks = not blocked and not self.native and not item.resumes
        handed = life.agent_there(blocked=blocks)
        # A hook may also block a message that was handed over without effect, and that a run takes up again.
        if not item.resumes and (handed or (blocks and item not in life.queue.waiting)):
            self._taken(item)

    def _taken(self, item: Queued) -> None:
        before = self._had(item.event_id)
        if before is not None:
            assert self.runs > before.runs, "a message was handed over again, and no run was asked for"
            dedupes = self.native and before.life < self.lives
            assert not before.worked or dedupes, "a message was handed over again that had an effect"
        writes = len(self.life.journal.writes)
        self.handed[item.event_id] = Handed(self.runs, self.lives, writes, self.handed.get(item.event_id))

    def _new(self, item: Queued) -> None:
        before = self.handed.get(item.event_id)
        assert before is None or before.back or item.resumes, "a message was taken twice"
        self.handed[item.event_id] = Handed(self.runs, self.lives, len(self.life.journal.writes), before)

    def _had(self, name: str) -> Handed | None:
        """The message's last hand-over, unless it is in the queue again after a move."""
        found = self.handed.get(name)
        return None if found is None or found.back else found

    @at(At.STARTING)
    @when(lambda self: self.life.agent is None and not self.life.called_off)
    @action(4, restoring=flag)
    def agent_does_not_start(self, restoring: bool) -> None:
        if restoring:
            self.life.restore_crashes()
        else:
            self.life.fails("ACPInitError")

    @at(At.STORING)
    @action(20)
    def message_is_handed_over(self) -> None:
        self.life.hand_over()

    @at(At.PROMPTED)
    @when(lambda self: self.life.agent is not None)
    @action(8, calls=flag)
    def agent_works(self, calls: bool) -> None:
        item = self.life.item
        assert item is not None
        if not item.resumes:
            self.handed[item.event_id].worked = True
        self.life.works(calls=calls)

    @at(At.PROMPTED)
    @when(lambda self: self.native and self.life.agent is not None and self.life.queue.waiting)
    @action(8, anyhow=flag)
    def agent_reads_a_message(self, anyhow: bool) -> None:
        """The built-in agent reads what waits; or what it was offered before a pause."""
        life = self.life
        item = life.queue.waiting[0]
        turn = life.queue.turn
        assert turn is not None
        if item.resumes or item.seq <= life.now.prompted_seq or not (life.queue.more or anyhow):
            return
        life.joins(item)
        assert item not in life.queue.waiting
        told = orjson.loads(life.journal.events[-1].body)["value"]
        assert (told["status"], told["joined"]) == (JOINED, item.event_id)
        self._new(item)

    @at(At.PROMPTED)
    @when(lambda self: self.native and len(self.life.queue.waiting) > 1)
    @action(2)
    def agent_reads_what_is_not_next(self) -> None:
        life = self.life
        *_, last = life.queue.waiting
        before = life.now
        if not last.resumes and sum(not each.resumes for each in life.queue.waiting) > 1:
            life.turns.join(last.event_id)
            assert life.now is before
            assert last in life.queue.waiting

    @at(At.PROMPTED)
    @when(lambda self: self.life.agent is not None and self.life.uncancelled)
    @action(6)
    def agent_asks(self) -> None:
        life = self.life
        repeated = sorted(life.permissions._repeated)
        if not self.native:
            life.asks(new_event_id())
        elif repeated:
            (name, answer), *_ = [(each, life.now.asked.get(each)) for each in repeated]
            life.asks(name)
            if answer is not None and not life.permissions._repeated:
                self._delivered(repeated)
        else:
            item = life.item
            assert item is not None
            if not item.resumes:
                self.handed[item.event_id].worked = True
            life.works(calls=True)
            self.answers[life.calls[-1]] = "asked"
            life.asks(life.calls[-1])

    @when(lambda self: self.life.permissions._pending)
    @action(6)
    def answers_reach_the_agent(self) -> None:
        before, agent = self.life.now.asked, self.life.agent
        self.life.waits_end()
        if before and not self.life.now.asked and agent is not None:
            self._delivered(sorted(before))

    def _delivered(self, names: list[str]) -> None:
        """The agent has the answers of a person to all that it asked in a step."""
        self.life.journal.flush()
        for name in names:
            assert self.answers.get(name) == "answered", (
                f"an answer that is {self.answers.get(name)} is delivered"
            )
            self.answers[name] = "delivered"

    @at(At.PROMPTED)
    @when(lambda self: self.life.agent is not None)
    @action(
        6,
        stop=one_of(STOP_REASONS),
        status=one_of(ENDINGS),
        failed=flag,
        holds=upto(3),
    )
    def agent_answers(self, stop: str, status: str | None, failed: bool, holds: int) -> None:
        self.life.holds = not holds
        self.life.ends(stop, {"status": status, "failed": failed})

    @at(At.PROMPTED)
    @when(lambda self: self.life.agent is not None)
    @action(1, code=one_of(["ACPPromptError", "ACPAuthRequired"]))
    def agent_refuses(self, code: str) -> None:
        self.life.turn_fails(code)

    @at(At.STORING, At.PROMPTED)
    @when(lambda self: self.life.agent is not None)
    @action(4, waits_first=flag)
    def agent_crashes(self, waits_first: bool) -> None:
        life = self.life
        prompted = life.at is At.PROMPTED
        life.agent = None
        if waits_first:
            life.waits_end()
        if prompted:
            life.agent_gone()
        life.waits_end()

    @at(At.IDLE)
    @when(lambda self: self.life.agent is not None)
    @action(1)
    def agent_hibernates(self) -> None:
        self.life.agent = None

    @at(At.PROMPTED)
    @when(lambda self: self.life.agent is not None)
    @action(1)
    def agent_forgets_its_session(self) -> None:
        self.life.forgotten()

    @at(At.PROMPTED)
    @action(1)
    def update_breaks_down(self) -> None:
        self.life.breaks_down()

    @at(At.HOLDING)
    @action(10, blocked=flag)
    def hooks_end(self, blocked: bool) -> None:
        self.life.hooks_end(blocked=blocked)

    @at(At.ENDED)
    @action(20)
    def message_settles(self) -> None:
        life = self.life
        life.waits_end()
        wanted = life.queue.wanted or life.queue.turn is not None
        life.settles()
        assert wanted or not any(item.resumes for item in life.queue.waiting)

    # -- the server -----------------------------------------------------------------------------------------

    @when(accepts)
    @action(1, closes=upto(3), lost=upto(6))
    def ends(self, closes: int, lost: int) -> None:
        if not closes:
            self.client_closes()
        else:
            self.server_dies(lost)

    def server_dies(self, lost: int) -> None:
        """Up to so many writes were not on the disk yet."""
        journal = self.life.journal
        self._restarts(journal.writes[: max(journal.durable, len(journal.writes) - lost)])

    @at(At.ENDED)
    @action(4, lost=one_of([1, 1, 2]))
    def server_dies_at_an_end(self, lost: int) -> None:
        """Not all that ends a turn was on the disk."""
        self.server_dies(lost)

    def _restarts(self, writes: list[Write]) -> None:
        self.lives += 1
        lived = len(self.life.journal.writes)
        known = {name: each.known(len(writes)) for name, each in self.handed.items()}
        self.handed = {name: each for name, each in known.items() if each is not None}
        journal = Journal(Mind(), writes)
        record, journal.mind = journal.stored
        self.life = Life(self.native, ConversationRecord.load(record), journal)
        if len(writes) < lived:
            # A write in the midst of the end of a turn: what was true of it came with the next one; but that
            # calls were cut off must be known before they end.
            now, cut = self.life.now, writes[-1].mind.cut
            self.life.believe(
                cut=cut or now.cut_off, unfinished=now.unfinished, retry=now.retry_seq, joined=now.joined
            )
        self._recovers()

    def _recovers(self) -> None:
        life = self.life
        was_live = life.now.execution_status in LIVE_STATUSES
        cut = life.now.turn
        life.recover()
        assert not was_live or life.permissions.keeps or life.queue.busy or life.now.turn is None
        if cut is not None and not life.permissions.keeps:
            assert life.now.turn is None, "a turn of a dead server has no end"

    # -- promises -------------------------------------------------------------------------------------------

    def _journalled(self) -> tuple[ExecutionStatus, Any]:
        """What clients read in the journal: the status, and the turn without an end."""
        events = self.life.journal.events
        if self.read[0] is not events:
            self.read = events, 0, ExecutionStatus.IDLE, 0, None
        _, seen, status, number, turn = self.read
        for event in events[seen:]:
            if event.kind != "ConversationStateUpdateEvent":
                continue
            body = orjson.loads(event.body)
            if body["key"] == "execution_status":
                status = ExecutionStatus(body["value"])
            if body["key"] != TURN:
                continue
            value = body["value"]
            if event.seq < self.copied:  # a move to another branch may have cut a turn in two
                number, turn = value["number"], None if value["status"] == ENDED else value
            elif value["status"] == RUNNING:
                assert turn is None, f"turn {value['number']} begins before the end of the last one"
                assert value["number"] in (number + 1, self.first), "a number is left out"
                number, turn = value["number"], value
            else:
                assert turn is not None, f"turn {value['number']} has ended already"
                same = {name: value[name] for name in ("number", "message_id")}
                assert same == {name: turn[name] for name in same}
                turn = turn if value["status"] == JOINED else None
        self.read = events, len(events), status, number, turn
        return status, turn

    @promise
    def each_turn_has_one_end_in_order(self) -> None:
        """Each begun turn has exactly one end in the journal, in order, with numbers without gaps. The state
        has the one that is open."""
        _, turn = self._journalled()
        now = self.life.now
        assert (turn is None) == (now.turn is None)
        assert now.turn is None or (turn["number"] == now.turns == now.turn["number"])
        assert now.turn is not None or not now.turn_open

    @promise
    def the_status_in_the_journal_is_the_states(self) -> None:
        """The last status that clients read is the conversation's."""
        assert self._journalled()[0] is self.life.now.execution_status

    @promise
    def finished_is_finished(self) -> None:
        """No turn is open in a status that a client reads as the end of a run, and no answer waits for the
        agent outside of a turn."""
        now = self.life.now
        assert now.turn is None or now.execution_status not in ENDED_RUN
        assert now.turn is not None or not now.asked

    @promise
    def a_status_is_not_live_without_work(self) -> None:
        """Running means that a message is taken up, or about to be; waiting, that a person can answer."""
        life = self.life
        status = life.now.execution_status
        if not life.queue.busy and life.running is None:
            assert status is not ExecutionStatus.RUNNING
            assert status is not ExecutionStatus.WAITING_FOR_CONFIRMATION or life.permissions.waiting

    @promise
    def work_is_shown(self) -> None:
        """While the agent works, the status says so, or that it is to stop."""
        life = self.life
        if life.queue.turn is not None:
            assert life.now.execution_status in (*LIVE_STATUSES, ExecutionStatus.PAUSED)

    @promise
    def an_interrupt_stops(self) -> None:
        """After an interrupt the status is not a live one once the turn has ended, until a client runs."""
        life = self.life
        if life.interrupted and not life.queue.active and life.interrupting is None:
            assert life.now.execution_status not in LIVE_STATUSES
            assert not life.queue.more

    @promise
    def nothing_is_skipped_or_waits_for_ever(self) -> None:
        """The messages that wait are those that were sent and neither handed over nor moved away from, in
        order. A retried one was handed over without effect."""
        life = self.life
        waiting = [item for item in life.queue.waiting if not item.resumes]
        new = [item.event_id for item in waiting if item.seq > life.now.prompted_seq]
        assert new == list(life.journal.mind.pending)
        assert all(self._had(item.event_id) for item in waiting if item.event_id not in new)
        assert [item.seq for item in waiting] == sorted({item.seq for item in waiting})

    @promise
    def memory_is_claimed_where_it_is(self) -> None:
        """The agent is said to remember only if it did something in its session, and lost nothing. A loss is
        told once."""
        now, mind = self.life.now, self.life.journal.mind
        assert now.remembers == (mind.worked and not mind.lost)
        assert (now.memory_lost is not None) == mind.lost
        assert mind.notices <= 1
        assert not mind.lost or now.loss_reported == (mind.notices == 1)
        assert now.sessions == mind.sessions
        assert now.cut_off == mind.cut
        assert now.failed_restores == mind.crashes

    @promise
    def a_run_knows_what_to_go_on_with(self) -> None:
        """An explicit run hands over again what had no effect, continues what did not end well, and nothing
        else. The built-in agent gets again what it may lack."""
        now, mind = self.life.now, self.life.journal.mind
        assert now.retry_seq == mind.retry
        assert now.unfinished == mind.unfinished
        assert now.joined == mind.joined

    @promise
    def an_interrupted_turn_is_paused(self) -> None:
        """A turn that was interrupted leaves the status paused, or an error, until a client runs."""
        life = self.life
        if life.stopped and not life.queue.active and self.accepts():
            assert life.now.execution_status in (ExecutionStatus.PAUSED, ExecutionStatus.ERROR)

    @promise
    def an_active_message_goes_forward(self) -> None:
        """What is taken up is never less far than it was; without it, nothing is active."""
        queue = self.life.queue
        assert self.phase[0] is not queue.settled or queue.phase >= self.phase[1] or not queue.active
        self.phase = queue.settled, queue.phase
        assert not queue.active or self.life.at not in (At.NOWHERE, At.IDLE)

    @promise
    def a_death_is_reported(self) -> None:
        """While the agent has a turn, the state says that it is open."""
        assert self.life.queue.turn is None or self.life.now.turn_open

    @promise
    def a_state_survives_the_disk(self) -> None:
        """What is stored is read back unchanged."""
        record = self.life.record
        if self._seen("state", record.now):
            return
        assert ConversationRecord.load(record.dump()).now == record.now

    @promise
    def what_is_stored_is_what_is_read(self) -> None:
        """A server that found the last write would have the same messages waiting as this one."""
        journal = self.life.journal
        if self._seen("journal", journal, journal.writes[-1]):
            return
        stored, mind = journal.stored
        record = ConversationRecord.load(stored)
        branch = active(record.moves, journal.last_seq)
        waiting = drive(inbox.waiting(cast(Log, journal), record, branch))
        assert [item.event_id for item in waiting] == list(mind.pending)

    def _seen(self, what: str, *now: Any) -> bool:
        """Whether a promise was held against just this: some cost much."""
        before, self.seen[what] = self.seen.get(what, ()), now
        return len(now) == len(before) and all(map(operator.is_, now, before))

    def happens(self, step: Step) -> None:
        act, given = step
        act(self, **given)
        for held in PROMISES:
            held(self)

    def can(self, act: Act) -> bool:
        return all(holds(self) for holds in act.__dict__["possible"])


Step = tuple[Act, dict[str, Any]]


@attrs.define
class Failure:
    """A sequence that breaks a promise, and how."""

    native: bool
    steps: list[Step]
    error: Exception

    @property
    def place(self) -> tuple[type, str, int | None]:
        last = traceback.extract_tb(self.error.__traceback__)[-1]
        return type(self.error), last.filename, last.lineno

    def shortest(self) -> Failure:
        """Without the steps that it breaks without, too."""
        found = self
        for size in (8, 4, 2, 1, 2, 1):
            at = len(found.steps)
            while (at := at - size) > -size:
                steps = found.steps[: max(0, at)] + found.steps[at + size :]
                shorter = lived(found.native, steps)
                if shorter is not None and shorter.place == self.place:
                    found = shorter
        return found

    def __str__(self) -> str:
        steps = [f"    {act.__name__}({given})" for act, given in self.steps]
        return "\n".join([f"{self.error!r} after native={self.native}:", *steps])


def lived(native: bool, steps: list[Step]) -> Failure | None:
    """What comes of these steps, if all are possible."""
    conversation = Conversations(native)
    try:
        for act, given in steps:
            if not conversation.can(act):
                return None
            conversation.happens((act, given))
    except Exception as error:
        return Failure(native, steps, error)
    return None


def made_up(seed: int) -> Failure | None:
    """What comes of one conversation, to which anything happens that can."""
    draw = random.Random(seed)
    native, steps = flag(draw), []
    conversation = Conversations(native)
    try:
        for _ in range(STEPS):
            possible = [each for each in ACTIONS if conversation.can(each[0])]
            ((act, draws, _),) = draw.choices(possible, [each[2] for each in possible])
            steps.append((act, {name: drawn(draw) for name, drawn in draws.items()}))
            conversation.happens(steps[-1])
    except Exception as error:
        return Failure(native, steps, error)
    return None


def tried(seeds: Iterable[int]) -> None:
    for seed in seeds:
        failure = made_up(seed)
        if failure is not None:
            shortest = failure.shortest()
            raise AssertionError(f"seed {seed}: {shortest}") from shortest.error


def test_the_promises_hold_in_every_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "after", counted)
    tried(range(EXAMPLES))
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        tried(secrets.randbits(64) for _ in range(EXAMPLES))
        print(f"{causes} causes", flush=True)
