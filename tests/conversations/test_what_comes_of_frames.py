"""What a process of an agent writes besides text, from its pipe to the log and to the sockets."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import orjson

from supervisor.conversations.recording.bounds.attachments import INLINE_CHARS
from tests.conversations.harness import events, open_harness, say, settled, states, turn, until

PICTURE = bytes(range(256)) * (INLINE_CHARS // 256)


def frame(method: str, **params: Any) -> str:
    """A directive that makes the agent write this notification."""
    message = {"jsonrpc": "2.0", "method": method, "params": {"sessionId": "SESSION", **params}}
    return f"!bytes {base64.b64encode(orjson.dumps(message)).decode()}"


def update(kind: str, /, **fields: Any) -> str:
    return frame("session/update", update={"sessionUpdate": kind, **fields})


async def test_a_notification_of_the_agents_own_is_kept(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        lines = [
            frame("_vendor/note", words="kept", token="sk-of-nobody"),
            frame("_vendor/note", sessionId="another", words="not ours"),
            frame("$/progress", words="of the protocol"),
            frame("_vendor/large", words="x" * 400_000),
        ]
        found = await turn(conversation, "\n".join(lines))
        note, large = states(found, "acp_notification")
        assert (note["method"], note["params"]["words"]) == ("_vendor/note", "kept")
        assert large["method"] == "_vendor/large"
        assert "bytes cut; all of it is in blob" in large["params"]["words"]


async def test_a_large_picture_is_fetched_as_a_blob(tmp_path: Path) -> None:
    data = base64.b64encode(PICTURE).decode()
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        block = {"type": "image", "data": data, "mimeType": "image/webp"}
        found = await turn(conversation, update("agent_message_chunk", content=block))
        (message,) = [each for each in found if each["kind"] == "MessageEvent" and each["source"] == "agent"]
        ((url,),) = [each["image_urls"] for each in message["llm_message"]["content"]]
        blob = await conversation.log.get_blob(url.removeprefix("blob:"))
        assert blob is not None
        assert (blob.data, blob.media_type) == (PICTURE, "image/webp")


async def test_a_call_that_runs_is_told_of_and_no_more_when_it_has_ended(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        frames: list[dict[str, Any]] = []
        publish = conversation.log.publish

        def spy(each: Any) -> None:
            if each.session is not None:
                frames.append({**orjson.loads(each.session), "to_the_events_socket": each.legacy})
            publish(each)

        conversation.log.publish = spy  # type: ignore[method-assign]

        def progress() -> list[dict[str, Any]]:
            return [each for each in frames if each.get("event", {}).get("key") == "tool_call_progress"]

        content = [{"type": "content", "content": {"type": "text", "text": "half of it"}}]
        lines = [
            update("tool_call", toolCallId="c", title="make", kind="execute", status="in_progress"),
            update("tool_call_update", toolCallId="c", title="make all", content=content),
            "!hang",
        ]
        await conversation.send(say("\n".join(lines)), run=True)
        await until(lambda: bool(progress()), "the progress of a call")
        (told,) = progress()
        assert told["type"] == "transient"
        assert told["to_the_events_socket"] is None
        value = told["event"]["value"]
        assert (value["tool_call_id"], value["title"], value["status"]) == ("c", "make all", "in_progress")
        assert value["content"][0]["content"]["text"] == "half of it"
        await conversation.interrupt()
        await settled(conversation)
        assert len(progress()) == 1
        assert states(await events(conversation), "tool_call_progress") == []


async def test_calls_that_have_ended_are_not_kept_for_their_progress(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        kept: list[int] = []
        append = conversation.log.append

        def spy(*given: Any) -> int:
            kept.append(len(live._changed))
            return append(*given)

        live = conversation.runner._recorder.live
        assert live is not None
        conversation.log.append = spy  # type: ignore[method-assign]
        content = [{"type": "content", "content": {"type": "text", "text": "x" * 1000}}]
        lines = [
            line
            for name in map(str, range(300))
            for line in (
                update("tool_call", toolCallId=name, title="make", kind="execute", status="in_progress"),
                update("tool_call_update", toolCallId=name, content=content),
                update("tool_call_update", toolCallId=name, content=content, status="completed"),
            )
        ]
        await turn(conversation, "\n".join(lines))
        assert max(kept) > 0
        assert live._changed == {}


async def test_tokens_beside_a_message_are_those_of_its_turn(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        line = update(
            "agent_message_chunk",
            content={"type": "text", "text": ""},
            _meta={"usage": {"inputTokens": 12, "outputTokens": 5, "cachedReadTokens": 3}},
        )
        found = await turn(conversation, f"{line}\n{line}\n!text done")
        ended = [each for each in states(found, "turn") if each["status"] == "ended"][-1]
        assert (ended["usage"]["prompt_tokens"], ended["usage"]["completion_tokens"]) == (24, 10)
        assert ended["usage"]["cache_read_tokens"] == 6


async def test_the_trace_begins_with_the_processes_before(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        for _ in range(5):
            await turn(conversation, "hello")
            await conversation.stop_agent()
        lines = conversation.agent.output.trace()
        numbers = [line.process for line in lines]
        assert numbers == sorted(numbers)
        assert set(numbers) == {2, 3, 4, 5}
        assert all(sum(number == each for number in numbers) > 3 for each in (2, 3, 4, 5))
