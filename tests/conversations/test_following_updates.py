"""What a real agent sends, and what those that follow a conversation get of it: live, later, after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio

from supervisor.conversations.conversation import Conversation
from supervisor.conversations.forking import ForkRequest
from supervisor.conversations.recording.agent_updates import PERMISSION
from supervisor.conversations.recording.update_lines import lines_of
from supervisor.conversations.updates import AgentUpdate, UpdateReader
from supervisor.credentials.masking import HIDDEN
from supervisor.journal.rows import Stored
from tests.conversations.harness import (
    Harness,
    killed_now,
    open_harness,
    say,
    settled,
    speaking,
    turn,
    until,
)
from tests.conversations.telling import told

ALWAYS = {"kind": "AlwaysConfirm"}
SECRET = "sk-demo-tulip-0123456789"


def text(words: str, kind: str = "agent_message_chunk", **members: Any) -> dict[str, Any]:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": words}, **members}


CALL = {
    "sessionUpdate": "tool_call",
    "toolCallId": "c1",
    "title": "Edit",
    "kind": "edit",
    "status": "pending",
    "locations": [{"path": "/w/a.py", "line": 12, "_meta": {"column": 3}}],
    "rawInput": {"path": "/w/a.py"},
    "_meta": {"agent": {"tool": "edit", "nested": [1, 2.5, None, True]}},
}
IMAGE = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png", "annotations": {"audience": ["user"]}}
LINK = {"type": "resource_link", "uri": "file:///w/a.py", "name": "a.py", "size": 12}
SENT: list[dict[str, Any]] = [
    text("Hm, ", "agent_thought_chunk"),
    text("I think.", "agent_thought_chunk"),
    text("Look: ", messageId="m1"),
    text("at this", messageId="m1", _meta={"usage": {"tokens": 3}}),
    {"sessionUpdate": "agent_message_chunk", "content": IMAGE, "messageId": "m1"},
    {"sessionUpdate": "agent_message_chunk", "content": LINK},
    text("bold", content={"type": "text", "text": "bold", "annotations": {"priority": 0.5}}),
    text("One. ", messageId="m2"),
    text("Two.", messageId="m2"),
    CALL,
    {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "in_progress"},
    {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "content": [{"type": "content"}]},
    {
        "sessionUpdate": "tool_call_update",
        "toolCallId": "c1",
        "status": "completed",
        "content": [{"type": "diff", "path": "/w/a.py", "oldText": None, "newText": "x = 1\n"}],
    },
    {"sessionUpdate": "plan", "entries": [{"content": "Do", "priority": "high", "x": {}}]},
    {"sessionUpdate": "something_new", "deep": {"a": [{"b": "\u2028 \\ \" é 😀"}]}},
    text("And "),
    text("that is it."),
]  # fmt: skip
SCRIPT = "\n".join(f"!update {json.dumps(each)}" for each in SENT)


PLAIN = {"type", "text"}


def apart(updates: list[Any]) -> list[Any]:
    """The same with each text as its characters, however they were cut."""
    found: list[Any] = []
    for each in updates:
        content = each.get("content")
        if isinstance(content, dict) and content.keys() == PLAIN and "_meta" not in each:
            found += [{**each, "content": letter} for letter in content["text"]]
        else:
            found.append(each)
    return found


async def stored(conversation: Conversation, after: int = -1) -> list[Any]:
    """The updates that are on disk, in order."""
    await conversation.log.flushed()
    reader = conversation.log.subscribe(after, follows=False, updates=True)
    found: list[Any] = []
    while reader.after_seq < conversation.log.last_seq:
        for item in await reader.next():
            if isinstance(item, Stored) and item.updates:
                found += [orjson.loads(line) for _, line in lines_of(item.updates)[1]]
    return found


class Follower:
    def __init__(self, conversation: Conversation, after: str | None) -> None:
        self.reader: UpdateReader | None = conversation.follow_updates(after)
        self.updates: list[Any] = []
        self.seqs: list[int] = []

    async def run(self) -> None:
        while self.reader is not None:
            items = await self.reader.next()
            for item in items:
                if isinstance(item, AgentUpdate):
                    self.updates.append(orjson.loads(item.body))
                else:
                    self.seqs.append(item.seq)


def of_turn(updates: list[Any]) -> list[Any]:
    """Without what the agent tells of its session."""
    return [
        each for each in updates if each["sessionUpdate"] not in ("available_commands_update", "usage_update")
    ]


async def test_all_that_the_agent_sends_is_shown_at_once_and_kept(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        follower = Follower(conversation, "")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.run)
            await turn(conversation, SCRIPT)
            await until(lambda: follower.seqs[-1:] == [conversation.log.last_seq], "the last event")
            nursery.cancel_scope.cancel()
        assert follower.seqs == list(range(conversation.log.last_seq + 1))
        assert apart(of_turn(follower.updates)) == apart(SENT)
        assert apart(of_turn(await stored(conversation))) == apart(SENT)
        late = Follower(conversation, "")
        with trio.move_on_after(0.05):
            await late.run()
        assert apart(late.updates) == apart(follower.updates)


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_after_a_kill_of_the_server_a_reader_continues_where_it_was(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        follower = Follower(conversation, None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.run)
            await conversation.send(say(f"{SCRIPT}\n!text not kept\n!sleep 30"), run=True)
            await until(lambda: "not kept" in str(follower.updates[-1:]), "the last word")
            await conversation.log.flushed()
            root = killed_now(tmp_path)
            nursery.cancel_scope.cancel()
        assert follower.reader is not None
        position = follower.reader.position
    async with open_harness(root) as harness:
        again = await harness.supervisor.get(conversation.id)
        later = Follower(again, position)
        with trio.move_on_after(0.1):
            await later.run()
        assert later.updates == []
        assert later.seqs  # that the turn was cut off
        whole = Follower(again, "")
        with trio.move_on_after(0.1):
            await whole.run()
        kept = apart(whole.updates)
        assert 20 < len(kept) <= len(apart(follower.updates))
        assert kept == apart(follower.updates)[: len(kept)]


async def test_a_fork_has_them_and_a_deleted_conversation_leaves_none(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        source = await harness.start()
        await turn(source, SCRIPT)
        fork = await harness.supervisor.fork(source.id, ForkRequest())
        assert await stored(fork) == await stored(source)
        await harness.supervisor.delete(source.id)
        assert apart(of_turn(await stored(fork))) == apart(SENT)


@pytest.mark.guarantee(name="secrets-stay-in")
async def test_no_secret_is_shown_or_kept(tmp_path: Path) -> None:
    async with open_harness(tmp_path, secrets={"DEMO_TOKEN": SECRET}) as harness:
        conversation = await harness.start()
        follower = Follower(conversation, "")
        half = len(SECRET) // 2
        delta = {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "_meta": {}}
        sent = [
            text(SECRET[:half]),
            {"sessionUpdate": "plan", "entries": [{"content": SECRET}]},
            text(SECRET[half:]),
            {**CALL, "title": SECRET, "_meta": {SECRET: 1}},
            *(
                {**delta, "_meta": {"terminal_output_delta": {"data": part}}}
                for part in (SECRET[:half], SECRET[half:])
            ),
        ]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.run)
            await turn(conversation, "\n".join(f"!update {json.dumps(each)}" for each in sent))
            await until(lambda: follower.seqs[-1:] == [conversation.log.last_seq], "the last event")
            nursery.cancel_scope.cancel()
        for found in (follower.updates, await stored(conversation)):
            assert str(found).count(HIDDEN) == 5
            assert SECRET[half:] not in str(found)
            assert SECRET[:half] not in str(found)


async def waiting(conversation: Conversation) -> dict[str, Any]:
    await until(lambda: conversation.record.now.execution_status == "waiting_for_confirmation")
    entries = conversation.record.reported.agent_state["permissions"]
    (entry,) = [each for each in entries if each["status"] == "waiting"]
    return dict(entry)


async def test_a_question_for_a_person_is_among_them(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(confirmation_policy=ALWAYS)
        follower = Follower(conversation, "")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.run)
            await conversation.send(say("!perm"), run=True)
            entry = await waiting(conversation)
            await until(lambda: follower.seqs[-1:] == [conversation.log.last_seq], "the last event")
            nursery.cancel_scope.cancel()
        (shown,) = [each for each in follower.updates if each["sessionUpdate"] == PERMISSION]
        assert shown["id"] == entry["id"]
        request = shown["request"]
        assert "sessionId" not in request
        assert request["toolCall"]["toolCallId"]
        assert [each["optionId"] for each in request["options"]] == [each["id"] for each in entry["options"]]
        await conversation.respond(True, "", entry["id"], request["options"][0]["optionId"])
        await settled(conversation)
        # What a policy answers is no question.
        await conversation.changes.set_confirmation_policy({"kind": "NeverConfirm"})
        await turn(conversation, "!perm")
        kept = [each["sessionUpdate"] for each in await stored(conversation)]
        assert kept.count(PERMISSION) == 1


async def test_what_the_built_in_agent_sends_is_kept_too(tmp_path: Path) -> None:
    async with told(tmp_path) as (_, conversation):
        await turn(conversation, f"!act a ls\n{SCRIPT}\n!observe a one two\n!answer m Done.")
        kept = apart(of_turn(await stored(conversation)))
        assert kept[: len(apart(SENT))] == apart(SENT)


async def test_what_is_said_outside_of_a_turn_and_by_a_side_session_is_told_apart(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        before = await stored(conversation)
        await conversation.ask_agent("what else")
        await turn(conversation, "there")
        added = (await stored(conversation))[len(before) :]
        assert "else" not in str(added)
        assert "there" in str(added)


async def restarted(harness: Harness, conversation: Conversation) -> None:
    await conversation.stop_agent()
    await turn(conversation, "again")


@pytest.mark.guarantee(name="old-history-is-ours")
async def test_a_replay_is_not_kept_twice(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("without=resume")
        await turn(conversation, "tulip")
        await restarted(harness, conversation)
        assert harness.log.received("session/load")
        assert str(await stored(conversation)).count("tulip") == 1


async def test_where_they_are_not_kept_readers_get_them_live(tmp_path: Path) -> None:
    async with open_harness(tmp_path, keep_updates=False) as harness:
        conversation = await harness.start()
        follower = Follower(conversation, "")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.run)
            await turn(conversation, SCRIPT)
            await until(lambda: follower.seqs[-1:] == [conversation.log.last_seq], "the last event")
            nursery.cancel_scope.cancel()
        assert apart(of_turn(follower.updates)) == apart(SENT)
        follower.reader = None
        assert await stored(conversation) == []


async def test_who_comes_while_the_agent_speaks_gets_its_text_so_far(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("!text so far\n!sleep 30"), run=True)
        await speaking(conversation)
        follower = Follower(conversation, None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.run)
            await until(lambda: follower.updates, "the text")
            nursery.cancel_scope.cancel()
        assert follower.updates[-1]["content"]["text"] == "so far"
        await conversation.interrupt()
