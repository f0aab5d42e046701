"""What clients send too much of: the answer is small, and says what is wrong."""

from __future__ import annotations

import httpx2
import orjson
import pytest

from gateway.bodies import MAX_TAGS
from supervisor.reading import MAX_ERRORS as PROBLEMS_LISTED
from tests.support.thorough import everyday

BASE = "/api/conversations"
WORKSPACE = {"kind": "LocalWorkspace", "working_dir": "/w"}
ANSWER_BYTES = 256 * 1024
"""Of a refusal: a hundred mistakes, each with its place and a message of some length."""
MANY = everyday(60_000, 300_000)
LONG = "n" * everyday(2_000_000, 10_000_000)

NUMBERS = dict.fromkeys(map(str, range(MANY)), 1)

WRONG = {
    "wrong tags": ({"tags": NUMBERS}, "string_type"),
    "wrong names": ({"tags": {f"NO {number}": "v" for number in range(MAX_TAGS)}}, "value_error"),
    "too many tags": ({"tags": {f"t{number}": "v" for number in range(MANY)}}, "too_long"),
    "a long name": ({"tags": {LONG: 1}}, "string_type"),
    "a long name that is right": ({"tags": {LONG: "v"}}, "value_error"),
    "wrong parts": ({"initial_message": {"content": [{}] * MANY}}, "too_many_errors"),
    "long kind": ({"confirmation_policy": {"kind": LONG}}, "union_tag_invalid"),
    "long role": ({"initial_message": {"role": LONG, "content": []}}, "enum"),
    "a long path": ({"workspace": {"working_dir": "/" + LONG}}, "string_too_long"),
    "a large analyzer": ({"security_analyzer": {"kind": "x", "more": LONG}}, "too_long"),
    "large hooks": ({"hook_config": {"stop": [{"hooks": [{"command": "x", "name": LONG}]}]}}, "too_long"),
    "a large matcher": ({"hook_config": {"stop": [{"matcher": LONG}]}}, "string_too_long"),
    "unknown hooks": ({"hook_config": {LONG: [], "more": NUMBERS}}, "extra_forbidden"),
    "wrong servers": (
        {"agent_settings": {"agent_kind": "acp", "mcp_config": {"mcpServers": NUMBERS}}},
        None,
    ),
    "wrong secrets": ({"secrets": NUMBERS}, None),
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_refusal_is_small_whatever_was_sent(gateway, what):
    more, kind = WRONG[what]
    body = orjson.dumps({"workspace": WORKSPACE, **more})
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(gateway.app), base_url="http://localhost"
    ) as client:
        answer = await client.post(BASE, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text[:500]
    assert len(answer.content) < ANSWER_BYTES
    problems = answer.json()["detail"]
    assert len(problems) <= PROBLEMS_LISTED + 1
    assert kind in {None, *(problem["type"] for problem in problems)}


async def test_more_mistakes_than_are_listed_are_counted(gateway):
    conversation = await gateway.conversation()
    status, answer = await gateway.call("PATCH", f"{BASE}/{conversation.id}", {"tags": NUMBERS})
    assert status == 422
    problems = answer["detail"]
    assert len(problems) == PROBLEMS_LISTED + 1
    assert problems[0]["loc"] == ["body", "tags", "0"]
    assert problems[-1] == {
        "loc": [],
        "msg": f"There are {MANY - PROBLEMS_LISTED} more mistakes",
        "type": "too_many_errors",
    }


async def test_a_reason_has_a_length(gateway):
    conversation = await gateway.conversation()
    path = f"{BASE}/{conversation.id}/events/respond_to_confirmation"
    status, answer = await gateway.call("POST", path, {"accept": False, "reason": LONG})
    assert (status, answer["detail"][0]["type"]) == (422, "string_too_long")
