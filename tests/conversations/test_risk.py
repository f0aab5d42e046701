"""What ConfirmRisky judges by: the risk that is known of a call, which its event tells, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from supervisor.conversations.recording.tool_calls.asked import RISK_LOCATIONS_MAX, RISKS, leads_out, risk_of
from supervisor.conversations.state.confirmation import asks_a_person, may_ask
from supervisor.events import SecurityRisk
from tests.conversations.harness import answer, events, open_harness, say, settled, turn, until
from tests.conversations.world import World

LEVELS = ("LOW", "MEDIUM", "HIGH")

KINDS = {
    "read": "LOW",
    "search": "LOW",
    "think": "LOW",
    "fetch": "MEDIUM",
    "edit": "MEDIUM",
    "move": "MEDIUM",
    "delete": "HIGH",
    "execute": "HIGH",
    "switch_mode": "HIGH",
    "other": "UNKNOWN",
    "a kind of its own": "UNKNOWN",
    None: "UNKNOWN",
}

INSIDE, OUTSIDE = "/w/src/a.py", "/etc/passwd"


def request(kind: str | None, path: str) -> dict[str, Any]:
    call = {"toolCallId": "c", "title": "t", "kind": kind, "locations": [{"path": path}]}
    options = [{"optionId": word, "name": word, "kind": word} for word in ("allow_once", "reject_once")]
    return {"sessionId": "s", "toolCall": call, "options": options}


def one_higher(risk: str) -> str:
    return LEVELS[min(LEVELS.index(risk) + 1, 2)] if risk in LEVELS else risk


def test_the_table_has_every_kind_of_the_protocol() -> None:
    assert set(RISKS) | {"other"} == {kind for kind in KINDS if kind and " " not in kind}


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize("core", [False, True])
@pytest.mark.parametrize("path", [INSIDE, OUTSIDE])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_call_is_judged_by_the_risk_that_its_event_tells(kind: str | None, path: str, core: bool) -> None:
    expected = KINDS[kind] if path == INSIDE else one_higher(KINDS[kind])
    for threshold in LEVELS:
        for unknown in (False, True):
            world = World(core=core, confirming=True)
            policy = {"kind": "ConfirmRisky", "threshold": threshold, "confirm_unknown": unknown}
            world.record.confirmation_policy = policy
            world.permissions.policy_changed()
            world.kept.append(world.permissions.ask(request(kind, path)))
            known = expected in LEVELS
            asks = LEVELS.index(expected) >= LEVELS.index(threshold) if known else unknown
            assert world.permissions.waiting is asks
            rows = [orjson.loads(row.body) for row in world.log.rows]
            told = [row.get("security_risk", "UNKNOWN") for row in rows if row["kind"] == "ActionEvent"]
            assert told == ([expected] if asks or core else [])
            world.end()


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
def test_a_request_that_describes_its_call_otherwise_tells_the_risk_apart() -> None:
    world = World(core=True, confirming=True)
    world.record.confirmation_policy = {"kind": "ConfirmRisky", "threshold": "HIGH"}
    world.permissions.policy_changed()
    call = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "t", "kind": "read"}
    world.update({"sessionId": "s", "update": call})
    world.recorder.emit(world.translator.release())
    world.kept.append(world.permissions.ask(request("execute", INSIDE)))
    assert world.permissions.waiting
    action, told = [
        row
        for row in map(orjson.loads, (row.body for row in world.log.rows))
        if row["kind"] == "ActionEvent" or row.get("key") == "action_risk"
    ]
    assert action["security_risk"] == "LOW"
    assert told["value"] == {"action_id": action["id"], "security_risk": "HIGH"}
    world.end()


def test_what_an_earlier_update_told_of_a_call_counts() -> None:
    world = World(core=False, confirming=True)
    world.record.confirmation_policy = {"kind": "ConfirmRisky", "threshold": "HIGH"}
    call = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "t", "kind": "edit"}
    world.update({"sessionId": "s", "update": {**call, "locations": [{"path": OUTSIDE}]}})
    bare = request(None, INSIDE)
    world.kept.append(world.permissions.ask({**bare, "toolCall": {"toolCallId": "c"}}))
    assert world.permissions.waiting
    world.end()


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize("confirm_unknown", [False, True])
@pytest.mark.parametrize("threshold", LEVELS)
@pytest.mark.parametrize("kind", ["read", "edit", "execute", "other"])
def test_an_open_call_makes_no_question_harmless(kind: str, threshold: str, confirm_unknown: bool) -> None:
    policy = {"kind": "ConfirmRisky", "threshold": threshold, "confirm_unknown": confirm_unknown}

    def waits(*before: dict[str, Any]) -> bool:
        world = World(core=False, confirming=True)
        world.record.confirmation_policy = policy
        world.permissions.policy_changed()
        for call in before:
            world.update({"sessionId": "s", "update": {"sessionUpdate": "tool_call", **call}})
        bare = {"toolCallId": "new", "title": "rm -rf /srv/data"}
        world.kept.append(world.permissions.ask({**request(None, INSIDE), "toolCall": bare}))
        waiting = world.permissions.waiting
        world.end()
        return waiting

    running = {"toolCallId": "c", "title": "t", "kind": kind, "status": "in_progress"}
    assert waits() is confirm_unknown
    assert waits(running) >= waits()
    if kind == "execute":
        assert waits(running)


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize("core", [True, False])
@pytest.mark.parametrize(
    ("open_call", "risk"),
    [
        ({"kind": "execute", "rawInput": {"command": "rm -rf /srv"}}, "HIGH"),
        ({"kind": "execute", "status": "in_progress"}, "HIGH"),
        ({"kind": "edit"}, "MEDIUM"),
        ({"kind": "edit", "locations": [{"path": OUTSIDE}]}, "HIGH"),
        ({"kind": "other"}, "UNKNOWN"),
        ({"kind": "search"}, "LOW"),
        ({"kind": "execute", "_meta": {"terminal_output": {"data": "x"}}}, "LOW"),  # it runs already
        ({"kind": "execute", "status": "completed"}, "LOW"),
    ],
    ids=["execute", "in progress", "edit", "an edit outside", "other", "search", "runs", "ended"],
)
def test_a_question_is_as_risky_as_what_its_answer_may_go_for(
    core: bool, open_call: dict[str, Any], risk: str
) -> None:
    """Agents ask for all calls of an answer under the id of one of them (Droid)."""
    world = World(core=core, confirming=True)
    world.record.confirmation_policy = {"kind": "ConfirmRisky", "threshold": "MEDIUM"}
    world.permissions.policy_changed()
    reads = {"toolCallId": "reads", "title": "look", "kind": "read", "locations": [{"path": INSIDE}]}
    for call in ({"toolCallId": "c", "title": "t", **open_call}, reads):
        world.update({"sessionId": "s", "update": {"sessionUpdate": "tool_call", **call}})
    asked = {**request("read", INSIDE), "toolCall": {"toolCallId": "reads"}}
    world.kept.append(world.permissions.ask(asked))
    assert world.permissions.waiting is (risk != "LOW")
    entry = world.record.reported.agent_state["permissions"][-1]
    assert entry["security_risk"] == risk
    if world.permissions.waiting:  # the event tells the risk that decides
        rows = [orjson.loads(row.body) for row in world.log.rows]
        (action,) = [row for row in rows if row["kind"] == "ActionEvent" and row["id"] == entry["action_id"]]
        assert action.get("security_risk", "UNKNOWN") == risk
    world.end()


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
def test_what_a_person_has_allowed_makes_later_questions_no_riskier() -> None:
    world = World(core=False, confirming=True)
    world.record.confirmation_policy = {"kind": "ConfirmRisky", "threshold": "HIGH"}
    world.permissions.policy_changed()
    for name, kind in (("runs", "execute"), ("asks", "execute"), ("reads", "read")):
        call = {"sessionUpdate": "tool_call", "toolCallId": name, "title": name, "kind": kind}
        world.update({"sessionId": "s", "update": call})
    for name in ("asks", "reads"):
        asked = {**request(None, INSIDE), "toolCall": {"toolCallId": name}}
        world.kept.append(world.permissions.ask(asked))
        assert world.permissions.waiting is (name == "asks")
        world.permissions.decide(True, "")
    world.end()


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize(
    ("update", "out"),
    [
        ({}, False),
        ({"locations": []}, False),
        ({"locations": [{"path": "/w"}]}, False),
        ({"locations": [{"path": "/w/a/../b"}, {"path": "c"}]}, False),
        ({"locations": [{"path": "/w/../etc/passwd"}]}, True),
        ({"locations": [{"path": "../x"}]}, True),
        ({"locations": [{"path": "/world"}]}, True),
        ({"locations": [{"path": "~/.ssh/id"}]}, True),
        ({"locations": [{"path": "file:///etc/passwd"}]}, True),
        ({"locations": [{"path": "/w/a"}, {"path": OUTSIDE}]}, True),
        ({"locations": [{"path": 7}]}, True),
        ({"locations": ["/w/a"]}, True),
        ({"locations": {"truncated": "[{..."}}, True),
        ({"locations": [{"path": "/w/a"}] * (RISK_LOCATIONS_MAX + 1)}, True),
        ({"content": [{"type": "diff", "path": OUTSIDE}]}, True),
        ({"content": [{"type": "diff", "path": INSIDE}, {"type": "content"}, 7]}, False),
        ({"content": "text"}, False),
    ],
)
def test_what_leads_out_of_the_workspace(update: dict[str, Any], out: bool) -> None:
    assert leads_out(update, "/w") is out


def test_a_policy_that_may_ask() -> None:
    assert not may_ask({"kind": "NeverConfirm"})
    assert may_ask({"kind": "AlwaysConfirm"})
    for threshold in LEVELS:
        assert may_ask({"kind": "ConfirmRisky", "threshold": threshold, "confirm_unknown": False})
    assert not asks_a_person({"kind": "ConfirmRisky"}, risk_of("edit", outside=False))
    assert asks_a_person({"kind": "ConfirmRisky"}, SecurityRisk.HIGH)


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
async def test_a_person_is_asked_about_what_is_risky_and_about_nothing_else(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        risky = {"kind": "ConfirmRisky", "threshold": "HIGH", "confirm_unknown": True}
        conversation = await harness.start(confirmation_policy=risky)
        found = await turn(conversation, "!write made.txt content")  # an edit in the workspace
        assert "written" in answer(found)
        await conversation.send(say("!perm"), run=True)  # a command
        await until(lambda: conversation.waiting)
        (action,) = [
            event
            for event in await events(conversation)
            if event["kind"] == "ActionEvent" and event["action"]["kind"] == "MCPToolAction"
        ]
        assert action["security_risk"] == "HIGH"
        await conversation.respond(False, "no")
        await settled(conversation)
