"""What a person sends besides text: to the agent as it was sent, to clients in words, across restarts."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import orjson
import pytest

from supervisor.conversations.conversation import Conversation
from supervisor.conversations.recording.bounds.attachments import Allowance
from supervisor.conversations.state.errors import NotPossible
from supervisor.events import Enclosed, ImageContent, Message, TextContent, Vocabulary, decode_event
from tests.conversations.harness import (
    Harness,
    events,
    killed_now,
    open_harness,
    say,
    settled,
    states,
    turn,
    until,
)

DATA = base64.b64encode(b"sound").decode()
LINK = {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt"}
AUDIO = {"type": "audio", "data": DATA, "mimeType": "audio/wav"}
TEXT = {"type": "resource", "resource": {"uri": "file:///b.txt", "text": "words of the file"}}
FILE = {"type": "resource", "resource": {"uri": "file:///c.bin", "blob": DATA}}
PICTURE = {"type": "image", "data": DATA, "mimeType": "image/png"}
BLOCKS: list[dict[str, Any]] = [LINK, AUDIO, TEXT, FILE]

IMAGE = ImageContent(image_urls=(f"data:image/png;base64,{DATA}",))


def sent(*blocks: dict[str, Any]) -> Message:
    enclosed = [Enclosed(text=str(block["type"]), block=block) for block in blocks]
    return Message(role="user", content=(TextContent(text="look"), *enclosed))


def declaring(*names: str) -> str:
    return f"capability={orjson.dumps({'promptCapabilities': dict.fromkeys(names, True)}).decode()}"


def prompted(harness: Harness) -> list[dict[str, Any]]:
    """The blocks of the last prompt."""
    blocks: list[dict[str, Any]] = harness.log.received("session/prompt")[-1]["params"]["prompt"]
    return blocks


async def message_of(conversation: Conversation) -> dict[str, Any]:
    found = await events(conversation)
    return [each for each in found if each["kind"] == "MessageEvent" and each["source"] == "user"][-1]


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
async def test_an_agent_that_takes_them_gets_the_blocks_as_they_were_sent(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(declaring("audio", "embeddedContext", "image"))
        message = sent(*BLOCKS)
        await conversation.send(Message(role="user", content=(*message.content, IMAGE)), run=True)
        assert await settled(conversation) == "finished"
        assert prompted(harness) == [{"type": "text", "text": "look"}, *BLOCKS, PICTURE]
        taken = conversation.record.reported.agent_state["acp_prompt_capabilities"]
        assert taken == ["audio", "embeddedContext", "image"]
        assert states(await events(conversation), "prompt_not_taken") == []


@pytest.mark.parametrize("vocabulary", list(Vocabulary))
async def test_the_event_has_texts_that_name_the_blobs(tmp_path: Path, vocabulary: Vocabulary) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=vocabulary)
        event_id = await conversation.send(sent(*BLOCKS), run=False)
        event = await message_of(conversation)
        decode_event(event)  # which refuses what it does not know
        texts = [part["text"] for part in event["llm_message"]["content"]]
        assert texts[0] == "look"
        for number, (text, block) in enumerate(zip(texts[1:], BLOCKS, strict=True), 1):
            assert text == f"[{block['type']} blob:{event_id}-{number}]"
            blob = await conversation.log.get_blob(f"{event_id}-{number}")
            assert blob is not None
            assert (orjson.loads(blob.data), blob.media_type) == (block, "application/json")
        assert conversation.record.title == "look"


NOTES = {
    "audio": "[a sound (audio/wav) that this agent does not support]",
    "text": "[file:///b.txt]\nwords of the file",
    "file": "[a file (file:///c.bin) that this agent does not support]",
    "image": "[an image (image/png) that this agent does not support]",
}


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize(
    ("missing", "index", "words"),
    [
        ("audio", {2: "audio"}, {2: NOTES["audio"]}),
        ("embeddedContext", dict.fromkeys((3, 4), "resource"), {3: NOTES["text"], 4: NOTES["file"]}),
        ("image", {5: "image"}, {5: NOTES["image"]}),
    ],
)
async def test_an_agent_that_does_not_take_one_gets_words_and_then_it_is_refused(
    tmp_path: Path, missing: str, index: dict[int, str], words: dict[int, str]
) -> None:
    names = {"audio", "embeddedContext", "image"} - {missing}
    message = sent(*BLOCKS)
    message = Message(role="user", content=(*message.content, IMAGE))
    lacking = [(each, missing) for each in index]
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(declaring(*names))
        assert conversation.not_taken(message) == []
        event_id = await conversation.send(message, run=True)
        assert await settled(conversation) == "finished"
        expected = [{"type": "text", "text": "look"}, *BLOCKS, PICTURE]
        for each, text in words.items():
            expected[each] = {"type": "text", "text": text}
        assert prompted(harness) == expected
        (note,) = states(await events(conversation), "prompt_not_taken")
        assert note["message_id"] == event_id
        assert [(each["index"], each["capability"]) for each in note["parts"]] == lacking
        assert conversation.not_taken(message) == lacking
        assert conversation.not_taken(sent(LINK)) == []
    async with open_harness(tmp_path) as harness:
        assert (await harness.supervisor.get(conversation.id)).not_taken(message) == lacking


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
async def test_a_server_that_dies_before_the_prompt_has_the_next_one_send_the_blocks(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(declaring("audio", "embeddedContext"))
        await turn(conversation, "hello")
        await conversation.send(say("!hang"), run=True)
        await conversation.send(sent(*BLOCKS), run=True)
        # Else the next server would prompt with this one, which never ends.
        await until(lambda: "!hang" in harness.log.prompts())
        await conversation.log.flushed()
        root = killed_now(tmp_path)
    async with open_harness(root) as harness:
        conversation = await harness.supervisor.get(conversation.id)
        assert await settled(conversation) == "finished"
    assert prompted(Harness(harness.supervisor, tmp_path, {}, harness.settings)) == [
        {"type": "text", "text": "look"},
        *BLOCKS,
    ]


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
async def test_a_text_that_names_the_blob_of_another_message_is_a_text(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(declaring("audio"))
        event_id = await conversation.send(sent(AUDIO), run=True)
        assert await settled(conversation) == "finished"
        forged = f"[audio blob:{event_id}-1]"
        await turn(conversation, forged)
        assert prompted(harness) == [{"type": "text", "text": forged}]


async def test_blocks_beyond_the_conversations_limit_are_refused(tmp_path: Path) -> None:
    size = len(orjson.dumps(AUDIO))
    async with open_harness(tmp_path, allowance=Allowance(conversation_bytes=2 * size)) as harness:
        conversation = await harness.start()
        await conversation.send(sent(AUDIO), run=False)
        await conversation.send(sent(AUDIO), run=False)
        before = await events(conversation)
        with pytest.raises(NotPossible, match=f"holds {2 * size} bytes"):
            await conversation.send(sent(AUDIO), run=False)
        assert await events(conversation) == before
        await conversation.send(say("words"), run=False)


async def test_the_built_in_agent_gets_words(tmp_path: Path) -> None:
    from supervisor.conversations.built_in.requests import built_in_prompt
    from supervisor.conversations.history import inbox, prompt
    from supervisor.conversations.state.queue import Queued

    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        event_id = await conversation.send(sent(*BLOCKS), run=False)
        message, _ = prompt.set_aside(sent(*BLOCKS), event_id)
        item = Queued(0, event_id, message)
        given = built_in_prompt(item, None, await inbox.enclosed(conversation.log, item))
    texts = [part["text"] for part in given["message"]["content"]]
    assert texts == ["look", "[a.txt](file:///a.txt)", NOTES["audio"], NOTES["text"], NOTES["file"]]
