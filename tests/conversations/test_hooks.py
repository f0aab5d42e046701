"""Hooks of a conversation: real processes, what they decide, and what is left of those that misbehave."""

from __future__ import annotations

import gc
import os
import shlex
import signal
import sys
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio

from supervisor.conversations import registry
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.forking import ForkRequest
from supervisor.conversations.hooks import hooks as hooks_module
from supervisor.conversations.hooks.execution import OUTPUT_BYTES
from supervisor.conversations.hooks.hooks import CUT_OFF, FEEDBACK, INTERRUPTED, NO_MODEL, STOPS_MAX
from supervisor.conversations.recording.tool_calls.calls import Ending, ToolCallState
from supervisor.conversations.state.stage import Stage
from supervisor.conversations.state.status import ExecutionStatus
from supervisor.events import Vocabulary
from supervisor.hooks.config import FIELDS, HookEvent, HookSource, check_hook_config
from supervisor.journal.rows import Stored
from supervisor.reading.model import Errors
from tests.conversations.harness import (
    QUICK,
    Harness,
    become,
    events,
    kinds,
    one,
    open_harness,
    say,
    settled,
    states,
    turn,
    until,
)
from tests.support.processes import mentioning

OUT = "read input; printf '%s\\n' \"$input\" >> {file}"
"""Keeps what a hook is told."""


def hook(command: str, **fields: Any) -> dict[str, Any]:
    return {"command": command, **fields}


def config(event: HookEvent, *hooks: Mapping[str, Any], matcher: str = "*") -> dict[str, Any]:
    return {FIELDS[event]: [{"matcher": matcher, "hooks": list(hooks)}]}


def usual(value: Any) -> Any:
    """As the gateway hands it over."""
    errors = Errors()
    found = check_hook_config(value, (), errors)
    errors.raise_if_any()
    return found


async def start(harness: Harness, *configs: Mapping[str, Any], **fields: Any) -> Conversation:
    given = {"hook_config": usual({name: each for part in configs for name, each in part.items()})}
    return await harness.start(*fields.pop("modes", ()), extra=given, **fields)


def executions(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in found if event["kind"] == "HookExecutionEvent"]


def said(found: list[dict[str, Any]]) -> list[str]:
    """What the agent was prompted with and echoed."""
    return [
        event["action"]["message"].removeprefix("echo: ").strip()
        for event in found
        if (event.get("action") or {}).get("kind") == "FinishAction"
    ]


def call(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The ActionEvent of the agent's (first) tool call."""
    return next(event for event in found if (event.get("action") or {}).get("kind") == "MCPToolAction")


def kept(file: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in file.read_text().splitlines()]


# -- what each of them decides ----------------------------------------------------------------------------


async def test_without_hooks_nothing_is_recorded_of_any(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "hello")
        assert executions(found) == []
        assert conversation.runner.turns._translator.on_end is None
        assert not conversation.runner.hooks.active


async def test_a_prompt_that_a_hook_blocks_does_not_reach_the_agent(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    command = f"{OUT.format(file=seen)}; case $input in *secret*) echo no secrets >&2; exit 2;; esac"
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, config(HookEvent.USER_PROMPT_SUBMIT, hook(command)))
        found = await turn(conversation, "a secret")
        event = one(found, "HookExecutionEvent")
        message = one(found, "MessageEvent", "user")
        assert (event["source"], event["hook_event_type"]) == ("hook", "UserPromptSubmit")
        assert (event["blocked"], event["success"], event["exit_code"]) == (True, False, 2)
        assert event["stderr"] == "no secrets"
        assert event["message_id"] == message["id"]
        assert event["hook_input"] == {"message": "a secret"}
        assert conversation.record.now.execution_status == "finished"
        assert conversation.queued == []
        assert said(await turn(conversation, "another")) == ["another"]
        told = kept(seen)[0]
        assert told == {
            "event_type": "UserPromptSubmit",
            "tool_name": None,
            "tool_input": None,
            "tool_response": None,
            "message": "a secret",
            "session_id": conversation.id,
            "working_dir": str(tmp_path / "workspace"),
            "metadata": {},
        }
        prompts = [
            r for r in harness.log.records("received") if r["message"].get("method") == "session/prompt"
        ]
        assert len(prompts) == 1


async def test_context_of_hooks_goes_to_the_agent_behind_the_message(tmp_path: Path) -> None:
    begin = hook("""echo '{"additionalContext": "from the start"}'""")
    each = hook("""echo '{"additionalContext": "for each"}'""")
    async with open_harness(tmp_path) as harness:
        conversation = await start(
            harness, config(HookEvent.SESSION_START, begin), config(HookEvent.USER_PROMPT_SUBMIT, each)
        )
        await turn(conversation, "one")
        await turn(conversation, "two")
        prompts = [
            [block["text"] for block in r["message"]["params"]["prompt"]]
            for r in harness.log.records("received")
            if r["message"].get("method") == "session/prompt"
        ]
        assert prompts == [["one", "from the start\nfor each"], ["two", "for each"]]
        found = executions(await events(conversation))
        assert [each["hook_event_type"] for each in found] == [
            "SessionStart", "UserPromptSubmit", "UserPromptSubmit",
        ]  # fmt: skip
        assert found[0]["additional_context"] == "from the start"


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize("policy", ["NeverConfirm", "AlwaysConfirm"])
@pytest.mark.parametrize("vocabulary", list(Vocabulary))
async def test_a_hook_blocks_a_call_before_the_policy_and_the_person(
    tmp_path: Path, policy: str, vocabulary: Vocabulary
) -> None:
    command = """echo '{"decision": "deny", "reason": "not here"}'"""
    async with open_harness(tmp_path) as harness:
        conversation = await start(
            harness,
            config(HookEvent.PRE_TOOL_USE, hook(command)),
            confirmation_policy={"kind": policy},
            vocabulary=vocabulary,
        )
        found = await turn(conversation, "!write made.txt content")
        rejection = one(found, "UserRejectObservation")
        action = call(found)
        assert rejection["rejection_source"] == "hook"
        assert rejection["rejection_reason"] == "not here"
        assert rejection["action_id"] == action["id"]
        (request,) = states(found, "permission_request")
        assert (request["status"], request["by"], request["reason"]) == ("rejected", "hook", "not here")
        assert request["action_id"] == action["id"]
        assert not (tmp_path / "workspace" / "made.txt").exists()
        assert "waiting_for_confirmation" not in states(found, "execution_status")
        if vocabulary is Vocabulary.EXTENDED:
            event = one(found, "HookExecutionEvent")
        else:
            (event,) = states(found, "hook_execution")
        assert event["blocked"]
        assert event["action_id"] == action["id"]
        assert event["hook_input"]["tool_name"] == event["tool_name"] == action["tool_name"]
        assert conversation.record.hooks_running == {}


async def test_a_call_that_hooks_let_pass_goes_to_the_policy(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, config(HookEvent.PRE_TOOL_USE, hook("exit 1")))
        found = await turn(conversation, "!write made.txt content")
        assert (tmp_path / "workspace" / "made.txt").exists()
        event = one(found, "HookExecutionEvent")
        assert (event["success"], event["blocked"], event["exit_code"]) == (False, False, 1)
        assert call(found)["id"] == event["action_id"]
        assert event["action_id"] in [e["action_id"] for e in found if e["kind"] == "ObservationEvent"]
        await conversation.changes.set_confirmation_policy({"kind": "AlwaysConfirm"})
        await conversation.send(say("!write second.txt content"), run=True)
        await until(lambda: conversation.waiting)
        assert not (tmp_path / "workspace" / "second.txt").exists()
        await conversation.respond(True, "")
        await settled(conversation)
        assert (tmp_path / "workspace" / "second.txt").exists()


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
async def test_a_call_that_does_not_ask_is_told_as_it_is(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, config(HookEvent.PRE_TOOL_USE, hook("exit 2")))
        found = await turn(conversation, "!tool")
        assert "UserRejectObservation" not in kinds(found)
        assert executions(found) == []
        assert [e["status"] for e in found if e["kind"] == "ACPToolCallEvent"][-1] == "completed"


async def test_hooks_hear_of_calls_that_ended(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    async with open_harness(tmp_path) as harness:
        conversation = await start(
            harness,
            config(HookEvent.POST_TOOL_USE, hook(OUT.format(file=seen)), matcher="read|execute"),
        )
        found = await turn(conversation, "!tool execute run it\n!failtool\n!tool edit change it")
        names = [event["tool_name"] for event in executions(found)]
        told = kept(seen)
        assert sorted(names) == sorted(each["tool_name"] for each in told)  # those of two calls run at once
        assert "edit" not in names
        assert sorted(each["tool_response"]["status"] for each in told) == ["completed", "failed"]
        assert all(each["tool_response"]["content"] for each in told)
        # Before the run is over, so that who waits for its end has them.
        order = [e["kind"] if e.get("key") is None else e.get("value") for e in found]
        assert order.index("finished") > max(
            i for i, kind in enumerate(order) if kind == "HookExecutionEvent"
        )
        starts = {event["id"] for event in found}
        assert {event["action_id"] for event in executions(found)} <= starts


async def test_a_stop_hook_sends_the_agent_back(tmp_path: Path) -> None:
    count = tmp_path / "count"
    command = f"echo x >> {count}; [ $(wc -l < {count}) -gt 2 ] || {{ echo run the tests >&2; exit 2; }}"
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, config(HookEvent.STOP, hook(command)))
        found = await turn(conversation, "work")
        assert said(found) == ["work", *[f"{FEEDBACK} run the tests"] * 2]
        assert [each["blocked"] for each in executions(found)] == [True, True, False]
        assert executions(found)[0]["hook_input"] == {"reason": "agent_finished"}
        feedback = [e for e in found if e["kind"] == "MessageEvent" and e["source"] == "environment"]
        assert [e["llm_message"]["role"] for e in feedback] == ["user", "user"]
        assert states(found, "execution_status").count("finished") == 1


@pytest.mark.guarantee(name="nothing-hangs")
async def test_a_stop_hook_that_never_lets_go_is_given_up(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, config(HookEvent.STOP, hook("exit 2")))
        found = await turn(conversation, "work")
        assert conversation.record.now.execution_status == "error"
        assert one(found, "ConversationErrorEvent")["code"] == "MaxIterationsReached"
        assert len(said(found)) == STOPS_MAX + 1
        again = await turn(conversation, "once more")  # a person's message counts anew
        assert len(said(again)) == STOPS_MAX + 1


async def test_start_and_end_of_a_session_once_each(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    both = hook(OUT.format(file=seen))
    async with open_harness(tmp_path) as harness:
        conversation = await start(
            harness, config(HookEvent.SESSION_START, both), config(HookEvent.SESSION_END, both)
        )
        await turn(conversation, "one")
        await turn(conversation, "two")
        idle = await start(harness, config(HookEvent.SESSION_END, both))
        await harness.supervisor.delete(idle.id)  # nothing ran in it
        await conversation.stop_agent()
        assert len(kept(seen)) == 1
    assert [each["event_type"] for each in kept(seen)] == ["SessionStart", "SessionEnd"]


@pytest.mark.guarantee(name="repositories-with-hooks")
async def test_what_a_hook_has_in_its_environment(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    async with open_harness(tmp_path, secrets={"SOME_API_KEY": "sk-not-for-hooks"}) as harness:
        conversation = await start(
            harness, config(HookEvent.SESSION_START, hook(f"pwd > {seen}; env >> {seen}"))
        )
        await turn(conversation, "hello")
        place, *lines = seen.read_text().splitlines()
        found = dict(line.partition("=")[::2] for line in lines)
        assert place == found["OPENHANDS_PROJECT_DIR"] == str(tmp_path / "workspace")
        assert found["OPENHANDS_SESSION_ID"] == conversation.id
        assert found["OPENHANDS_EVENT_TYPE"] == "SessionStart"
        assert "SECRET_OF_THE_SERVER" not in found
        assert "SOME_API_KEY" not in found


async def test_secrets_that_a_hook_prints_are_masked(tmp_path: Path) -> None:
    value = "sk-canary-4711-0815"
    (tmp_path / "leak").write_text(value)
    command = f"cat {tmp_path}/leak; cat {tmp_path}/leak >&2; exit 2"
    async with open_harness(tmp_path, secrets={"SOME_API_KEY": value}) as harness:
        conversation = await start(harness, config(HookEvent.PRE_TOOL_USE, hook(command)))
        found = await turn(conversation, "!write made.txt content")
        assert executions(found)[0]["stdout"]
        assert one(found, "UserRejectObservation")["rejection_reason"]
        assert value not in orjson.dumps(found).decode()


async def test_other_types_of_hooks_are_told_as_not_run(tmp_path: Path) -> None:
    asked = {"type": "prompt", "prompt": "Is this good?"}
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, config(HookEvent.USER_PROMPT_SUBMIT, asked))
        found = await turn(conversation, "hello")
        event = one(found, "HookExecutionEvent")
        assert (event["success"], event["blocked"], event["error"]) == (False, False, NO_MODEL)
        assert said(found) == ["hello"]


# -- those that misbehave ---------------------------------------------------------------------------------

PYTHON = shlex.quote(sys.executable)
DAEMON = f"""{PYTHON} -c '
import os, sys, time
if os.fork(): sys.exit(0)
os.setsid()
if os.fork(): os._exit(0)
time.sleep(600)  # {{place}}
'"""

BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "hangs": ("sleep 600 # {place}", {"exit_code": -1, "success": False}),
    "ignores signals": ("trap '' TERM INT HUP; while :; do sleep 1; done # {place}", {"exit_code": -1}),
    "floods": ("yes {place}", {"exit_code": -1, "success": False}),
    "floods stderr": ("yes {place} >&2", {"exit_code": -1, "success": False}),
    "dies": ("kill -9 $$ # {place}", {"exit_code": -9, "success": False, "error": None}),
    "garbage": ("head -c 10000 /dev/urandom # {place}", {"exit_code": 0, "success": True}),
    "no object": ("echo '[1, 2]' # {place}", {"exit_code": 0, "stdout": "[1, 2]\n"}),
    "odd object": (
        """echo '{{"decision": 5, "reason": {{"a": 1}}, "additionalContext": [2]}}'""",
        {"blocked": False, "reason": '{"a":1}', "additional_context": "[2]"},
    ),
    "deep": (PYTHON + " -c 'print(\"[\" * 100000)' # {place}", {"exit_code": 0, "blocked": False}),
    "missing": ("/does/not/exist # {place}", {"exit_code": 127, "success": False}),
    "daemon": (DAEMON, {"exit_code": 0, "success": True}),
    "holds the pipe": ("sleep 600 & echo done # {place}", {"exit_code": 0, "stdout": "done\n"}),
    "closes its output": ("exec >&- 2>&-; sleep 0.1; exit 3 # {place}", {"exit_code": 3}),
    "reads nothing": ("exec <&-; exit 0 # {place}", {"exit_code": 0}),
    "continues not": ("""echo '{{"continue": false}}'; exit 5""", {"blocked": True, "exit_code": 5}),
    "output at the limit": (
        f"head -c {OUTPUT_BYTES} /dev/zero | tr '\\0' x # {{place}}",
        {"exit_code": 0, "error": None},
    ),
}


@pytest.mark.guarantee(name="repositories-with-hooks")
@pytest.mark.guarantee(name="nothing-hangs")
@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("case", BAD)
async def test_a_hook_that_misbehaves_leaves_nothing(tmp_path: Path, case: str) -> None:
    command, expected = BAD[case]
    text = command.format(place=tmp_path)
    lasting = case in ("hangs", "ignores signals", "floods stderr")
    async with open_harness(tmp_path) as harness:
        bounded = hook(text, timeout=1 if lasting else 60)
        conversation = await start(harness, config(HookEvent.SESSION_START, bounded))
        found = await turn(conversation, "hello " + "x" * 200_000)
        event = one(found, "HookExecutionEvent")
        assert {name: event.get(name) for name in expected} == expected
        assert len(event["stdout"]) <= 50_000
        assert said(found)[0].startswith("hello")
        assert conversation.record.hooks_running == {}
        assert mentioning(tmp_path) == [conversation.agent.pid]


async def test_many_calls_at_once_run_few_hooks_at_once(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    command = f"touch {seen}/$$; sleep 0.2; ls {seen} | wc -l; rm {seen}/$$"
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, config(HookEvent.POST_TOOL_USE, hook(command)))
        found = await turn(conversation, "!tools 12")
        counts = [int(event["stdout"]) for event in executions(found)]
        assert len(counts) == 12
        assert max(counts) <= 4


# -- ends ---------------------------------------------------------------------------------------------------


async def hanging(harness: Harness, event: HookEvent, text: str, tmp_path: Path) -> Conversation:
    mark = tmp_path / "runs"
    command = f"touch {mark}; sleep 600"
    conversation = await start(harness, config(event, hook(command)))
    await conversation.send(say(text), run=True)
    await until(mark.exists, "the hook")
    return conversation


TURNS = {
    HookEvent.SESSION_START: "hello",
    HookEvent.USER_PROMPT_SUBMIT: "hello",
    HookEvent.PRE_TOOL_USE: "!perm",
    HookEvent.POST_TOOL_USE: "!tool",
    HookEvent.STOP: "hello",
}


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("event", TURNS)
async def test_an_interrupt_ends_a_hook_at_once(tmp_path: Path, event: HookEvent) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await hanging(harness, event, TURNS[event], tmp_path)
        begin = time.monotonic()
        await conversation.interrupt()
        assert await settled(conversation) == "paused"
        await until(lambda: not conversation.runner.hooks.running, "the end of the hook")
        assert time.monotonic() - begin < 20  # the hook would take minutes
        (told,) = executions(await events(conversation))
        assert told["error"] == INTERRUPTED
        assert not told["success"]
        assert conversation.record.hooks_running == {}
        waiting = event in (HookEvent.SESSION_START, HookEvent.USER_PROMPT_SUBMIT)
        assert bool(conversation.queued) == waiting


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("event", TURNS)
async def test_a_deletion_ends_a_hook_at_once(tmp_path: Path, event: HookEvent) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await hanging(harness, event, TURNS[event], tmp_path)
        with trio.fail_after(20):
            await harness.supervisor.delete(conversation.id)
        await until(lambda: not mentioning(tmp_path / "runs"))


async def test_a_fork_has_nothing_of_a_hook_that_runs(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await hanging(harness, HookEvent.STOP, "hello", tmp_path)
        assert conversation.record.hooks_running
        fork = await harness.supervisor.fork(conversation.id, ForkRequest())
        assert fork.record.hooks_running == {}
        assert executions(await events(fork)) == []
        assert fork.info()["hook_config"] == conversation.info()["hook_config"]
        await conversation.interrupt()


async def test_an_async_hook_holds_nothing_up_and_ends_with_an_interrupt(tmp_path: Path) -> None:
    mark = tmp_path / "runs"
    apart = hook(f"touch {mark}; sleep 600", **{"async": True})
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, config(HookEvent.STOP, apart))
        found = await turn(conversation, "hello")
        event = one(found, "HookExecutionEvent")
        assert (event["success"], event["exit_code"]) == (True, 0)
        await until(mark.exists)
        assert conversation.runner.hooks.running
        await conversation.interrupt()
        await until(lambda: not conversation.runner.hooks.running)


async def test_async_hooks_are_bounded_and_hold_up_no_hook_that_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks_module, "BACKLOG", 2)
    monkeypatch.setattr(hooks_module, "AT_ONCE", 1)
    apart = hook("sleep 600", **{"async": True})
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, config(HookEvent.STOP, apart, apart, apart, hook("exit 0")))
        found = executions(await turn(conversation, "hello"))
        assert [event["success"] for event in found] == [True, True, False, True]
        assert hooks_module.TOO_MANY in str(found[2])
        await conversation.interrupt()
        await until(lambda: not conversation.runner.hooks.running)


async def test_a_turn_that_ends_ends_the_hooks_of_its_requests(tmp_path: Path) -> None:
    """The agent crashes while a hook looks at its request."""
    mark = tmp_path / "runs"
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, config(HookEvent.PRE_TOOL_USE, hook(f"touch {mark}; sleep 600")))
        await conversation.send(say("!perm"), run=True)
        await until(mark.exists)
        assert conversation.agent.pid is not None
        os.kill(conversation.agent.pid, signal.SIGKILL)
        assert await settled(conversation) == "error"
        await until(lambda: not conversation.record.hooks_running)
        assert "UserRejectObservation" not in kinds(await events(conversation))


async def test_a_hook_that_a_crash_of_the_server_ended_is_told(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, config(HookEvent.STOP, hook("true")))
        await turn(conversation, "hello")
        # What the record is while the hook runs.
        become(conversation, execution_status=ExecutionStatus.RUNNING)
        conversation.record.hooks_running["one"] = {"hook_event_type": "Stop", "hook_command": "true"}
        conversation.recorder.save()
        await conversation.log.flushed()
        conversation.context.sessions.clear()
        stored = conversation.id
    async with open_harness(tmp_path) as harness:
        again = await harness.supervisor.get(stored)
        found = await events(again)
        last = executions(found)[-1]
        assert (last["id"], last["error"], last["success"]) == ("one", CUT_OFF, False)
        assert again.record.hooks_running == {}
        assert "hook" in one(found, "ConversationErrorEvent")["detail"]


# -- whose hooks run -------------------------------------------------------------------------------------


@pytest.mark.guarantee(name="repositories-with-hooks")
@pytest.mark.parametrize(
    ("source", "given", "ran"),
    [
        (HookSource.OFF, True, ""),
        (HookSource.REQUEST, True, "request"),
        (HookSource.REQUEST, False, ""),
        (HookSource.PROJECT, True, "request"),
        (HookSource.PROJECT, False, "project"),
    ],
)
async def test_whose_hooks_run(tmp_path: Path, source: HookSource, given: bool, ran: str) -> None:
    place = tmp_path / "workspace" / ".openhands"
    place.mkdir(parents=True)
    file = place / "hooks.json"
    file.write_bytes(orjson.dumps({"hooks": {"SessionStart": [{"hooks": [hook("echo project")]}]}}))
    async with open_harness(tmp_path, hooks=source) as harness:
        own = usual(config(HookEvent.SESSION_START, hook("echo request"))) if given else None
        conversation = await harness.start(extra={"hook_config": own} if given else {})
        file.write_text("{}")  # what is there later does not count
        found = await turn(conversation, "hello")
        assert "".join(event["stdout"].strip() for event in executions(found)) == ran
        shown = conversation.info()["hook_config"]
        assert (shown is not None) == bool(ran)
        assert said(found) == ["hello"]


@pytest.mark.parametrize("event", [HookEvent.SESSION_START, HookEvent.USER_PROMPT_SUBMIT])
@pytest.mark.parametrize("again", ["by itself", "at the message"])
async def test_an_agent_that_died_while_hooks_ran_is_started_again_before_it_is_prompted(
    tmp_path: Path, event: HookEvent, again: str
) -> None:
    mark, go = tmp_path / "runs", tmp_path / "go"
    command = f"touch {mark}; while [ ! -e {go} ]; do sleep 0.02; done"
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, config(event, hook(command)))
        await conversation.send(say("hello"), run=True)
        await until(mark.exists)
        pid = conversation.agent.pid
        assert pid is not None
        if again == "by itself":
            os.kill(pid, signal.SIGKILL)
            await until(lambda: conversation.agent.pid not in (pid, None))
        else:
            await conversation.agent.stop()
        go.touch()
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        assert said(found) == ["hello"]
        assert "ConversationErrorEvent" not in kinds(found)
        assert len(executions(found)) == 1  # the hooks do not run again
        assert harness.log.prompts() == ["hello"]


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize("status", [ExecutionStatus.PAUSED, ExecutionStatus.RUNNING])
async def test_feedback_that_the_agent_has_not_got_yet_outlives_the_server(
    tmp_path: Path, status: ExecutionStatus
) -> None:
    """Paused, it waits; of a server that was killed, the next one goes on by itself."""
    mark, go = tmp_path / "runs", tmp_path / "go"
    wait = f"touch {mark}; while [ ! -e {go} ]; do sleep 0.02; done"
    command = f"[ -e {go} ] && exit 0; {wait}; echo test it >&2; exit 2"
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, config(HookEvent.STOP, hook(command)))
        await conversation.send(say("work"), run=True)
        await until(mark.exists)
        await conversation.pause()
        go.touch()
        assert await settled(conversation) == "paused"
        (waiting,) = conversation.queued
        await conversation.send(say("and then this"), run=False)
        become(conversation, execution_status=status)
        conversation.recorder.save()
        await conversation.log.flushed()
    async with open_harness(tmp_path) as harness:
        again = await harness.supervisor.get(conversation.id)
        if status is ExecutionStatus.PAUSED:
            assert again.queued == [waiting, say("and then this")]
            await again.run()
        assert await settled(again) == "finished"
        assert harness.log.prompts() == ["work", f"{FEEDBACK} test it", "and then this"]
        found = await events(again)
        assert "ConversationErrorEvent" not in kinds(found)
        assert len([e for e in found if e["kind"] == "MessageEvent" and e["source"] == "environment"]) == 1
    async with open_harness(tmp_path) as harness:
        assert (await harness.supervisor.get(conversation.id)).queued == []


async def test_feedback_that_waits_goes_along_into_a_fork_and_not_off_its_branch(tmp_path: Path) -> None:
    mark, go = tmp_path / "runs", tmp_path / "go"
    command = f"touch {mark}; while [ ! -e {go} ]; do sleep 0.02; done; echo test it >&2; exit 2"
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, config(HookEvent.STOP, hook(command)))
        await conversation.send(say("work"), run=True)
        await until(mark.exists)
        await conversation.pause()
        go.touch()
        await settled(conversation)
        first = one(await events(conversation), "MessageEvent", "user")
        assert len((await harness.supervisor.fork(conversation.id, ForkRequest())).queued) == 1
        await conversation.navigate(first["id"])
        assert conversation.queued == [say("work")]
    async with open_harness(tmp_path) as harness:
        assert (await harness.supervisor.get(conversation.id)).queued == [say("work")]


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
async def test_calls_that_end_after_an_interrupt_run_no_hooks(tmp_path: Path) -> None:
    """Neither those that the agent reports meanwhile, nor those whose hooks were about to begin."""
    ran, go, gate = (tmp_path / name for name in ("ran", "go", "gate"))
    gate.write_text(f"while [ ! -e {go} ]; do sleep 0.02; done")
    patient = attrs.evolve(QUICK, cancel_grace=60)
    async with open_harness(tmp_path, deadlines=patient) as harness:
        conversation = await start(
            harness, config(HookEvent.POST_TOOL_USE, hook(f"touch {ran}")), modes=("cancel=ignore",)
        )
        await turn(conversation, "hello")
        await conversation.send(say(f"!terminal sh {gate}\n!tool"), run=True)
        await until(lambda: len(harness.log.prompts()) == 2)
        await conversation.interrupt()
        go.touch()
        assert await settled(conversation) == "paused"
        statuses = [e["status"] for e in await events(conversation) if e["kind"] == "ACPToolCallEvent"]
        assert statuses[-1] == "completed"
        await until(lambda: not conversation.runner.hooks.running, "the end of hooks")
        assert executions(await events(conversation)) == []
        assert not ran.exists()
        # A later message's calls have them again.
        assert executions(await turn(conversation, "!tool"))


@pytest.mark.parametrize("waits", [True, False])
async def test_a_hook_that_was_about_to_begin_does_not_begin_after_all(tmp_path: Path, waits: bool) -> None:
    """All are ended in the same moment in which the task of one is started."""
    ran = tmp_path / "ran"
    given = hook(f"touch {ran}", **({} if waits else {"async": True}))
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, config(HookEvent.POST_TOOL_USE, given))
        hooks = conversation.runner.hooks
        ended = hooks.call_ended

        def then_all_end(call: ToolCallState, ending: Ending) -> None:
            ended(call, ending)
            hooks.cancel()

        conversation.runner.turns._translator.on_end = then_all_end
        found = await turn(conversation, "!tool")
        assert executions(found) == []
        assert not ran.exists()


async def test_async_hooks_of_the_end_have_its_time(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    slow = hook(f"sleep 0.3; echo slow >> {seen}", **{"async": True})
    quick = hook(f"echo quick >> {seen}")
    hangs = hook(f"sleep 600 # {tmp_path}", **{"async": True})
    async with open_harness(tmp_path, deadlines=attrs.evolve(QUICK, session_end=1.5)) as harness:
        conversation = await start(harness, config(HookEvent.SESSION_END, slow, hangs, quick))
        await turn(conversation, "hello")
        begin = time.monotonic()
        await conversation.close()
        assert seen.read_text().split() == ["quick", "slow"]
        assert time.monotonic() - begin < 20  # the one that hangs would take minutes
        assert mentioning(tmp_path) == []
        found = executions(await events(conversation))
        assert [(event["success"], event["exit_code"]) for event in found] == [(True, 0)] * 3


async def test_hooks_that_are_switched_off_later_are_not_shown_as_if_they_ran(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, config(HookEvent.STOP, hook("exit 2")))
        shown = conversation.info()["hook_config"]
        assert shown
    async with open_harness(tmp_path, hooks=HookSource.OFF) as harness:
        again = await harness.supervisor.get(conversation.id)
        fork = await harness.supervisor.fork(again.id, ForkRequest())
        states = [orjson.loads(await each.durable_state())["value"] for each in (again, fork)]
        resources = [
            again.info(),
            await again.durable_info(),
            await fork.durable_info(),
            *await harness.listed(),
        ]
        assert [each.get("hook_config") for each in (*resources, *states)] == [None] * 7
        cursor = again.log.subscribe(None)
        await turn(again, "hello")
        published: list[bytes] = []
        with trio.fail_after(20):
            while not any(b'"full_state"' in each for each in published):
                published += [i.frame.legacy or b"" for i in await cursor.next() if not isinstance(i, Stored)]
        assert not any(b"exit 2" in each for each in published)
    async with open_harness(tmp_path) as harness:
        assert (await harness.supervisor.get(conversation.id)).info()["hook_config"] == shown


async def test_a_session_starts_once_however_often_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "RECENT_MAX", 1)
    seen = tmp_path / "seen"
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, config(HookEvent.SESSION_START, hook(f"echo x >> {seen}")))
        name, loaded = conversation.id, weakref.ref(conversation)
        await turn(conversation, "one")
        await conversation.stop_agent()
        runner = conversation.runner
        del conversation
        await until(lambda: runner._stage.now is Stage.STOPPED, "the end of its task")
        await harness.start()
        await harness.start()
        await until(lambda: gc.collect() >= 0 and loaded() is None, "the conversation is let go")
        again = await harness.supervisor.get(name)
        await turn(again, "two")
        assert seen.read_text() == "x\n"
