"""What an agent's updates become: which events, in which order, in which words."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import pytest

from supervisor.acp import parse_update
from supervisor.conversations.recording import agent_states
from supervisor.conversations.recording.bounds.truncation import THOUGHT_BYTES
from supervisor.conversations.recording.effects import Close, Delta, Opened, Recorded, Title, Usage
from supervisor.conversations.recording.tool_calls.calls import BLOCKS_MAX
from supervisor.conversations.recording.tool_calls.consent import Inquiry
from supervisor.conversations.recording.tool_calls.events import INTERRUPTED
from supervisor.conversations.recording.translate import Translator
from supervisor.credentials.masking import HIDDEN, Masker
from supervisor.events import (
    ACPToolCallEvent,
    ActionEvent,
    AgentErrorEvent,
    ConversationStateUpdateEvent,
    Event,
    FinishAction,
    ImageContent,
    MCPToolAction,
    MessageEvent,
    ObservationEvent,
    SecurityRisk,
    TextContent,
    ThinkAction,
    UserRejectObservation,
    Vocabulary,
    dump_stamped,
    dumps,
)


def translator(**options: Any) -> Translator:
    count = itertools.count()
    return Translator(mint=lambda: f"id-{next(count)}", **{"core": False, **options})


def feed(t: Translator, update_kind: str, /, **fields: Any) -> list[Any]:
    _, update = parse_update({"sessionId": "s", "update": {"sessionUpdate": update_kind, **fields}})
    return t.update(update)


def say(t: Translator, text: str, message_id: str | None = None) -> list[Any]:
    more = {"messageId": message_id} if message_id else {}
    return feed(t, "agent_message_chunk", content={"type": "text", "text": text}, **more)


def think(t: Translator, text: str) -> list[Any]:
    return feed(t, "agent_thought_chunk", content={"type": "text", "text": text})


def ask(t: Translator, tool_call: dict[str, Any]) -> tuple[Inquiry, list[Any]]:
    asked, effects = t.requested(tool_call)
    return asked, effects + t.ask(asked)


def events(effects: list[Any]) -> list[Event]:
    return [out.event for out in effects if isinstance(out, Recorded)]


def state_of(event: Event) -> tuple[str, Any]:
    assert isinstance(event, ConversationStateUpdateEvent)
    return event.key, event.value


def text_of(event: Event) -> str:
    assert isinstance(event, MessageEvent)
    return "".join(part.text for part in event.llm_message.content)  # type: ignore[union-attr]


def test_an_answer_is_streamed_under_the_id_of_the_event_it_becomes() -> None:
    t = translator()
    effects = say(t, "Hello ") + say(t, "world")
    opened = [out for out in effects if isinstance(out, Opened)]
    deltas = [out for out in effects if isinstance(out, Delta)]
    assert len(opened) == 1
    assert [(d.content, d.kind, d.order) for d in deltas] == [("Hello ", "text", 0), ("world", "text", 1)]
    assert events(effects) == []
    action, observation = events(t.end_turn(Close.FINISH))
    assert isinstance(action, ActionEvent)
    assert action.id == opened[0].item_id == deltas[0].item_id
    assert action.action == FinishAction(message="Hello world")
    assert isinstance(observation, ObservationEvent)
    assert observation.action_id == action.id
    assert observation.tool_call_id == action.tool_call_id == action.tool_call.id
    assert action.tool_name == observation.tool_name == "finish"


def test_text_before_a_tool_call_is_a_message_in_its_place() -> None:
    t = translator()
    said = say(t, "I look first.")
    call = feed(
        t, "tool_call", toolCallId="c1", title="ls", kind="read", status="in_progress", rawInput={"p": 1}
    )
    done = feed(t, "tool_call_update", toolCallId="c1", status="completed", rawOutput="a\nb")
    say(t, "Two files.")
    end = t.end_turn(Close.FINISH)
    message, start = events(call)
    assert text_of(message) == "I look first."
    assert message.id == next(out.item_id for out in said if isinstance(out, Opened))
    assert isinstance(start, ACPToolCallEvent)
    assert (start.title, start.status, start.tool_kind, start.raw_input) == (
        "ls",
        "in_progress",
        "read",
        {"p": 1},
    )
    (closing,) = events(done)
    assert isinstance(closing, ACPToolCallEvent)
    assert (closing.status, closing.raw_output, closing.is_error) == ("completed", "a\nb", False)
    assert closing.tool_call_id == start.tool_call_id
    assert closing.id != start.id
    finish = events(end)[0]
    assert isinstance(finish, ActionEvent)
    assert finish.action == FinishAction(message="Two files.")


def test_thoughts_go_to_the_reasoning_of_what_they_lead_to() -> None:
    t = translator()
    effects = think(t, "hm ") + think(t, "yes") + say(t, "Done.")
    assert [out.kind for out in effects if isinstance(out, Delta)] == ["reasoning", "reasoning", "text"]
    assert len([out for out in effects if isinstance(out, Opened)]) == 1
    finish = events(t.end_turn(Close.FINISH))[0]
    assert isinstance(finish, ActionEvent)
    assert finish.reasoning_content == "hm yes"
    assert finish.action == FinishAction(message="Done.")


def call_of(t: Translator, name: str = "c") -> list[Event]:
    return events(feed(t, "tool_call", toolCallId=name, title="ls", status="in_progress"))


def test_thoughts_before_a_tool_call_are_the_reasoning_of_its_action() -> None:
    t = translator(core=True)
    opened = next(out for out in think(t, "I need the list") if isinstance(out, Opened))
    (action,) = call_of(t)
    assert isinstance(action, ActionEvent)
    assert (action.id, action.reasoning_content) == (opened.item_id, "I need the list")
    (second,) = call_of(t, "d")
    assert isinstance(second, ActionEvent)
    assert second.reasoning_content is None


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
def test_thoughts_before_a_call_that_cannot_hold_them_wait_for_what_can() -> None:
    """An ACPToolCallEvent has no place for them; the peer tells all of a turn with its end."""
    t = translator()
    opened = next(out for out in think(t, "I need the list") if isinstance(out, Opened))
    (call,) = call_of(t)
    assert isinstance(call, ACPToolCallEvent)
    effects = think(t, "now I ") + think(t, "have it")
    assert not [out for out in effects if isinstance(out, Opened)]
    finish = events(t.end_turn(Close.FINISH))[-2]
    assert isinstance(finish, ActionEvent)
    assert finish.id == opened.item_id
    assert finish.reasoning_content == "I need the list\n\nnow I have it"


def test_text_after_such_thoughts_is_one_message_with_them() -> None:
    t = translator()
    think(t, "hm")
    call_of(t)
    say(t, "There.")
    message, _ = call_of(t, "d")
    assert isinstance(message, MessageEvent)
    assert (text_of(message), message.llm_message.reasoning_content) == ("There.", "hm")


@pytest.mark.parametrize("core", [True, False])
def test_a_call_that_a_person_is_asked_about_has_the_thoughts_before_it(core: bool) -> None:
    t = translator(core=core, confirming=True)
    think(t, "risky")
    key, effects = t.requested({"toolCallId": "c", "title": "rm", "kind": "execute"})
    (action,) = events(effects + t.ask(key))
    assert isinstance(action, ActionEvent)
    assert action.reasoning_content == "risky"


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize("core", [True, False])
def test_thoughts_that_nothing_follows_are_no_blank_message(core: bool) -> None:
    t = translator(core=core)
    opened = next(out for out in think(t, "hm") if isinstance(out, Opened))
    action, observation = events(t.end_turn(Close.MESSAGE))
    assert isinstance(action, ActionEvent)
    assert (action.id, action.reasoning_content) == (opened.item_id, "hm")
    assert isinstance(action.action, ThinkAction)
    assert isinstance(observation, ObservationEvent)
    assert (observation.action_id, observation.tool_call_id) == (action.id, action.tool_call_id)


def test_thoughts_beside_text_that_waits_for_a_secret_are_not_alone() -> None:
    t = translator(core=True, mask=Masker([SECRET]))
    think(t, "hm")
    say(t, SECRET[:5])
    message, action = call_of(t)
    assert isinstance(message, MessageEvent)
    assert (text_of(message), message.llm_message.reasoning_content) == (SECRET[:5], "hm")
    assert isinstance(action, ActionEvent)
    assert action.reasoning_content is None


def test_large_thoughts_before_a_call_are_bounded_with_the_rest_beside_them() -> None:
    t = translator(core=True)
    effects = []
    for _ in range(40):
        effects += think(t, "x" * 100_000)
    effects += feed(t, "tool_call", toolCallId="c", title="ls", status="in_progress")
    (recorded,) = [out for out in effects if isinstance(out, Recorded)]
    assert isinstance(recorded.event, ActionEvent)
    assert len(recorded.event.reasoning_content or "") <= THOUGHT_BYTES + 500
    assert recorded.attachments


def test_a_new_message_id_begins_a_new_message() -> None:
    t = translator()
    say(t, "one", "m1")
    effects = say(t, "two", "m2")
    said, details = events(effects)
    assert text_of(said) == "one"
    assert state_of(details) == ("message_details", {"event_id": said.id, "message_id": "m1"})
    finish = events(t.end_turn(Close.FINISH))[0]
    assert isinstance(finish, ActionEvent)
    assert finish.action == FinishAction(message="two")


@pytest.mark.guarantee(name="nothing-is-lost")
def test_what_was_said_stays_when_a_turn_ends_badly() -> None:
    t = translator()
    say(t, "half an ans")
    (message,) = events(t.end_turn(Close.MESSAGE))
    assert text_of(message) == "half an ans"
    assert t.end_turn(Close.MESSAGE) == []


def test_a_turn_that_ends_with_a_tool_call_has_an_empty_answer() -> None:
    t = translator()
    feed(t, "tool_call", toolCallId="c", title="ls", status="completed")
    finish = events(t.end_turn(Close.FINISH))[0]
    assert isinstance(finish, ActionEvent)
    assert finish.action == FinishAction(message="")


def test_open_calls_are_never_reported_as_completed() -> None:
    t = translator()
    feed(t, "tool_call", toolCallId="c", title="sleep", status="in_progress")
    (closing,) = events(t.end_turn(Close.MESSAGE))
    assert isinstance(closing, ACPToolCallEvent)
    assert (closing.status, closing.is_error) == ("failed", True)
    assert "Interrupted" in str(closing.content)


def test_an_open_call_in_core_is_closed_with_an_error() -> None:
    t = translator(core=True)
    (start,) = events(
        feed(t, "tool_call", toolCallId="c", title="sleep", status="in_progress", rawInput={"s": 9})
    )
    assert isinstance(start, ActionEvent)
    assert start.action == MCPToolAction(data={"s": 9})
    (closing,) = events(t.end_turn(Close.MESSAGE))
    assert isinstance(closing, AgentErrorEvent)
    assert closing.tool_call_id == start.tool_call_id
    assert "Interrupted" in closing.error


SCRIPT: list[tuple[str, dict[str, Any]]] = [
    ("agent_thought_chunk", {"content": {"type": "text", "text": "let me see"}}),
    ("agent_message_chunk", {"content": {"type": "text", "text": "Looking."}}),
    ("tool_call", {"toolCallId": "a", "title": "ls", "status": "pending", "rawInput": {}}),
    ("tool_call_update", {"toolCallId": "a", "status": "in_progress", "rawInput": {"path": "."}}),
    ("tool_call", {"toolCallId": "b", "title": "cat", "status": "in_progress"}),
    ("plan", {"entries": [{"content": "x", "priority": "high", "status": "pending"}]}),
    (
        "tool_call_update",
        {
            "toolCallId": "a",
            "status": "completed",
            "content": [{"type": "content", "content": {"type": "text", "text": "f"}}],
        },
    ),
    ("tool_call_update", {"toolCallId": "b", "status": "failed", "rawOutput": "no"}),
    ("agent_message_chunk", {"content": {"type": "text", "text": "That is all."}}),
]


def test_both_vocabularies_have_the_same_events_in_the_same_places() -> None:
    runs = []
    for core in (False, True):
        t = translator(core=core)
        effects = [out for kind, fields in SCRIPT for out in feed(t, kind, **fields)] + t.end_turn(
            Close.FINISH
        )
        runs.append(events(effects))
    extended, core_events = runs
    assert [event.id for event in extended] == [event.id for event in core_events]
    kinds = list(zip([e.kind for e in extended], [e.kind for e in core_events], strict=True))
    assert kinds == [
        ("MessageEvent", "MessageEvent"),
        ("ACPToolCallEvent", "ActionEvent"),
        ("ACPToolCallEvent", "ActionEvent"),
        ("ConversationStateUpdateEvent", "ConversationStateUpdateEvent"),
        ("ACPToolCallEvent", "ObservationEvent"),
        ("ACPToolCallEvent", "AgentErrorEvent"),
        ("ActionEvent", "ActionEvent"),
        ("ObservationEvent", "ObservationEvent"),
    ]


def test_every_call_has_exactly_two_events_however_many_updates() -> None:
    t = translator()
    effects = feed(t, "tool_call", toolCallId="c", title="t", status="pending")
    for _ in range(5):
        effects += feed(t, "tool_call_update", toolCallId="c", status="in_progress", rawInput={"a": 1})
    effects += feed(t, "tool_call_update", toolCallId="c", status="completed")
    effects += feed(t, "tool_call_update", toolCallId="c", status="completed", rawOutput="again")
    assert len(events(effects)) == 2


def test_an_update_for_an_unknown_call_opens_it() -> None:
    t = translator()
    start, end = events(
        feed(t, "tool_call_update", toolCallId="x", status="completed", title="w", kind="edit")
    )
    assert isinstance(start, ACPToolCallEvent)
    assert isinstance(end, ACPToolCallEvent)
    assert (start.title, end.status) == ("w", "completed")


def test_the_input_is_waited_for_while_it_arrives() -> None:
    t = translator()
    assert feed(t, "tool_call", toolCallId="c", title="Terminal", status="pending", rawInput={}) == []
    assert t.holding
    assert feed(t, "tool_call_update", toolCallId="c", title="echo hi", rawInput={"command": "echo hi"}) == []
    (start,) = events(t.release())
    assert isinstance(start, ACPToolCallEvent)
    assert (start.title, start.raw_input) == ("echo hi", {"command": "echo hi"})
    assert not t.holding


def test_text_never_overtakes_a_call_that_is_held_back() -> None:
    t = translator()
    feed(t, "tool_call", toolCallId="c", title="t", status="pending")
    effects = say(t, "meanwhile")
    assert [type(out).__name__ for out in effects] == ["Recorded", "Opened", "Delta"]


def test_ids_used_again_stay_apart() -> None:
    t = translator()
    first = events(feed(t, "tool_call", toolCallId="1", title="a", status="completed"))
    t.new_session(1)
    second = events(feed(t, "tool_call", toolCallId="1", title="b", status="completed"))
    third = events(feed(t, "tool_call", toolCallId="1", title="c", status="completed"))
    ids = {event.tool_call_id for event in (*first, *second, *third) if isinstance(event, ACPToolCallEvent)}
    assert len(ids) == 3


@pytest.mark.parametrize("core", [False, True])
def test_a_call_that_asks_is_an_action_in_either_vocabulary(core: bool) -> None:
    t = translator(core=core, confirming=True)
    feed(t, "tool_call", toolCallId="c", title="bash", status="pending", rawInput={})
    # One agent says in_progress before it asks.
    assert (
        feed(t, "tool_call_update", toolCallId="c", status="in_progress", rawInput={"command": "rm x"}) == []
    )
    asked, effects = ask(t, {"toolCallId": "c", "title": "rm x", "status": "pending"})
    (action,) = events(effects)
    assert isinstance(action, ActionEvent)
    assert action.action == MCPToolAction(data={"command": "rm x"})
    (observation,) = events(feed(t, "tool_call_update", toolCallId="c", status="completed", rawOutput="ok"))
    assert isinstance(observation, ObservationEvent)
    assert observation.action_id == action.id
    assert asked.keys == ("c",)


def test_a_permission_without_a_call_before_it_opens_the_call() -> None:
    t = translator(confirming=True)
    say(t, "May I?")
    _, effects = ask(t, {"toolCallId": "w", "title": "write", "kind": "edit", "rawInput": {"p": "x"}})
    message, action = events(effects)
    assert text_of(message) == "May I?"
    assert isinstance(action, ActionEvent)


def test_a_rejected_call_is_closed_at_once_and_only_once() -> None:
    t = translator(confirming=True)
    key, effects = ask(t, {"toolCallId": "c", "title": "rm", "rawInput": {}})
    (action,) = events(effects)
    (reject,) = events(t.reject(key, "not that"))
    assert isinstance(reject, UserRejectObservation)
    assert (reject.rejection_reason, reject.rejection_source) == ("not that", "user")
    assert reject.action_id == action.id
    assert feed(t, "tool_call_update", toolCallId="c", status="failed", rawOutput="refused") == []
    assert events(t.end_turn(Close.MESSAGE)) == []


def test_a_call_shown_before_it_asked_gets_both_its_answers() -> None:
    t = translator()
    (shown,) = events(feed(t, "tool_call", toolCallId="c", title="x", status="in_progress"))
    assert isinstance(shown, ACPToolCallEvent)
    t.confirming = True  # the policy is another one now
    _, effects = ask(t, {"toolCallId": "c"})
    (action,) = events(effects)
    closing = events(feed(t, "tool_call_update", toolCallId="c", status="completed"))
    assert [event.kind for event in closing] == ["ObservationEvent", "ACPToolCallEvent"]
    assert isinstance(action, ActionEvent)
    assert action.tool_call_id == shown.tool_call_id


@pytest.mark.parametrize("core", [True, False])
def test_a_call_that_was_held_back_no_longer_and_then_asks_is_one(core: bool) -> None:
    t = translator(confirming=True, core=core)
    feed(t, "tool_call", toolCallId="c", title="x", status="in_progress")
    (shown,) = events(t.release())
    assert isinstance(shown, ActionEvent)
    _, effects = ask(t, {"toolCallId": "c"})
    assert events(effects) == []
    _, effects = ask(t, {"toolCallId": "c", "content": [{"type": "diff", "path": "/a", "newText": "b"}]})
    (message,) = events(effects)
    assert isinstance(message, MessageEvent)
    assert message.source == "agent"
    assert "```diff\n@@ -0,0 +1 @@\n+b\n```" in text_of(message)
    closing = events(feed(t, "tool_call_update", toolCallId="c", status="completed"))
    assert [event.kind for event in closing] == ["ObservationEvent"]


def test_a_call_that_was_taken_for_over_too_early_is_shown_with_its_result() -> None:
    t = translator(core=True)
    key, effects = t.requested({"toolCallId": "c", "title": "make", "kind": "execute"})
    effects += t.allowed(key)
    t.answered(key)
    (action,) = events(effects)
    (closing,) = events(say(t, "It takes its time."))
    assert isinstance(closing, ObservationEvent)
    effects = feed(t, "tool_call_update", toolCallId="c", status="completed", rawOutput="made")
    message, again, result = events(effects)
    assert text_of(message) == "It takes its time."
    assert isinstance(action, ActionEvent)
    assert isinstance(again, ActionEvent)
    assert (again.summary, again.tool_call_id) == ("make", "c~2")
    assert isinstance(result, ObservationEvent)
    assert [part.text for part in result.observation.content] == ["made"]  # type: ignore[union-attr]


@pytest.mark.parametrize("core", [True, False])
def test_a_call_waits_for_its_question_while_another_is_asked_about(core: bool) -> None:
    t = translator(core=core, confirming=True)
    described = [{"type": "content", "content": {"type": "text", "text": "Lists the files"}}]
    feed(t, "tool_call", toolCallId="a", title="a", status="pending", content=described)
    ask(t, {"toolCallId": "a"})
    for name in ("b", "c"):  # the person is asked already
        feed(t, "tool_call", toolCallId=name, title=name, status="pending", content=described)
    assert events(t.release(everything=False)) == []
    feed(t, "tool_call_update", toolCallId="c", _meta={"terminal_output_delta": {"data": "it runs"}})
    (running,) = events(t.release(everything=False))  # nobody asked for it
    assert running.tool_call_id == "c"  # type: ignore[union-attr]
    _, effects = ask(t, {"toolCallId": "b"})
    (action,) = events(effects)
    assert isinstance(action, ActionEvent)
    assert action.tool_call_id == "b"


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize("core", [True, False])
@pytest.mark.parametrize(
    "described",
    [
        {},
        {"title": "Bash"},
        {"title": "Bash", "rawInput": {"command": "rm x"}},
        {"title": "Bash", "content": [{"type": "content", "content": {"type": "text", "text": "rm x"}}]},
        {"title": "Write", "content": [{"type": "diff", "path": "/w/a", "newText": "b"}]},
        {"title": "Bash", "status": "in_progress"},
    ],
    ids=["nothing", "a title", "an input", "words", "a diff", "in progress"],
)
def test_what_is_announced_is_shown_before_a_question_about_another_call(
    core: bool, described: dict[str, Any]
) -> None:
    t = translator(core=core, confirming=True)
    feed(t, "tool_call", **{"toolCallId": "open", "kind": "execute", "status": "pending", **described})
    feed(t, "tool_call", toolCallId="asks", kind="read", title="look", rawInput={"path": "a"})
    inquiry, effects = ask(t, {"toolCallId": "asks"})
    assert [(each.kind, each.tool_call_id) for each in events(effects)] == [  # type: ignore[attr-defined]
        ("ActionEvent", "open"),
        ("ActionEvent", "asks"),
    ]
    t.answered(inquiry)
    assert len(events(feed(t, "tool_call_update", toolCallId="asks", status="completed"))) == 1
    # A later question stands at the newest event, and says what it is about.
    _, effects = ask(t, {"toolCallId": "open", "title": "Run it?", "rawInput": {"command": "rm x"}})
    (question,) = [each for each in events(effects) if isinstance(each, MessageEvent)]
    assert text_of(question).startswith("May I? Run it?")
    assert ("+b" if "Write" in described.values() else "rm x") in text_of(question)
    assert not [each for each in events(effects) if isinstance(each, ActionEvent)]


def test_a_question_about_an_action_that_is_not_the_newest_is_a_message() -> None:
    """Clients show their buttons at the newest event of the agent's."""
    t = translator(core=True, confirming=True)
    for name in ("a", "b"):
        feed(t, "tool_call", toolCallId=name, title=name, kind="execute", rawInput={"command": name})
    inquiry, _ = ask(t, {"toolCallId": "a"})
    t.answered(inquiry)
    _, effects = ask(t, {"toolCallId": "b"})
    (question,) = events(effects)
    assert text_of(question) == 'May I? b\n\n```json\n{\n  "command": "b"\n}\n```'


@pytest.mark.parametrize("core", [True, False])
def test_a_call_with_the_id_of_a_rejected_one_and_another_input_is_a_new_one(core: bool) -> None:
    t = translator(core=core, confirming=True)
    feed(t, "tool_call", toolCallId="c", title="Bash", status="pending", rawInput={"command": "rm"})
    key, _ = ask(t, {"toolCallId": "c", "title": "Run rm"})
    t.reject(key, "no")
    again = {"toolCallId": "c", "title": "Bash", "status": "in_progress"}
    assert events(feed(t, "tool_call", rawInput={"command": "rm"}, **again)) == []
    assert not t.calling
    feed(t, "tool_call", rawInput={"command": "ls"}, **again)
    assert t.calling
    t.end_turn(Close.MESSAGE)
    # What was carried out all the same is shown, whatever was answered.
    done = events(feed(t, "tool_call", **{**again, "status": "completed", "rawOutput": "gone"}))
    assert len(done) == 2


@pytest.mark.parametrize(
    ("before", "after", "glued"),
    [
        ("I look.", "Done.", False),
        ("I look", "Done", False),
        ("before", "after", False),
        ("I look\n", "at it", False),
        ("I look", " at it", True),
        ("I look ", "at it", True),
        ("I look", ", then", True),
        ("I look. ", "Done.", False),
    ],
)
def test_text_goes_on_after_a_call_only_where_its_sentence_does(before: str, after: str, glued: bool) -> None:
    t = translator()
    call_of(t)
    say(t, before)
    feed(t, "tool_call_update", toolCallId="c", status="completed")
    effects = say(t, after)
    assert [text_of(event) for event in events(effects)] == ([] if glued else [before])


def test_shell_output_in_meta_is_output_for_core_clients() -> None:
    t = translator(core=True)
    feed(t, "tool_call", toolCallId="c", title="echo", status="in_progress")
    for part in ("MARK", "ER\n"):
        feed(t, "tool_call_update", toolCallId="c", _meta={"terminal_output_delta": {"data": part}})
    end, details = events(
        feed(t, "tool_call_update", toolCallId="c", status="completed", rawOutput={"exit": 0})
    )
    assert isinstance(end, ObservationEvent)
    assert [part.text for part in end.observation.content] == ["MARKER\n"]  # type: ignore[union-attr]
    assert state_of(details) == ("tool_call_details", {"tool_call_id": "c", "raw_output": {"exit": 0}})


def test_shell_output_in_meta_is_output() -> None:
    t = translator()
    feed(t, "tool_call", toolCallId="c", title="echo", status="in_progress")
    for part in ("MARK", "ER\n"):
        feed(t, "tool_call_update", toolCallId="c", _meta={"terminal_output_delta": {"data": part}})
    end = events(feed(t, "tool_call_update", toolCallId="c", status="completed"))[-1]
    assert isinstance(end, ACPToolCallEvent)
    assert end.content is not None
    assert end.content[-1]["content"]["text"] == "MARKER\n"


def test_contents_have_the_shape_that_clients_read() -> None:
    t = translator()
    effects = feed(
        t,
        "tool_call",
        toolCallId="c",
        title="edit",
        status="completed",
        content=[
            {"type": "diff", "path": "/w/a", "oldText": None, "newText": "hi\n", "_meta": {"a": 1}},
            {"type": "content", "content": {"type": "text", "text": "done"}, "_meta": {"b": 2}},
            {"type": "terminal", "terminalId": "t1", "_meta": {"c": 3}},
            {"type": "text", "text": "bare"},
        ],
    )
    end = events(effects)[-1]
    assert isinstance(end, ACPToolCallEvent)
    assert end.content == [
        {"type": "diff", "path": "/w/a", "old_text": None, "new_text": "hi\n", "field_meta": {"a": 1}},
        {
            "type": "content",
            "content": {"type": "text", "text": "done", "annotations": None, "field_meta": None},
            "field_meta": {"b": 2},
        },
        {"type": "terminal", "terminal_id": "t1", "field_meta": {"c": 3}},
        {
            "type": "content",
            "content": {"type": "text", "text": "bare", "annotations": None, "field_meta": None},
            "field_meta": None,
        },
    ]


def test_large_outputs_are_cut_and_the_original_is_kept() -> None:
    t = translator()
    big = "x" * 3_000_000
    (recorded,) = [
        out
        for out in feed(t, "tool_call", toolCallId="c", title="cat", status="completed", rawOutput=big)
        if isinstance(out, Recorded) and out.attachments
    ]
    assert isinstance(recorded.event, ACPToolCallEvent)
    assert len(recorded.event.raw_output) < 300_000
    (attachment,) = recorded.attachments
    assert attachment.body == big.encode()
    assert attachment.blob_id in recorded.event.raw_output


def test_states_are_told_when_they_change() -> None:
    t = translator()
    commands = [{"name": "plan", "description": "d"}]
    first = events(feed(t, "available_commands_update", availableCommands=commands))
    again = events(feed(t, "available_commands_update", availableCommands=commands))
    mode = events(feed(t, "current_mode_update", currentModeId="plan"))
    assert again == []
    assert isinstance(first[0], ConversationStateUpdateEvent)
    assert (first[0].key, first[0].value) == ("available_commands", commands)
    assert isinstance(mode[0], ConversationStateUpdateEvent)
    assert (mode[0].key, mode[0].value) == ("current_mode", "plan")


def test_unknown_updates_are_kept_as_they_came() -> None:
    t = translator()
    (event,) = events(feed(t, "hologram_update", shape={"a": [1, None]}))
    assert isinstance(event, ConversationStateUpdateEvent)
    assert event.key == "acp_update"
    assert event.value == {"sessionUpdate": "hologram_update", "shape": {"a": [1, None]}}


def test_usage_and_title_are_no_events() -> None:
    t = translator()
    assert feed(t, "usage_update", used=5, size=10, cost={"amount": 0.5, "currency": "USD"}) == [
        Usage(5, 10, 0.5, "USD")
    ]
    assert feed(t, "session_info_update", title="T") == [Title("T")]
    assert feed(t, "user_message_chunk", content={"type": "text", "text": "echo"}) == []


@pytest.mark.guarantee(name="what-began-is-ended")
@pytest.mark.parametrize("core", [False, True])
def test_an_interrupted_call_keeps_what_its_shell_gave_back(core: bool) -> None:
    t = translator(core=core)
    feed(t, "tool_call", toolCallId="c", title="make", kind="execute", status="in_progress")
    feed(t, "tool_call_update", toolCallId="c", _meta={"terminal_output_delta": {"data": "half of it"}})
    (end,) = events(t.end_turn(Close.MESSAGE))
    if core:
        assert isinstance(end, AgentErrorEvent)
        assert end.error == f"{INTERRUPTED} half of it"
    else:
        assert isinstance(end, ACPToolCallEvent)
        assert end.is_error
        assert end.content is not None
        assert [block["content"]["text"] for block in end.content] == ["half of it", INTERRUPTED]


SECRET = "sk-0123456789-abcdef"


@pytest.mark.parametrize("end", ["s", SECRET[:9], SECRET[:-1]])
def test_a_message_that_ends_as_a_secret_begins_is_whole(end: str) -> None:
    t = translator(mask=Masker([SECRET]))
    think(t, f"I see {end}")
    streamed = [out.content for out in say(t, f"It is {end}") if isinstance(out, Delta)]
    assert "".join(streamed) == "It is "  # more may follow
    effects = t.end_turn(Close.MESSAGE)
    streamed += [out.content for out in effects if isinstance(out, Delta) and out.kind == "text"]
    assert "".join(streamed) == f"It is {end}"
    (message,) = [event for event in events(effects) if isinstance(event, MessageEvent)]
    assert text_of(message) == f"It is {end}"
    assert message.llm_message.reasoning_content == f"I see {end}"


def test_the_output_of_a_call_that_ends_as_a_secret_begins_is_whole() -> None:
    t = translator(mask=Masker([SECRET]))
    feed(t, "tool_call", toolCallId="c", title="ls", kind="execute", status="in_progress")
    for data in ("out: ", SECRET[:5], SECRET[5:], " and ", SECRET[:9]):
        feed(t, "tool_call_update", toolCallId="c", _meta={"terminal_output_delta": {"data": data}})
    end = events(feed(t, "tool_call_update", toolCallId="c", status="completed"))[-1]
    assert isinstance(end, ACPToolCallEvent)
    assert end.content[0]["content"]["text"] == f"out: {HIDDEN} and {SECRET[:9]}"


def test_the_end_of_a_call_says_all_that_is_known_of_it() -> None:
    t = translator()
    feed(t, "tool_call", toolCallId="c", title="ls", kind="execute", status="pending", rawInput={"p": 1})
    end = events(feed(t, "tool_call_update", toolCallId="c", status="failed", rawOutput="no"))[-1]
    assert isinstance(end, ACPToolCallEvent)
    assert (end.title, end.tool_kind, end.status, end.is_error) == ("ls", "execute", "failed", True)
    assert (end.raw_input, end.raw_output) == ({"p": 1}, "no")


@pytest.mark.parametrize(
    ("given", "arguments"), [({"a": 1}, {"a": 1}), ("ls", {"input": "ls"}), ([1], {"input": [1]}), (None, {})]
)
def test_an_input_that_is_no_object_becomes_one(given: Any, arguments: dict[str, Any]) -> None:
    t = translator(core=True)
    feed(t, "tool_call", toolCallId="c", title="ls", kind="execute", status="pending")
    effects = feed(t, "tool_call_update", toolCallId="c", status="completed", rawInput=given, rawOutput="x")
    (action,) = [event for event in events(effects) if isinstance(event, ActionEvent)]
    assert orjson.loads(action.tool_call.arguments) == arguments


def test_of_many_blocks_the_first_are_shown_and_all_are_kept() -> None:
    t = translator()
    blocks = [{"type": "content", "content": {"type": "text", "text": f"{n}"}} for n in range(BLOCKS_MAX + 3)]
    recorded = feed(t, "tool_call", toolCallId="c", title="ls", status="completed", content=blocks)[-1]
    assert isinstance(recorded.event, ACPToolCallEvent)
    assert len(recorded.event.content) == BLOCKS_MAX + 1
    assert "3 blocks cut" in recorded.event.content[-1]["content"]["text"]
    (attachment,) = recorded.attachments
    assert orjson.loads(attachment.body) == blocks


def test_what_is_no_text_is_named() -> None:
    t = translator()
    feed(t, "agent_message_chunk", content={"type": "image", "mimeType": "image/png", "data": "eA=="})
    feed(
        t,
        "agent_message_chunk",
        content={"type": "resource", "resource": {"uri": "file:///a", "blob": "eA=="}},
    )
    message, details = events(t.end_turn(Close.MESSAGE))
    assert isinstance(message, MessageEvent)
    words = f"[image image/png][resource file:///a blob:{message.id}-2]"
    assert message.llm_message.content == (
        TextContent(text=words),
        ImageContent(image_urls=("data:image/png;base64,eA==",)),
    )
    assert state_of(details)[1]["blocks"] == [
        {
            "type": "resource",
            "resource": {"uri": "file:///a", "blob": "", "blob_uri": f"blob:{message.id}-2"},
        },
    ]


def test_an_answer_by_ostler_itself_has_the_form_of_an_agents() -> None:
    t = translator()
    effects = say(t, "so far") + t.answer("Goal reached.")
    said, finish = (out for out in events(effects) if isinstance(out, MessageEvent | ActionEvent))
    assert text_of(said) == "so far"
    assert isinstance(finish, ActionEvent)
    assert isinstance(finish.action, FinishAction)
    assert finish.action.message == "Goal reached."


def test_states_of_a_turn_are_bounded_and_every_turn_says_what_it_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_states, "STATES_BYTES", 100)
    t = translator()
    for _ in range(2):
        (told,) = events(t.state("key", "x" * 200))
        assert isinstance(told, ConversationStateUpdateEvent)
        assert told.value == "x" * 200
        assert events(t.state("key", "y")) == []
        assert events(t.state("other", 1)) == []
        dropped = [
            event.value
            for event in events(t.end_turn(Close.FINISH))
            if isinstance(event, ConversationStateUpdateEvent)
        ]
        assert dropped == ["2 updates were dropped: they exceed 100 bytes in one turn"]
        t.state("key", "in between")


CALLS = [
    {"rawInput": {"path": "ä/b", "n": [1, 2.5, None]}, "locations": [{"path": "/etc/x"}]},
    {"rawInput": "text", "content": [{"type": "diff", "path": "/w/a", "oldText": None, "newText": "x"}]},
    {"rawInput": [1, {"a": "b"}], "kind": "read", "content": []},
    {"title": "", "kind": None, "rawInput": 5, "content": [{"type": "text", "text": "bare"}, "odd", 7]},
    {"rawInput": {"big": "y" * 600_000}, "content": [{"type": "text", "text": "z" * 600_000}]},
]
ENDED = [
    {"status": "completed", "rawOutput": {"exit": 0}, "content": [{"type": "text", "text": "done"}]},
    {"status": "failed", "rawOutput": "no"},
    {"status": "completed", "_meta": {"terminal_output": {"data": "out"}}},
    {"status": "completed", "rawOutput": "x" * 600_000},
]


@pytest.mark.parametrize("begun", CALLS)
@pytest.mark.parametrize("ended", ENDED)
def test_a_call_is_written_as_its_event_would_be(begun: dict[str, Any], ended: dict[str, Any]) -> None:
    """Calls of external agents, and their details, are written without an event, to the same bytes."""
    t = translator(workspace="/w")
    effects = feed(t, "tool_call", toolCallId="c", status="in_progress", **{"title": "Do", **begun})
    effects += feed(t, "tool_call_update", toolCallId="c", **ended)
    drafts = [(out, out.draft) for out in effects if isinstance(out, Recorded) and out.draft is not None]
    calls = [draft for _, draft in drafts if draft["kind"] == "ACPToolCallEvent"]
    assert [body["status"] for body in calls] == ["in_progress", ended["status"]]
    assert len(drafts) == len(effects)
    for out, draft in drafts:
        body = dumps({**draft, "timestamp": "T", "parent_id": "p"})
        assert body == dump_stamped(out.event, Vocabulary.EXTENDED, "T", "p")


def test_a_question_is_judged_again_by_what_its_calls_have_become() -> None:
    t = Translator(core=True, confirming=True)
    inquiry, _ = t.requested({"toolCallId": "c", "title": "look", "kind": "read"})
    assert inquiry.risk is SecurityRisk.LOW
    t.ask(inquiry)
    feed(t, "tool_call_update", toolCallId="c", kind="execute")
    inquiry, effects = t.judge(inquiry)
    assert inquiry.risk is SecurityRisk.HIGH
    (told,) = events(effects)
    assert state_of(told)[1]["security_risk"] == "HIGH"


COMMAND = {"toolCallId": "c", "title": "make", "kind": "execute"}


@pytest.mark.parametrize("before", ["allowed", "output", "nothing"])
def test_what_has_begun_is_not_said_to_be_untouched(before: str) -> None:
    """A second question about a call that runs, or one about a call that has output, is cut off."""
    t = translator(core=True, confirming=True)
    feed(t, "tool_call", **COMMAND, status="pending")
    if before == "allowed":
        asked, _ = ask(t, COMMAND)
        t.answered(asked)
    elif before == "output":
        feed(t, "tool_call_update", toolCallId="c", _meta={"terminal_output": {"data": "compiling"}})
    ask(t, COMMAND)
    (error,) = [each for each in events(t.end_turn(Close.MESSAGE)) if isinstance(each, AgentErrorEvent)]
    assert ("Nothing of it has begun" in error.error) is (before == "nothing")


@pytest.mark.parametrize("by_person", [True, False])
def test_only_a_persons_yes_covers_what_was_shown(by_person: bool) -> None:
    ended: dict[str, bool] = {}
    t = translator(
        core=True, confirming=True, on_end=lambda call, _: ended.update({call.call_id: call.covered})
    )
    feed(t, "tool_call", toolCallId="shown", title="rm", kind="execute", rawInput={"command": "rm"})
    asked, _ = ask(t, {"toolCallId": "look", "title": "look", "kind": "read", "rawInput": {"path": "a"}})
    feed(t, "tool_call", toolCallId="hidden", title="rm", kind="execute")  # the person is asked already
    t.answered(asked, by_person=by_person)
    for each in ("shown", "hidden"):
        feed(t, "tool_call_update", toolCallId=each, status="completed")
    assert ended == {"shown": by_person, "hidden": False}


@pytest.mark.parametrize("by_person", [True, False])
def test_only_a_persons_yes_covers_a_call_that_comes_after_its_question(by_person: bool) -> None:
    """Agents ask under one id, and run what they asked for under another."""
    ended: dict[str, bool] = {}
    t = translator(
        core=True, confirming=True, on_end=lambda call, _: ended.update({call.call_id: call.covered})
    )
    asked, _ = ask(t, {"toolCallId": "look", "title": "look", "kind": "read", "rawInput": {"path": "a"}})
    t.answered(asked, by_person=by_person)
    feed(t, "tool_call", toolCallId="rm", title="rm", kind="execute", rawInput={"command": "rm"})
    feed(t, "tool_call_update", toolCallId="rm", status="completed")
    assert ended["rm"] is by_person


@pytest.mark.parametrize("named", [True, False])
def test_a_late_end_of_a_rejected_call_that_no_question_named_is_known_as_that(named: bool) -> None:
    told: list[bool] = []
    t = translator(core=True, confirming=True, after_no=lambda call, _: told.append(call.guessed) or ())
    feed(t, "tool_call", **COMMAND, status="pending")
    asked, _ = ask(t, COMMAND if named else {"toolCallId": "q", "title": "Go on?"})
    t.reject(asked, "no")
    feed(t, "tool_call_update", toolCallId="c", status="completed")
    assert told == [not named]
