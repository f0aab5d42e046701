"""What becomes of large messages before a conversation sees them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from supervisor.conversations.recording.bounds.attachments import BLOB_BYTES, Allowance, Originals
from supervisor.conversations.recording.bounds.large import PIECE_CHARS, Relieved
from supervisor.conversations.recording.bounds.large import relieve as relieve_within
from supervisor.conversations.recording.bounds.truncation import PAYLOAD_BYTES, clip_payload
from supervisor.credentials.masking import HIDDEN, NOTHING, Masker
from tests.conversations.harness import answer, open_harness, states, turn

MEGABYTE = 1 << 20
SECRET = "sk-live-abcdefghijklmnop"


def relieve(method: str, given: Any, mask: Masker) -> list[Any]:
    return relieve_within(method, given, mask, Originals())


def params(**update: Any) -> dict[str, Any]:
    return {"sessionId": "s", "update": update}


@pytest.mark.parametrize("kind", ["agent_message_chunk", "agent_thought_chunk"])
def test_a_long_text_becomes_pieces(kind: str) -> None:
    text = "".join(map(str, range(100_000)))
    for content in ({"type": "text", "text": text}, text):
        pieces = relieve(
            "session/update", params(sessionUpdate=kind, messageId="m", content=content), NOTHING
        )
        assert "".join(piece["update"]["content"]["text"] for piece in pieces) == text
        assert all(len(piece["update"]["content"]["text"]) <= PIECE_CHARS for piece in pieces)
        assert {(piece["sessionId"], piece["update"]["messageId"]) for piece in pieces} == {("s", "m")}


def test_what_is_said_beside_a_long_text_comes_once_with_its_end() -> None:
    content = {"type": "text", "text": "x" * 200_000, "annotations": {"audience": ["user"]}}
    given = params(sessionUpdate="agent_message_chunk", content=content, _meta={"usage": {"inputTokens": 1}})
    *pieces, last = [each["update"] for each in relieve("session/update", given, NOTHING)]
    assert [each for each in pieces if "_meta" in each or "annotations" in each["content"]] == []
    assert last["_meta"] == {"usage": {"inputTokens": 1}}
    assert last["content"]["annotations"] == {"audience": ["user"]}
    assert "".join(each["content"]["text"] for each in (*pieces, last)) == "x" * 200_000


def test_members_are_cut_and_their_whole_is_set_aside() -> None:
    output = {"lines": ["x" * 100, SECRET, "y" * MEGABYTE]}
    call = {"sessionUpdate": "tool_call", "toolCallId": "c", "rawOutput": output}
    # Of a request nothing is masked before.
    (relieved,) = relieve("session/request_permission", {"toolCall": call}, Masker([SECRET]))
    assert isinstance(relieved, Relieved)
    update = relieved.params["toolCall"]
    assert (update["toolCallId"], update["rawOutput"]["lines"][0]) == ("c", "x" * 100)
    assert len(orjson.dumps(update)) < PAYLOAD_BYTES
    (attachment,) = relieved.attachments
    assert attachment.masked
    assert attachment.blob_id in update["rawOutput"]["lines"][2]
    assert orjson.loads(attachment.body) == {"lines": ["x" * 100, HIDDEN, "y" * MEGABYTE]}
    # An event does not cut it again.
    assert clip_payload(update["rawOutput"], "event").attachments == ()


def test_a_secret_is_found_where_an_original_is_cut_into_pieces() -> None:
    filler = "z" * (BLOB_BYTES - len(SECRET) // 2 - len('{"a":"'))
    call = {"toolCallId": "c", "rawInput": {"a": filler + SECRET + filler}}
    (relieved,) = relieve("session/request_permission", {"toolCall": call}, Masker([SECRET]))
    whole = b"".join(attachment.body for attachment in relieved.attachments)
    assert len(relieved.attachments) > 1
    assert SECRET.encode() not in whole
    assert HIDDEN.encode() in whole


def test_no_more_is_set_aside_than_the_conversation_may() -> None:
    originals = Originals(Allowance(turn_bytes=3 * MEGABYTE))
    update = params(sessionUpdate="tool_call", toolCallId="c", rawOutput="o" * 2 * MEGABYTE)
    (first,) = relieve_within("session/update", update, NOTHING, originals)
    assert len(first.attachments) == 1
    (second,) = relieve_within("session/update", update, NOTHING, originals)
    assert "lost" in second["update"]["rawOutput"]


def test_an_id_stays_the_same_and_content_a_list() -> None:
    update = params(
        sessionUpdate="tool_call_update",
        toolCallId="i" * MEGABYTE,
        content=[{"type": "content", "content": {"type": "text", "text": str(n)}} for n in range(30_000)],
    )
    (relieved,) = relieve("session/update", update, NOTHING)
    assert relieved.params["update"]["toolCallId"] == "i" * MEGABYTE
    (block,) = relieved.params["update"]["content"]
    assert "bytes cut" in block["content"]["text"]


def test_every_member_is_made_little() -> None:
    long = "z" * MEGABYTE
    names = ("rawInput", "rawOutput", "content", "locations", "title", "kind", "entries", "x")
    shapes = (long, [long], {"a": {"b": [long, long]}}, [[i] for i in range(50_000)])
    for shape in shapes:
        update = dict.fromkeys(names, shape) | {"_meta": {"terminal_output_delta": {"data": shape}}}
        for given in (
            relieve("session/update", params(sessionUpdate="tool_call_update", **update), NOTHING),
            relieve("session/request_permission", {"toolCall": update, "options": []}, NOTHING),
        ):
            (relieved,) = given
            assert len(orjson.dumps(relieved.params)) < (len(names) + 1) * PAYLOAD_BYTES


@pytest.mark.parametrize("odd", [None, [], "x", {}, {"update": 1}, {"update": {"content": None}}])
def test_odd_parameters_stay(odd: Any) -> None:
    assert relieve("session/update", odd, NOTHING) == [odd]
    assert relieve("fs/write_text_file", odd, NOTHING) == [odd]


async def test_a_large_text_comes_through_in_one_piece(tmp_path):
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, f"!huge {700_000}")
        assert answer(found) == "h" * 700_000


async def test_a_large_output_is_cut_and_can_be_fetched(tmp_path):
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, f"!bigtool {3 * MEGABYTE}")
        ended = [e for e in found if e["kind"] == "ACPToolCallEvent"][-1]
        text = ended["raw_output"]["output"]
        assert (text[:5], text[-5:]) == ("heado", "otail")
        assert len(orjson.dumps(ended)) < 3 * PAYLOAD_BYTES
        blob_id = text.split("all of it is in blob ")[1].split()[0]
        blob = await conversation.log.get_blob(blob_id)
        assert orjson.loads(blob.data)["output"] == "head" + "o" * 3 * MEGABYTE + "tail"


@pytest.mark.guarantee(name="no-agent-starves-the-others")
async def test_what_is_too_heavy_is_told_and_the_turn_goes_on(tmp_path):
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "!heavy 200000\nafterwards")
        (dropped,) = states(found, "acp_dropped")
        assert (dropped["kind"], dropped["method"]) == ("oversize_frame", "session/update")
        assert dropped["reason"] == "more than 100000 values"
        assert answer(found).strip() == "echo: afterwards"
