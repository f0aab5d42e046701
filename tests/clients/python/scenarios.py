"""Conversations of the SDK's own client with a server's built-in agent, for comparing two servers.

    python scenarios.py URL DIRECTORY [SCENARIO...]

Run by the SDK's Python. One model API of this process answers all of them, so that both servers' agents get
the same words. Of each scenario one line of JSON: the durable events in order (kind, source, tool, kind of
action or observation, code of an error) and the execution statuses as the client saw them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENHANDS_SUPPRESS_BANNER", "1")
# Else a price list is fetched at import, and again in a thread, whose imports may wait for the import's.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import httpx
from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.sdk.context.condenser import LLMSummarizingCondenser
from openhands.sdk.hooks import HookConfig
from openhands.sdk.security.confirmation_policy import AlwaysConfirm
from openhands.sdk.workspace import RemoteWorkspace
from openhands.tools import file_editor, task_tracker, terminal  # noqa: F401 - they enter themselves

RUN_S = 60.0
LAST_S = 2.0  # for the last state to arrive
SCENARIOS: dict[str, Callable[[Scene], None]] = {}

MCP_SERVER = '''
from mcp.server.fastmcp import FastMCP
server = FastMCP("adder")

@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

server.run()
'''


def scenario(play: Callable[[Scene], None]) -> Callable[[Scene], None]:
    """Enter a scenario, in order."""
    SCENARIOS[play.__name__] = play
    return play


def says(text: str, *, slow: float = 0.0) -> dict[str, Any]:
    """An answer of text; `slow`: seconds that it takes."""
    return {"text": text, "slow": slow}


def calls(*made: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """An answer of tool calls."""
    return {"calls": made}


def shell(command: str) -> tuple[str, dict[str, Any]]:
    return "terminal", {"command": command, "security_risk": "LOW", "summary": "run a command"}


def edit(command: str, path: Path, **more: Any) -> tuple[str, dict[str, Any]]:
    given = {"command": command, "path": str(path), "security_risk": "LOW", "summary": "edit a file"}
    return "file_editor", {**given, **more}


def finish(text: str = "All done.") -> dict[str, Any]:
    return calls(("finish", {"message": text, "summary": "finish"}))


class Model:
    """An OpenAI-compatible API: each scenario has answers of its own, in order; the last one is repeated."""

    def __init__(self) -> None:
        self.answers: dict[str, list[dict[str, Any]]] = {}
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                request = json.loads(self.rfile.read(size))
                model.answer(self, self.path.split("/")[1], request)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.ids = itertools.count(1)
        self.lock = threading.Lock()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/{name}/v1"

    def answer(self, handler: BaseHTTPRequestHandler, name: str, request: dict[str, Any]) -> None:
        """Answer one request; those without tools come from a condenser."""
        with self.lock:
            left = self.answers[name]
            if not request.get("tools"):
                given = says("What happened so far: not much.")
            else:
                given = left.pop(0) if len(left) > 1 else left[0]
        if given.get("status"):
            body = json.dumps({"error": {"message": given["words"], "type": "error", "code": None}}).encode()
            handler.send_response(given["status"])
            handler.send_header("content-type", "application/json")
            handler.send_header("content-length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
            return
        time.sleep(given.get("slow") or 0.0)
        message: dict[str, Any] = {"role": "assistant", "content": given.get("text") or None}
        if given.get("calls"):
            message["tool_calls"] = [
                {
                    "id": f"call_{next(self.ids)}",
                    "type": "function",
                    "function": {"name": tool, "arguments": json.dumps(arguments)},
                }
                for tool, arguments in given["calls"]
            ]
        reason = "tool_calls" if given.get("calls") else "stop"
        body = json.dumps(
            {
                "id": f"chatcmpl-{next(self.ids)}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": "test",
                "choices": [{"index": 0, "message": message, "finish_reason": reason}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
            }
        ).encode()
        handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        try:
            handler.wfile.write(body)
        except OSError:
            return  # interrupted


class Scene:
    """One scenario's place: a workspace, a conversation, and what came of it."""

    def __init__(self, name: str, url: str, directory: Path, model: Model) -> None:
        self.name = name
        self.url = url
        self.model = model
        self.place = directory / name
        self.place.mkdir(parents=True)
        self.statuses: list[str] = []
        self.conversation: Any = None

    def llm(self, usage_id: str = "agent") -> LLM:
        return LLM(
            model="openai/test",
            api_key="sk-nobody",
            base_url=self.model.url(self.name),
            usage_id=usage_id,
            num_retries=0,
        )

    def start(self, *answers: dict[str, Any], **fields: Any) -> Any:
        """Begin the conversation; the model will answer this."""
        self.model.answers[self.name] = list(answers)
        more = {key: fields.pop(key) for key in ("condenser", "mcp_config") if key in fields}
        tools = [Tool(name="terminal"), Tool(name="file_editor")]
        agent = Agent(llm=self.llm(), tools=tools, **more)
        self.conversation = Conversation(
            agent=agent,
            workspace=RemoteWorkspace(host=self.url, working_dir=str(self.place)),
            visualizer=None,
            callbacks=[self._heard],
            delete_on_close=False,
            **fields,
        )
        return self.conversation

    def _heard(self, event: Any) -> None:
        if getattr(event, "key", None) == "execution_status":
            self._status(event.value)
        elif getattr(event, "key", None) == "full_state":
            self._status(event.value["execution_status"])

    def _status(self, value: str) -> None:
        if not self.statuses or self.statuses[-1] != value:
            self.statuses.append(value)

    def run(self, text: str | None = None) -> str:
        """A turn to its end. Returns the status; errors of the run are a status, too."""
        if text is not None:
            self.conversation.send_message(text)
        try:
            self.conversation.run(timeout=RUN_S)
        except Exception as error:
            return type(error).__name__
        return str(self.conversation.state.execution_status.value)

    def wait(self, *wanted: str) -> str:
        until = time.monotonic() + RUN_S
        while True:
            info = self._get("")
            if info["execution_status"] in wanted:
                return str(info["execution_status"])
            if time.monotonic() > until:
                raise TimeoutError(f"{info['execution_status']} instead of {wanted}")
            time.sleep(0.05)

    def _get(self, path: str, **params: Any) -> Any:
        url = f"{self.url}/api/conversations/{self.conversation.id}{path}"
        return httpx.get(url, params=params, timeout=30).raise_for_status().json()

    def events(self) -> list[dict[str, Any]]:
        found, page = [], None
        while True:
            answer = self._get("/events/search", limit=100, **({"page_id": page} if page else {}))
            found += answer["items"]
            page = answer["next_page_id"]
            if not page:
                return found

    def outcome(self) -> dict[str, Any]:
        time.sleep(LAST_S)
        shown = [row(event) for event in self.events() if event["kind"] != "ConversationStateUpdateEvent"]
        return {"scenario": self.name, "events": shown, "statuses": self.statuses}


def row(event: dict[str, Any]) -> str:
    """An event in a line: source, kind, tool, what it holds."""
    inside = event.get("action") or event.get("observation") or {}
    parts = [event["source"], event["kind"], event.get("tool_name"), inside.get("kind"), event.get("code")]
    if inside.get("is_error"):
        parts.append("is_error")
    if event.get("rejection_source"):
        parts.append(f"by {event['rejection_source']}")
    return " ".join(filter(None, parts))


@scenario
def text(scene: Scene) -> None:
    """A question and an answer."""
    scene.start(says("Hello to you."))
    scene.run("Hello.")


@scenario
def tools(scene: Scene) -> None:
    """A thought, a command, and the finish tool."""
    think = calls(("think", {"thought": "I should look.", "summary": "think"}))
    scene.start(think, calls(shell("echo seen")), finish())
    scene.run("Look.")


@scenario
def parallel_tools(scene: Scene) -> None:
    """Three calls in one answer."""
    scene.start(calls(shell("echo one"), shell("echo two"), shell("echo three")), says("Three."))
    scene.run("Do three things.")


@scenario
def file_edit_and_undo(scene: Scene) -> None:
    """A file is made, changed, and changed back."""
    path = scene.place / "poem.txt"
    scene.start(
        calls(edit("create", path, file_text="roses\nare red\n")),
        calls(edit("str_replace", path, old_str="red", new_str="blue")),
        calls(edit("undo_edit", path)),
        calls(edit("view", path)),
        says("As before."),
    )
    scene.run("Edit.")
    assert path.read_text() == "roses\nare red\n"


@scenario
def long_output(scene: Scene) -> None:
    """A command that says half a megabyte."""
    scene.start(calls(shell("seq 100000")), says("Long."))
    scene.run("Count.")


@scenario
def failing_tool(scene: Scene) -> None:
    """A command that fails, a file that is missing, a tool that does not exist, and a wrong type."""
    scene.start(
        calls(shell("exit_with() { return 3; }; exit_with")),
        calls(edit("view", scene.place / "nothing.txt")),
        calls(("no_such_tool", {"a": 1})),
        calls(("terminal", {"command": ["not", "a", "text"]})),
        says("It failed."),
    )
    scene.run("Fail.")


@scenario
def mcp(scene: Scene) -> None:
    """A tool of an MCP server."""
    program = scene.place.parent / f"{scene.name}-server.py"
    program.write_text(MCP_SERVER)
    config = {"adder": {"command": sys.executable, "args": [str(program)]}}
    scene.start(calls(("add", {"a": 2, "b": 3, "summary": "add"})), says("Five."), mcp_config=config)
    scene.run("Add.")


@scenario
def confirmation_accepted(scene: Scene) -> None:
    """A person lets a command run."""
    conversation = scene.start(calls(shell("echo allowed")), says("Done."))
    conversation.set_confirmation_policy(AlwaysConfirm())
    scene.run("Do it.")
    scene.wait("waiting_for_confirmation")
    scene.run()


@scenario
def confirmation_rejected(scene: Scene) -> None:
    """A person rejects two commands, with a reason; the agent continues with a message."""
    conversation = scene.start(calls(shell("echo one"), shell("echo two")), says("Then not."))
    conversation.set_confirmation_policy(AlwaysConfirm())
    scene.run("Do it.")
    scene.wait("waiting_for_confirmation")
    conversation.reject_pending_actions("Not today.")
    scene.wait("idle", "finished", "paused")
    scene.run("What now?")


@scenario
def hook_block(scene: Scene) -> None:
    """A PreToolUse hook blocks a command."""
    hooks = {"pre_tool_use": [{"matcher": "terminal", "hooks": [{"command": "echo no >&2; exit 2"}]}]}
    config = HookConfig.model_validate(hooks)
    scene.start(calls(shell("echo never")), says("Blocked."), hook_config=config)
    scene.run("Try.")


@scenario
def condensation(scene: Scene) -> None:
    """A person asks for a condensation between two turns."""
    condenser = LLMSummarizingCondenser(llm=scene.llm("condenser"), max_size=40, keep_first=2)
    steps = [calls(shell(f"echo {number}")) for number in range(6)]
    conversation = scene.start(*steps, says("Six."), condenser=condenser)
    scene.run("Count to six.")
    conversation.condense()
    scene.wait("idle", "finished", "paused")
    scene.run("And now?")


@scenario
def pause_and_go_on(scene: Scene) -> None:
    """A person pauses a run while the model thinks, and lets it go on."""
    slow = {**calls(shell("echo second")), "slow": 3.0}
    conversation = scene.start(calls(shell("echo first")), slow, says("Went on."))
    conversation.send_message("Go.")
    conversation.run(blocking=False)
    until = time.monotonic() + RUN_S
    while not any(event["kind"] == "ObservationEvent" for event in scene.events()):
        assert time.monotonic() < until
        time.sleep(0.05)
    time.sleep(0.5)
    conversation.pause()
    scene.wait("paused")
    scene.run()


@scenario
def model_error(scene: Scene) -> None:
    """The model refuses the key; then it answers."""
    refused = {"status": 401, "words": "Incorrect API key provided."}
    scene.start(refused, says("Better."))
    scene.run("Hello.")
    scene.wait("error")
    scene.run("Again.")


@scenario
def stuck_loop(scene: Scene) -> None:
    """The agent does the same thing again and again."""
    scene.start(calls(shell("echo same")))
    scene.run("Go.")


@scenario
def max_iterations(scene: Scene) -> None:
    """A run is longer than it may be."""
    steps = [calls(shell(f"echo {number}")) for number in range(9)]
    scene.start(*steps, max_iteration_per_run=3)
    scene.run("Go.")


@scenario
def repair(scene: Scene) -> None:
    """A repository with a failing test is repaired, and the test passes."""
    (scene.place / "adding.py").write_text("def add(a, b):\n    return a - b\n")
    test = "from adding import add\n\n\nassert add(2, 3) == 5, add(2, 3)\nprint('passed')\n"
    (scene.place / "check_adding.py").write_text(test)
    scene.start(
        calls(shell("python3 check_adding.py")),
        calls(edit("view", scene.place / "adding.py")),
        calls(edit("str_replace", scene.place / "adding.py", old_str="a - b", new_str="a + b")),
        calls(shell("python3 check_adding.py")),
        finish("The test passes."),
    )
    scene.run("Make the test pass.")
    said = [event for event in scene.events() if event["kind"] == "ObservationEvent"]
    words = ["".join(part.get("text", "") for part in each["observation"]["content"]) for each in said]
    assert "AssertionError: -1" in words[0], words[0]
    assert "passed" in words[3], words[3]


def main() -> None:
    """Play them all, or the named ones."""
    url, directory, *names = sys.argv[1:]
    model = Model()
    for name in names or SCENARIOS:
        scene = Scene(name, url, Path(directory), model)
        outcome: dict[str, Any]
        try:
            SCENARIOS[name](scene)
            outcome = scene.outcome()
        except Exception:
            outcome = {"scenario": name, "error": traceback.format_exc()}
            with contextlib.suppress(Exception):
                outcome |= scene.outcome()
        print(json.dumps(outcome), flush=True)
    os._exit(0)  # clients wait seconds for their sockets


if __name__ == "__main__":
    main()
