"""Schemathesis against a real server: every operation of the interface description, every check.

The examples are few and their seed is fixed in the normal run; `scripts/fuzz` runs with more.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

import attrs
import trio

from tests.attack.schema_hooks import WORKSPACE_VARIABLE
from tests.support.client import rest_client
from tests.support.server import ServerProcess, running_server

KEY = "attack-session-key"
KEY_HEADER = "X-Session-API-Key"
HOOKS = Path(__file__).with_name("schema_hooks.py")
SERVER = {
    "OSTLER_SESSION_API_KEY": KEY,
    # Enough for what the requests start, few enough for a small machine.
    "OSTLER_MAX_AGENTS": "6",
    "OSTLER_IDLE_SECONDS": "1",
    # A question that an agent does not answer is told so before the client gives up.
    "OSTLER_DEADLINE_SIDE_QUESTION": "5",
}
REQUEST_SECONDS = 30  # for one request: only one that hangs takes so long
CONVERSATIONS = 4  # that may be deleted on the way
FAILURES_SHOWN = 20_000  # characters of Schemathesis' report

# What a generated request should name: things that are there, as often as not.
CONFIG = """\
hooks = {hooks}
continue-on-failure = true
request-timeout = {timeout}
generation.database = "none"

# Sent with every request: a route that is not there does not say so to a request without a key.
[headers]
{header} = {key}

# The same once more, so that it is known as what `ignored_auth` is to leave out.
[auth.openapi.SessionKey]
api_key = {key}

[dictionaries]
conversations.values = {conversations}
eventful.values = {eventful}
events.values = {events}
profiles.values = {profiles}
names.values = {names}

[parameters]
"path.conversation_id" = {{ dictionary = "conversations", probability = 0.6 }}
"path.profile_id" = {{ dictionary = "profiles", probability = 0.6 }}
"path.name" = {{ dictionary = "names", probability = 0.4 }}

[[operations]]
include-path = ["/api/conversations/{{conversation_id}}/events/{{event_id}}"]
[operations.parameters]
"path.conversation_id" = {{ dictionary = "eventful", probability = 0.8 }}
"path.event_id" = {{ dictionary = "events", probability = 0.8 }}

# Other methods of these paths belong to a route with a parameter in their place, in the wire's servers as in
# ours: "count" is then an id, and none that is a UUID (422), and Allow has the methods of both routes.
[[operations]]
include-path = ["/api/conversations/count", "/api/conversations/search"]
checks.unsupported_method.enabled = false
checks.allow_header_conformance.enabled = false

# The same: GET is that of one event.
[[operations]]
include-path = ["/api/conversations/{{conversation_id}}/events/respond_to_confirmation"]
checks.allow_header_conformance.enabled = false

# What a schema cannot say: a parent and stored secrets that must exist, one way only to name the agent.
[[operations]]
include-path = ["/api/conversations", "/api/conversations/{{conversation_id}}/secrets"]
include-method = "POST"
checks.positive_data_acceptance.enabled = false

# Paths must be there, and what is asked of git must fit what is there.
[[operations]]
include-path = [
    "/api/file/upload",
    "/api/file/download",
    "/api/file/create_directory",
    "/api/file/archive",
    "/api/git/changes",
    "/api/git/diff",
    "/api/git/commits",
    "/api/git/commits/{{sha}}/changes",
    "/api/conversations/{{conversation_id}}/file/upload",
    "/api/conversations/{{conversation_id}}/file/download",
    "/api/conversations/{{conversation_id}}/file/create_directory",
    "/api/conversations/{{conversation_id}}/file/archive",
    "/api/conversations/{{conversation_id}}/git/changes",
    "/api/conversations/{{conversation_id}}/git/diff",
    "/api/conversations/{{conversation_id}}/git/commits",
    "/api/conversations/{{conversation_id}}/git/commits/{{sha}}/changes",
    "/api/file/search_subdirs",
    "/api/workspaces",
    "/api/workspaces/parents",
    "/api/conversations/{{runtime_conversation_id}}/file/download-trajectory/{{conversation_id}}",
    "/api/conversations/{{conversation_id}}/workspace/{{file_path}}",
    "/api/conversations/{{conversation_id}}/workspace",
    "/api/conversations/{{conversation_id}}/workspace/",
    "/api/file/download-trajectory/{{conversation_id}}",
]
checks.positive_data_acceptance.enabled = false

# The twins of routes without a conversation: the same handlers read the same bodies. They have their share of
# made-up requests; the rules of each schema are tried on one of the two.
[[operations]]
include-path-regex = "^/api/conversations/[{{][a-z_]+[}}]/(file|git|bash)/"
phases.coverage.enabled = false

# Always 501, and said so.
[[operations]]
include-path = ["/api/git/repositories/search"]
checks.not_a_server_error.enabled = false
checks.positive_data_acceptance.enabled = false

# A working directory must be in the conversation's workspace.
[[operations]]
include-path = [
    "/api/conversations/{{conversation_id}}/bash/start_bash_command",
    "/api/conversations/{{conversation_id}}/bash/execute_bash_command",
]
checks.positive_data_acceptance.enabled = false

# A merge patch is right or wrong by what it is merged into.
[[operations]]
include-path = ["/api/settings"]
include-method = "PATCH"
checks.positive_data_acceptance.enabled = false

# A command must be one that a shell could split, and a custom agent needs one.
[[operations]]
# Its kind may be left out where other properties tell it.
include-path = ["/api/agent-profiles/{{name}}", "/api/agent-profiles/{{name}}/materialize"]
include-method = "POST"
checks.positive_data_acceptance.enabled = false
checks.negative_data_rejection.enabled = false

# The kind of an agent may be left out where its other properties tell it.
[[operations]]
include-path = ["/api/acp/models"]
checks.negative_data_rejection.enabled = false

# Not offered here, and described so.
[[operations]]
include-path = [
    "/api/profiles/{{name}}/validate", "/api/skills/install", "/api/plugins/install", "/api/plugins/fetch",
    "/api/canvas-extensions/install", "/api/llm/subscription/openai/device/start", "/api/vscode/url",
    "/api/conversations/{{conversation_id}}/vscode/url",
]
checks.not_a_server_error.enabled = false

# In a sequence of requests a new name leaves the old one free, which the check of what was created takes for
# a loss. By itself the route is tested like any other.
[[operations]]
include-path = ["/api/agent-profiles/{{name}}/rename"]
phases.stateful.enabled = false
"""


@attrs.frozen
class SchemaRun:
    """What came of a run. `failures` is what was found, if anything; `output` what Schemathesis said."""

    requests: int
    operations: int
    untested: int
    failures: str
    output: str


async def run(directory: Path, *, seed: int, examples: int, phases: str | None = None) -> SchemaRun:
    """Start a server below `directory`, fill it, send it what Schemathesis makes up, look at it again.

    `examples` are per operation and phase. The phase `coverage` tries every rule of a schema instead.
    """
    directory.mkdir(parents=True, exist_ok=True)
    async with running_server(directory, SERVER) as server:
        seen = await _fill(server, directory)
        (directory / "schemathesis.toml").write_text(_config(seen))
        report = directory / "report.json"
        command = [
            str(Path(sysconfig.get_path("scripts")) / "schemathesis"),
            *("--config-file", str(directory / "schemathesis.toml")),
            *("run", f"{server.url}/openapi.json", "--no-color", "--seed", str(seed)),
            *("--max-examples", str(examples)),
            *(() if phases is None else ("--phases", phases)),
            *("--report", "json", "--report-json-path", str(report)),
        ]
        environment = {
            "PATH": str(Path(sys.executable).parent),
            "HOME": str(directory),
            "PYTHONPATH": str(HOOKS.parent),
            "COLUMNS": "120",
            WORKSPACE_VARIABLE: str(directory / "workspace"),
        }
        done = await trio.run_process(
            command, capture_stdout=True, stderr=None, check=False, env=environment, cwd=directory
        )
        output = done.stdout.decode(errors="replace")
        await _check_history(server)
    failures = "" if done.returncode == 0 else output[-FAILURES_SHOWN:]
    log = server.output.read_text(errors="replace")
    if "Traceback" in log or "request failed" in log:
        failures += f"\nthe server logged:\n{log[-FAILURES_SHOWN:]}"
    assert report.exists(), output
    summary = json.loads(report.read_text())
    operations = summary["operations"]
    return SchemaRun(
        requests=summary["test_cases"]["generated"],
        operations=operations["tested"],
        untested=operations["total"] - operations["tested"],
        failures=failures,
        output=output,
    )


async def _fill(server: ServerProcess, directory: Path) -> dict[str, list[str]]:
    """Conversations with something in them, a secret, a profile: the ids and names."""
    async with rest_client(server.url, {KEY_HEADER: KEY}) as rest:
        ids = [(await rest.create(directory / "workspace"))["id"] for _ in range(CONVERSATIONS + 1)]
        await rest.turn(ids[0], "Hello")
        events = [event["id"] for event in await rest.events(ids[0])]
        await rest.put_secrets({"ATTACKED": "a value of the test"})
        profiles = (await rest.call("GET", "/api/agent-profiles"))["profiles"]
    return {
        "conversations": ids[1:],
        "eventful": ids[:1],
        "events": events,
        "profiles": [profile["id"] for profile in profiles],
        "names": ["ATTACKED", *(profile["name"] for profile in profiles)],
    }


def _config(seen: dict[str, list[str]]) -> str:
    # JSON's strings and arrays of them are TOML's.
    values = {"hooks": str(HOOKS), "header": KEY_HEADER, "key": KEY, "timeout": REQUEST_SECONDS, **seen}
    return CONFIG.format(
        **{name: value if name == "header" else json.dumps(value) for name, value in values.items()}
    )


async def _check_history(server: ServerProcess) -> None:
    """Whatever was sent, every conversation can still be read."""
    async with rest_client(server.url, {KEY_HEADER: KEY}) as rest:
        page = await rest.call("GET", "/api/conversations/search")
        for info in page["items"]:
            await rest.events(info["id"])
