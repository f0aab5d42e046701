"""The built-in agent: the SDK in a process of its own, driven by the model API."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from supervisor.agents.catalog import load_catalog
from supervisor.agents.errors import PythonMissing
from supervisor.agents.install.install import ensure_installed
from supervisor.agents.sdk_facts import KNOWN
from supervisor.conversations.state.deadlines import Deadlines
from tests.interop.model_api.request import Tool
from tests.interop.model_api.script import Answer
from tests.interop.model_api.server import ModelApi
from tests.interop.real_agents import BUILT_IN
from tests.interop.recording import Recording
from tests.interop.talk import Talk, wait_for_spare
from tests.interop.test_real_interrupted import WAYS, cut_off
from tests.support.client import Json, rest_client
from tests.support.mcp_servers import STDIO
from tests.support.processes import environment, kill
from tests.support.server import ServerProcess, running_server, shared_server
from tests.support.sockets import collect, session_socket

pytestmark = pytest.mark.interop

KEY = "sk-a-key-of-the-test-0123456789"
ALWAYS = {"kind": "AlwaysConfirm"}
Open = Callable[..., AbstractAsyncContextManager[Talk]]


def llm(url: str, **more: Json) -> dict[str, Json]:
    given = {"model": "openai/test-model", "api_key": KEY, "base_url": f"{url}/v1", "usage_id": "agent"}
    return {**given, "num_retries": 0, "stream": True, **more}


def agent(url: str, **more: Json) -> dict[str, Json]:
    return {
        "kind": "Agent",
        "llm": llm(url),
        "tools": [{"name": "terminal"}, {"name": "file_editor"}],
        **more,
    }


@pytest.fixture(scope="module")
def built_in_server(agents_prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("built-in")
    (directory / "state").mkdir()
    (directory / "state" / "agents").symlink_to(agents_prefix)
    with shared_server(directory) as server:
        yield server


@pytest.fixture
async def agents_server(built_in_server: ServerProcess) -> AsyncIterator[ServerProcess]:
    """One server for all of them: the library is imported once, and then waits for the next conversation."""
    async with rest_client(built_in_server.url) as built_in_server.rest:
        yield built_in_server


@pytest.fixture
def built_in(
    agents_server: ServerProcess,
    agents_prefix: Path,
    model_api: ModelApi,
    recording: Recording,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Open:
    """Opens conversations with it: `async with built_in(**fields of the start request) as one`."""

    @asynccontextmanager
    async def opened(**fields: Any) -> AsyncIterator[Talk]:
        try:
            await ensure_installed(
                load_catalog()["openhands"], agents_prefix, progress=print, seconds=Deadlines().install
            )
        except PythonMissing as missing:
            pytest.skip(str(missing))
        workspace = tmp_path / "workspace"
        workspace.mkdir(exist_ok=True)
        if not {"agent", "agent_settings", "agent_profile_id"} & fields.keys():
            fields["agent"] = agent(model_api.url)
        body = {"workspace": {"kind": "LocalWorkspace", "working_dir": str(workspace)}, **fields}
        info = await agents_server.rest.call("POST", "/api/conversations", body)
        one = Talk(agents_server, None, info["id"], workspace, model_api)  # type: ignore[arg-type]
        async with collect(agents_server.events_socket(one.id)) as one.socket:
            yield one
            if not one.deleted:
                await recording.keep(request.node.name, agents_server.rest, one.id, one.socket)
                await wait_for_spare(agents_server.rest)
                await agents_server.rest.call("DELETE", f"/api/conversations/{one.id}")

    return opened


def kinds(found: list[Json]) -> list[str]:
    return [event["kind"] for event in found if event["kind"] != "ConversationStateUpdateEvent"]


def of(found: list[Json], kind: str) -> list[Json]:
    return [event for event in found if event["kind"] == kind]


def text_of(event: Json) -> str:
    content = (event.get("llm_message") or event.get("observation"))["content"]
    return "".join(part.get("text", "") for part in content)


async def test_a_text_turn_and_a_command(built_in: Open) -> None:
    async with built_in() as one:
        found = await one.turn("Hello.")
        assert kinds(found) == ["MessageEvent", "SystemPromptEvent", "MessageEvent"]
        answer = of(found, "MessageEvent")[-1]
        assert (answer["source"], text_of(answer)) == ("agent", "ECHO: Hello.")
        streamed = [frame for frame in one.socket.frames if frame.get("kind") == "StreamingDeltaEvent"]
        assert "".join(frame.get("content") or "" for frame in streamed) == "ECHO: Hello."
        found = await one.turn("TOOL: echo so it is; pwd")
        assert kinds(found) == ["MessageEvent", "ActionEvent", "ObservationEvent", "MessageEvent"]
        (action,), (observation,) = of(found, "ActionEvent"), of(found, "ObservationEvent")
        assert action["action"]["kind"] == "TerminalAction"
        assert observation["action_id"] == action["id"]
        assert text_of(observation).split()[:4] == ["so", "it", "is", str(one.workspace)]
        info = await one.rest.info(one.id)
        assert info["agent"]["kind"] == "Agent"
        assert info["agent"]["llm"]["api_key"] == "**********"
        assert info["stats"]["usage_to_metrics"]["agent"]["accumulated_token_usage"]["prompt_tokens"] > 0
        # The key is nowhere but in the agent's memory.
        assert KEY not in json.dumps([*await one.rest.events(one.id), *one.socket.frames, info])
        for pid in [each.pid for each in one.server.tree()]:
            assert KEY not in json.dumps(environment(pid))
            assert KEY.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        for path in one.server.state.rglob("*"):
            if path.is_file() and "agents" not in path.relative_to(one.server.state).parts:
                assert KEY.encode() not in path.read_bytes(), path


async def test_an_interrupt_in_the_middle_of_an_answer(built_in: Open) -> None:
    async with built_in() as one:
        await one.turn("Hello.")
        before = await one.begin("SLOW 200 50")
        await one.wait_delta("5")
        await one.rest.act(one.id, "interrupt")
        found = await one.settle(before, "paused")
        assert of(found, "InterruptEvent")
        assert not of(found, "ConversationErrorEvent")
        pid = await _pid(one)
        await one.turn("And now?")
        assert await _pid(one) == pid  # the process went on


async def test_actions_are_confirmed_and_rejected(built_in: Open) -> None:
    async with built_in(confirmation_policy=ALWAYS) as one:
        before = await one.begin("TOOL: echo yes")
        await one.settle(before, "waiting_for_confirmation")
        await one.rest.respond(one.id, accept=True)
        found = await one.settle(before + 1, "finished")
        assert len(of(found, "ActionEvent")) == len(of(found, "ObservationEvent")) == 1
        before = await one.begin("TOOL: echo no")
        await one.settle(before, "waiting_for_confirmation")
        await one.rest.respond(one.id, accept=False, reason="Not like that.")
        await one.rest.wait_status(one.id, "idle", timeout=20)
        found = (await one.rest.events(one.id))[before:]
        (rejection,) = of(found, "UserRejectObservation")
        assert rejection["rejection_reason"] == "Not like that."
        assert rejection["action_id"] == of(found, "ActionEvent")[0]["id"]
        await one.turn("Go on.")


@pytest.mark.guarantee(name="what-began-is-ended")
async def test_a_kill_in_the_middle_of_a_command(built_in: Open) -> None:
    async with built_in() as one:
        await one.turn("Hello.")
        before = await one.begin("TOOL: echo begun; sleep 100")
        await _acting(one, before)
        os.kill(await _pid(one), signal.SIGKILL)
        found = await one.settle(before, "error")
        assert of(found, "ConversationErrorEvent")[0]["code"] == "ACPAgentExited"
        (closed,) = of(found, "AgentErrorEvent")
        assert closed["tool_call_id"] == of(found, "ActionEvent")[0]["tool_call_id"]
        found = await one.turn("What now?")
        assert kinds(found) == ["MessageEvent", "MessageEvent"]
        everything = await one.rest.events(one.id)
        assert len(of(everything, "AgentErrorEvent")) == 1
        assert len(of(everything, "SystemPromptEvent")) == 1
        ids = [event["id"] for event in everything]
        assert len(ids) == len(set(ids))


@pytest.mark.guarantee(name="no-blind-retry")
async def test_a_command_that_was_cut_off_is_not_run_again(built_in: Open) -> None:
    """As of every other agent of the catalogue (`test_real_interrupted`)."""
    async with built_in(confirmation_policy=ALWAYS) as one:
        one.agent = BUILT_IN
        one.pid = partial(_pid, one)  # type: ignore[method-assign] # it is forked: its parent is marked, too
        await cut_off(one, WAYS)


async def test_a_pause_and_going_on(built_in: Open) -> None:
    async with built_in() as one:
        before = await one.begin("LOOP 3: sleep 2; echo %i")
        await _acting(one, before)
        await one.rest.act(one.id, "pause")
        with trio.fail_after(60):
            while not of((await one.rest.events(one.id))[before:], "ObservationEvent"):
                await trio.sleep(0.05)
        await trio.sleep(1)
        found = (await one.rest.events(one.id))[before:]
        assert len(of(found, "ActionEvent")) == 1  # the next step did not begin
        assert (await one.rest.info(one.id))["execution_status"] == "paused"
        before = len(await one.rest.events(one.id))
        await one.rest.act(one.id, "run")
        found = await one.settle(before, "finished")
        assert len(of(found, "ActionEvent")) == 2
        assert not [event for event in of(found, "MessageEvent") if event["source"] != "agent"]


async def test_a_message_in_the_middle_of_a_turn_is_read_before_the_next_step(
    built_in: Open, model_api: ModelApi
) -> None:
    async with built_in() as one:
        before = await one.begin("TOOL: touch began; until [ -e go ]; do sleep 0.05; done; echo went")
        await _acting(one, before)
        await one.rest.send(one.id, "And then?")
        await trio.sleep(0.5)
        (one.workspace / "go").touch()
        found = await one.settle(before, "finished")
        assert kinds(found) == [
            "MessageEvent",
            "SystemPromptEvent",
            "ActionEvent",
            "MessageEvent",
            "ObservationEvent",
            "MessageEvent",
        ]
        turns = [event["value"] for event in found if event.get("key") == "turn"]
        assert [each["status"] for each in turns] == ["running", "joined", "ended"]
        assert turns[1]["joined"] == of(found, "MessageEvent")[1]["id"]
        assert said_to(model_api)[:2] == [1, 2]  # then it is asked for a title


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_each_message_is_read_once_whoever_is_killed(built_in: Open, model_api: ModelApi) -> None:
    async with built_in() as one:
        await one.turn("message 0.")
        for number in range(1, 16):
            text = f"message {number}.\nSLOW 6 40" if number % 3 else f"message {number}.\nTOOL: sleep 0.2"
            await one.rest.send(one.id, text)
            await trio.sleep(0.07 * (number % 5))
            if number in (4, 9, 12):
                os.kill(await _pid(one), signal.SIGKILL)
                await one.rest.wait_status(one.id, "error", "finished")  # the turn was over, perhaps
                await one.rest.act(one.id, "run")
            elif number == 7:
                await one.rest.act(one.id, "interrupt")
                await one.rest.act(one.id, "run")
        await one.rest.wait_status(one.id, "finished", timeout=60)
        await one.turn("This is the end.")
        asked = [each for each in model_api.calls[-1].body["messages"] if each["role"] == "user"]
        sent = json.dumps(asked)
        assert [sent.count(f"message {number}.") for number in range(16)] == [1] * 16
        places = [sent.index(f"message {number}.") for number in range(16)]
        assert places == sorted(places)
        everything = await one.rest.events(one.id)
        said = [event["id"] for event in of(everything, "MessageEvent") if event["source"] == "user"]
        assert len(said) == len(set(said)) == 17
        turns = [event["value"] for event in everything if event.get("key") == "turn"]
        joined = [each["joined"] for each in turns if each["status"] == "joined"]
        begun = [each["message_id"] for each in turns if each["status"] == "running"]
        assert sorted({*joined, *begun}) == sorted(said)
        assert len(joined) == len(set(joined))
        assert not {*joined} & {*begun[:1]}


def said_to(model_api: ModelApi) -> list[int]:
    """How many messages of users each request to the model had."""
    counted = []
    for call in model_api.calls:
        messages = [each for each in call.body["messages"] if each["role"] == "user"]
        counted.append(
            sum(1 if isinstance(each["content"], str) else len(each["content"]) for each in messages)
        )
    return counted


async def test_a_branch_a_fork_and_a_summary(built_in: Open, model_api: ModelApi) -> None:
    condenser = {
        "kind": "LLMSummarizingCondenser",
        "llm": {**llm(model_api.url), "usage_id": "condenser", "stream": False},
        "max_size": 80,
        "keep_first": 1,
    }
    async with built_in(agent=agent(model_api.url, condenser=condenser)) as one:
        first = await one.turn("The word is tulip.")
        await one.turn("The word is rose.")
        answer = of(first, "MessageEvent")[-1]
        made = await one.rest.act(one.id, "fork", {"from_event_id": answer["id"]})
        await one.rest.turn(made["id"], "Which word?", timeout=60)
        sent = json.dumps(model_api.calls[-1].body)
        assert ("tulip" in sent, "rose" in sent) == (True, False)
        assert (await one.rest.info(made["id"]))["agent_state"]["memory"] in ("loaded", "resumed")
        await one.rest.act(one.id, "navigate", {"event_id": answer["id"]})
        await one.turn("And which one now?")
        sent = json.dumps(model_api.calls[-1].body)
        assert ("tulip" in sent, "rose" in sent) == (True, False)
        answered = await one.rest.act(one.id, "ask_agent", {"question": "What was it?"})
        assert answered["response"]
        await one.turn("TOOL: echo one")
        await one.turn("TOOL: echo two")
        await one.rest.act(one.id, "condense")
        assert of(await one.rest.events(one.id), "Condensation")
        await one.rest.act(one.id, "switch_llm", {"llm": llm(model_api.url, model="openai/gpt-5.5")})
        await one.turn("Who are you?")
        assert model_api.calls[-1].body["model"] == "gpt-5.5"


async def test_settings_of_the_server_and_their_kinds(built_in: Open, model_api: ModelApi) -> None:
    given = {"agent_kind": "llm", "llm": llm(model_api.url), "tools": [], "mcp_config": {"adder": STDIO}}
    async with built_in(agent_settings=given) as one:
        found = await one.turn('MCP: secret_sum {"a": 1, "b": 2}')
        assert of(found, "ActionEvent")[0]["action"]["kind"] == "MCPToolAction"
        assert "1003" in text_of(of(found, "ObservationEvent")[0])
        diff = {"agent_kind": "openhands", "llm": llm(model_api.url), "tools": [{"name": "terminal"}]}
        await one.rest.call("PATCH", "/api/settings", {"agent_settings_diff": diff})
        # It is there to the end: a title that it asks for later may take an answer of the next test's.
        other = await one.rest.create(one.workspace, autotitle=False)
        found = await one.rest.turn(other["id"], "TOOL: echo settings", timeout=60)
        assert "ObservationEvent" in kinds(found)


async def test_nothing_comes_between_a_streamed_text_and_its_event(
    built_in: Open, model_api: ModelApi
) -> None:
    """The web UI shows the text a second time where a state does."""
    async with built_in() as one:
        looks = ((Tool("terminal"), {"command": "echo seen"}),)
        model_api.answers.extend(
            [
                *(Answer(text=("I ", f"look {n}. "), calls=looks) for n in range(7)),
                Answer(text=("All ", "seen.")),
            ]
        )
        await one.turn("Look.")
        frames = one.socket.frames
        stats = [at for at, frame in enumerate(frames) if frame.get("key") == "stats"]
        said = [at for at, frame in enumerate(frames) if frame["source"] == "agent" and "id" in frame]
        events = [at for at in said if frames[at]["kind"] in ("ActionEvent", "MessageEvent")]
        assert len(events) == 8
        assert [frames[at - 1]["kind"] for at in events] == ["StreamingDeltaEvent"] * 8
        assert len(stats) >= 8


async def test_a_sub_agent_a_goal_and_arguments_that_stream(built_in: Open, model_api: ModelApi) -> None:
    given = agent(model_api.url, tools=[{"name": "task_tool_set"}, {"name": "terminal"}])
    async with built_in(agent=given, confirmation_policy=ALWAYS, autotitle=False) as one:
        order = {"description": "Look", "prompt": "Look around.", "subagent_type": "general-purpose"}
        model_api.answers.extend(
            [
                scripted("task", **order),
                *(scripted("terminal", command=f"touch {name}") for name in ("allowed", "forbidden")),
                Answer(text=("I looked around.",)),
                Answer(text=("All ", "done.")),
            ]
        )
        url = session_socket(one.server.url, one.id)
        async with collect(url) as session:
            before = await one.begin("Delegate.")
            for accept, words in ((True, "Look"), (True, "touch allowed"), (False, "touch forbidden")):
                with trio.fail_after(60):
                    while not (waiting := await _waiting(one)) or words not in waiting[0]["title"]:
                        await trio.sleep(0.05)
                assert len({each["action_id"] for each in waiting}) == 1
                await one.rest.respond(one.id, accept=accept, reason=None if accept else "Not there.")
            found = await one.settle(before, "finished")
        assert kinds(found) == [
            "MessageEvent",
            "SystemPromptEvent",
            "ActionEvent",
            "ObservationEvent",
            "MessageEvent",
        ]
        assert [(one.workspace / name).exists() for name in ("allowed", "forbidden")] == [True, False]
        (action,) = of(found, "ActionEvent")
        pieces = [frame for frame in session.frames if frame.get("item_id") == action["id"]]
        assert [frame["type"] for frame in pieces] == ["item_started", *["delta"] * (len(pieces) - 1)]
        assert json.loads("".join(frame["content"] for frame in pieces[1:])) == order
        assert {(frame["kind"], frame["tool_name"]) for frame in pieces[1:]} == {("arguments", "task")}
        streamed = [frame for frame in one.socket.frames if frame.get("kind") == "StreamingDeltaEvent"]
        assert "".join(frame.get("content") or "" for frame in streamed) == "All done."

        verdicts = ['{"score": 0.2, "complete": false, "missing": "tests"}', '{"score": 1, "complete": true}']
        answers = ["I work.", verdicts[0], "I tested.", verdicts[1]]
        model_api.answers.extend(Answer(text=(each,)) for each in answers)
        before = len(await one.rest.events(one.id))
        await one.rest.act(one.id, "goal", {"objective": "It works", "max_iterations": 5})
        with trio.fail_after(60):
            while not (goals := await _goals(one, before)) or goals[-1]["active"]:
                await trio.sleep(0.05)
        assert [(goal["status"], goal["iteration"]) for goal in goals] == [
            ("running", 0),
            ("running", 1),
            ("complete", 2),
        ]
        assert "tests" in json.dumps(model_api.calls[-2].body["messages"][-1])


@pytest.mark.parametrize("end", ["delete", "stop", "crash"])
async def test_the_end_of_one_does_not_reach_the_turn_of_the_other(built_in: Open, end: str) -> None:
    """Both are forks of one process. `test_two_conversations.py` has the other agents."""
    async with built_in() as first, built_in() as second:
        await first.turn("Hello.")
        before = await second.begin("SLOW 150 40")
        await second.wait_delta("s3")
        if end == "delete":
            first.deleted = True
            await first.rest.call("DELETE", f"/api/conversations/{first.id}")
        elif end == "stop":
            await first.rest.call("POST", f"/api/agents/{first.id}/stop")
        else:
            os.kill(await _pid(first), signal.SIGKILL)
        found = await second.settle(before, "finished")
        assert not of(found, "ConversationErrorEvent")
        assert "s149" in text_of(of(found, "MessageEvent")[-1])
        assert text_of(of(await second.turn("Still here?"), "MessageEvent")[-1]) == "ECHO: Still here?"


# -- kills of the server come last: each costs two imports of the library
@pytest.mark.guarantee(name="what-began-is-ended")
async def test_a_kill_of_the_server(built_in: Open, model_api: ModelApi) -> None:
    async with built_in() as one:
        await one.turn("The word is tulip.")
        before = await one.begin("TOOL: echo begun; sleep 100")
        await _acting(one, before)
        server = next(each.pid for each in one.server.tree() if each.ppid == one.server.pid)
        kill([server], signal.SIGSTOP)  # so that it cannot act on the death of its warden
        kill([one.server.pid, server])
        await one.server.wait()
        await one.server.start()
        async with rest_client(one.server.url) as one.server.rest:
            await _after_the_kill(one, before, model_api)
        one.deleted = True


async def _after_the_kill(one: Talk, before: int, model_api: ModelApi) -> None:
    found = await one.settle(before, "error")
    assert "ServerRestarted" in [each["code"] for each in of(found, "ConversationErrorEvent")]
    found = await one.turn("TOOL: echo again")
    assert kinds(found) == ["MessageEvent", "ActionEvent", "ObservationEvent", "MessageEvent"]
    # It remembers: the model is sent what was said before, with its end.
    sent = json.dumps(model_api.calls[-1].body)
    assert "tulip" in sent
    assert "sleep 100" in sent
    assert KEY not in sent
    info = await one.rest.info(one.id)
    assert info["agent_state"]["memory"] in ("loaded", "resumed")


@pytest.mark.guarantee(name="nothing-is-lost")
@pytest.mark.parametrize("taken", [False, True], ids=["on the way", "taken"])
async def test_a_message_during_a_turn_survives_a_kill_of_the_server(
    built_in: Open, model_api: ModelApi, taken: bool
) -> None:
    async with built_in() as one:
        await one.turn("Hello.")
        before = await one.begin("HANG" if taken else "TOOL: echo begun; sleep 100")
        if taken:
            with trio.fail_after(60):
                while len(model_api.calls) < 2:
                    await trio.sleep(0.05)
        else:
            await _acting(one, before)
        await one.rest.send(one.id, "And then?")
        await trio.sleep(1)
        server = next(each.pid for each in one.server.tree() if each.ppid == one.server.pid)
        kill([server], signal.SIGSTOP)
        kill([one.server.pid, server])
        await one.server.wait()
        await one.server.start()
        async with rest_client(one.server.url) as one.server.rest:
            if taken:  # it belongs to the turn that was cut off, which a person takes up again
                await one.settle(before, "error")
                await one.rest.act(one.id, "run")
            found = await one.settle(before, "finished")
            (error,) = of(found, "ConversationErrorEvent")
            assert error["code"] == "ServerRestarted"
            sent = json.dumps(model_api.calls[-1].body["messages"])
            assert sent.count("And then?") == 1
            answers = [event for event in of(found, "MessageEvent") if event["source"] == "agent"]
            assert len(answers) == 1
        one.deleted = True


def scripted(tool: str, **arguments: Json) -> Answer:
    return Answer(calls=((Tool(tool), arguments),))


async def _waiting(one: Talk) -> list[Json]:
    info = await one.rest.info(one.id)
    asked = (info["agent_state"] or {}).get("permissions") or []
    return [each for each in asked if each["status"] == "waiting"]


async def _goals(one: Talk, before: int) -> list[Json]:
    found = (await one.rest.events(one.id))[before:]
    return [event["value"] for event in of(found, "ConversationStateUpdateEvent") if event["key"] == "goal"]


async def _pid(one: Talk) -> int:
    """The process of the conversation's agent. Others of its kind wait for the next conversation."""
    with trio.fail_after(60):
        while not (pid := (await one.rest.call("GET", f"/api/agents/{one.id}"))["pid"]):
            await trio.sleep(0.05)  # it starts again
    return int(pid)


async def _acting(one: Talk, before: int) -> None:
    """Until an action is recorded, and its command has begun."""
    with trio.fail_after(60):
        while not of((await one.rest.events(one.id))[before:], "ActionEvent"):
            await trio.sleep(0.05)
    await trio.sleep(0.5)


REHOMED = """
import asyncio, importlib, json, os, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import parent

program = parent.load()
os.environ.update(program.QUIET)
program._import_sdk()
for name in parent.FIRST_TURN:
    try:
        importlib.import_module(name)
    except ImportError:
        pass

def below(home):
    return sorted(
        f"{name}.{key}"
        for name, module in list(sys.modules.items()) if name.startswith("openhands")
        for key, value in list(vars(module).items())
        for each in (value if isinstance(value, (list, tuple)) else [value])
        if isinstance(each, Path) and each.is_relative_to(home)
    )

async def new():
    agent = program.BuiltIn(None)
    agent._ready = asyncio.create_task(asyncio.sleep(0))
    importlib.import_module("ostler_builtin.session").Session = lambda *_: None
    given = {"persistence_dir": "/nonexistent", "environment": {"HOME": sys.argv[2]}}
    await agent.new({"cwd": "/", "_meta": {"ostler": given}})

old = os.environ["HOME"]
found = [below(old)]
asyncio.run(new())
print(json.dumps([*found, below(old), below(sys.argv[2])]))
"""


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
def test_the_library_looks_into_the_home_of_the_conversation(builtin_python: Path, tmp_path: Path) -> None:
    """Also where it was imported before there was one."""
    for name in ("server", "conversation"):
        (tmp_path / name).mkdir()
    done = subprocess.run(
        [builtin_python, "-c", REHOMED, KNOWN.parent, tmp_path / "conversation"],
        capture_output=True,
        check=True,
        env={"HOME": str(tmp_path / "server"), "PATH": os.environ["PATH"]},
    )
    before, left, moved = json.loads(done.stdout.splitlines()[-1])
    assert "openhands.sdk.skills.skill.USER_SKILLS_DIRS" in before
    assert left == []
    assert moved == before


def test_what_clients_can_offer_is_what_the_library_knows(builtin_python: Path, tmp_path: Path) -> None:
    """Else: run `known.py` with the Python of the environment, and keep what it prints as `known.json`."""
    done = subprocess.run(
        [builtin_python, KNOWN.with_suffix(".py")],
        capture_output=True,
        check=True,
        env={"HOME": str(tmp_path)},
    )
    assert json.loads(done.stdout) == json.loads(KNOWN.read_bytes())


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("accept", [True, False])
@pytest.mark.parametrize("end", ["killed", "stopped"])
async def test_what_waits_for_confirmation_survives_the_server(
    agents_prefix: Path, model_api: ModelApi, tmp_path: Path, end: str, accept: bool
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "agents").symlink_to(agents_prefix)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with running_server(tmp_path) as server:
        body = {"workspace": {"kind": "LocalWorkspace", "working_dir": str(workspace)}}
        body |= {"agent": agent(model_api.url), "confirmation_policy": ALWAYS}
        one = str((await server.rest.call("POST", "/api/conversations", body))["id"])
        await server.rest.send(one, "TOOL: echo it ran >> runs")
        await server.rest.wait_status(one, "waiting_for_confirmation", timeout=60)
        if end == "killed":
            kill([int((server.state / "server.pid").read_text())])
        else:
            await server.stop()
            await server.start()
        async with rest_client(server.url) as rest:
            assert (await rest.info(one))["execution_status"] == "waiting_for_confirmation"
            before = await rest.events(one)
            assert not of(before, "AgentErrorEvent")
            assert not of(before, "ConversationErrorEvent")
            await rest.respond(one, accept=accept)
            await rest.wait_status(one, "finished" if accept else "idle", timeout=60)
            found = (await rest.events(one))[len(before) :]
            assert not of(found, "AgentErrorEvent")
            assert len(of(found, "ObservationEvent" if accept else "UserRejectObservation")) == 1
            runs = workspace / "runs"
            assert (runs.read_text() == "it ran\n") if accept else not runs.exists()


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("accept", [True, False])
async def test_what_waits_for_confirmation_survives_the_agents_process(
    built_in: Open, model_api: ModelApi, accept: bool
) -> None:
    async with built_in(confirmation_policy=ALWAYS) as one:
        before = await one.begin("TOOL: echo it ran >> runs")
        await one.settle(before, "waiting_for_confirmation")
        pid = await one.pid()
        kill([pid])
        with trio.fail_after(60):
            while (await one.rest.call("GET", f"/api/agents/{one.id}"))["pid"] in (pid, None):
                await trio.sleep(0.05)
        assert (await one.rest.info(one.id))["execution_status"] == "waiting_for_confirmation"
        before = await one.rest.events(one.id)
        assert not of(before, "AgentErrorEvent")
        assert not of(before, "ConversationErrorEvent")
        await one.rest.respond(one.id, accept=accept)
        await one.rest.wait_status(one.id, "finished" if accept else "idle", timeout=60)
        found = (await one.rest.events(one.id))[len(before) :]
        assert not of(found, "AgentErrorEvent")
        assert len(of(found, "ObservationEvent" if accept else "UserRejectObservation")) == 1
        runs = one.workspace / "runs"
        assert (runs.read_text() == "it ran\n") if accept else not runs.exists()
