"""What clients send too much of: the answer is small, and says what is wrong."""

from __future__ import annotations

import httpx2
import orjson
import pytest

from gateway.api.requests.bodies import MAX_TAGS
from supervisor.reading.model import MAX_ERRORS as PROBLEMS_LISTED
from tests.support.thorough import everyday

BASE = "/api/conversations"
WORKSPACE = {"kind": "LocalWorkspace", "working_dir": "/w"}
ANSWER_BYTES = 256 * 1024
"""Of a refusal: a hundred mistakes, each with its place and a message of some length."""
MANY = 5_000
"""Values are counted before they are read (`MAX_VALUES`); so many are read."""
LONG_CHARS = everyday(2_000_000, 10_000_000)


def long():
    return "n" * LONG_CHARS


def numbers():
    return dict.fromkeys(map(str, range(MANY)), 1)


WRONG = {
    "wrong tags": (lambda: {"tags": dict(list(numbers().items())[:MAX_TAGS])}, "string_type"),
    "wrong names": (lambda: {"tags": {f"NO {number}": "v" for number in range(MAX_TAGS)}}, "value_error"),
    "too many tags": (lambda: {"tags": {f"t{number}": "v" for number in range(MANY)}}, "too_long"),
    "a long name": (lambda: {"tags": {long(): 1}}, "string_type"),
    "a long name that is right": (lambda: {"tags": {long(): "v"}}, "value_error"),
    "wrong parts": (lambda: {"initial_message": {"content": [{}] * MANY}}, "too_many_errors"),
    "long kind": (lambda: {"confirmation_policy": {"kind": long()}}, "union_tag_invalid"),
    "long role": (lambda: {"initial_message": {"role": long(), "content": []}}, "enum"),
    "a long path": (lambda: {"workspace": {"working_dir": "/" + long()}}, "string_too_long"),
    "a large analyzer": (lambda: {"security_analyzer": {"kind": "x", "more": long()}}, "too_long"),
    "large hooks": (
        lambda: {"hook_config": {"stop": [{"hooks": [{"command": "x", "name": long()}]}]}},
        "too_long",
    ),
    "a large matcher": (lambda: {"hook_config": {"stop": [{"matcher": long()}]}}, "string_too_long"),
    "unknown hooks": (lambda: {"hook_config": {long(): [], "more": numbers()}}, "extra_forbidden"),
    "wrong servers": (
        lambda: {"agent_settings": {"agent_kind": "acp", "mcp_config": {"mcpServers": numbers()}}},
        None,
    ),
    "wrong secrets": (lambda: {"secrets": numbers()}, None),
}
"""By name: what is sent besides, which is made where it is sent, and the kind of a problem that is listed."""


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize("what", WRONG)
async def test_a_refusal_is_small_whatever_was_sent(gateway, what):
    make, kind = WRONG[what]
    body = orjson.dumps({"workspace": WORKSPACE, **make()})
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(gateway.app), base_url="http://localhost"
    ) as client:
        answer = await client.post(BASE, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text[:500]
    assert len(answer.content) < ANSWER_BYTES
    problems = answer.json()["detail"]
    assert len(problems) <= PROBLEMS_LISTED + 1
    assert kind in {None, *(problem["type"] for problem in problems)}


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
async def test_more_mistakes_than_are_listed_are_told(gateway):
    conversation = await gateway.conversation()
    path = f"{BASE}/{conversation.id}/events"
    status, answer = await gateway.call("POST", path, {"role": "user", "content": [1] * MANY})
    assert status == 422
    problems = answer["detail"]
    assert len(problems) == PROBLEMS_LISTED + 1
    assert problems[0]["loc"] == ["body", "content", 0]
    assert problems[-1] == {
        "loc": [],
        "msg": "There are more mistakes",
        "type": "too_many_errors",
    }


async def test_a_reason_has_a_length(gateway):
    conversation = await gateway.conversation()
    path = f"{BASE}/{conversation.id}/events/respond_to_confirmation"
    status, answer = await gateway.call("POST", path, {"accept": False, "reason": long()})
    assert (status, answer["detail"][0]["type"]) == (422, "string_too_long")
