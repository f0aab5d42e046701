"""States between what is streamed and its event: the web UI shows such a text twice, so they wait."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
import trio
import trio.testing

from supervisor.acp import parse_update
from supervisor.acp.schema.extension import (
    ItemAborted,
    ItemDelta,
    ItemStarted,
    Reported,
    ReportedEvent,
    ReportedState,
)
from supervisor.conversations.built_in.voice import STATES, NativeEvents
from supervisor.conversations.recording import held_states
from supervisor.conversations.recording.bounds.attachments import Attachment
from supervisor.conversations.recording.effects import Aborted, Close, Delta, Effect, Opened, Recorded, Title
from supervisor.conversations.recording.held_states import HELD_BYTES, HELD_MAX, HELD_SECONDS
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.recording.translate import Translator
from supervisor.conversations.state.record import ConversationRecord, Start
from supervisor.conversations.state.stage import Stage
from supervisor.events import (
    ConversationStateUpdateEvent,
    Message,
    MessageEvent,
    PauseEvent,
    TextContent,
    Vocabulary,
)
from supervisor.journal.errors import JournalError, TooLarge
from supervisor.journal.growing import Growing
from supervisor.journal.log import Log
from supervisor.journal.rows import Blob, Frame, RecordUpdate, Row
from supervisor.settings.agent import AgentSettings
from tests.conversations.harness import events, open_harness, say, states, turn, until
from tests.conversations.world import World


class Told:
    """Stands for a log: what clients see, in order - kinds of events, keys of states, pieces."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.values: dict[str, list[Any]] = {}
        self.appends = 0
        self.broken = False
        self.too_large = ""

    @property
    def last_seq(self) -> int:
        return len(self.seen)

    def append(
        self, rows: Sequence[Row], record: RecordUpdate | None = None, blobs: Sequence[Blob] = ()
    ) -> int:
        if self.broken:
            raise JournalError("the disk is full")
        if any(row.id == self.too_large for row in rows):
            raise TooLarge("the event is too large")
        self.appends += 1
        for row in rows:
            body = orjson.loads(row.body)
            self.seen.append(body.get("key") or body["kind"])
            self.values.setdefault(self.seen[-1], []).append(body.get("value"))
        return self.last_seq

    def update_record(self, record: RecordUpdate) -> None:
        pass

    def publish(self, frame: Frame) -> None:
        pass

    def begin(self, item: Growing, *, alongside: bool = False) -> None:
        self.seen.append("Opened")

    def grow(self, item: Growing) -> None:
        self.seen.append("Delta")

    def abandon(self, item: Growing, farewell: Frame | None = None) -> None:
        self.seen.append("Aborted")


def recorder(log: Told) -> Recorder:
    record = ConversationRecord(
        id="c",
        start=Start(working_dir="/w", created_at="", vocabulary=Vocabulary.EXTENDED),
        updated_at="",
        agent=AgentSettings(),
    )
    return Recorder(cast(Log, log), record)


# -- what the built-in agent reports


def begin(item: str = "i") -> ItemStarted:
    return ItemStarted("s", item, 1)


def says(text: str, item: str = "i") -> ItemDelta:
    return ItemDelta("s", item, 0, "text", text, 1)


def message(item: str = "i") -> ReportedEvent:
    said = {"role": "assistant", "content": [{"type": "text", "text": "hello"}]}
    return ReportedEvent("s", {"kind": "MessageEvent", "id": item, "source": "agent", "llm_message": said})


def used(tokens: int) -> ReportedState:
    return state("stats", {"usage_to_metrics": {"agent": {"accumulated_cost": tokens}}})


def state(key: str, value: Any = None) -> ReportedState:
    return ReportedState("s", key, STATES[key]() if value is None else value)


def reported(*told: Reported, end: bool = True) -> list[str]:
    log = Told()
    writer = recorder(log)
    voice = NativeEvents(writer.record)
    for each in told:
        writer.emit(voice.heard(each, "s").effects)
    if end:
        writer.emit(voice.close(()))
    return log.seen


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ((begin(), says("hello"), used(1), message()), ["Opened", "Delta", "MessageEvent", "stats"]),
        ((used(1), begin(), says("hello"), message()), ["stats", "Opened", "Delta", "MessageEvent"]),
        (
            (begin(), begin(item="j"), used(1), message(), message("j"), used(2)),
            ["Opened", "Opened", "MessageEvent", "MessageEvent", "stats", "stats"],
        ),
        ((begin(), used(1), used(2), message()), ["Opened", "MessageEvent", "stats"]),
        ((begin(), used(1), used(1), message()), ["Opened", "MessageEvent", "stats"]),
        ((begin(), used(1), ItemAborted("s", "i", "retry", 1)), ["Opened", "Aborted", "stats"]),
        ((begin(), used(1)), ["Opened", "Aborted", "stats"]),
        (
            (begin(), says("hello"), state("agent", {"a": 1}), used(1), message()),
            ["Opened", "Delta", "MessageEvent", "agent", "stats"],
        ),
    ],
)  # fmt: skip
def test_what_was_used_is_told_after_the_event_that_is_streamed(
    told: tuple[Reported, ...], expected: list[str]
) -> None:
    assert reported(*told) == expected


VALUES: dict[type, Any] = {dict: {"a": "b"}, list: ["a"]}


@pytest.mark.parametrize("key", STATES)
def test_every_state_of_the_built_in_agent_waits(key: str) -> None:
    told = state(key, VALUES[STATES[key]])
    assert reported(begin(), says("hello"), told, end=False) == ["Opened", "Delta"]
    assert reported(begin(), says("hello"), told, message()) == ["Opened", "Delta", "MessageEvent", key]


# -- what external agents report


def update(sort: str, /, **members: Any) -> Any:
    return parse_update({"sessionId": "s", "update": {"sessionUpdate": sort, **members}})[1]


def text(said: str, kind: str = "agent_message_chunk") -> Any:
    return update(kind, content={"type": "text", "text": said})


PLAN = update("plan", entries=[{"content": "one", "priority": "high", "status": "pending"}])
STATES_OF_OTHERS = {
    "plan": PLAN,
    "current_mode": update("current_mode_update", currentModeId="code"),
    "available_commands": update("available_commands_update", availableCommands=[]),
    "config_options": update("config_option_update", configOptions=[]),
    "acp_meta": update("usage_update", used=1, size=2, _meta={"a": 1}),
    "session_info": update("session_info_update", updatedAt="2026-01-01T00:00:00Z"),
    "title": update("session_info_update", title="A title"),
    "acp_update": update("something_new", a=1),
}
CALL = update("tool_call", toolCallId="1", title="x", kind="read", status="in_progress", rawInput={"a": 1})
ENDED = update("tool_call_update", toolCallId="1", status="completed")


class Agent:
    """An external agent, and what clients see of it."""

    def __init__(self, *, core: bool = False) -> None:
        self.log = Told()
        self.recorder = recorder(self.log)
        self.translator = Translator(core=core)

    def hear(self, *updates: Any) -> list[str]:
        for each in updates:
            self.recorder.emit(self.translator.update(each))
        return self.log.seen

    def end_turn(self, close: Close = Close.FINISH) -> list[str]:
        self.recorder.emit(self.translator.end_turn(close))
        return self.log.seen


@pytest.mark.parametrize("key", STATES_OF_OTHERS)
@pytest.mark.parametrize("close", list(Close))
def test_every_state_of_other_agents_waits(key: str, close: Close) -> None:
    agent = Agent()
    seen = agent.hear(text("hello "), STATES_OF_OTHERS[key], text("there"))
    assert seen == ["Opened", "Delta", "Delta"]
    last = ["ActionEvent", key, "ObservationEvent"] if close is Close.FINISH else ["MessageEvent", key]
    assert agent.end_turn(close)[3:] == last
    assert agent.recorder.record.title == ("A title" if key == "title" else None)


def test_states_wait_in_their_order() -> None:
    agent = Agent()
    agent.hear(text("hello"), *STATES_OF_OTHERS.values(), CALL)
    assert agent.log.seen == ["Opened", "Delta", "MessageEvent", *STATES_OF_OTHERS, "ACPToolCallEvent"]


def test_states_that_no_text_surrounds_are_told_at_once() -> None:
    assert Agent().hear(PLAN, text("hello")) == ["plan", "Opened", "Delta"]
    assert Agent().hear(CALL, PLAN, ENDED)[:2] == ["ACPToolCallEvent", "plan"]


def test_thoughts_that_a_call_has_interrupted_hold_nothing_until_they_go_on() -> None:
    agent = Agent()
    seen = agent.hear(text("hm", "agent_thought_chunk"), PLAN)
    assert seen == ["Opened", "Delta"]
    agent.hear(CALL, STATES_OF_OTHERS["current_mode"])
    assert seen == ["Opened", "Delta", "plan", "ACPToolCallEvent", "current_mode"]
    agent.hear(text("so", "agent_thought_chunk"), STATES_OF_OTHERS["available_commands"])
    assert seen[5:] == ["Delta"]
    last = ["available_commands", "ACPToolCallEvent", "ActionEvent", "ObservationEvent"]
    assert agent.end_turn()[6:] == last


def test_the_answer_is_stored_at_once_where_nothing_waits() -> None:
    agent = Agent()
    agent.hear(text("done"))
    assert agent.end_turn()[2:] == ["ActionEvent", "ObservationEvent"]
    assert agent.log.appends == 1


def test_states_behind_the_answer_are_stored_with_it_and_in_their_order() -> None:
    log = Told()
    writer = recorder(log)
    writer.emit([*OPEN, spoken(), some(1), Recorded(PauseEvent(id="p")), some(2)])
    assert (log.seen[2:], log.appends) == (["MessageEvent", "k1", "PauseEvent", "k2"], 1)
    writer.emit([Opened("j"), some(3)])
    assert "k3" not in log.seen


@pytest.mark.parametrize("key", sorted(held_states.AT_ONCE))
def test_faults_and_what_a_person_decides_by_do_not_wait(key: str) -> None:
    agent = Agent()
    agent.hear(text("hello"), PLAN)
    agent.recorder.emit([Recorded(agent.recorder.state(key, "x"))])
    assert agent.log.seen == ["Opened", "Delta", "plan", key]


def test_what_ostler_writes_does_not_wait() -> None:
    agent = Agent()
    agent.hear(text("hello"), PLAN)
    agent.recorder.write([agent.recorder.state("execution_status", "waiting_for_confirmation")])
    assert agent.log.seen == ["Opened", "Delta", "plan", "execution_status"]


# -- nothing is lost, and little is held


def some(number: int, size: int = 1) -> Effect:
    return Recorded(
        ConversationStateUpdateEvent(id=f"s{number}", timestamp="", key=f"k{number}", value="x" * size)
    )


OPEN: list[Effect] = [Opened("i"), Delta("i", "text", "hello", 0)]


def spoken(item: str = "i") -> Effect:
    said = Message(role="assistant", content=(TextContent(text="hello"),))
    return Recorded(MessageEvent(id=item, source="agent", llm_message=said))


ENDS: dict[str, list[Effect]] = {
    "its event": [spoken()],
    "aborted": [Aborted("i", 0, "failed")],
    "another begins": [Opened("j")],
    "too large": [spoken()],
}


@pytest.mark.parametrize("end", ENDS)
def test_however_the_stream_ends_all_is_told(end: str) -> None:
    log = Told()
    log.too_large = "i" if end == "too large" else ""
    writer = recorder(log)
    writer.emit([*OPEN, some(1), some(2), *ENDS[end]])
    assert [each for each in log.seen if each.startswith("k")] == ["k1", "k2"]
    assert log.seen.index("k1") == (4 if end == "too large" else 3)


def test_all_is_told_when_items_are_given_up_and_at_the_end() -> None:
    for end in (partial(Recorder.abort_items, reason="failed"), Recorder.release_states):
        log = Told()
        writer = recorder(log)
        writer.emit([*OPEN, some(1)])
        assert "k1" not in log.seen
        end(writer)
        assert log.seen[-1] == "k1"


def test_what_waits_is_told_before_what_is_too_much() -> None:
    log = Told()
    writer = recorder(log)
    writer.emit([*OPEN, *(some(number) for number in range(HELD_MAX + 1))])
    assert log.seen[2:] == [f"k{number}" for number in range(HELD_MAX + 1)]
    log.seen.clear()
    writer.emit([some(1, HELD_BYTES // 2), some(2, HELD_BYTES // 4)])
    assert log.seen == []
    writer.emit([some(3, HELD_BYTES // 4)])
    assert log.seen == ["k1", "k2", "k3"]
    log.seen.clear()
    large = Attachment("b", b"x" * HELD_BYTES, "text/plain")
    writer.emit([some(4), Recorded(cast(Recorded, some(5)).event, (large,)), spoken()])
    assert log.seen == ["k4", "k5", "MessageEvent"]


def test_a_disk_that_is_full_is_told_and_holds_nothing_twice() -> None:
    log = Told()
    writer = recorder(log)
    writer.emit([*OPEN, some(1)])
    log.broken = True
    with pytest.raises(JournalError):
        writer.release_states()
    log.broken = False
    writer.emit([spoken()])
    assert log.seen == ["Opened", "Delta", "MessageEvent"]


async def test_a_state_waits_so_long(autojump_clock: trio.testing.MockClock) -> None:
    log = Told()
    writer = recorder(log)
    async with trio.open_nursery() as nursery:
        writer.held.nursery = nursery
        writer.emit([*OPEN, some(1)])
        await trio.sleep(HELD_SECONDS - 1)
        assert "k1" not in log.seen
        await trio.sleep(2)
        assert log.seen[-1] == "k1"
        # The next one has its own time.
        writer.emit([some(2), spoken(), Opened("j"), Delta("j", "text", "x", 0)])
        await trio.sleep(HELD_SECONDS - 1)
        writer.emit([some(3)])
        await trio.sleep(HELD_SECONDS - 1)
        assert log.seen[-1] == "Delta"
        await trio.sleep(2)
        assert log.seen[-1] == "k3"
        log.broken = True
        writer.emit([some(4)])
    assert not writer.held  # and nothing was raised


def test_an_event_in_between_ends_the_wait() -> None:
    log = Told()
    recorder(log).emit([*OPEN, some(1), Recorded(PauseEvent(id="p")), some(2), spoken()])
    assert log.seen == ["Opened", "Delta", "k1", "PauseEvent", "k2", "MessageEvent"]


def test_a_title_that_waits_is_the_title() -> None:
    log = Told()
    writer = recorder(log)
    writer.emit([*OPEN, Title("A title")])
    assert (writer.record.title, writer.unsaved, log.seen[2:]) == ("A title", True, [])


# -- with an agent


@pytest.mark.guarantee(name="nothing-is-lost")
@pytest.mark.parametrize(
    "end",
    ["!text and after", "!crash 3", "!crash SIGKILL", "!stop refusal", "!error -32603 no", "!mode yolo"],
)
async def test_a_state_stands_behind_its_text_however_the_turn_ends(tmp_path: Path, end: str) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, f"!text before\n!plan\n{end}")
        kinds = [event.get("key") or event["kind"] for event in found]
        (said,) = [
            at for at, event in enumerate(found) if "before" in str(event) and event["source"] == "agent"
        ]
        assert kinds[said + 1] == "plan"
        assert kinds.count("plan") == 1


async def test_a_state_does_not_wait_for_an_agent_that_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_states, "HELD_SECONDS", 0.05)
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("!text before\n!plan\n!hang"), run=True)
        with trio.fail_after(20):  # before a minute of silence is reported
            while not states(await events(conversation), "plan"):
                await trio.sleep(0.01)
        assert conversation.record.now.execution_status == "running"


@pytest.mark.guarantee(name="nothing-is-lost")
def test_a_state_that_waits_for_the_built_in_agent_is_told_when_its_task_ends() -> None:
    world = World(core=False, confirming=False)
    world.recorder.emit([*OPEN, some(1)])
    assert b"k1" not in world.log.rows[-1].body
    world.turns.leave()
    assert b"k1" in world.log.rows[-1].body


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_state_that_waits_is_told_when_its_task_is_cancelled(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("!text before\n!plan\n!hang"), run=True)
        await until(lambda: bool(conversation.recorder.held), "the plan")
        assert states(await events(conversation), "plan") == []
        scope = conversation.runner._scope
        assert scope is not None
        scope.cancel()
        await until(lambda: conversation.runner._stage.now is Stage.STOPPED, "the end of its task")
        assert len(states(await events(conversation), "plan")) == 1
