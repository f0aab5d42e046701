"""`/api/conversations/<id>/events`."""

from __future__ import annotations

import json
import time

import orjson
import pytest

from gateway.configuration.config import Config
from supervisor.conversations.recording.bounds.attachments import BLOB_BYTES
from supervisor.events import Message, MessageEvent, PauseEvent, TextContent, Vocabulary, timestamp_now
from supervisor.journal.rows import Row
from tests.journal.harness import put_blob

MAX_EVENT_IDS = Config().max_event_ids
BASE = "/api/conversations"


def message(text, timestamp=None, source="user"):
    more = {} if timestamp is None else {"timestamp": timestamp}
    content = (TextContent(text=text),)
    return MessageEvent(source=source, llm_message=Message(role="user", content=content), **more)


async def texts(gateway, conversation, query=""):
    status, page = await gateway.call("GET", f"{BASE}/{conversation.id}/events/search{query}")
    assert status == 200, page
    return [event["llm_message"]["content"][0]["text"] for event in page["items"]]


async def test_send(gateway):
    conversation = await gateway.conversation()
    path = f"{BASE}/{conversation.id}/events"
    body = {
        "content": [{"type": "text", "text": "hi"}, {"type": "image", "image_urls": ["data:x"]}],
        "sender": "ignored",
    }
    assert await gateway.call("POST", path, body) == (200, {"success": True})
    assert await gateway.call("POST", path, {**body, "run": True}) == (200, {"success": True})
    (_, sent, first), (_, _, second) = conversation.calls
    assert (first, second) == (False, True)
    assert [part.type for part in sent.content] == ["text", "image"]


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"role": "nobody"}, ["body", "role"]),
        ({"role": "assistant", "content": []}, ["body", "role"]),
        ({"content": "hi"}, ["body", "content"]),
        ({"content": ["hi"]}, ["body", "content", 0]),
        ({"content": [{"text": "hi", "type": "text", "extra": 1}]}, ["body", "content", 0, "extra"]),
        ({"content": [{"type": "image"}]}, ["body", "content", 0, "image_urls"]),
        ({"content": [{"type": "audio", "data": "AA=A", "mimeType": "a/b"}]}, ["body", "content", 0, "data"]),
        ({"content": [{"type": "audio", "data": "AAA", "mimeType": "a/b"}]}, ["body", "content", 0, "data"]),
        ({"content": [{"type": "audio", "data": "AAAA"}]}, ["body", "content", 0, "mimeType"]),
        ({"content": [{"type": "resource_link", "uri": "x"}]}, ["body", "content", 0, "name"]),
        ({"content": [{"type": "resource", "resource": {"uri": "x"}}]}, ["body", "content", 0, "resource"]),
        (
            {"content": [{"type": "resource", "resource": {"uri": "x", "text": "", "blob": "AAAA"}}]},
            ["body", "content", 0, "resource"],
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "x", "text": "a" * BLOB_BYTES}}]},
            ["body", "content", 0],
        ),
        ({"content": [], "run": 1}, ["body", "run"]),
        ([], ["body"]),
    ],
)
async def test_bad_messages(gateway, body, loc):
    conversation = await gateway.conversation()
    status, answer = await gateway.call("POST", f"{BASE}/{conversation.id}/events", body)
    assert status == 422
    assert answer["detail"][0]["loc"] == loc
    assert conversation.calls == []


LINK = {"type": "resource_link", "uri": "file:///a", "name": "a", "size": 3}
AUDIO = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
TEXT = {"type": "resource", "resource": {"uri": "file:///b", "mimeType": "text/plain", "text": "b"}}
IMAGE = {"type": "image", "image_urls": ["data:image/png;base64,AAAA"]}


async def test_blocks_are_sent_as_they_came(gateway):
    conversation = await gateway.conversation()
    body = {"content": [LINK, {**AUDIO, "annotations": None}, TEXT]}
    assert await gateway.call("POST", f"{BASE}/{conversation.id}/events", body) == (200, {"success": True})
    ((_, sent, _),) = conversation.calls
    assert [part.block for part in sent.content] == [LINK, AUDIO, TEXT]
    assert [part.text for part in sent.content] == [
        "resource_link a file:///a",
        "audio audio/wav",
        "resource file:///b",
    ]


@pytest.mark.parametrize(
    ("takes", "lacking"),
    [
        (None, {}),
        ([], {1: "audio", 2: "embeddedContext", 3: "image"}),
        (["audio"], {2: "embeddedContext", 3: "image"}),
        (["embeddedContext", "image"], {1: "audio"}),
    ],
)
async def test_what_the_agent_does_not_take_is_refused_by_its_place(gateway, takes, lacking):
    conversation = await gateway.conversation()
    conversation.takes = takes
    body = {"content": [LINK, AUDIO, TEXT, IMAGE]}
    status, answer = await gateway.call("POST", f"{BASE}/{conversation.id}/events", body)
    if not lacking:
        assert (status, len(conversation.calls)) == (200, 1)
        return
    assert (status, conversation.calls) == (422, [])
    assert [each["loc"] for each in answer["detail"]] == [["body", "content", index] for index in lacking]
    for each, capability in zip(answer["detail"], lacking.values(), strict=True):
        assert f"prompt capability {capability}." in each["msg"]


async def test_batch_keeps_the_order_and_has_nulls(gateway):
    conversation = await gateway.conversation()
    first, second = await conversation.record(message("one"), message("two"))
    status, found = await gateway.call(
        "GET", f"{BASE}/{conversation.id}/events", [second, "unknown", first, second]
    )
    assert status == 200
    assert [event and event["id"] for event in found] == [second, None, first, second]
    assert found[0]["llm_response_id"] is None
    assert found[0]["llm_message"]["tool_calls"] is None
    assert await gateway.call("GET", f"{BASE}/{conversation.id}/events", []) == (200, [])


async def test_batch_limits(gateway):
    conversation = await gateway.conversation()
    path = f"{BASE}/{conversation.id}/events"
    status, found = await gateway.call("GET", path, ["x"] * MAX_EVENT_IDS)
    assert (status, found) == (200, [None] * MAX_EVENT_IDS)
    status, body = await gateway.call("GET", path, ["x"] * (MAX_EVENT_IDS + 1))
    assert (status, body["detail"][0]["type"]) == (422, "too_long")
    status, body = await gateway.call("GET", path, ["x", 1, None])
    assert status == 422
    assert [(p["loc"], p["type"]) for p in body["detail"]] == [
        (["body", 1], "string_type"),
        (["body", 2], "string_type"),
    ]
    status, body = await gateway.call("GET", path, {"ids": []})
    assert (status, body["detail"][0]["loc"]) == (422, ["body"])


async def test_one_event_has_nulls(gateway):
    conversation = await gateway.conversation()
    (event_id,) = await conversation.record(message("one"))
    status, event = await gateway.call("GET", f"{BASE}/{conversation.id}/events/{event_id}")
    assert status == 200
    assert event["sender"] is None
    assert "parent_id" not in event
    status, body = await gateway.call("GET", f"{BASE}/{conversation.id}/events/unknown")
    assert (status, body) == (404, {"detail": "Event not found: unknown"})


async def test_the_vocabulary_decides_which_nulls(gateway):
    conversation = await gateway.conversation(event_vocabulary=Vocabulary.EXTENDED)
    (event_id,) = await conversation.record(message("one"))
    _, event = await gateway.call("GET", f"{BASE}/{conversation.id}/events/{event_id}")
    assert event["parent_id"] is None


async def test_search_gives_the_stored_bytes(gateway):
    conversation = await gateway.conversation()
    await conversation.record(message("one"), PauseEvent())
    response = await gateway.app.test_client().get(f"{BASE}/{conversation.id}/events/search")
    stored = [item.body for item in await conversation.log.read(-1, 10)]
    assert await response.get_data(as_text=False) == (
        b'{"items":[' + b",".join(stored) + b'],"next_page_id":null}'
    )


async def test_search_pages_both_ways(gateway):
    conversation = await gateway.conversation()
    await conversation.record(*[message(str(n)) for n in range(5)])
    path = f"{BASE}/{conversation.id}/events/search"
    for order, expected in (("TIMESTAMP", list("01234")), ("TIMESTAMP_DESC", list("43210"))):
        seen, page_id = [], ""
        while page_id is not None:
            _, page = await gateway.call("GET", f"{path}?limit=2&sort_order={order}&page_id={page_id}")
            seen += [event["llm_message"]["content"][0]["text"] for event in page["items"]]
            page_id = page["next_page_id"]
        assert seen == expected


async def test_filters_and_count(gateway):
    conversation = await gateway.conversation()
    await conversation.record(message("apple"), message("pear", source="agent"), PauseEvent())
    path = f"{BASE}/{conversation.id}/events"
    for query, expected in (
        ("", 3),
        ("?kind=MessageEvent", 2),
        ("?kind=openhands.sdk.event.MessageEvent", 2),
        ("?kind=Nothing", 0),
        ("?source=agent", 1),
        ("?source=robot", 0),
        ("?body=APPLE", 1),
        ("?body=user", 0),
        ("?body=apple&kind=ActionEvent", 0),
        ("?kind=MessageEvent&source=user", 1),
        ("?timestamp__gte=2000-01-01T00:00:00", 3),
        ("?timestamp__lt=2000-01-01T00:00:00Z", 0),
    ):
        assert await gateway.call("GET", f"{path}/count{query}") == (200, expected), query
        _, page = await gateway.call("GET", f"{path}/search{query}")
        assert len(page["items"]) == expected, query


async def test_times_naive_and_zoned(gateway, monkeypatch):
    monkeypatch.setenv("TZ", "Etc/GMT-2")
    time.tzset()
    try:
        conversation = await gateway.conversation()
        await conversation.record(
            message("early", "2026-05-01T10:00:00.000000Z"), message("late", "2026-05-01T12:00:00.000000Z")
        )
        for since in (
            "2026-05-01T12:00:00Z",
            "2026-05-01T14:00:00",
            "2026-05-01T14:00:00%2B02:00",
            "2026-05-01T14:00:00+02:00",
            "2026-05-01T11:00:00.000001Z",
        ):
            assert await texts(gateway, conversation, f"?timestamp__gte={since}") == ["late"], since
        assert await texts(gateway, conversation, "?timestamp__lt=2026-05-01T12:00:00Z") == ["early"]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("route", ["search", "count"])
@pytest.mark.parametrize(
    ("query", "name", "kind"),
    [
        ("timestamp__gte=yesterday", "timestamp__gte", "datetime_parsing"),
        ("timestamp__lt=", "timestamp__lt", "datetime_parsing"),
        ("timestamp__lt=0001-01-01T00:00:00%2B14:00", "timestamp__lt", "datetime_parsing"),
    ],
)
async def test_bad_filters(gateway, route, query, name, kind):
    conversation = await gateway.conversation()
    status, body = await gateway.call("GET", f"{BASE}/{conversation.id}/events/{route}?{query}")
    assert status == 422
    assert (body["detail"][0]["loc"], body["detail"][0]["type"]) == (["query", name], kind)


async def test_odd_stored_payloads_are_still_shown(gateway):
    conversation = await gateway.conversation()
    deep = orjson.loads(b"[" * 300 + b"]" * 300)
    body = json.dumps({"id": "odd", "kind": "ConversationStateUpdateEvent", "value": deep}).encode()
    row = Row(
        id="odd", kind="ConversationStateUpdateEvent", source="agent", timestamp=timestamp_now(), body=body
    )
    conversation.log.append([row])
    await conversation.log.flushed()
    status, event = await gateway.call("GET", f"{BASE}/{conversation.id}/events/odd")
    assert status == 200
    assert event["value"][0][0]


async def test_the_original_of_a_cut_content_is_downloaded_and_not_rendered(gateway):
    conversation = await gateway.conversation()
    await put_blob(conversation.log, "b1", b"<script>", "text/html")
    client = gateway.app.test_client()
    response = await client.get(f"{BASE}/{conversation.id}/blobs/b1")
    assert response.status_code == 200
    assert await response.get_data() == b"<script>"
    assert response.headers["Content-Disposition"] == "attachment"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    status, answer = await gateway.call("GET", f"{BASE}/{conversation.id}/blobs/other")
    assert (status, answer) == (404, {"detail": "Blob not found: other"})


async def test_pages_and_batches_are_as_large_as_the_operator_says(gateway_with):
    async with gateway_with(max_page=2, max_event_ids=3) as gateway:
        conversation = await gateway.conversation()
        path = f"/api/conversations/{conversation.id}/events"
        status, answer = await gateway.call("GET", f"{path}/search?limit=3")
        assert (status, answer["detail"][0]["loc"], answer["detail"][0]["type"]) == (
            422,
            ["query", "limit"],
            "less_than_equal",
        )
        assert (await gateway.call("GET", "/api/conversations/search?limit=3"))[0] == 422
        for _ in range(2):
            await gateway.conversation()
        _, page = await gateway.call("GET", "/api/conversations/search")
        assert len(page["items"]) == 2
        assert (await gateway.call("GET", path, ["a", "b", "c"]))[0] == 200
        status, answer = await gateway.call("GET", path, ["a", "b", "c", "d"])
        assert (status, answer["detail"][0]["type"]) == (422, "too_long")
        _, document = await gateway.call("GET", "/openapi.json")
        (limit,) = [
            each["schema"]
            for each in document["paths"]["/api/conversations/search"]["get"]["parameters"]
            if each["name"] == "limit"
        ]
        assert (limit["maximum"], limit["default"]) == (2, 2)
