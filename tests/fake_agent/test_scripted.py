"""The scripted agent does what its modes and directives promise: other tests stand on it."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.pipes import AgentError, PipeClient
from tests.support.processes import alive, info, kill, wait_until
from tests.support.scripted import ScriptedLog, scripted_command

Start = Callable[..., PipeClient]


@pytest.fixture
def log(tmp_path: Path) -> ScriptedLog:
    return ScriptedLog(tmp_path / "log.jsonl")


@pytest.fixture
def start(tmp_path: Path, log: ScriptedLog) -> Iterator[Start]:
    clients: list[PipeClient] = []

    def begin(*modes: str) -> PipeClient:
        command = scripted_command(*modes, log=log.path, home=tmp_path / "home")
        clients.append(PipeClient(command, tmp_path))
        return clients[-1]

    yield begin
    kill(log.children())
    for client in clients:
        client.__exit__()


def test_echoes_and_writes_down_what_it_received(start: Start, log: ScriptedLog, tmp_path: Path) -> None:
    agent = start().open()
    assert agent.prompt("hello there") == {"stopReason": "end_turn"}
    assert agent.text() == "echo: hello there "
    assert agent.kinds() == ["agent_message_chunk"] * 3
    assert log.prompts() == ["hello there"]
    assert log.pids() == [agent.process.pid]
    started = log.records("start")[0]
    assert started["cwd"] == str(tmp_path)
    assert "PATH" in started["environment"]


def test_updates_come_before_the_answer(start: Start) -> None:
    agent = start().open()
    request = agent.begin_prompt("!flood 3000")
    agent.finish(request)
    assert agent.order[-1] == f"answer {request}"
    assert agent.text() == "".join(f"d{n} " for n in range(3000))


def test_rich_turn_has_every_kind_of_update(start: Start) -> None:
    agent = start().open()
    answer = agent.prompt("!rich")
    assert answer["usage"]["totalTokens"] == 1200
    assert agent.kinds() == [
        "agent_thought_chunk",
        "agent_message_chunk",
        "tool_call",
        "tool_call_update",
        "tool_call_update",
        "agent_message_chunk",
        "plan",
        "available_commands_update",
        "current_mode_update",
        "config_option_update",
        "session_info_update",
        "notice",
        "compaction_update",
        "compaction_update",
        "usage_update",
    ]


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "max_turn_requests", "end_turn"])
def test_stop_reasons(start: Start, reason: str) -> None:
    assert start().open().prompt(f"!stop {reason}") == {"stopReason": reason}


def test_a_script_replaces_the_prompts(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"modes": ["usage"], "turns": ["!text one", "!stop refusal"]}')
    with PipeClient([*scripted_command(), "--script", str(script)], tmp_path) as agent:
        agent.open()
        assert agent.prompt("x")["usage"]["totalTokens"] == 100
        assert agent.text() == "one"
        assert agent.prompt("x") == {"stopReason": "refusal"}


def test_unknown_modes_end_the_program(tmp_path: Path) -> None:
    with PipeClient(scripted_command("tpyo"), tmp_path) as agent:
        assert agent.process.wait(5) == 1


# -- starting
@pytest.mark.parametrize(
    ("mode", "code"), [("crash=start:3", 3), ("crash=start:SEGV", -11), ("crash=start:KILL", -9)]
)
def test_crash_before_initialize(start: Start, mode: str, code: int) -> None:
    agent = start(mode, "stderr=2")
    with pytest.raises((ConnectionError, BrokenPipeError)):
        agent.initialize()
    assert agent.process.wait(5) == code
    assert wait_until(lambda: agent.stderr.count(b"\n") == 2)


def open_and_prompt_twice(agent: PipeClient) -> None:
    agent.open().prompt("one two three four five")
    agent.process.wait(5)
    agent.prompt("again", timeout=5)


@pytest.mark.parametrize("point", ["init", "new", "prompt", "turn", "idle"])
def test_crash_points(start: Start, point: str) -> None:
    agent = start(f"crash={point}:7")
    with pytest.raises(ConnectionError):
        open_and_prompt_twice(agent)
    assert agent.process.wait(5) == 7
    assert len(agent.updates) == {"turn": 3, "idle": 6}.get(point, 0)


def test_crash_in_the_middle_of_a_load(start: Start) -> None:
    first = start().open()
    first.prompt("one")
    second = start("crash=replay:5")
    second.initialize()
    with pytest.raises(ConnectionError):
        second.call("session/load", {"sessionId": first.session, "cwd": "/", "mcpServers": []})
    assert second.kinds() == ["user_message_chunk"]
    assert second.process.wait(5) == 5


def test_trouble_can_end_with_a_later_start(start: Start, log: ScriptedLog) -> None:
    for _ in range(2):
        assert start("crash=start:1", "until-start=2").process.wait(5) == 1
    start("crash=start:1", "until-start=2").initialize()
    assert [record["number"] for record in log.records("start")] == [1, 2, 3]


def test_slow_and_hanging_points(start: Start) -> None:
    agent = start("slow=init:0.2", "hang=new")
    begin = time.monotonic()
    agent.initialize()
    assert time.monotonic() - begin >= 0.2
    with pytest.raises(queue.Empty):
        agent.new(timeout=0.2)


def test_silent(start: Start, log: ScriptedLog) -> None:
    agent = start("silent")
    with pytest.raises(queue.Empty):
        agent.initialize(timeout=0.3)
    assert len(log.received("initialize")) == 1


def test_banner_and_noise(start: Start) -> None:
    agent = start("banner=2", "noise").open()
    assert agent.prompt("x") == {"stopReason": "end_turn"}
    assert agent.noise[0] == b"Welcome to the scripted agent, line 1\n"
    assert len(agent.noise) > 6


def test_byte_order_mark(start: Start) -> None:
    agent = start("bom")
    agent.initialize()
    assert agent.first_line.startswith(b"\xef\xbb\xbf{")


def test_v2(start: Start) -> None:
    answer = start("protocol=2").initialize()
    assert answer["protocolVersion"] == 2
    assert "agentCapabilities" not in answer


def new_and_prompt(agent: PipeClient) -> None:
    agent.new()
    agent.prompt("x")


@pytest.mark.parametrize(("mode", "method"), [("key=NO_KEY", "new"), ("prompt-key=NO_KEY", "prompt")])
def test_needs_a_key_until_authenticated(start: Start, mode: str, method: str) -> None:
    agent = start(mode, "auth=paste")
    assert agent.initialize()["authMethods"][0]["id"] == "paste"
    with pytest.raises(AgentError, match="-32000"):
        new_and_prompt(agent)
    assert (agent.session != "") == (method == "prompt")
    agent.call("authenticate", {"methodId": "paste"})
    agent.new()
    agent.prompt("x")


def test_answers_the_errors_it_is_told(start: Start) -> None:
    agent = start("error=mode:-32602:no such mode", "error=prompt:-32603:overloaded").open()
    with pytest.raises(AgentError, match="-32602 no such mode"):
        agent.call("session/set_mode", {"sessionId": agent.session, "modeId": "yolo"})
    with pytest.raises(AgentError, match="-32603 overloaded"):
        agent.prompt("x")


def test_transient_and_deterministic_errors(start: Start) -> None:
    agent = start().open()
    for _ in range(2):
        with pytest.raises(AgentError, match="-32603 overloaded_error"):
            agent.prompt("!flaky 2 -32603 overloaded_error")
    assert agent.prompt("!flaky 2 -32603 overloaded_error") == {"stopReason": "end_turn"}
    for _ in range(3):
        with pytest.raises(AgentError, match="-32603 bad model"):
            agent.prompt("!error -32603 bad model")


# -- sessions
def test_load_replays_and_resume_does_not(start: Start) -> None:
    first = start().open()
    first.prompt("remember PINEAPPLE")
    params = {"sessionId": first.session, "cwd": "/", "mcpServers": []}
    loaded = start()
    loaded.initialize()
    assert loaded.call("session/load", params)["modes"]["currentModeId"] == "default"
    assert loaded.kinds() == ["user_message_chunk", "agent_message_chunk"]
    resumed = start()
    resumed.initialize()
    resumed.call("session/resume", params)
    assert resumed.updates == []
    resumed.session = first.session
    resumed.prompt("!remember")
    assert "PINEAPPLE" in resumed.text()


def test_load_of_unknown_sessions_and_without_support(start: Start) -> None:
    agent = start("without=resume,list", "null-load").open()
    with pytest.raises(AgentError, match="-32002"):
        agent.call("session/load", {"sessionId": "scripted-nope", "cwd": "/", "mcpServers": []})
    with pytest.raises(AgentError, match="-32601"):
        agent.call("session/resume", {"sessionId": agent.session, "cwd": "/", "mcpServers": []})
    params = {"sessionId": agent.session, "cwd": "/", "mcpServers": []}
    assert agent.call("session/load", params) is None


def test_options_models_and_groups(start: Start) -> None:
    agent = start("grouped-models")
    agent.initialize()
    options = {option["id"]: option for option in agent.new()["configOptions"]}
    assert options["model"]["options"][0]["group"] == "small"
    params = {"sessionId": agent.session, "configId": "model", "value": "large"}
    changed = agent.call("session/set_config_option", params)["configOptions"]
    assert [o["currentValue"] for o in changed if o["id"] == "model"] == ["large"]
    with pytest.raises(AgentError, match="-32602"):
        agent.call("session/set_config_option", {**params, "value": "enormous"})


def test_many_sessions_in_one_process_with_their_own_tool_ids(start: Start) -> None:
    agent = start().open()
    first = agent.session
    agent.prompt("!tool")
    agent.new()
    agent.prompt("!tool")
    ids = {(u["sessionId"] == first, u["update"].get("toolCallId")) for u in agent.updates}
    assert ids == {(True, "call_1"), (False, "call_1")}


# -- cancelling
@pytest.mark.parametrize(
    ("how", "stop"), [("obey", "cancelled"), ("late:0.2", "cancelled"), ("end_turn", "end_turn")]
)
def test_cancel_ends_the_turn(start: Start, how: str, stop: str) -> None:
    agent = start(f"cancel={how}").open()
    request = agent.begin_prompt("!slow 500 20")
    assert wait_until(lambda: len(agent.updates) >= 2)
    agent.cancel()
    assert agent.finish(request)["stopReason"] == stop
    assert len(agent.updates) < 100


def test_cancel_answered_with_an_error_ignored_or_fatal(start: Start) -> None:
    agent = start().open()
    request = agent.begin_prompt("!oncancel error\n!hang")
    time.sleep(0.1)
    agent.cancel()
    with pytest.raises(AgentError, match="-32603"):
        agent.finish(request)
    request = agent.begin_prompt("!oncancel ignore\n!slow 20 20")
    assert wait_until(lambda: len(agent.updates) >= 2)
    agent.cancel()
    assert agent.finish(request)["stopReason"] == "end_turn"
    assert len(agent.updates) == 20
    request = agent.begin_prompt("!oncancel crash:4\n!hang")
    time.sleep(0.1)
    agent.cancel()
    with pytest.raises(ConnectionError):
        agent.finish(request)
    assert agent.process.wait(5) == 4


# -- asking
def test_permission_offers_allow_always_first(start: Start) -> None:
    agent = start().open()
    agent.prompt("!perm")
    kinds = [option["kind"] for option in agent.requests[0]["params"]["options"]]
    assert kinds == ["allow_always", "allow_once", "reject_once", "reject_always"]
    assert agent.text() == "allowed "
    agent.decide = lambda params: "reject_once"
    agent.prompt("!write note.txt hello")
    assert not (agent.cwd / "note.txt").exists()
    agent.decide = lambda params: "allow_once"
    agent.prompt("!write note.txt hello")
    assert (agent.cwd / "note.txt").read_text() == "hello"


def test_a_cancelled_turn_waits_for_its_permission(start: Start) -> None:
    agent = start().open()
    agent.decide = lambda params: None
    request = agent.begin_prompt("!perm")
    assert wait_until(lambda: bool(agent.requests))
    agent.cancel()
    with pytest.raises(queue.Empty):
        agent.finish(request, timeout=0.2)
    agent.answer_permission(agent.requests[0], "cancelled")
    assert agent.finish(request)["stopReason"] == "cancelled"


def test_permission_storm_and_other_requests(start: Start) -> None:
    agent = start().open()
    agent.prompt("!perms 20\n!elicit\n!request nope/nope")
    assert len(agent.requests) == 22
    assert agent.text().startswith("allowed 20 of 20 elicitation/create -> error -32601")


# -- breaking the rules
def test_frames_that_break_rules(start: Start) -> None:
    agent = start().open()
    lines = ("!huge 3000000", "!split 2", "!unknown", "!badtypes", "!noid", "!strayupdate", "!duptool")
    agent.prompt("\n".join((*lines, "!junk 5000", "!raw [1")))
    assert [len(line) for line in agent.noise] == [5001, 3]
    assert len(agent.updates[0]["update"]["content"]["text"]) == 3_000_000
    assert agent.updates[1]["update"]["content"]["text"] == "aé€😀" * 2
    assert "hologram_update" in [u["update"].get("sessionUpdate") for u in agent.updates[:4]]


@pytest.fixture
def chatty(start: Start) -> PipeClient:
    return start("chatty").open()


def test_updates_outside_turns_and_after_the_answer(chatty: PipeClient) -> None:
    assert wait_until(lambda: len(chatty.updates) == 3)
    request = chatty.begin_prompt("!after 2\n!later 0.1")
    chatty.finish(request)
    assert wait_until(lambda: chatty.kinds()[-1:] == ["session_info_update"] and len(chatty.updates) == 9)
    after = chatty.order[chatty.order.index(f"answer {request}") :]
    assert after.count("update") == 6


# -- processes
def test_ignores_the_end_of_stdin_and_sigterm(start: Start) -> None:
    agent = start("ignore-eof", "ignore-term").open()
    agent.close_stdin()
    agent.process.send_signal(signal.SIGTERM)
    with pytest.raises(Exception, match="timed out"):
        agent.process.wait(0.4)


def test_ends_with_stdin(start: Start) -> None:
    agent = start().open()
    agent.close_stdin()
    assert agent.process.wait(5) == 0


def test_stdout_ends_before_the_process(start: Start) -> None:
    agent = start().open()
    with pytest.raises(ConnectionError):
        agent.prompt("!eof\n!hang", timeout=5)
    assert agent.process.poll() is None


def sid_of(pid: int) -> int:
    found = info(pid)
    assert found is not None
    return found.sid


def test_grandchildren_outlive_the_agent(start: Start, log: ScriptedLog) -> None:
    agent = start("grandchild=plain,stubborn,session,daemon,pipe").open()
    request = agent.begin_prompt("!crash 9")
    assert agent.process.wait(5) == 9
    plain, stubborn, session, daemon, pipe = log.children()
    assert all(alive(pid) for pid in log.children())
    assert [sid_of(pid) == agent.process.pid for pid in log.children()] == [True, True, False, False, True]
    assert sid_of(session) == session
    assert sid_of(daemon) != daemon
    assert sid_of(plain) == sid_of(pipe)
    with pytest.raises(queue.Empty):  # the pipe is still held
        agent.finish(request, timeout=0.2)
    kill([pipe])
    with pytest.raises(ConnectionError):
        agent.finish(request, timeout=5)
    kill([stubborn], signal.SIGTERM)
    assert alive(stubborn)
