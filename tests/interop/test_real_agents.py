"""Real coding agents, driven through a real server as a client drives it.

The models are a script on loopback (`model_api`); the agents are the pinned ones that the product installs.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.interop.model_api.server import ModelApi
from tests.interop.real_agents import CLAUDE_CODE, CODEX, OPENCODE, REAL_AGENTS, RealAgent, install
from tests.interop.talk import ASK_ME, MARKER, MINUTE_S, TURN_S, Open, Talk
from tests.support.client import answer_text, of_kind, summary
from tests.support.processes import alive, environment
from tests.support.server import running_server

pytestmark = pytest.mark.interop

INTERRUPT_S = 2.5  # what the server promises (2 s) and a little for the way

each_agent = pytest.mark.parametrize("agent", REAL_AGENTS.values(), ids=REAL_AGENTS)


@each_agent
async def test_a_text_turn(keep: Open, agent: RealAgent, model_api: ModelApi) -> None:
    async with keep(agent) as one:
        events = await one.turn("say hello please")
        assert "ECHO: say hello please" in answer_text(events)
        assert model_api.prompts()
        streamed = "".join(frame.get("content") or "" for frame in one.socket.of_kind("StreamingDeltaEvent"))
        assert "ECHO: " in streamed
        await one.socket.wait_for(lambda f: f.get("value") == "finished")
        sent = [frame["id"] for frame in one.socket.frames]
        for event in events:
            assert event["id"] in sent, f"on no socket: {summary([event])}"


@each_agent
async def test_thoughts_become_reasoning(keep: Open, agent: RealAgent) -> None:
    async with keep(agent) as one:
        events = await one.turn("THINK 3")
        assert "thought done" in answer_text(events)
        reasoning = " ".join(str(event.get("reasoning_content")) for event in of_kind(events, "ActionEvent"))
        assert "t1" in reasoning


async def waiting_action(one: Talk, text: str) -> tuple[int, dict[str, Any]]:
    """Prompt something that needs a permission; the number of events before, and the action that waits."""
    before = await one.begin(text)
    events = await one.settle(before, "waiting_for_confirmation")
    action = of_kind(events, "ActionEvent")[-1]
    assert action["tool_name"] != "finish"
    assert action["source"] == "agent"
    await one.socket.wait_for(lambda frame: frame.get("value") == "waiting_for_confirmation")
    return before + len(events), action


@each_agent
async def test_a_tool_that_is_accepted(keep: Open, agent: RealAgent) -> None:
    async with keep(agent, asking=True) as one:
        before, action = await waiting_action(one, f"{agent.tool}: echo made > made.txt")
        assert not (one.workspace / "made.txt").exists()
        await one.rest.respond(one.id, accept=True)
        events = await one.settle(before, "finished")
        assert (one.workspace / "made.txt").read_text() == "made\n"
        observations = [e for e in of_kind(events, "ObservationEvent") if e["action_id"] == action["id"]]
        assert len(observations) == 1, summary(events)
        assert "TOOL-DONE" in answer_text(events)


@each_agent
async def test_a_tool_that_is_rejected(keep: Open, agent: RealAgent) -> None:
    async with keep(agent, asking=True) as one:
        before, action = await waiting_action(one, f"{agent.tool}: touch made.txt")
        await one.rest.respond(one.id, accept=False, reason="not today")
        await one.rest.wait_status(one.id, "idle", "finished", "paused", timeout=TURN_S)
        (rejection,) = of_kind((await one.rest.events(one.id))[before:], "UserRejectObservation")
        assert rejection["action_id"] == action["id"]
        assert rejection["rejection_reason"] == "not today"
        assert rejection["rejection_source"] == "user"
        assert not (one.workspace / "made.txt").exists()
        await one.rest.call("POST", f"/api/conversations/{one.id}/confirmation_policy", {"policy": ASK_ME})
        assert "ECHO: go on" in answer_text(await one.turn("go on"))


@each_agent
async def test_a_tool_without_confirmation(keep: Open, agent: RealAgent) -> None:
    async with keep(agent) as one:
        events = await one.turn(f"{agent.tool}: echo made > made.txt")
        assert (one.workspace / "made.txt").read_text() == "made\n"
        calls = of_kind(events, "ACPToolCallEvent")
        assert len(calls) == 2, summary(events)
        assert calls[0]["tool_call_id"] == calls[1]["tool_call_id"]
        assert calls[1]["status"] == "completed"


@pytest.mark.guarantee(name="control-always-returns")
@each_agent
async def test_an_interrupt_in_mid_stream(keep: Open, agent: RealAgent, model_api: ModelApi) -> None:
    async with keep(agent) as one:
        await one.turn("remember the word PINEAPPLE")
        pid = await one.pid()
        before = await one.begin("SLOW 600 50")
        await one.wait_delta("s3")
        begin = trio.current_time()
        await one.rest.act(one.id, "interrupt")
        took = trio.current_time() - begin
        assert took < INTERRUPT_S
        events = await one.settle(before, "paused")
        assert of_kind(events, "InterruptEvent")
        assert "s2" in answer_text(events), summary(events)
        assert "s599" not in answer_text(events)
        assert "ECHO: say more" in answer_text(await one.turn("say more"))
        assert await one.pid() == pid
        assert "PINEAPPLE" in json.dumps(model_api.last_saying("say more").body)
        slow = [call for call in model_api.prompts() if call.request.last_line.startswith("SLOW")]
        assert len(slow) == 1, "the interrupted prompt was sent again"


@pytest.mark.guarantee(name="control-always-returns")
@each_agent
async def test_an_interrupt_while_a_permission_is_open(keep: Open, agent: RealAgent) -> None:
    async with keep(agent, asking=True) as one:
        before, _ = await waiting_action(one, f"{agent.tool}: touch made.txt")
        begin = trio.current_time()
        await one.rest.act(one.id, "interrupt")
        assert trio.current_time() - begin < INTERRUPT_S
        await one.settle(before, "paused")
        assert "ECHO: go on" in answer_text(await one.turn("go on"))
        assert not (one.workspace / "made.txt").exists()


@pytest.mark.guarantee(name="old-history-is-ours")
@each_agent
async def test_a_killed_agent_comes_back_and_remembers(
    keep: Open, agent: RealAgent, model_api: ModelApi
) -> None:
    async with keep(agent) as one:
        await one.turn("remember the word WALNUT")
        # Twice: an agent may lose the session while it restores it, which only the next restore shows.
        for asked in ("what was the word", "and once more"):
            pid = await one.pid()
            os.kill(pid, signal.SIGKILL)
            await wait_gone(pid)
            # Nothing was put before the prompt: the agent's own session remembers.
            assert f"ECHO: {asked}" in answer_text(await one.turn_after_a_kill(asked))
            assert await one.pid() != pid
            assert "WALNUT" in json.dumps(model_api.last_saying(asked).body)


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
@each_agent
async def test_an_agent_killed_in_mid_stream(keep: Open, agent: RealAgent, model_api: ModelApi) -> None:
    async with keep(agent) as one:
        await one.turn("remember the word TURNIP")
        before = await one.begin("SLOW 600 50")
        await one.wait_delta("s3")
        os.kill(await one.pid(), signal.SIGKILL)
        events = await one.settle(before, "error")
        (error,) = of_kind(events, "ConversationErrorEvent")
        assert "SIGKILL" in error["detail"] or "signal 9" in error["detail"]
        assert "s2" in answer_text(events), summary(events)
        # Where the agent forgot, the model is told what was said before: either way it knows.
        assert "what was the word" in answer_text(await one.turn_after_a_kill("what was the word"))
        assert "TURNIP" in json.dumps(model_api.last_saying("what was the word").body)


@each_agent
async def test_a_missing_key_is_reported_as_such(talk: Open, agent: RealAgent, model_api: ModelApi) -> None:
    model_api.key = "another key"
    async with talk(agent, with_key=False) as one:
        events = await one.turn("say hello", wanted=("error",))
        (error,) = of_kind(events, "ConversationErrorEvent")
        assert error["code"] == "ACPAuthRequired", error
        # The key is given, the conversation goes on. An agent reads its environment when it starts.
        model_api.key = None
        await one.rest.put_secrets(agent.secrets(model_api.url))
        assert "ECHO: say hello again" in answer_text(await one.turn("say hello again"))


async def test_two_agents_at_once(talk: Open) -> None:
    async def speak(one: Talk, done: dict[str, str]) -> None:
        done[one.agent.key] = answer_text(await one.turn(f"say {one.agent.key}"))

    done: dict[str, str] = {}
    async with talk(CLAUDE_CODE) as claude, talk(CODEX) as codex, trio.open_nursery() as nursery:
        for each in (claude, codex):
            nursery.start_soon(speak, each, done)
    assert "ECHO: say claude-code" in done["claude-code"]
    assert "ECHO: say codex" in done["codex"]


@pytest.mark.guarantee(name="old-history-is-ours")
async def test_a_conversation_of_an_earlier_server_start_goes_on(
    tmp_path: Path, agents_prefix: Path, model_api: ModelApi
) -> None:
    agent = OPENCODE
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "agents").symlink_to(agents_prefix)
    await install(agent, agents_prefix)
    async with running_server(tmp_path) as server:
        await server.rest.put_secrets(agent.secrets(model_api.url))
        workspace = tmp_path / "workspace"
        conversation = (await server.rest.create(workspace, agent.agent_settings()))["id"]
        await server.rest.turn(conversation, "remember the word PINEAPPLE", timeout=TURN_S)
    async with running_server(tmp_path) as server:
        events = await server.rest.turn(conversation, "what was the word", timeout=TURN_S)
        assert "ECHO: what was the word" in answer_text(events)
    assert "PINEAPPLE" in json.dumps(model_api.last_saying("what was the word").body)


@pytest.mark.guarantee(name="nothing-survives")
async def test_a_killed_server_takes_four_agents_with_it_and_all_go_on(talk: Open) -> None:
    async with AsyncExitStack() as stack:
        talks = [await stack.enter_async_context(talk(agent)) for agent in REAL_AGENTS.values()]
        for one in talks:
            await one.turn(f"remember the word {one.agent.key.upper()}")
        await kill_server(talks)
        for one in talks:
            assert "ECHO: say and now" in answer_text(await one.turn_after_a_kill("say and now"))
            events = await one.rest.events(one.id)
            assert not of_kind(events, "ConversationErrorEvent")  # nothing was under way


@pytest.mark.guarantee(name="nothing-survives")
@each_agent
async def test_nothing_is_left_of_an_agent(keep: Open, agent: RealAgent) -> None:
    async with keep(agent) as one:
        await one.turn(f"{agent.tool}: sleep 0.1 && echo made > made.txt")
        await one.begin(f"{agent.tool}: touch began.txt; sleep 61")
        await wait_for_file(one.workspace / "began.txt")
        pids = await one.members()
        assert len(pids) > 1
        await one.rest.call("DELETE", f"/api/conversations/{one.id}")
        one.deleted = True
        deadline = trio.current_time() + 5
        while any(MARKER in environment(pid) for pid in pids if alive(pid)):
            assert trio.current_time() < deadline, "a process of the agent is still there"
            await trio.sleep(0.05)


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.guarantee(name="nothing-is-lost")
@pytest.mark.guarantee(name="no-blind-retry")
async def test_a_server_that_is_killed_in_the_middle_of_turns_tells_so_and_goes_on(
    talk: Open, model_api: ModelApi
) -> None:
    """Each agent runs a command, and a message waits behind that turn."""
    async with AsyncExitStack() as stack:
        talks = [await stack.enter_async_context(talk(agent)) for agent in (CLAUDE_CODE, CODEX, OPENCODE)]
        before: dict[str, int] = {}
        seen: dict[str, list[str]] = {}
        for one in talks:
            await one.turn("say hello first")
        for one in talks:  # soon after each other: Codex goes on without a command that takes ten seconds
            before[one.id] = await one.begin(f"{one.agent.tool}: echo ran >> ran.txt; sleep 61")
        for one in talks:
            await wait_for_file(one.workspace / "ran.txt")
            await one.rest.send(one.id, f"what waits for {one.agent.key}")
        for one in talks:
            seen[one.id] = [event["id"] for event in await one.rest.events(one.id)]
        await kill_server(talks)
        for one in talks:
            minute = MINUTE_S if one.agent.forgets_within_the_minute else 0.0
            events = await one.rest.settle(one.id, before[one.id], timeout=TURN_S + minute)
            assert f"ECHO: what waits for {one.agent.key}" in answer_text(events), summary(events)
            log = await one.rest.events(one.id)
            assert [event["id"] for event in log][: len(seen[one.id])] == seen[one.id]
            (told,) = of_kind(events, "ConversationErrorEvent")
            assert told["code"] == "ServerRestarted"
            ended = [e["value"] for e in events if e.get("key") == "turn" and e["value"]["status"] == "ended"]
            assert [each["stop_reason"] for each in ended] == ["interrupted", "end_turn"]
            calls = {e["tool_call_id"]: e["status"] for e in of_kind(events, "ACPToolCallEvent")}
            assert calls
            assert not {"pending", "in_progress"}.intersection(calls.values()), summary(events)
            # Nothing ran twice, no message was prompted twice.
            assert (one.workspace / "ran.txt").read_text() == "ran\n"
            asked = [e for e in of_kind(log, "MessageEvent") if "what waits for" in str(e["llm_message"])]
            assert len(asked) == 1
            assert "ECHO: say and now" in answer_text(await one.turn("say and now"))


async def kill_server(talks: Sequence[Talk]) -> None:
    """SIGKILL for the server of these, whose warden goes on: no process of an agent is left in time."""
    server = talks[0].server
    (main,) = [process for process in server.tree() if process.ppid == server.pid]
    below = [process.pid for process in server.tree() if process.pid != main.pid]
    agents = talks[0].pids()  # of the server, so of all of them
    assert len(agents) == len(talks)
    assert set(agents) < set(below)
    os.kill(main.pid, signal.SIGKILL)
    with trio.move_on_after(2):
        while any(map(alive, below)):
            await trio.sleep(0.02)
    assert [pid for pid in below if alive(pid)] == []


async def wait_gone(pid: int) -> None:
    await _poll(lambda: not alive(pid))
    await trio.sleep(0.3)  # the server sees it a moment later


async def wait_for_file(path: Path) -> None:
    await _poll(path.exists)


async def _poll(condition: Callable[[], bool]) -> None:
    with trio.fail_after(TURN_S):
        while not condition():
            await trio.sleep(0.02)
