"""A conversation without a process and without a disk: what an agent sends goes in, everything that comes of
it is kept for the test to look at."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import attrs
import orjson

from supervisor.acp import Connection, Result, RpcError, parse_prompt_result, parse_update
from supervisor.agents.catalog import CUSTOM, load_catalog
from supervisor.agents.homes.credential import choose_credential
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.kind import Voice
from supervisor.conversations.agent.launch.login import Login
from supervisor.conversations.agent.opening import Started, note_session
from supervisor.conversations.agent.session_choices import choose, models_of, open_one
from supervisor.conversations.agent.session_setup import SessionRequest, handshake, open_session
from supervisor.conversations.agent.shared import Shared
from supervisor.conversations.external.kind import External
from supervisor.conversations.mcp.mounting import Mounted
from supervisor.conversations.recording.bounds.attachments import Allowance, Originals
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.recording.translate import Translator
from supervisor.conversations.resource.resource import conversation_info
from supervisor.conversations.resource.status_publisher import StatusPublisher
from supervisor.conversations.state.counters import Counters
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.state.failures import from_rpc
from supervisor.conversations.state.queue import Queued, TurnQueue
from supervisor.conversations.state.record import ConversationRecord, Start
from supervisor.conversations.turns.permissions import Permissions
from supervisor.conversations.turns.turns import Turns
from supervisor.events import Message, Vocabulary, timestamp_now
from supervisor.journal.growing import Follower, Growing
from supervisor.journal.log import Log
from supervisor.journal.rows import Blob, Frame, RecordUpdate, Row, Shown
from supervisor.settings.agent import AgentSettings

DATA = Path("/data")


@attrs.define
class Sink:
    """Stands for the log: keeps what is appended and what is streamed."""

    rows: list[Row] = attrs.field(factory=list)
    blobs: list[Blob] = attrs.field(factory=list)
    frames: list[Shown] = attrs.field(factory=list)
    records: list[bytes] = attrs.field(factory=list)
    last_seq: int = -1
    following: Follower = attrs.field(init=False)
    shows_updates: bool = False

    def append(
        self, rows: Sequence[Row], record: RecordUpdate | None = None, blobs: Sequence[Blob] = ()
    ) -> int:
        self.rows += rows
        self.blobs += blobs
        if record is not None:
            self.records.append(record.record)
        self.last_seq += len(rows)
        return self.last_seq

    def update_record(self, record: RecordUpdate) -> None:
        self.append((), record)

    def publish(self, frame: Frame) -> None:
        self.frames.append(frame)

    def begin(self, item: Growing, *, alongside: bool = False) -> None:
        self.following = Follower(item, late=False)

    def grow(self, item: Growing) -> None:
        assert item is self.following.item
        self.frames += self.following.take()

    def abandon(self, item: Growing, farewell: Frame | None = None) -> None:
        assert item is self.following.item
        if farewell is not None:
            self.publish(farewell)


class Answering:
    """Stands for the connection: answers requests from a table; an answer may be an RpcError."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers

    async def request(
        self, method: str, params: Any, *, timeout: float, on_response: Callable[[Result], None] | None = None
    ) -> Any:
        answer = self.answers.get(method, {})
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, RpcError):
            raise answer
        if on_response is not None:
            on_response(Result(answer))
        return answer


class World:
    """One conversation with a turn under way. `core` chooses the vocabulary, `confirming` the policy."""

    def __init__(self, *, core: bool, confirming: bool, allowance: Allowance | None = None) -> None:
        now = timestamp_now()
        self.record = ConversationRecord(
            id="00000000-0000-0000-0000-000000000001",
            start=Start(
                working_dir="/w",
                created_at=now,
                vocabulary=Vocabulary.CORE if core else Vocabulary.EXTENDED,
            ),
            updated_at=now,
            agent=AgentSettings(acp_server="custom", acp_command=("agent",)),
            confirmation_policy={"kind": "AlwaysConfirm" if confirming else "NeverConfirm"},
        )
        self.log = Sink()
        self.recorder = Recorder(cast(Log, self.log), self.record)
        count = itertools.count()
        self.translator = Translator(
            core=core,
            confirming=confirming,
            mint=lambda: f"id-{next(count)}",
            originals=Originals(allowance or Allowance()),
            workspace="/w",
        )
        nursery = SimpleNamespace(start_soon=lambda *_: None)
        queued = Queued(0, "message", Message(role="user", content=()))
        queue = TurnQueue(waiting=[queued])
        self.kind = External(self.record)
        self.publisher = StatusPublisher(
            self.recorder, self.kind, queue, cast(Any, nursery), Deadlines().echo, DATA
        )
        context = SimpleNamespace(counters=Counters(), nursery=nursery, deadlines=Deadlines())
        shared = Shared(
            context=cast(Any, context),
            recorder=self.recorder,
            queue=queue,
            kind=cast(Any, None),
            voice=Voice(self.record),
            translator=self.translator,
            publisher=self.publisher,
        )
        self.permissions = Permissions(shared, clock=lambda: 0.0)
        self.lifecycle = SimpleNamespace(
            ready=None, drop=lambda _: None, output=SimpleNamespace(tail=lambda *_: [])
        )
        self.turns = Turns(shared, cast(Any, self.lifecycle), self.permissions, clock=lambda: 0.0)
        self.kept: list[Any] = []
        self.turn = self.turns.begin(queued)

    def update(self, params: Any) -> None:
        """A `session/update`."""
        self.recorder.emit(self.translator.update(parse_update(params)[1]))

    def permission(self, params: Any) -> None:
        """A `session/request_permission`; a person would reject it."""
        waiting = self.permissions.ask(params)
        self.kept.append(waiting)
        if self.permissions.waiting:
            self.permissions.decide(accept=False, reason="no")

    async def start(self, answers: Mapping[str, Any], prior: str | None) -> None:
        """A start with these answers: handshake, session, model, mode."""
        connection = cast(Connection, Answering(answers))
        custom = load_catalog()[CUSTOM]  # it has no credentials at all
        login = Login(descriptor=custom, choice=choose_credential(custom, {}, ()), environment={})
        try:
            initialized = await handshake(connection, "1", Deadlines(), fs=True, terminal=True)
            wanted = SessionRequest(cwd="/w", mcp_servers=(), prior_id=prior, login=login)
            session = await open_session(connection, initialized, wanted, Deadlines(), lambda _: None)
            holder = cast(Incarnation, SimpleNamespace(connection=connection, session=session))
            refused = (
                await choose(holder, "model", "large", Deadlines()),
                await choose(holder, "mode", "plan", Deadlines()),
            )
            session = open_one(holder)
        except AgentFailure as failure:
            self.publisher.run_failed(failure)
            return
        models = models_of(session.result)
        refusals = tuple(each for each in refused if each is not None)
        started = Started(session, models, Mounted(), refused=refusals)
        plan = SimpleNamespace(private=False, descriptor=custom)
        run = cast(Incarnation, SimpleNamespace(initialized=initialized, plan=plan))
        note_session(self.record, run, started)
        self.publisher.session(session.memory, session.reason, "prompt")
        self.publisher.refused(started.refused)
        for key, value in started.states():
            self.recorder.emit(self.translator.state(key, value))
        self.kept += [initialized, session, started]

    def answered(self, result: Any) -> None:
        """The answer to the prompt."""
        answer = parse_prompt_result(result)
        self.turns.finish(self.turn, answer.stop_reason, answer)

    def failed(self, error: RpcError) -> None:
        """An error for the prompt."""
        self.recorder.write([self.recorder.state("agent_retry", str(error))])
        self.turns.fail(self.turn, from_rpc(error, "ACPPromptError"))

    def end(self) -> None:
        """The turn ends, if it has not."""
        for waiting in self.kept:
            if isinstance(waiting, Awaitable):
                cast(Any, waiting).close()
        self.kept = [kept for kept in self.kept if not isinstance(kept, Awaitable)]
        self.turns.finish(self.turn, "end_turn")

    def resource(self) -> int:
        """Bytes of the conversation resource."""
        return len(orjson.dumps(conversation_info(self.kind, DATA), option=orjson.OPT_NON_STR_KEYS))

    def retained(self, known: Mapping[int, int]) -> int:
        """Bytes of everything that the conversation keeps in memory. `known` are sizes by identity."""
        return deep_size(
            [self.record, self.translator, self.permissions._pending, self.kept, self.turn], known
        )


_LEAVES = (str, bytes, bytearray, int, float, bool, type(None))


def deep_size(value: Any, known: Mapping[int, int] | None = None) -> int:
    """Bytes of a value and of all that it refers to, each object once. What is in `known`, sizes by identity,
    is not looked into."""
    known = known or {}
    seen: dict[int, Any] = {}
    layer: dict[int, Any] = {id(value): value}
    while layer:
        seen |= layer
        below: dict[int, Any] = {}
        for key, each in layer.items():
            if key in known:
                continue
            for group in _below(each):
                below.update(zip(map(id, group), group, strict=True))
        layer = {key: each for key, each in below.items() if key not in seen}
    return sum(known.get(key) or sys.getsizeof(each) for key, each in seen.items())


def _below(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, (*_LEAVES, type)) or callable(value):
        return
    if isinstance(value, dict):
        yield list(value.keys())
        yield list(value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield list(value)
    else:
        yield list(vars(value).values()) if hasattr(value, "__dict__") else []
        yield [getattr(value, name) for name in _slots(type(value)) if hasattr(value, name)]


@cache
def _slots(cls: type) -> tuple[str, ...]:
    """The slots of a class and of those that it is made of."""
    return tuple(
        name for each in cls.__mro__ for name in getattr(each, "__slots__", ()) if name != "__weakref__"
    )
