"""The built-in agent's tools: each told as an action and an observation of its own kind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from supervisor.agents.builtin.program import QUIET
from tests.interop.builtin_program import (
    PROGRAM,
    Session,
    accept,
    agent,
    call,
    calls,
    finish,
    reject,
    says,
    status,
    text_of,
)
from tests.interop.model_api.script import Answer
from tests.interop.model_api.server import ModelApi
from tests.support.mcp_servers import STDIO, real_server
from tests.support.processes import descendants, kill

pytestmark = [pytest.mark.interop, pytest.mark.guarantee(name="every-event-can-be-read")]


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[str]:
    """A web server of one page."""
    (tmp_path / "page.html").write_text("<title>Here</title><h1>Heading of the page</h1>")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_text_is_streamed_and_becomes_the_event_of_its_id(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api))
    model_api.answers.extend([says("Good ", "morning", thoughts=("It is ", "early."))])
    message = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    answer = session.say("", message=message, message_id="0198f2a0-0000-7000-8000-000000000001")
    assert answer == {"stopReason": "end_turn", "_meta": {"ostler": {"status": "finished"}}}
    assert session.kinds == ["SystemPromptEvent", "agent says"]  # the user's message is known already
    told = session.last("MessageEvent")
    assert text_of(told["llm_message"]["content"]) == "Good morning"
    assert told["llm_message"]["reasoning_content"] == "It is early."
    assert told["parent_id"] == "0198f2a0-0000-7000-8000-000000000001"
    assert {item.item_id for item in session.items} == {told["id"]}
    pieces = dict.fromkeys(("text", "reasoning"), "")
    for item in session.items[1:]:
        pieces[item.kind] += item.content  # type: ignore[union-attr]
    assert pieces == {"text": "Good morning", "reasoning": "It is early."}
    assert session.states[-1].key == "stats"
    usage = session.states[-1].value["usage_to_metrics"]["agent"]["accumulated_token_usage"]
    assert usage["prompt_tokens"] == 100


def test_a_terminal(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "terminal"))
    model_api.answers.extend(
        [call("terminal", "I look.", command="echo wo$((3*7))rd; exit_code() { return 3; }; exit_code")]
    )
    model_api.answers.extend([call("terminal", command="seq 100000"), finish("looked")])
    assert status(session.say("look")) == "finished"
    assert session.kinds == [
        "SystemPromptEvent",
        "user says",
        *["TerminalAction", "TerminalObservation"] * 2,
        *["FinishAction", "FinishObservation"],
    ]
    first, second = (event["observation"] for event in session.of("ObservationEvent")[:2])
    assert "wo21rd" in text_of(first["content"])
    assert first["exit_code"] == 3
    assert 1000 < len(text_of(second["content"])) < 40_000  # the SDK's own bound
    action = session.of("ActionEvent")[0]
    assert (text_of(action["thought"]), action["tool_name"]) == ("I look.", "terminal")
    assert session.of("ObservationEvent")[0]["action_id"] == action["id"]


def test_a_file_is_edited_and_the_edit_undone(session: Session, model_api: ModelApi) -> None:
    path = session.workspace / "text.txt"
    session.open(agent(model_api, "file_editor"))
    create = call("file_editor", command="create", path=str(path), file_text="one\ntwo\n")
    replace = call("file_editor", command="str_replace", path=str(path), old_str="two", new_str="three")
    undo = call("file_editor", command="undo_edit", path=str(path))
    model_api.answers.extend([create, replace, finish()])
    session.say("edit")
    assert path.read_text() == "one\nthree\n"
    observed = session.of("ObservationEvent")[1]["observation"]
    assert (observed["old_content"], observed["new_content"]) == ("one\ntwo\n", "one\nthree\n")
    model_api.answers.extend([undo, call("file_editor", command="view", path=str(path)), finish()])
    session.say("undo")
    assert path.read_text() == "one\ntwo\n"
    assert session.kinds.count("FileEditorAction") == session.kinds.count("FileEditorObservation") == 4


def test_files_are_found(session: Session, model_api: ModelApi) -> None:
    (session.workspace / "a.py").write_text("needle = 1\n")
    (session.workspace / "b.txt").write_text("hay\n")
    session.open(agent(model_api, "glob", "grep"))
    model_api.answers.extend([call("glob", pattern="*.py"), call("grep", pattern="needle"), finish()])
    session.say("find")
    glob, grep = (event["observation"] for event in session.of("ObservationEvent")[:2])
    assert (glob["kind"], grep["kind"]) == ("GlobObservation", "GrepObservation")
    assert [Path(file).name for file in glob["files"]] == ["a.py"]
    assert "a.py" in str(grep["matches"])


def test_tasks_plans_and_thoughts(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "task_tracker", "planning_file_editor"))
    tasks = [{"title": "First", "notes": "", "status": "in_progress"}]
    plan = session.workspace / "PLAN.md"
    model_api.answers.extend(
        [
            call("task_tracker", command="plan", task_list=tasks),
            call("think", thought="Let me see."),
            call("planning_file_editor", command="create", path=str(plan), file_text="# Plan\n"),
            finish(),
        ]
    )
    session.say("plan")
    assert session.kinds[2:] == [
        *["TaskTrackerAction", "TaskTrackerObservation", "ThinkAction", "ThinkObservation"],
        *["PlanningFileEditorAction", "PlanningFileEditorObservation", "FinishAction", "FinishObservation"],
    ]
    assert session.of("ObservationEvent")[0]["observation"]["task_list"] == tasks


def test_tools_in_the_manner_of_gemini(session: Session, model_api: ModelApi) -> None:
    path = session.workspace / "text.txt"
    session.open(agent(model_api, "read_file", "write_file", "edit", "list_directory"))
    model_api.answers.extend(
        [
            call("write_file", file_path=str(path), content="one\n"),
            call("edit", file_path=str(path), old_string="one", new_string="two"),
            call("read_file", file_path=str(path)),
            call("list_directory", dir_path=str(session.workspace)),
            finish(),
        ]
    )
    session.say("write")
    assert session.kinds[2:-2] == [
        *["WriteFileAction", "WriteFileObservation", "EditAction", "EditObservation"],
        *["ReadFileAction", "ReadFileObservation", "ListDirectoryAction", "ListDirectoryObservation"],
    ]
    assert path.read_text() == "two\n"


@pytest.mark.parametrize("kind", ["stdio", "http"])
def test_servers_of_mcp(session: Session, model_api: ModelApi, tmp_path: Path, kind: str) -> None:
    with real_server("http", tmp_path) as running:
        if kind == "stdio":
            entry = {"name": "adder", **STDIO, "env": []}
        else:
            entry = {"name": "adder", "type": "http", "url": running.url, "headers": []}
        session.open(agent(model_api), servers=[entry])
        model_api.answers.extend([call("secret_sum", a=1, b=2), finish()])
        session.say("add")
    assert session.kinds[2:4] == ["MCPToolAction", "MCPToolObservation"]
    assert session.of("ActionEvent")[0]["action"]["data"] == {"a": 1, "b": 2}
    assert "the secret sum is 1003" in text_of(session.of("ObservationEvent")[0]["observation"]["content"])


def test_a_child_conversation_is_ostlers_to_start(session: Session, model_api: ModelApi) -> None:
    """The SDK's tool sends a request to a server at an address that this process does not have."""
    session.open(agent(model_api, "start_child_conversation"))
    told = {
        "conversation_id": "c" * 32,
        "parent_conversation_id": session.id,
        "status": "idle",
        "title": "Help",
        "url": None,
        "workspace": "/w",
        "isolation": "shared",
    }
    session.child = lambda _: {"result": told}
    wanted = {"task": "do it", "title": "Help", "isolation": "shared"}
    model_api.answers.extend([call("start_child_conversation", **wanted), finish()])
    session.say("start one")
    assert session.children == [{"sessionId": session.id, **wanted}]
    assert session.kinds[2:4] == ["StartChildConversationAction", "StartChildConversationObservation"]
    (seen, _) = session.of("ObservationEvent")
    assert told.items() <= {"url": None, **seen["observation"]}.items()
    session.child = lambda _: {"error": {"code": -32602, "message": "There are enough."}}
    model_api.answers.extend([call("start_child_conversation", task="more"), finish()])
    session.say("start another")
    refused = session.of("ObservationEvent")[2]["observation"]
    assert refused["is_error"]
    assert "There are enough." in text_of(refused["content"])


def test_calls_of_one_answer_run_at_once(session: Session, model_api: ModelApi) -> None:
    """They wait for one another: one alone would not end."""
    session.open(agent(model_api, "terminal", tool_concurrency_limit=2))
    command = "touch {0}; until [ -e {1} ]; do sleep 0.05; done; echo met {1}"
    pair = [("terminal", {"command": command.format(*names)}) for names in (("a", "b"), ("b", "a"))]
    model_api.answers.extend([calls(*pair), finish()])
    session.say("meet")
    first, second, _ = session.of("ActionEvent")
    assert first["llm_response_id"] == second["llm_response_id"]
    assert session.kinds[2:6] == ["TerminalAction"] * 2 + ["TerminalObservation"] * 2
    told = [text_of(event["observation"]["content"]) for event in session.of("ObservationEvent")[:2]]
    assert ["met b" in told[0], "met a" in told[1]] == [True, True]


def test_calls_that_are_wrong(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "terminal"))
    model_api.answers.extend([call("nothing", a=1), call("terminal", what="?"), finish()])
    session.say("try")
    assert session.kinds[2:6] == ["no action", "AgentErrorEvent"] * 2
    assert "not found" in session.of("AgentErrorEvent")[0]["error"]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium")
def test_a_browser_that_dies(session: Session, model_api: ModelApi, pages: str) -> None:
    session.open(agent(model_api, "browser_tool_set"))
    visit = call("browser_navigate", url=f"{pages}/page.html")
    model_api.answers.extend([visit, call("browser_get_content"), says("seen")])
    session.say("browse")
    assert session.kinds[2:6] == [
        *["BrowserNavigateAction", "BrowserObservation", "BrowserGetContentAction", "BrowserObservation"]
    ]
    assert "Heading of the page" in text_of(session.observed()["content"])
    assert "browser_navigate" in {tool["title"] for tool in session.last("SystemPromptEvent")["tools"]}

    browsers = [each.pid for each in descendants(session.program.process.pid) if "chrom" in each.name]
    assert browsers
    kill(browsers)
    model_api.answers.extend([visit, call("browser_get_content"), says("seen again")])
    assert status(session.say("again")) == "finished"
    assert len(session.of("ObservationEvent")) + len(session.of("AgentErrorEvent")) == 4


def test_a_task_is_given_to_a_sub_agent(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "task_tool_set", "terminal"))
    order = {"description": "Look", "prompt": "Look around.", "subagent_type": "general-purpose"}
    model_api.answers.extend([call("task", **order), finish("I looked around."), finish("all done")])
    assert status(session.say("delegate")) == "finished"
    assert session.kinds[2:4] == ["TaskAction", "TaskObservation"]
    observed = session.of("ObservationEvent")[0]["observation"]
    assert (observed["subagent"], "I looked around." in text_of(observed["content"])) == (
        "general-purpose",
        True,
    )


ORDER = {"description": "Look", "prompt": "Look around.", "subagent_type": "general-purpose"}


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
def test_a_person_is_asked_about_what_a_sub_agent_does(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api, "task_tool_set", "terminal"), confirmation_policy={"kind": "AlwaysConfirm"})
    titles: list[str] = []

    def decide(asked: dict[str, Any]) -> dict[str, Any]:
        titles.append(asked["toolCall"]["title"])
        forbidden = "forbidden" in json.dumps(asked["toolCall"]["rawInput"])
        return reject("not there")(asked) if forbidden else accept(asked)

    session.decide = decide
    model_api.answers.extend(
        [
            call("task", **ORDER),
            calls(("terminal", {"command": "touch allowed"})),
            calls(("terminal", {"command": "touch forbidden"})),
            says("I looked around."),
            says("all done"),
        ]
    )
    assert session.say("delegate")["_meta"]["ostler"]["status"] == "finished"
    assert session.kinds[2:4] == ["TaskAction", "TaskObservation"]
    assert "not there" in json.dumps(model_api.calls[3].body["messages"])  # the sub-agent is told
    assert (session.workspace / "allowed").exists()
    assert not (session.workspace / "forbidden").exists()
    assert len(session.asked) == 3
    action = session.of("ActionEvent")[0]["id"]  # its own are in no log that clients see
    assert {asked["toolCall"]["_meta"]["ostler"]["eventId"] for asked in session.asked} == {action}
    assert [("terminal" in title, "touch" in title) for title in titles] == [
        (False, False),
        *[(True, True)] * 2,
    ]
    usage = [state.value for state in session.states if state.key == "stats"][-1]["usage_to_metrics"]
    assert any(name.startswith("task:") for name in usage)


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
def test_a_person_sees_what_a_sub_agent_wants_and_how_risky_it_is(
    session: Session, model_api: ModelApi
) -> None:
    session.open(
        agent(model_api, "task_tool_set", "terminal"),
        confirmation_policy={"kind": "AlwaysConfirm"},
        security_analyzer={"kind": "LLMSecurityAnalyzer"},
    )
    said = {"summary": "harmless " * 40, "security_risk": "HIGH"}
    run = calls(("terminal", {**said, "command": "touch here"}))
    model_api.answers.extend(
        [call("task", **ORDER, security_risk="LOW"), run, says("I looked."), says("done")]
    )
    assert session.say("delegate")["_meta"]["ostler"]["status"] == "finished"
    asked = session.asked[1]["toolCall"]
    assert asked["title"] == 'task_00000001: terminal {"command": "touch here"}'
    assert asked["rawInput"]["command"] == "touch here"
    assert asked["_meta"]["ostler"]["securityRisk"] == "HIGH"


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
def test_each_sub_agent_is_asked_about_under_its_own_action(session: Session, model_api: ModelApi) -> None:
    """Two at once."""
    session.open(
        agent(model_api, "task_tool_set", "terminal", tool_concurrency_limit=2),
        confirmation_policy={"kind": "ConfirmRisky", "threshold": "HIGH", "confirm_unknown": False},
        security_analyzer={"kind": "LLMSecurityAnalyzer"},
    )
    both = threading.Barrier(2, timeout=30.0)
    sides = {"task_00000001": "", "task_00000002": ""}

    def decide(asked: dict[str, Any]) -> dict[str, Any]:
        meta = asked["toolCall"]["_meta"]["ostler"]
        sides[meta["subAgent"]] = meta["eventId"]
        both.wait()
        return accept(asked)

    session.decide = decide
    orders = [("task", {**ORDER, "security_risk": "LOW"})] * 2
    run = calls(("terminal", {"command": "true", "security_risk": "HIGH"}))
    model_api.answers.extend([calls(*orders), run, run, says("I looked."), says("I looked."), says("done")])
    assert session.say("delegate")["_meta"]["ostler"]["status"] == "finished"
    ends = session.of("ObservationEvent")
    assert sides == {each["observation"]["task_id"]: each["action_id"] for each in ends}
    assert len(set(sides.values())) == 2


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
def test_a_sub_agent_has_the_hooks_of_its_parent(session: Session, model_api: ModelApi) -> None:
    forbid = "if grep -q forbidden; then echo 'not here' >&2; exit 2; fi"
    hooks = {"pre_tool_use": [{"matcher": "terminal", "hooks": [{"type": "command", "command": forbid}]}]}
    session.open(agent(model_api, "task_tool_set", "terminal"), hook_config=hooks)
    commands = [calls(("terminal", {"command": f"touch {name}"})) for name in ("allowed", "forbidden")]
    model_api.answers.extend([call("task", **ORDER), *commands, says("I looked around."), says("all done")])
    assert session.say("delegate")["_meta"]["ostler"]["status"] == "finished"
    assert "not here" in json.dumps(model_api.calls[3].body["messages"])
    assert [(session.workspace / name).exists() for name in ("allowed", "forbidden")] == [True, False]


def definition(session: Session, name: str, **more: Any) -> dict[str, Any]:
    """Put a sub-agent into the workspace, as a repository may; the order for it."""
    place = session.workspace / ".agents" / "agents"
    place.mkdir(parents=True)
    head = {"name": name, "description": "Looks around.", "tools": ["terminal"], **more}
    (place / f"{name}.md").write_text(f"---\n{json.dumps(head)}\n---\nLook around.\n")
    return {**ORDER, "subagent_type": name}


@pytest.mark.guarantee(name="repositories-with-hooks")
@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize(
    ("mode", "policy", "asked"),
    [
        ("never_confirm", {"kind": "AlwaysConfirm"}, 2),
        ("confirm_risky", {"kind": "AlwaysConfirm"}, 2),
        ("always_confirm", {"kind": "NeverConfirm"}, 1),
    ],
)
def test_a_file_of_the_workspace_turns_no_confirmation_off(
    session: Session, model_api: ModelApi, mode: str, policy: dict[str, Any], asked: int
) -> None:
    order = definition(session, f"its-{mode}-{asked}", permission_mode=mode)
    session.open(
        agent(model_api, "task_tool_set", "terminal"),
        confirmation_policy=policy,
        security_analyzer={"kind": "LLMSecurityAnalyzer"},
    )
    run = calls(("terminal", {"command": "touch here", "security_risk": "LOW"}))
    model_api.answers.extend([call("task", **order), run, says("I looked."), says("all done")])
    assert session.say("delegate")["_meta"]["ostler"]["status"] == "finished"
    assert (session.workspace / "here").exists()
    assert len(session.asked) == asked


@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize(("risk", "asked"), [("LOW", 0), ("HIGH", 1)])
def test_the_risk_of_what_a_sub_agent_does_is_judged(
    session: Session, model_api: ModelApi, risk: str, asked: int
) -> None:
    session.open(
        agent(model_api, "task_tool_set", "terminal"),
        confirmation_policy={"kind": "ConfirmRisky", "threshold": "HIGH", "confirm_unknown": False},
        security_analyzer={"kind": "LLMSecurityAnalyzer"},
    )
    run = calls(("terminal", {"command": "touch here", "security_risk": risk}))
    model_api.answers.extend([call("task", **ORDER), run, says("I looked."), says("all done")])
    assert session.say("delegate")["_meta"]["ostler"]["status"] == "finished"
    assert len(session.asked) == asked


@pytest.mark.guarantee(name="repositories-with-hooks")
@pytest.mark.guarantee(name="a-person-is-asked-about-what-is-risky")
@pytest.mark.parametrize("allowed", [False, True])
def test_hooks_of_the_workspace_run_if_the_operator_says_so(
    session: Session, model_api: ModelApi, allowed: bool
) -> None:
    def hooks(name: str) -> dict[str, Any]:
        command = {"type": "command", "command": f"touch {session.workspace}/{name}"}
        return {"session_start": [{"matcher": "*", "hooks": [command]}]}

    order = definition(session, f"hooked-{allowed}".lower(), hooks=hooks("by-agent"))
    place = session.workspace / ".openhands" / "plugins" / "theirs"
    for name, written in (
        (".plugin/plugin.json", {"name": "theirs"}),
        ("hooks/hooks.json", hooks("by-plugin")),
    ):
        (place / name).parent.mkdir(parents=True)
        (place / name).write_text(json.dumps(written))
    session.open(agent(model_api, "task_tool_set", "terminal"), project_hooks=allowed)
    model_api.answers.extend([call("task", **order), says("I looked."), says("all done")])
    assert session.say("delegate")["_meta"]["ostler"]["status"] == "finished"
    assert [(session.workspace / name).exists() for name in ("by-agent", "by-plugin")] == [allowed] * 2


@pytest.mark.guarantee(name="what-began-is-ended")
def test_an_interrupt_ends_a_sub_agent(session: Session, model_api: ModelApi) -> None:
    """In the middle of its command, and of its model's answer."""
    session.open(agent(model_api, "task_tool_set", "terminal"))
    beats = session.workspace / "beats"
    command = "for i in $(seq 600); do echo beat >> beats; sleep 0.1; done"
    for answer, began in (
        (calls(("terminal", {"command": command})), beats.exists),
        (Answer(hang=True), lambda: len(model_api.calls) == 5),
    ):
        model_api.answers.extend([call("task", **ORDER), answer])
        turn = session.saying("delegate")
        session.until(began)
        session.cancel()
        assert turn(6.0)["stopReason"] == "cancelled"
        asked = len(model_api.calls)
        model_api.answers.clear()
        model_api.answers.append(says("here I am"))
        assert session.say("go on")["_meta"]["ostler"]["status"] == "finished"
        assert len(model_api.calls) == asked + 1  # the sub-agent asks nothing any more
        heard = beats.stat().st_size
        time.sleep(0.5)
        assert beats.stat().st_size == heard


@pytest.mark.guarantee(name="what-began-is-ended")
def test_an_interrupt_that_meets_the_end_of_a_sub_agent(builtin_python: Path, tmp_path: Path) -> None:
    script = """
import asyncio, sys, threading, types
sys.path.insert(0, sys.argv[1])
from builtin.children import Children

began, go_on = threading.Event(), threading.Event()

class Token:
    def cancel(self):
        go_on.set()
        thread.join(0.5)

class Child:
    cancel_token = Token()
    __hash__ = object.__hash__

class Meeting(Children):
    async def _steps(self, *_):
        began.set()
        go_on.wait()

def run(child):
    agent = types.SimpleNamespace(tool_concurrency_limit=1)
    child.children, child.agent = children, agent
    child.state = parent.state
    child.set_confirmation_policy = child.set_security_analyzer = lambda each: None
    asyncio.run(children.run("one", child, parent))

from openhands.sdk.security.confirmation_policy import NeverConfirm
state = types.SimpleNamespace(confirmation_policy=NeverConfirm(), security_analyzer=None, hook_config=None)
parent = Child()
parent.state = state
children = Meeting(None)
thread = threading.Thread(target=run, args=(Child(),))
thread.start()
began.wait()
children.interrupt()
thread.join()
print("went on")
"""
    made = subprocess.run(
        [str(builtin_python), "-c", script, str(PROGRAM.parent)],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **QUIET},
    )
    assert made.stdout.endswith("went on\n"), made.stderr[-2000:]


def plugin(place: Path, name: str, *, log: Path, servers: dict[str, Any] | None = None) -> Path:
    """A plugin with something of every kind."""
    files = {
        ".plugin/plugin.json": json.dumps({"name": name, "version": "1.0.0", "description": "A test"}),
        f"skills/{name}-skill/SKILL.md": f"---\nname: {name}-skill\ndescription: Of {name}\n"
        f"triggers:\n- {name}\n---\nThe skill of {name}.\n",
        "hooks/hooks.json": json.dumps(
            {"hooks": {"PreToolUse": [{"matcher": "*", "hooks": [{"command": f"echo {name} >> {log}"}]}]}}
        ),
        "commands/greet.md": f"---\ndescription: Greets\n---\nGreet like {name}.\n",
        f"agents/{name}-helper.md": f"---\nname: {name}-helper\ndescription: Helps\n---\nYou help {name}.\n",
        ".mcp.json": json.dumps({"mcpServers": servers or {}}),
    }
    for path, text in files.items():
        file = place / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return place / name


def test_a_plugin_with_something_of_every_kind(session: Session, model_api: ModelApi, tmp_path: Path) -> None:
    """One from the start, another that is loaded from a marketplace later."""
    log, shop = tmp_path / "hooks.log", tmp_path / "shop"
    plugin(shop, "second", log=log)
    (shop / ".plugin").mkdir()
    entry = {"name": "second", "source": "./second", "description": "Another"}
    shown = {"name": "shop", "owner": {"name": "me"}, "plugins": [entry]}
    (shop / ".plugin" / "marketplace.json").write_text(json.dumps(shown))
    context = {"registered_marketplaces": [{"name": "shop", "source": str(shop)}]}
    session.open(
        agent(model_api, "task_tool_set", agent_context=context),
        plugins=[{"source": str(plugin(tmp_path, "first", log=log, servers={"adder": STDIO}))}],
    )
    order = {"description": "Help", "prompt": "Help.", "subagent_type": "first-helper"}
    model_api.answers.extend(
        [call("secret_sum", a=1, b=2), call("task", **order), says("I helped."), says("done")]
    )
    assert session.say("/first:greet as the first")["_meta"]["ostler"]["status"] == "finished"
    said = session.of("MessageEvent")[0]
    assert set(said["activated_skills"]) == {"first-skill", "first:greet"}
    for words in ("The skill of first.", "Greet like first."):
        assert words in text_of(said["extended_content"])
    assert session.kinds[2:4] == ["HookExecutionEvent", "MCPToolAction"]
    assert {"TaskObservation", "MCPToolObservation"} <= set(session.kinds)
    assert "You help first." in json.dumps(model_api.calls[2].body["messages"])
    assert log.read_text().split() == ["first"] * 2

    session.ask("_ostler/load_plugin", plugin_ref="second@shop")
    model_api.answers.extend([call("think", thought="Hm."), says("done")])
    assert session.say("now as the second")["_meta"]["ostler"]["status"] == "finished"
    assert session.of("MessageEvent")[-2]["activated_skills"] == ["second-skill"]
    assert log.read_text().split() == ["first"] * 2 + ["first", "second"]


def test_it_repairs_a_repository(session: Session, model_api: ModelApi) -> None:
    (session.workspace / "sums.py").write_text("def add(a, b):\n    return a - b\n")
    test = "import sums, unittest\nclass Sums(unittest.TestCase):\n    def test_add(self):\n"
    (session.workspace / "test_sums.py").write_text(test + "        self.assertEqual(sums.add(2, 2), 4)\n")
    session.open(agent(model_api, "terminal", "file_editor", "grep"))
    run = call("terminal", command="python3 -B -m unittest -q; true")
    path = str(session.workspace / "sums.py")
    edit = call("file_editor", command="str_replace", path=path, old_str="a - b", new_str="a + b")
    model_api.answers.extend([run, call("grep", pattern="def add"), edit, run, finish("It adds.")])
    assert status(session.say("the test fails")) == "finished"
    told = [text_of(event["observation"]["content"]) for event in session.of("ObservationEvent")]
    assert ("FAILED (failures=1)" in told[0], "OK" in told[3]) == (True, True)
    assert "sums.py" in told[1]
    assert (session.workspace / "sums.py").read_text() == "def add(a, b):\n    return a + b\n"


def test_arguments_that_json_does_not_know(session: Session, model_api: ModelApi) -> None:
    session.open(agent(model_api), servers=[{"name": "adder", **STDIO, "env": []}])
    model_api.answers.extend([call("secret_sum", a=float("nan"), b=2), finish()])
    assert status(session.say("add")) == "finished"
    assert session.kinds[2].startswith(("MCPToolAction", "no action"))


def test_a_long_output_fits_into_a_line(session: Session, model_api: ModelApi) -> None:
    path = session.workspace / "large.txt"
    path.write_text("x" * 12_000_000)
    session.open(agent(model_api, "file_editor"))
    edit = call("file_editor", command="insert", path=str(path), insert_line=0, new_str="first")
    model_api.answers.extend([edit, finish()])
    session.say("edit")
    assert session.program.longest < 9 * 1024 * 1024
    assert session.kinds[2] == "FileEditorAction"
