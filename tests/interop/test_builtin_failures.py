"""What fails around the built-in agent: models, tools, people who cancel, processes, disks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.builtin_program import (
    HANGS_SECONDS,
    KEY,
    Program,
    Refused,
    Session,
    accept,
    agent,
    call,
    calls,
    finish,
    llm,
    reject,
    running,
    says,
    status,
    text_of,
)
from tests.interop.model_api.script import Answer
from tests.interop.model_api.server import ModelApi
from tests.support.mcp_servers import STDIO
from tests.support.processes import command_line, environment, mentioning

pytestmark = [pytest.mark.interop, pytest.mark.guarantee(name="every-event-can-be-read")]

TOO_LONG = "This model's maximum context length is 8192 tokens."

SOON = 6.0  # seconds; it promises two, on a machine that has time for it


def goes_on(session: Session, model_api: ModelApi) -> None:
    """The next message is answered."""
    model_api.answers.clear()
    model_api.answers.append(says("here I am"))
    assert status(session.say("are you there?")) == "finished"
    assert text_of(session.last("MessageEvent")["llm_message"]["content"]) == "here I am"


# -- models
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Answer(status=401), "LLMAuthenticationError"),
        (Answer(status=429), "LLMRateLimitError"),
        (Answer(status=500), "LLMServiceUnavailableError"),
        (Answer(status=400, message=f"{TOO_LONG} context_length_exceeded"), "LLMContextWindowExceedError"),
        (Answer(garbage="<html>Welcome to the hotel</html>"), ""),
        (Answer(garbage='data: {"choices": [{"delta": {"content": "ha\\n\\n'), ""),
    ],
    ids=["401", "429", "500", "overflow", "html", "half"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_model_that_fails(
    session: Session, model_api: ModelApi, answer: Answer, code: str, stream: bool
) -> None:
    session.open(agent(model_api, model=llm(model_api, stream=stream)))
    model_api.answers.extend([answer] * 3)
    ended = session.say("hello")
    if code:
        assert status(ended) == "error"
        error = session.last("ConversationErrorEvent")
        assert (error["code"], error["source"]) == (code, "environment")
    else:
        assert status(ended) in ("error", "finished", "stuck")
    assert not [item for item in session.items if type(item).__name__ == "ItemAborted" and not item.reason]
    goes_on(session, model_api)


def test_a_model_that_says_nothing(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, model=llm(model_api, timeout=2)))
    model_api.answers.append(Answer(hang=True))
    assert status(session.say("hello")) == "error"
    assert session.last("ConversationErrorEvent")["code"] == "LLMTimeoutError"
    goes_on(session, model_api)


def test_a_failure_is_tried_again(session: Session, model_api: ModelApi) -> None:
    model = llm(model_api, num_retries=3, retry_min_wait=0, retry_max_wait=1)
    session.open(agent(model_api, model=model))
    model_api.answers.extend([Answer(status=500), Answer(status=429), says("at last")])
    assert status(session.say("hello")) == "finished", session.events[-1]
    assert session.kinds == ["SystemPromptEvent", "user says", "agent says"]


# -- cancel
def cancelled(session: Session, answer: Any) -> None:
    """It is answered at once, and the events say so."""
    began = session.cancel()
    assert answer(SOON) == {"stopReason": "cancelled", "_meta": {"ostler": {"status": "paused"}}}
    assert time.monotonic() - began < SOON


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
def test_cancel_while_the_model_is_silent(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api))
    model_api.answers.append(Answer(hang=True))
    answer = session.saying("hello")
    session.until(lambda: bool(model_api.calls))
    cancelled(session, answer)
    goes_on(session, model_api)


def test_cancel_while_the_model_speaks(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api))
    model_api.answers.append(Answer(text=tuple(f"word{number} " for number in range(600)), gap_s=0.05))
    answer = session.saying("hello")
    session.until(lambda: len(session.items) > 3)
    cancelled(session, answer)
    assert type(session.items[-1]).__name__ == "ItemAborted"
    assert session.items[-1].reason == "cancelled"
    assert session.kinds == ["SystemPromptEvent", "user says"]
    goes_on(session, model_api)


def test_cancel_while_the_model_writes_calls(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "terminal"))
    long = ("terminal", {"command": "touch run; echo " + "word " * 1000})
    model_api.answers.append(calls(("terminal", {"command": "touch run"}), long, gap_s=0.05))
    answer = session.saying("hello")
    session.until(lambda: len({item.item_id for item in session.items}) == 2 and len(session.items) > 6)
    cancelled(session, answer)
    aborted = [(type(item).__name__, getattr(item, "reason", "")) for item in session.items[-2:]]
    assert aborted == [("ItemAborted", "cancelled")] * 2
    assert session.kinds == ["SystemPromptEvent", "user says"]
    goes_on(session, model_api)
    assert not (session.workspace / "run").exists()


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
@pytest.mark.parametrize(
    "command", ["sleep 1000", "trap '' INT TERM; while :; do sleep 1; done"], ids=["kind", "deaf"]
)
@pytest.mark.parametrize("number", [1, 2])
def test_cancel_in_a_command(session: Session, model_api: ModelApi, command: str, number: int) -> None:
    session.open(agent(model_api, "terminal", tool_concurrency_limit=2))
    commands = [("terminal", {"command": f"touch began{each}; {command}"}) for each in range(number)]
    model_api.answers.append(calls(*commands))
    answer = session.saying("wait")
    session.until(lambda: all((session.workspace / f"began{each}").exists() for each in range(number)))
    cancelled(session, answer)
    assert session.kinds[2:] == ["TerminalAction"] * number + ["AgentErrorEvent"] * number
    actions = [event["tool_call_id"] for event in session.of("ActionEvent")]
    assert [event["tool_call_id"] for event in session.of("AgentErrorEvent")] == actions
    goes_on(session, model_api)


def test_cancel_in_an_open_question(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "terminal"), confirmation_policy={"kind": "AlwaysConfirm"})
    session.decide = lambda _: {}
    model_api.answers.append(call("terminal", command="touch run"))
    answer = session.saying("touch")
    session.until(lambda: len(session.asked) == 1)
    cancelled(session, answer)
    assert session.kinds[-1] == "AgentErrorEvent"
    goes_on(session, model_api)
    assert not (session.workspace / "run").exists()  # not as soon as somebody says something else


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
def test_cancel_in_a_hook(session: Session, model_api: ModelApi) -> None:
    command = f"touch {session.workspace}/began; sleep 8"
    hooks = {"pre_tool_use": [{"matcher": "*", "hooks": [{"type": "command", "command": command}]}]}
    session.open(agent(model_api, "terminal"), hook_config=hooks)
    model_api.answers.append(call("terminal", command="touch run"))
    answer = session.saying("touch")
    session.until((session.workspace / "began").exists)
    cancelled(session, answer)
    goes_on(session, model_api)
    assert not (session.workspace / "run").exists()


def test_cancel_before_anything(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api))
    session.cancel()  # of no turn
    answer = session.saying("what I say is said")
    session.cancel()
    assert answer(SOON)["stopReason"] == "cancelled"
    goes_on(session, model_api)
    assert "what I say is said" in str(model_api.calls[-1].body["messages"])


def test_two_prompts_at_once_are_refused(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api))
    model_api.answers.append(Answer(hang=True))
    answer = session.saying("hello")
    session.until(lambda: bool(model_api.calls))
    with pytest.raises(Refused, match="busy"):
        session.say("hello?")
    with pytest.raises(Refused, match="busy"):
        session.ask("_ostler/navigate", event_id=None)
    cancelled(session, answer)


def test_it_goes_on_where_it_was_paused(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api))
    model_api.answers.append(Answer(hang=True))
    answer = session.saying("hello")
    session.until(lambda: bool(model_api.calls))
    cancelled(session, answer)
    model_api.answers.append(says("hello again"))
    assert status(session.saying(None)(SOON * 10)) == "finished"
    assert session.kinds == ["SystemPromptEvent", "user says", "agent says"]


# -- what is wrong with requests
def test_bad_requests_name_what_is_wrong(session: Session, model_api: ModelApi, tmp_path: Path) -> None:
    session.open(agent(model_api))
    other = Session(session.program, tmp_path)
    for fields, words in (
        ({"agent": {"kind": "Agent", "llm": {"model": 7}}}, "agent"),
        ({"agent": agent(model_api), "confirmation_policy": {"kind": "Sometimes"}}, "confirmation_policy"),
        ({"agent": agent(model_api), "hook_config": {"pre_tool_use": 7}}, "hook_config"),
        ({"agent": agent(model_api), "conversation_id": "x"}, "not a UUID"),
    ):
        with pytest.raises(Refused, match=words) as refused:
            other.open(**fields)  # type: ignore[arg-type]
        assert refused.value.code == -32602
    assert not other.stored.exists()
    with pytest.raises(Refused, match="not found") as refused:
        Session(session.program, tmp_path).open(agent(model_api), load=True)
    assert refused.value.code == -32002
    with pytest.raises(Refused, match="Method not found"):
        session.ask("session/nothing")
    with pytest.raises(Refused, match="marketplaces"):
        session.ask("_ostler/load_plugin", plugin_ref="x")
    with pytest.raises(Refused, match="question is not a text"):
        session.ask("_ostler/ask")
    goes_on(session, model_api)


# -- processes and disks
HELLO = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
HELLO_ID = "0198f2a0-0000-7000-8000-000000000001"


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
def test_nothing_is_lost_or_done_twice_when_it_is_killed(
    builtin_python: Path, tmp_path: Path, model_api: ModelApi
) -> None:
    with running(builtin_python, tmp_path / "first") as one:
        first = Session(one, tmp_path).open(agent(model_api, "terminal"))
        model_api.answers.extend([call("terminal", command="echo first >> runs"), Answer(hang=True)])
        one.start(
            "session/prompt",
            sessionId=first.id,
            prompt=[],
            _meta={"ostler": {"message": HELLO, "message_id": HELLO_ID}},
        )
        first.until(lambda: len(model_api.calls) == 2)
        one.kill()
        first.check()
        assert first.kinds == ["SystemPromptEvent", "TerminalAction", "TerminalObservation"]

    with running(builtin_python, tmp_path / "second") as one:
        second = Session(one, tmp_path, first.id)
        second.open(agent(model_api, "terminal"), load=True, last_event_id=first.events[-1]["id"])
        assert second.events == []  # nothing was open
        model_api.answers.clear()
        model_api.answers.append(says("hello"))
        second.say("", message=HELLO, message_id=HELLO_ID)  # Ostler does not know that it had come
        assert roles(model_api) == ["system", "user", "assistant", "tool"]
        deaf = [("terminal", {"command": f"echo {name} >> runs; sleep 1000"}) for name in ("second", "third")]
        model_api.answers.append(calls(*deaf))
        second.saying("run")
        second.until(lambda: (second.workspace / "runs").read_text() == "first\nsecond\n")
        one.kill()
        second.check()

    actions = second.of("ActionEvent")
    closed = {
        "kind": "AgentErrorEvent",
        "id": "0198f2a0-0000-7000-8000-00000000aaaa",
        "source": "agent",
        "tool_name": "terminal",
        "tool_call_id": actions[0]["tool_call_id"],
        "error": "It was killed.",
        "timestamp": "2026-11-22T12:00:00.000000",
    }
    with running(builtin_python, tmp_path / "third") as one:
        third = Session(one, tmp_path, first.id)
        known = second.events[-2]["id"]
        third.open(agent(model_api, "terminal"), load=True, last_event_id=known, closed=[closed])
        # Ostler has not heard the last event: it comes again. Of the two open actions it has closed one.
        assert third.kinds == ["TerminalAction", "AgentErrorEvent"]
        assert third.events[0] == second.events[-1]
        assert third.events[1]["tool_call_id"] == actions[1]["tool_call_id"]
        assert "restart" in third.events[1]["error"]
        goes_on(third, model_api)
        assert roles(model_api)[-5:] == ["user", "assistant", "tool", "tool", "user"]
        sent = str(model_api.calls[-1].body["messages"])
        assert ("It was killed." in sent, "A restart occurred" in sent) == (True, True)
        assert (third.workspace / "runs").read_text() == "first\nsecond\n"
        third.close()


def roles(model_api: ModelApi) -> list[str]:
    """Whose messages the model was sent."""
    return [message["role"] for message in model_api.calls[-1].body["messages"]]


def test_it_ends_with_its_input(builtin_python: Path, tmp_path: Path, model_api: ModelApi) -> None:
    with running(builtin_python, tmp_path / "home") as one:
        session = Session(one, tmp_path).open(agent(model_api, "terminal"))
        model_api.answers.append(call("terminal", command="touch began; trap '' INT TERM HUP; sleep 1000"))
        session.saying("wait")
        session.until((session.workspace / "began").exists)
        began = time.monotonic()
        assert one.end() == 0
        assert time.monotonic() - began < SOON


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
def test_a_full_disk(program: Program, tmp_path: Path, model_api: ModelApi) -> None:
    place = tmp_path / "persistence"
    place.mkdir()
    with small_disk(place):
        session = Session(program, tmp_path).open(agent(model_api, "terminal"))
        model_api.answers.append(says("hello"))
        session.say("hello")
        filler = place / "filler"
        fill(filler)
        told = len(session.events)
        with contextlib.suppress(Refused):
            model_api.answers.append(says("not heard"))
            assert status(session.say("hello again")) == "error"
        assert len(session.events) - told <= 2
        filler.unlink()
        goes_on(session, model_api)
        session.close()
        again = Session(program, tmp_path, session.id).open(agent(model_api, "terminal"), load=True)
        goes_on(again, model_api)
        again.close()


def test_it_needs_neither_network_nor_browser(
    builtin_python: Path, tmp_path: Path, model_api: ModelApi
) -> None:
    """Without a browser its tools are left out; also of a conversation that has had them."""
    if subprocess.run(["unshare", "-rn", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    unshare = str(shutil.which("unshare"))
    tools = ("file_editor", "browser_tool_set")
    with running(builtin_python, tmp_path / "home", (unshare, "-rn"), PATH="/nowhere") as one:
        session = Session(one, tmp_path).open(agent(model_api, *tools))
        assert status(session.say("hello")) == "error"  # there is no model either
        told = [tool["title"] for tool in session.last("SystemPromptEvent")["tools"]]
        assert told == ["file_editor", "finish", "think"]
        session.ask("session/close")
        stored = session.stored / "base_state.json"
        state = json.loads(stored.read_text())
        state["agent"]["tools"].append({"name": "browser_tool_set", "params": {}})
        stored.write_text(json.dumps(state))
        again = Session(one, tmp_path, session.id).open(agent(model_api, *tools), load=True)
        again.close()


# -- keys
@pytest.mark.guarantee(name="keys-and-secrets")
def test_keys_are_nowhere(builtin_python: Path, tmp_path: Path, model_api: ModelApi) -> None:
    canaries = [KEY, "canary-mcp-1", "canary-header-2", "canary-secret-3", "canary-condenser-4"]
    mcp = {"name": "adder", **STDIO, "env": [{"name": "ADDER", "value": "canary-mcp-1"}]}
    web = {"name": "web", "type": "http", "url": "http://127.0.0.1:9/mcp"}
    web["headers"] = [{"name": "Authorization", "value": "Bearer canary-header-2"}]  # type: ignore[assignment]
    condenser = llm(model_api, api_key="canary-condenser-4", usage_id="condenser")
    with running(builtin_python, tmp_path / "home", LOG_LEVEL="DEBUG") as one:
        session = Session(one, tmp_path).open(
            agent(
                model_api,
                "terminal",
                model=llm(model_api, log_completions=True),
                condenser={"kind": "LLMSummarizingCondenser", "llm": condenser},
            ),
            servers=[mcp, web],
            secrets={"TOKEN": "canary-secret-3"},
        )
        bad = Answer(status=401, message=f"Incorrect API key provided: {KEY}")
        model_api.answers.extend([call("terminal", command="env; echo $TOKEN | md5sum"), finish(), bad])
        session.say("look")
        session.say("fail")
        inside = environment(one.process.pid)
        all_of_it = mentioning(one.home)  # the server of its terminals is a child of process 1
        children = [environment(each) for each in all_of_it]
        lines = [command_line(each) for each in all_of_it]
        told = str([*session.events, *session.states, *session.items])
        session.close()
    assert one.process.pid in all_of_it
    assert any("tmux" in line for line in lines)
    assert KEY not in str([inside, children, lines])
    places = [path for path in tmp_path.rglob("*") if path.is_file() and "workspace" not in path.parts]
    for canary in canaries:
        assert [path for path in places if canary.encode() in path.read_bytes()] == [], canary
        assert canary not in told, canary


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """A file system of a megabyte."""
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(place)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
        pytest.skip("needs to mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(path: Path) -> None:
    """Leave not a byte."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize("end", ["killed", "told to end"])
@pytest.mark.parametrize("said", ["yes", "no", "something else"])
def test_what_waits_for_a_person_waits_on_in_the_next_process(
    builtin_python: Path, tmp_path: Path, model_api: ModelApi, end: str, said: str
) -> None:
    always = {"kind": "AlwaysConfirm"}
    with running(builtin_python, tmp_path / "first") as one:
        first = Session(one, tmp_path).open(agent(model_api, "terminal"), confirmation_policy=always)
        first.decide = lambda _: {}
        commands = [("terminal", {"command": f"echo {name} >> runs"}) for name in ("first", "second")]
        model_api.answers.append(calls(*commands))
        first.saying("run")
        first.until(lambda: len(first.asked) == 2)
        if end == "killed":
            one.kill()
        else:
            one.end()
        first.check()
        assert first.kinds[-2:] == ["TerminalAction"] * 2
    actions = [event["id"] for event in first.of("ActionEvent")]
    with running(builtin_python, tmp_path / "second") as one:
        second = Session(one, tmp_path, first.id)
        second.open(
            agent(model_api, "terminal"),
            load=True,
            confirmation_policy=always,
            last_event_id=actions[-1],
            waiting=actions,
        )
        assert second.events == []  # nothing is closed, and nothing runs
        model_api.answers.append(says("done"))
        if said == "something else":
            assert status(second.say("leave that")) == "finished"
            assert second.asked == []
            assert second.kinds == ["AgentErrorEvent"] * 2 + ["user says", "agent says"]
            assert not (second.workspace / "runs").exists()
            return
        second.decide = accept if said == "yes" else reject("not today")
        ended = status(second.saying(None)(HANGS_SECONDS))
        assert [each["toolCall"]["_meta"]["ostler"]["eventId"] for each in second.asked] == actions
        if said == "yes":
            assert ended == "finished"
            assert (second.workspace / "runs").read_text().split() == ["first", "second"]
            assert second.kinds == ["TerminalObservation"] * 2 + ["agent says"]
            assert roles(model_api) == ["system", "user", "assistant", "tool", "tool"]
        else:
            assert ended == "idle"
            assert second.kinds == ["UserRejectObservation"] * 2
            assert not (second.workspace / "runs").exists()
            assert status(second.say("go on")) == "finished"
        second.check()
