"""Messages during a turn of the built-in agent: read in it or refused, never both, never neither."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.interop.builtin_program import (
    HANGS_SECONDS,
    Session,
    agent,
    call,
    finish,
    reject,
    running,
    says,
    status,
)
from tests.interop.model_api.script import Answer
from tests.interop.model_api.server import ModelApi

pytestmark = pytest.mark.interop

ALWAYS = {"kind": "AlwaysConfirm"}
WAITS = "touch began; until [ -e go ]; do sleep 0.05; done; echo went"
TAKEN, REFUSED = {"taken": True}, {"taken": False}
SLOW = Answer(text=tuple(f"word{number} " for number in range(10)), gap_s=0.05)
RACES = 40


def new_id() -> str:
    return str(uuid.uuid4())


def sent(model_api: ModelApi, number: int = -1) -> list[str]:
    """What a request to the model says: who, and each text of users, who may say several in one message."""
    messages = model_api.calls[number].body["messages"]
    return [each for message in messages for each in said(message)]


def said(message: dict[str, Any]) -> list[str]:
    role, content = message["role"], message.get("content")
    if role != "user":
        return [str(role)]
    return [content] if isinstance(content, str) else [part["text"] for part in content or ()]


def received(session: Session) -> list[str]:
    return [each.message_id for each in session.received]


def test_one_during_a_command_is_read_after_it(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "terminal"))
    model_api.answers.extend([call("terminal", command=WAITS), says("done")])
    first, second = new_id(), new_id()
    answer = session.saying("wait", message_id=first)
    session.until((session.workspace / "began").exists)
    taking = session.add("and then?", second)
    (session.workspace / "go").touch()
    assert (taking(), status(answer(HANGS_SECONDS))) == (TAKEN, "finished")
    assert received(session) == [first, second]
    assert session.kinds == ["SystemPromptEvent", "TerminalAction", "TerminalObservation", "agent says"]
    assert sent(model_api) == ["system", "wait", "assistant", "tool", "and then?"]
    assert len(model_api.calls) == 2


def test_one_during_the_last_answer_makes_it_go_on(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api))
    model_api.answers.extend([SLOW, says("that, too")])
    answer = session.saying("hello")
    session.until(lambda: len(session.items) > 2)
    assert session.add("and then?", new_id())() == TAKEN
    assert len(session.of("MessageEvent")) == 1  # at once: the model still speaks
    assert status(answer(HANGS_SECONDS)) == "finished"
    assert sent(model_api) == ["system", "hello", "and then?", "assistant"]
    assert session.kinds[-2:] == ["agent says", "agent says"]


def test_one_right_behind_a_prompt_is_behind_it(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api))
    ids = [new_id() for _ in range(4)]
    answer = session.saying("0", message_id=ids[0])
    taking = [session.add(str(number), ids[number]) for number in (1, 2, 3)]
    assert status(answer(HANGS_SECONDS)) == "finished"
    assert [each() for each in taking] == [TAKEN] * 3
    assert received(session) == ids
    assert [each for each in sent(model_api) if each.isdigit()] == ["0", "1", "2", "3"]


def test_one_without_a_turn_is_refused(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api))
    message_id = new_id()
    assert session.add("early", message_id)() == REFUSED
    session.say("hello")
    assert session.add("late", message_id)() == REFUSED
    assert received(session) == []
    assert [sent(model_api, number) for number in range(len(model_api.calls))] == [["system", "hello"]]


@pytest.mark.guarantee(name="nothing-is-lost")
def test_at_the_end_of_a_turn_each_is_read_or_refused(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api))
    ended = []
    for number in range(RACES):
        calls = len(model_api.calls)
        answer = session.saying(f"{number} asked")
        session.until(lambda calls=calls: len(model_api.calls) > calls)  # type: ignore[misc]
        time.sleep(number * 0.0015)
        message_id = new_id()
        taken = session.add(f"{number} added", message_id)()["taken"]
        assert status(answer(HANGS_SECONDS)) == "finished"
        assert (message_id in received(session)) is taken
        assert (f"{number} added" in sent(model_api)) is taken  # the last request of the turn
        assert session.kinds[-1] == "agent says"
        ended.append(taken)
    assert set(ended) == {True, False}, ended


def test_one_while_a_person_is_asked_waits(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "terminal"), confirmation_policy=ALWAYS)
    model_api.answers.extend([call("terminal", command="echo one"), says("done")])
    taking: list[Any] = []

    def decide(_: dict[str, Any]) -> dict[str, Any]:
        taking.append(session.add("do it", new_id()))
        session.ask(
            "_ostler/configure", confirmation_policy={"kind": "NeverConfirm"}
        )  # as long as that takes
        assert session.received == []
        return {"outcome": {"outcome": "selected", "optionId": "accept"}}

    session.decide = decide
    assert status(session.say("echo")) == "finished"
    assert taking[0]() == TAKEN
    # Nothing between the action and its result.
    assert sent(model_api) == ["system", "echo", "assistant", "tool", "do it"]


def test_one_after_a_rejection_is_refused(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "terminal"), confirmation_policy=ALWAYS)
    model_api.answers.append(call("terminal", command="touch run"))
    no, taking = reject("no"), []

    def decide(request: dict[str, Any]) -> dict[str, Any]:
        taking.append(session.add("then this", message_id))
        return no(request)

    message_id = new_id()
    session.decide = decide
    assert status(session.say("touch")) == "idle"
    assert taking[0]() == REFUSED
    model_api.answers.append(says("this"))
    assert status(session.say("then this", message_id=message_id)) == "finished"
    assert sent(model_api).count("then this") == 1
    assert not (session.workspace / "run").exists()


def test_one_before_an_interrupt_is_read_by_the_next_run(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api))
    model_api.answers.append(Answer(hang=True))
    answer = session.saying("hello")
    session.until(lambda: bool(model_api.calls))
    assert session.add("and then?", new_id())() == TAKEN
    session.cancel()
    assert answer(HANGS_SECONDS)["stopReason"] == "cancelled"
    model_api.answers.append(says("then"))
    assert status(session.saying(None)(HANGS_SECONDS)) == "finished"
    assert sent(model_api) == ["system", "hello", "and then?"]


@pytest.mark.parametrize("stop", ["cancel", "pause"])
def test_one_beside_an_interrupt_or_a_pause_is_there_once(
    session: Session, model_api: ModelApi, stop: str
) -> None:
    session.open(agent(model_api))
    for number in range(8):
        calls, message_id = len(model_api.calls), new_id()
        model_api.answers.append(SLOW)
        answer = session.saying(f"{number} asked")
        session.until(lambda calls=calls: len(model_api.calls) > calls)  # type: ignore[misc]
        if stop == "cancel":
            taking = session.add(f"{number} added", message_id) if number % 2 else None
            session.cancel()
        else:
            pausing = session.program.start("_ostler/pause", sessionId=session.id)
            taking = None
            pausing()
        taking = taking or session.add(f"{number} added", message_id)
        stopped = answer(HANGS_SECONDS)
        taken = taking()["taken"]
        assert (message_id in received(session)) is taken
        # Ostler sends it again where it does not know; the log has it once.
        model_api.answers.clear()
        assert status(session.say(f"{number} added", message_id=message_id)) == "finished", stopped
        assert sent(model_api).count(f"{number} added") == 1


def test_a_run_at_its_limit_that_is_spoken_into_goes_on(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "terminal"), max_iterations=1)
    model_api.answers.extend([SLOW, says("well")])
    answer = session.saying("hello")
    session.until(lambda: len(session.items) > 2)
    assert session.add("and then?", new_id())() == TAKEN
    assert status(answer(HANGS_SECONDS)) == "finished"  # its limit counts anew, as for a turn of its own
    assert len(model_api.calls) == 2


def test_one_that_calls_for_a_skill_says_so(session: Session, model_api: ModelApi) -> None:
    skill = {
        "name": "greeting",
        "content": "Say ahoy.",
        "trigger": {"type": "keyword", "keywords": ["sailor"]},
    }
    session.open(agent(model_api, agent_context={"skills": [skill]}))
    model_api.answers.extend([SLOW, finish()])
    answer = session.saying("hello", message_id=new_id())
    session.until(lambda: len(session.items) > 2)
    assert session.add("hello sailor", new_id())() == TAKEN
    assert status(answer(HANGS_SECONDS)) == "finished"
    plain, greeted = session.received
    assert (plain.activated_skills, plain.extended_content) == ((), ())
    assert greeted.activated_skills == ("greeting",)
    assert "Say ahoy." in greeted.extended_content[0]
    states = {state.key: state.value for state in session.states}
    assert states["activated_knowledge_skills"] == ["greeting"]


@pytest.mark.guarantee(name="nothing-is-lost")
@pytest.mark.parametrize("answered", [False, True], ids=["read", "answered"])
def test_one_that_a_killed_process_had_is_not_there_twice(
    builtin_python: Path, tmp_path: Path, model_api: ModelApi, answered: bool
) -> None:
    message_id = new_id()
    message = {"role": "user", "content": [{"type": "text", "text": "and then?"}]}
    with running(builtin_python, tmp_path / "first") as one:
        first = Session(one, tmp_path).open(agent(model_api))
        model_api.answers.extend([SLOW, says("then") if answered else Answer(hang=True)])
        answer = first.saying("hello")
        first.until(lambda: len(first.items) > 2)
        assert first.add("and then?", message_id)() == TAKEN
        if answered:
            assert status(answer(HANGS_SECONDS)) == "finished"
        else:
            first.until(lambda: len(model_api.calls) == 2)
        one.kill()
    with running(builtin_python, tmp_path / "second") as one:
        second = Session(one, tmp_path, first.id)
        # Ostler was killed, too, before it heard of anything but the system's prompt.
        second.open(agent(model_api), load=True, last_event_id=first.events[0]["id"])
        model_api.answers.clear()
        before = len(model_api.calls)
        assert status(second.say("", message=message, message_id=message_id)) == "finished"
        assert len(model_api.calls) - before == (0 if answered else 1)
        assert sent(model_api).count("and then?") == 1
        second.close()
