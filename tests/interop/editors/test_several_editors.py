"""Editors that crash and come back, and several on one conversation."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.interop.editors.behind import Behind, behind
from tests.interop.editors.clients import Client, Drive, text
from tests.interop.editors.test_same_updates import lines
from tests.interop.model_api.server import ModelApi
from tests.support.scripted import ScriptedLog

pytestmark = pytest.mark.interop

WATCH = {"do": "watch", "answer": "word"}
TURN = "!slow 12 20\n!tools 2\n!think a b\n!slow 6 20\n!text THE-END"
MOMENTS = 20


@pytest.fixture(scope="module")
def kept(
    tmp_path_factory: pytest.TempPathFactory, agents_prefix: Path, _model_api: ModelApi
) -> Iterator[Behind]:
    """A server with the scripted agent."""
    with behind("scripted", tmp_path_factory.mktemp("scripted"), agents_prefix, _model_api) as one:
        yield one


def shown(drive: Drive) -> list[dict[str, Any]]:
    """The updates that it has told, without what the person said."""
    updates = [each["update"] for each in list(drive.events) if each["event"] == "update"]
    return [each for each in updates if each["sessionUpdate"] != "user_message_chunk"]


def is_end(event: dict[str, Any]) -> bool:
    """Whether this is the last update of a turn: the scripted agent reports its usage there."""
    return event["event"] == "update" and event["update"]["sessionUpdate"] == "usage_update"


def session_of(drive: Drive) -> str:
    answer = drive.wait_for(lambda each: each["event"] == "answer" and each["do"] == "new")
    return str(answer["result"]["sessionId"])


def test_an_editor_that_is_killed_comes_back(python_editor: Client, kept: Behind, tmp_path: Path) -> None:
    """At 20 moments of a turn, by SIGKILL: the next one gets all of the turn, once."""
    agent = kept.agent(tmp_path)
    turn = {"do": "prompt", "text": TURN}
    whole = python_editor.run(agent, {"do": "new"}, turn).updates(2)
    assert "THE-END" in text(whole)
    log = ScriptedLog(kept.server.directory / "scripted.jsonl")
    step = max(1, len(whole) // MOMENTS)
    for moment in range(MOMENTS):
        before = len(log.prompts())
        with python_editor.start(agent, {"do": "new"}, turn) as drive:
            session = session_of(drive)
            count = min(1 + moment * step, len(whole) - 1)
            drive.wait_for(lambda _, drive=drive, count=count: len(shown(drive)) >= count)
            drive.kill()
        with python_editor.start(agent, {"do": "load", "session": session, "answer": "word"}, WATCH) as again:
            again.wait_for(is_end)
            again.say("end")
            again.finish()
            assert lines(shown(again)) == lines(whole), moment
        assert len(log.prompts()) == before + 1


def test_a_permission_outlives_the_editor_that_was_asked(
    python_editor: Client, kept: Behind, tmp_path: Path
) -> None:
    agent = kept.agent(tmp_path)
    asks = {"do": "prompt", "text": "!perm", "answer": "word"}
    with python_editor.start(agent, {"do": "new"}, asks) as drive:
        session = session_of(drive)
        asked = drive.wait_for(lambda each: each["event"] == "permission")
        drive.kill()
    with python_editor.start(agent, {"do": "load", "session": session, "answer": "word"}, WATCH) as again:
        assert again.wait_for(lambda each: each["event"] == "permission") == asked
        again.say("answer")
        again.wait_for(is_end)
        assert "allowed" in text(shown(again))
        again.say("end")
        again.finish()


@pytest.mark.parametrize("first", ["editor", "other editor", "rest"])
def test_clients_answer_at_the_same_moment(
    python_editor: Client, typescript_editor: Client, kept: Behind, tmp_path: Path, first: str
) -> None:
    """One answer counts, and each editor whose answer does not, sees that. `first` gets the other ones a
    moment later, so that each wins at times."""
    agent = kept.agent(tmp_path)
    log = ScriptedLog(kept.server.directory / "scripted.jsonl")
    before = len(log.records("permission"))
    asks = {"do": "prompt", "text": "!perm\n!text and on", "answer": "word"}
    with python_editor.start(agent, {"do": "new"}, asks) as one:
        session = session_of(one)
        asked = one.wait_for(lambda each: each["event"] == "permission")
        other_steps = ({"do": "load", "session": session, "answer": "word"}, WATCH)
        with typescript_editor.start(agent, *other_steps) as other:
            assert other.wait_for(lambda each: each["event"] == "permission") == asked

            def reject() -> None:
                path = f"{kept.server.url}/api/conversations/{session}/events/respond_to_confirmation"
                httpx2.post(path, json={"accept": False, "reason": "no"}, timeout=30, trust_env=False)

            acts = {
                "editor": lambda: one.say("answer"),
                "other editor": lambda: other.say("answer"),
                "rest": reject,
            }
            order = [first, *(each for each in acts if each != first)]
            threads = [threading.Thread(target=acts[each]) for each in order]
            for each in threads:
                each.start()
            for each in threads:
                each.join(30)
            for drive in (one, other):
                drive.wait_for(is_end)
            other.say("end")
            results = one.finish(), other.finish()
    decisions = log.records("permission")[before:]
    assert len(decisions) == 1
    allowed = decisions[0]["outcome"]["optionId"].startswith("opt-allow")
    for each in results:
        assert ("allowed" if allowed else "rejected") in text(each.updates())
        assert "and on" in text(each.updates())
    # An editor that has not answered yet sees that the question is over.
    assert sum(len(each.of("cancel_request")) for each in results) <= 2 - allowed
    assert lines(shown(one)) == lines(shown(other))
    (status,) = {
        each["value"]["status"]
        for each in kept.call("GET", f"/api/conversations/{session}/events/search?limit=100")["items"]
        if each.get("key") == "permission_request" and each["value"]["status"] != "waiting"
    }
    assert status == ("allowed" if allowed else "rejected")


def test_editors_see_that_another_client_has_answered(
    python_editor: Client, typescript_editor: Client, kept: Behind, tmp_path: Path
) -> None:
    agent = kept.agent(tmp_path)
    asks = {"do": "prompt", "text": "!perm", "answer": "word"}
    with python_editor.start(agent, {"do": "new"}, asks) as one:
        session = session_of(one)
        asked = one.wait_for(lambda each: each["event"] == "permission")
        opened = {"do": "load", "session": session, "answer": "word"}
        with typescript_editor.start(agent, opened, WATCH) as other:
            assert other.wait_for(lambda each: each["event"] == "permission") == asked
            kept.call(
                "POST", f"/api/conversations/{session}/events/respond_to_confirmation", {"accept": False}
            )
            for drive in (one, other):
                ended = drive.wait_for(lambda each: each["event"] == "cancel_request")
                assert ended["id"] == asked["id"]
            other.wait_for(is_end)
            other.say("end")
            assert "rejected" in text(one.finish().updates())
            other.finish()


def test_two_editors_see_the_same(
    python_editor: Client, typescript_editor: Client, kept: Behind, tmp_path: Path
) -> None:
    agent = kept.agent(tmp_path)
    steps = ({"do": "prompt", "text": "!perm", "answer": "word"}, {"do": "prompt", "text": TURN})
    with python_editor.start(agent, {"do": "new"}, *steps) as one:
        session = session_of(one)
        one.wait_for(lambda each: each["event"] == "permission")
        with typescript_editor.start(
            agent, {"do": "load", "session": session, "answer": "word"}, WATCH
        ) as other:
            other.wait_for(lambda each: each["event"] == "permission")
            one.say("answer")
            other.wait_for(
                lambda _: "THE-END" in text(shown(other)) and len(shown(other)) and is_end(other.events[-1])
            )
            one.finish()
            other.say("end")
            ended = other.finish().of("cancel_request")
            assert len(ended) == 1  # the question that the first one answered
            assert lines(shown(one)) == lines(shown(other))
