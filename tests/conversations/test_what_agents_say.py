"""Everything that ACP has words for is where a client finds it, in either vocabulary, and is documented.

The rows are those of the types in `acp/schema`: a kind, a field or a block that is added there fails here
until it has a place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import orjson
import pytest

from supervisor.acp import parse_update
from supervisor.acp.schema import Usage as Tokens
from supervisor.acp.schema.updates import _READERS
from supervisor.conversations.recording import usage
from supervisor.conversations.recording.bounds.attachments import Attachment
from supervisor.conversations.recording.effects import Close, Recorded, Title, Usage
from supervisor.events import ActionEvent, Event, MessageEvent, ObservationEvent, dump_event
from tests.conversations.agent_messages import KEPT_AS_THEY_CAME
from tests.conversations.test_translate import feed, translator

ROOT: Final = Path(__file__).resolve().parents[2]

SOUND: Final = {"type": "audio", "data": "U09VTkQ=", "mimeType": "audio/wav"}
PICTURE: Final = {"type": "image", "data": "UElDVFVSRQ==", "mimeType": "image/png"}
FILE: Final = {"type": "resource", "resource": {"uri": "file:///w/a", "blob": "RklMRQ==", "mimeType": "a/b"}}
DIFF: Final = {"type": "diff", "path": "/w/a", "oldText": "before", "newText": "behind"}
BLOCK_TYPES: Final = {"text", "image", "audio", "resource", "resource_link"}
CALL_FIELDS: Final = {
    *("tool_call_id", "title", "name", "kind", "status"),
    *("content", "locations", "raw_input", "raw_output"),
}
LINK: Final = {"type": "resource_link", "name": "plan", "uri": "file:///w/plan", "size": 7}


def shown(event: Event) -> dict[str, Any]:
    """An event as clients get it."""
    return dict(orjson.loads(dump_event(event)))


def wrapped(block: dict[str, Any]) -> dict[str, Any]:
    return block if block["type"] in ("diff", "terminal") else {"type": "content", "content": block}


def said(content: Any, **fields: Any) -> list[dict[str, Any]]:
    return [{"sessionUpdate": "agent_message_chunk", "content": content, **fields}]


def called(**fields: Any) -> list[dict[str, Any]]:
    begun = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "make", "kind": "execute"}
    ended = {"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed", **fields}
    return [begun, ended]


class Told:
    """What becomes of updates in a turn: events, blobs, figures."""

    def __init__(self, core: bool, updates: list[dict[str, Any]]) -> None:
        t = translator(core=core, confirming=False)
        effects: list[Any] = []
        for update in updates:
            effects += t.update(parse_update({"sessionId": "s", "update": update})[1])
        effects += t.end_turn(Close.FINISH)
        recorded = [out for out in effects if isinstance(out, Recorded)]
        self.events: list[Event] = [out.event for out in recorded]
        stored = [each for out in recorded for each in out.attachments]
        self.blobs = {
            each.blob_id: each for each in (*stored, *(out for out in effects if isinstance(out, Attachment)))
        }
        self.tokens = t.tokens
        self.figures = [out for out in effects if isinstance(out, Usage | Title)]

    def state(self, key: str) -> Any:
        found = [shown(event)["value"] for event in self.events if getattr(event, "key", None) == key]
        return found[-1] if found else None

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [shown(event) for event in self.events if event.kind == kind]

    @property
    def text(self) -> str:
        """The answer."""
        return str(self.of_kind("ActionEvent")[-1]["action"]["message"])

    @property
    def pictures(self) -> list[str]:
        urls: list[str] = []
        for event in self.events:
            content: Any = ()
            if isinstance(event, MessageEvent):
                content = event.llm_message.content
            elif isinstance(event, ObservationEvent):
                content = event.observation.content
            urls += [url for part in content for url in getattr(part, "image_urls", ())]
        return urls

    def result(self, core: bool) -> Any:
        """What a call gave back: its text in the core vocabulary, its content in the other one."""
        if core:
            found = self.of_kind("ObservationEvent")[0]["observation"]["content"]
            return "\n".join(part["text"] for part in found if part["type"] == "text")
        return self.of_kind("ACPToolCallEvent")[1]["content"]


Check = Callable[[Told, bool], Any]


def blob_in(text: str) -> str:
    (blob_id,) = re.findall(r"blob:([\w-]+)", text)
    return str(blob_id)


def holds(told: Told, blob_id: str, body: bytes, media_type: str) -> bool:
    blob = told.blobs[blob_id]
    return (blob.body, blob.media_type) == (body, media_type)


def first_call(told: Told, core: bool) -> dict[str, Any]:
    if core:
        (call, *_) = [each for each in told.of_kind("ActionEvent") if each["tool_name"] != "finish"]
        return call
    return told.of_kind("ACPToolCallEvent")[0]


KINDS: Final[dict[str, tuple[list[dict[str, Any]], Check]]] = {
    "user_message_chunk": (
        [{"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "echo"}}],
        lambda told, core: told.text == "",  # the log has it as the user's message
    ),
    "agent_message_chunk": (said({"type": "text", "text": "hello"}), lambda told, core: told.text == "hello"),
    "agent_thought_chunk": (
        [{"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "hm"}}],
        lambda told, core: told.of_kind("ActionEvent")[-1]["reasoning_content"] == "hm",
    ),
    "tool_call": (called(), lambda told, core: first_call(told, core)["tool_call_id"] == "c"),
    "tool_call_update": (
        called(),
        lambda told, core: (
            told.of_kind("ObservationEvent" if core else "ACPToolCallEvent")[1 - core]["tool_call_id"] == "c"
        ),
    ),
    "plan": (
        [{"sessionUpdate": "plan", "entries": [{"content": "x", "priority": "low", "status": "pending"}]}],
        lambda told, core: told.state("plan")[0]["content"] == "x",
    ),
    "available_commands_update": (
        [{"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "plan"}]}],
        lambda told, core: told.state("available_commands") == [{"name": "plan"}],
    ),
    "current_mode_update": (
        [{"sessionUpdate": "current_mode_update", "currentModeId": "ask"}],
        lambda told, core: told.state("current_mode") == "ask",
    ),
    "config_option_update": (
        [{"sessionUpdate": "config_option_update", "configOptions": [{"id": "x", "type": "boolean"}]}],
        lambda told, core: told.state("config_options") == [{"id": "x", "type": "boolean"}],
    ),
    "session_info_update": (
        [{"sessionUpdate": "session_info_update", "title": "T", "updatedAt": "2026-01-01"}],
        lambda told, core: (
            told.figures == [Title("T")]
            and told.state("session_info") == {"title": "T", "updatedAt": "2026-01-01"}
        ),
    ),
    "usage_update": (
        [{"sessionUpdate": "usage_update", "used": 5, "size": 9, "cost": {"amount": 2, "currency": "EUR"}}],
        lambda told, core: told.figures == [Usage(5, 9, 2.0, "EUR")],
    ),
    "notice": (
        [{"sessionUpdate": "notice", "severity": "info", "title": "Read me"}],
        lambda told, core: told.state("acp_update")["title"] == "Read me",
    ),
    "compaction_update": (
        [{"sessionUpdate": "compaction_update", "compactionId": "k", "status": "completed"}],
        lambda told, core: told.state("acp_update")["status"] == "completed",
    ),
    "compaction_summary_chunk": (
        [
            {
                "sessionUpdate": "compaction_summary_chunk",
                "compactionId": "k",
                "content": {"type": "text", "text": "short"},
            }
        ],
        lambda told, core: told.state("acp_update")["content"]["text"] == "short",
    ),
}

MESSAGE_BLOCKS: Final[dict[str, tuple[Any, Check]]] = {
    "text": ({"type": "text", "text": "hello"}, lambda told, core: told.text == "hello"),
    "image": (PICTURE, lambda told, core: told.pictures == ["data:image/png;base64,UElDVFVSRQ=="]),
    "audio": (SOUND, lambda told, core: holds(told, blob_in(told.text), b"SOUND", "audio/wav")),
    "resource": (FILE, lambda told, core: holds(told, blob_in(told.text), b"FILE", "a/b")),
    "resource_link": (
        LINK,
        lambda told, core: (
            told.text == "[plan](file:///w/plan)" and told.state("message_details")["blocks"] == [LINK]
        ),
    ),
}

CALL_BLOCKS: Final[dict[str, tuple[Any, Check]]] = {
    "text": ({"type": "text", "text": "hello"}, lambda told, core: "hello" in str(told.result(core))),
    "image": (
        PICTURE,
        lambda told, core: (
            told.pictures == ["data:image/png;base64,UElDVFVSRQ=="]
            if core
            else told.result(core)[0]["content"]["data"] == PICTURE["data"]
        ),
    ),
    "audio": (
        SOUND,
        lambda told, core: (
            holds(told, blob_in(told.result(core)), b"SOUND", "audio/wav")
            if core
            else told.result(core)[0]["content"]["data"] == SOUND["data"]
        ),
    ),
    "resource": (
        FILE,
        lambda told, core: (
            holds(told, blob_in(told.result(core)), b"FILE", "a/b")
            if core
            else told.result(core)[0]["content"]["resource"]["blob"] == "RklMRQ=="
        ),
    ),
    "resource_link": (
        LINK,
        lambda told, core: (
            told.result(core) == "[plan](file:///w/plan)"
            if core
            else told.result(core)[0]["content"]["size"] == LINK["size"]
        ),
    ),
    "diff": (DIFF, lambda told, core: "behind" in str(told.result(core))),
    "terminal": (
        {"type": "terminal", "terminalId": "t"},
        lambda told, core: core or told.result(core)[0]["terminal_id"] == "t",  # in core: its output
    ),
}

FIELDS: Final[dict[str, tuple[dict[str, Any], Check]]] = {
    "tool_call_id": ({}, lambda told, core: first_call(told, core)["tool_call_id"] == "c"),
    "title": (
        {"title": "make all"},
        lambda told, core: (
            first_call(told, core)["summary"] == "make all"
            if core
            else told.of_kind("ACPToolCallEvent")[1]["title"] == "make all"
        ),
    ),
    "name": (
        {"name": "shell"},
        lambda told, core: (
            first_call(told, core)["tool_name"] == "shell"
            if core
            else told.state("tool_call_details")["name"] == "shell"
        ),
    ),
    "kind": (
        {},
        lambda told, core: first_call(told, core)["tool_name" if core else "tool_kind"] == "execute",
    ),
    "status": (
        {"status": "failed"},
        lambda told, core: (
            told.of_kind("AgentErrorEvent") if core else told.of_kind("ACPToolCallEvent")[1]["is_error"]
        ),
    ),
    "content": (
        {"content": [wrapped({"type": "text", "text": "hello"})]},
        lambda told, core: "hello" in str(told.result(core)),
    ),
    "locations": (
        {"locations": [{"path": "/w/a", "line": 3}]},
        lambda told, core: told.state("tool_call_details")["locations"] == [{"path": "/w/a", "line": 3}],
    ),
    "raw_input": (
        {"rawInput": {"command": "ls"}},
        lambda told, core: (
            first_call(told, core)["action"]["data"] == {"command": "ls"}
            if core
            else told.of_kind("ACPToolCallEvent")[1]["raw_input"] == {"command": "ls"}
        ),
    ),
    "raw_output": (
        {"rawOutput": {"exit": 3}, "content": [wrapped({"type": "text", "text": "hello"})]},
        lambda told, core: (
            (told.state("tool_call_details") if core else told.of_kind("ACPToolCallEvent")[1])["raw_output"]
            == {"exit": 3}
        ),
    ),
}


def rows() -> Iterator[tuple[str, list[dict[str, Any]], Check]]:
    for kind, (updates, check) in KINDS.items():
        yield kind, updates, check
    for block, (content, check) in MESSAGE_BLOCKS.items():
        yield f"message {block}", said(content), check
    for block, (content, check) in CALL_BLOCKS.items():
        yield f"call {block}", called(content=[wrapped(content)]), check
    for field, (fields, check) in FIELDS.items():
        yield f"call {field}", called(**fields), check


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize("core", [True, False], ids=["core", "extended"])
@pytest.mark.parametrize(
    ("name", "updates", "check"), [pytest.param(*row, id=row[0].replace(" ", "-")) for row in rows()]
)
def test_what_an_agent_says_is_found(
    name: str, updates: list[dict[str, Any]], check: Check, core: bool
) -> None:
    told = Told(core, updates)
    assert check(told, core), [shown(event) for event in told.events]


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
def test_every_kind_has_a_row() -> None:
    assert set(KINDS) == {*_READERS, *KEPT_AS_THEY_CAME}
    assert set(MESSAGE_BLOCKS) == BLOCK_TYPES
    assert set(CALL_BLOCKS) == BLOCK_TYPES | {"diff", "terminal"}
    assert set(FIELDS) == CALL_FIELDS


def test_every_kind_is_in_the_documented_table() -> None:
    page = (ROOT / "docs/wire.md").read_text()
    table = page.split("## What an agent says, and where it is\n", 1)[1].split("\n#", 1)[0]
    documented = set(
        re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if line[:1] == "|"))
    )
    camel = {re.sub(r"_(\w)", lambda found: found[1].upper(), name) for name in FIELDS}
    said_of = (
        camel | set(KINDS) | BLOCK_TYPES | {"diff", "terminal", "_meta", "annotations", "messageId", "usage"}
    )
    assert said_of - documented == set()


# -- beside ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("core", [True, False])
def test_marks_of_a_message_are_told_of_its_event(core: bool) -> None:
    content = {"type": "text", "text": "hi", "annotations": {"audience": ["user"]}, "_meta": {"b": 1}}
    told = Told(core, [*said(content, messageId="m1", _meta={"a": 1}), *called()])
    (message,) = told.of_kind("MessageEvent")
    assert told.state("message_details") == {
        "event_id": message["id"],
        "message_id": "m1",
        "_meta": {"a": 1, "b": 1},
        "annotations": {"audience": ["user"]},
    }


@pytest.mark.parametrize("core", [True, False])
def test_marks_of_a_call_are_told_when_it_ends(core: bool) -> None:
    begun, ended = called(_meta={"b": 2}, progressToken=7)
    told = Told(core, [{**begun, "_meta": {"a": 1, "terminal_output": {"data": "x"}}}, ended])
    assert told.state("tool_call_details") == {
        "tool_call_id": "c",
        "_meta": {"a": 1, "b": 2},
        "progressToken": 7,
    }


def test_marks_of_other_updates_are_told_by_kind_and_once() -> None:
    entries = [{"content": "x", "priority": "low", "status": "pending"}]
    plan = {"sessionUpdate": "plan", "entries": entries, "_meta": {"a": 1}}
    told = Told(False, [plan, plan])
    (state,) = [event for event in told.events if getattr(event, "key", "") == "acp_meta"]
    assert shown(state)["value"] == {"update": "plan", "_meta": {"a": 1}}


def test_a_picture_of_an_answer_comes_before_it_and_not_after() -> None:
    told = Told(
        False, [*said({"type": "text", "text": "Look: "}, messageId="m"), *said(PICTURE, messageId="m")]
    )
    kinds = [event.kind for event in told.events]
    assert kinds == ["MessageEvent", "ActionEvent", "ObservationEvent", "ConversationStateUpdateEvent"]
    assert told.text == "Look: [image image/png]"
    assert isinstance(told.events[1], ActionEvent)


def test_what_a_diff_leaves_unsaid_is_said_beside_it() -> None:
    told = Told(True, called(content=[DIFF], rawOutput={"lint": "3 warnings"}))
    text = told.result(True)
    assert "behind" in text
    assert "3 warnings" in text


def test_a_large_picture_is_a_blob() -> None:
    t = translator()
    data = "UElD" * 300_000
    effects = feed(t, "agent_message_chunk", content={"type": "image", "data": data, "mimeType": "image/png"})
    (blob,) = [out for out in effects if isinstance(out, Attachment)]
    assert (blob.body, blob.media_type) == (b"PIC" * 300_000, "image/png")
    (message,) = [out.event for out in t.end_turn(Close.MESSAGE) if isinstance(out, Recorded)]
    assert isinstance(message, MessageEvent)
    text, pictures = shown(message)["llm_message"]["content"]
    assert pictures["image_urls"] == [f"blob:{blob.blob_id}"]
    assert text["text"] == f"[image image/png blob:{blob.blob_id}]"


def test_tokens_beside_messages_are_added_up() -> None:
    t = translator()
    for _ in range(2):
        feed(
            t,
            "agent_message_chunk",
            content={"type": "text", "text": ""},
            _meta={"usage": {"inputTokens": 10, "outputTokens": 2, "thoughtTokens": 1}},
        )
    assert t.tokens == Tokens(20, 4, thought_tokens=2, total_tokens=0)
    assert attrs.asdict(Tokens()).keys() == {
        *("input_tokens", "output_tokens", "cached_read_tokens"),
        *("cached_write_tokens", "thought_tokens", "total_tokens"),
    }
    t.new_turn()
    assert t.tokens is None


def test_costs_of_different_currencies_are_not_added() -> None:
    spent: Any = {}
    for amount, currency in ((0.5, "USD"), (0.75, "USD"), (2.0, "EUR"), (3.0, "EUR"), (0.25, "USD")):
        before = spent
        spent = usage.with_report(spent, Usage(None, None, amount, currency))
    (metrics,) = usage.stats(spent)["usage_to_metrics"].values()
    assert (metrics["accumulated_cost"], metrics["cost_currency"], metrics["other_costs"]) == (
        1.0,
        "USD",
        {"EUR": 3.0},
    )
    assert usage.of_turn(before, spent, None) == {**dict.fromkeys(TOKEN_FIGURES), "cost": 0.25}
    (metrics,) = usage.stats(before)["usage_to_metrics"].values()
    assert (metrics["accumulated_cost"], metrics["cost_currency"], metrics["other_costs"]) == (
        3.0,
        "EUR",
        {"USD": 0.75},
    )
    assert usage.of_turn({}, before, None) == {**dict.fromkeys(TOKEN_FIGURES), "cost": 3.0, "currency": "EUR"}


TOKEN_FIGURES: Final = (
    *("prompt_tokens", "completion_tokens", "cache_read_tokens"),
    *("cache_write_tokens", "reasoning_tokens"),
)
