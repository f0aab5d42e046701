"""A server with secrets that we know, agents that say them in every way, clients that read everything."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import sysconfig
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio

from tests.attack.canary_search import Search, forms_of
from tests.support.client import Rest, rest_client
from tests.support.scripted import scripted_command
from tests.support.server import ServerProcess, running_server
from tests.support.sockets import Collector, collect, events_socket, session_socket

# Long enough that no piece of one appears by chance; with what JSON, URLs and base64 write differently.
FIRST = {
    "global": 'gQ7"quoted"\\back/slash+plus=%25&Zürich€-w81Lm',
    "plain global": "sk-canary-4f9QvXz27LmTt0aB8yRk3WcE",
    "server's variable": "vb+Lq9/Rz==kT4'apos<tag>PpX2mN7",
    "conversation": "cN5{brace}[bracket]~tilde$HOME-uJ8Ya0x",
    "conversation, later": "lT3:colon;semi,comma|pipe-Kd6Vf1oQ",
    "MCP environment": "mE8#hash@at!bang?query-Hs5Gw2Zn",
    "MCP header": "mH2-bearer-9XcVbN4mQwErTy7UiOp",
}
"""What agents know from their start on, and say."""

LATE = {"conversation, after the start": "aS6-afterwards-Jk3Lz8XcVb5NmQw"}
"""What became known to the server when the agent was running; an agent may have it from elsewhere."""

OWN = {"session key": "oK4-session-key-Tg7Yh2Uj9IkOl", "master key": "oM1 forty purple lanterns drift Rf5Tg8"}
"""The server's own: no agent knows them, and yet one may say them."""

QUIET = {"settings' MCP credential": "qS9-only-in-settings-Bn4Vc7Xz1Lk"}
"""What lies in the settings, and no agent says."""

SECRETS = {**FIRST, **LATE, **OWN, **QUIET}

STORES = ("secrets.json", "master.key")
"""Files of mode 0600 that may hold secrets, encrypted or not. Nothing else may."""

UNSAID = ("JSON, twice",)
"""What only our own encoding could make of a value."""

CRASHING = "global"  # said by an agent as its last words

POLL_S = 0.02
LOOK_S = 0.03  # between two looks at the processes
COMMAND_SECONDS = 20.0
ATTACH_SECONDS = 1.5
SETTLED = ("finished", "error", "paused")
TURN_SECONDS = 60.0

HEADERS = {"X-Session-API-Key": OWN["session key"]}


async def run(directory: Path) -> Search:
    """Everything that can be read of a server, looked through for the secrets."""
    search = Search(SECRETS)
    home = directory / "server"
    outside = directory / "agent"
    home.mkdir(parents=True)
    outside.mkdir()
    environment = {
        "OSTLER_SESSION_API_KEY": OWN["session key"],
        "OSTLER_MASTER_KEY": OWN["master key"],
        "OSTLER_SECRET_CANARY_SERVER": FIRST["server's variable"],
    }
    others = frozenset(_processes())
    async with running_server(home, environment) as server, trio.open_nursery() as nursery:
        command_lines: set[bytes] = set()
        nursery.start_soon(_watch_processes, command_lines, others)
        async with rest_client(server.url, HEADERS) as rest:
            server.rest = rest
            await _configure(rest)
            async with AsyncExitStack() as stack:
                ids = await _talk(server, outside, search, stack)
            await _read_rest(rest, ids, search)
            await _read_commands(server, ids, search)
            # As a killed server would leave them; stopping folds one into the other.
            for name in ("journal.sqlite3", "journal.sqlite3-wal"):
                if (server.state / name).exists():
                    search.document("journal", name, (server.state / name).read_bytes())
            for conversation in ids:
                await rest.call("POST", f"/api/agents/{conversation}/stop")
        nursery.cancel_scope.cancel()
    for line in command_lines:
        search.document("process list", "/proc/PID/cmdline", line)
    _read_journal(server.state / "journal.sqlite3", search)
    _read_files(server, search)
    search.document("server log", "standard output and error", server.output.read_bytes())
    return search


async def _configure(rest: Rest) -> None:
    await rest.put_secrets({"CANARY_GLOBAL": FIRST["global"], "CANARY_PLAIN": FIRST["plain global"]})
    entry = {"command": "true", "env": {"TOKEN": QUIET["settings' MCP credential"]}}
    change = {"agent_settings_diff": {"mcp_config": {"quiet": entry}}}
    await rest.call("PATCH", "/api/settings", change)


def _values(path: Path, secrets: dict[str, str], *, forms: bool = True) -> Path:
    """The file that an agent reads what to say from."""
    values = {
        name: {form: text for form, text in forms_of(value).items() if forms and form not in UNSAID}
        or {"raw": value}
        for name, value in secrets.items()
    }
    path.write_text(json.dumps({"values": values}))
    return path


async def _talk(server: ServerProcess, outside: Path, search: Search, stack: AsyncExitStack) -> list[str]:
    """The conversations, while sockets listen. What these got is looked through at the end."""
    every = _values(outside / "every.json", FIRST)
    one = {
        name: _values(outside / f"{number}.json", {name: value}, forms=False)
        for number, (name, value) in enumerate(FIRST.items())
    }
    late = _values(outside / "late.json", {**LATE, **OWN})
    rest = server.rest
    ids = []
    for vocabulary, policy in (
        ("extended", "NeverConfirm"),
        ("core", "NeverConfirm"),
        ("extended", "AlwaysConfirm"),
    ):
        info = await rest.create(
            server.directory / "workspace",
            {
                "acp_server": "custom",
                "acp_command": scripted_command(home=outside / "sessions"),
                "mcp_config": {
                    "stdio": {"command": "true", "env": {"TOKEN": FIRST["MCP environment"]}},
                    "remote": {
                        "url": "http://127.0.0.1:9/mcp",
                        "headers": {"Authorization": f"Bearer {FIRST['MCP header']}"},
                    },
                },
            },
            secrets={"CANARY_CONVERSATION": FIRST["conversation"]},
            event_vocabulary=vocabulary,
            confirmation_policy={"kind": policy},
        )
        conversation = info["id"]
        ids.append(conversation)
        search.document("REST", "POST /api/conversations", json.dumps(info).encode())
        given = {"secrets": {"CANARY_LATER": FIRST["conversation, later"]}}
        await rest.act(conversation, "secrets", given)
        live = [
            ("events socket", await _open(stack, events_socket(server.url, conversation, ""))),
            ("session socket", await _open(stack, session_socket(server.url, conversation, None))),
        ]
        if policy == "AlwaysConfirm":
            await _confirmed(rest, conversation, f"!leak {every} permission")
        else:
            await rest.turn(conversation, f"!leak {every}", wanted=SETTLED, timeout=TURN_SECONDS)
            if vocabulary == "extended":
                await rest.act(
                    conversation, "secrets", {"secrets": {"CANARY_LATE": next(iter(LATE.values()))}}
                )
                await rest.turn(conversation, f"!leak {late}", wanted=SETTLED, timeout=TURN_SECONDS)
            for path in one.values():
                for way in ("error", "stop"):
                    await rest.turn(conversation, f"!leak {path} {way}", wanted=SETTLED, timeout=TURN_SECONDS)
            await rest.turn(conversation, f"!leak {one[CRASHING]} crash", wanted=SETTLED)
            # For the operators' routes, which show the last process.
            await rest.turn(conversation, f"!leak {every} stderr")
        live += [
            ("events socket", await _open(stack, events_socket(server.url, conversation))),
            ("session socket", await _open(stack, session_socket(server.url, conversation, -1))),
        ]
        await trio.sleep(0.5)  # for the states that are sent once more after a run
        for kind, collector in live:
            _search_frames(search, kind, collector.frames)
    return ids


async def _open(stack: AsyncExitStack, url: str) -> Collector:
    collector = await stack.enter_async_context(collect(url))
    await collector.send({"type": "auth", "session_api_key": OWN["session key"]})
    return collector


async def _confirmed(rest: Rest, conversation: str, text: str) -> None:
    """A turn whose every question a person answers with yes."""
    await rest.send(conversation, text)
    with trio.fail_after(TURN_SECONDS):
        while (status := await rest.status(conversation)) not in SETTLED:
            if status == "waiting_for_confirmation":
                await rest.respond(conversation, accept=True)
            await trio.sleep(POLL_S)


def _search_frames(search: Search, kind: str, frames: list[dict[str, Any]]) -> None:
    texts: dict[tuple[str, str], list[str]] = {}
    for frame in frames:
        event = frame.get("event") or frame
        where = f"{frame.get('type', 'event')} {event.get('kind') or ''} {event.get('key') or ''}".strip()
        search.document(kind, where, json.dumps(frame, ensure_ascii=False).encode())
        for part in ("content", "reasoning_content", "delta", "text"):
            if isinstance(event.get(part), str):
                texts.setdefault(
                    (str(frame.get("kind") or frame.get("kind", frame.get("type"))), part), []
                ).append(event[part])
    for (where, part), pieces in texts.items():
        search.joined(kind, f"{where} {part}", pieces)


def _processes() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


async def _watch_processes(seen: set[bytes], others: frozenset[str]) -> None:
    """Collect command lines, again and again: a process may replace its own. `others` were there before the
    server, and there may be hundreds of them."""
    while True:
        for name in _processes():
            if name not in others:
                try:
                    seen.add(Path("/proc", name, "cmdline").read_bytes())
                except OSError:
                    continue
        await trio.sleep(LOOK_S)


async def _read_rest(rest: Rest, ids: list[str], search: Search) -> None:
    """Every GET that shows something, except for the one whose purpose it is to show a secret."""
    conversation_paths = ("", "/agent_final_response", "/events/count")
    paths = ["/api/settings", "/api/settings/secrets", "/api/agent-profiles", "/api/conversations/search"]
    paths += ["/api/agents", "/api/status", "/metrics", "/server_info", "/openapi.json"]
    paths += ["/api/conversations?" + "&".join(f"ids={each}" for each in ids)]
    for each in ids:
        paths += [f"/api/conversations/{each}{more}" for more in conversation_paths]
        paths += [f"/api/agents/{each}", f"/api/agents/{each}/stderr", f"/api/agents/{each}/trace"]
    for path in paths:
        response = await rest.http.get(path)
        assert response.status_code == 200, (path, response.text)
        operator = path.endswith(("/stderr", "/trace"))
        kind = "stderr and trace" if operator else "metrics" if path == "/metrics" else "REST"
        search.document(kind, "GET " + _without_ids(path, ids), response.content)
    for each in ids:
        events = await rest.events(each)
        for event in events:
            what = f"{event['kind']} {event.get('key') or ''}".strip()
            search.document("REST", f"GET .../events/search, {what}", json.dumps(event).encode())
        for start in range(0, len(events), 500):
            batch = await rest.events_by_id(each, [event["id"] for event in events[start : start + 500]])
            search.document("REST", "GET .../events", json.dumps(batch).encode())


def _without_ids(path: str, ids: list[str]) -> str:
    for each in ids:
        path = path.replace(each, "ID")
    return path.split("?")[0]


async def _read_commands(server: ServerProcess, ids: list[str], search: Search) -> None:
    """What the command line client shows."""
    program = str(Path(sysconfig.get_path("scripts")) / "ostler")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(server.home),
        "OSTLER_URL": server.url,
        "OSTLER_API_KEY": OWN["session key"],
    }
    commands = [["ps"], ["ps", "--json"], ["status"], ["status", "--json"]]
    for each in ids:
        commands += [["logs", each], ["logs", each, "--json"], ["logs", each, "--trace"]]
    commands.append(["attach", ids[0]])
    for words in commands:
        shown = b""
        limit = ATTACH_SECONDS if words[0] == "attach" else COMMAND_SECONDS
        with trio.move_on_after(limit) as scope:
            done = await trio.run_process(
                [program, *words], capture_stdout=True, capture_stderr=True, check=False, env=environment
            )
            shown = done.stdout + done.stderr
            assert done.returncode == 0, (words, shown)
        assert words[0] == "attach" or not scope.cancelled_caught, words
        search.document("command line client", f"ostler {words[0]} {' '.join(words[2:])}".strip(), shown)


def _read_journal(path: Path, search: Search) -> None:
    """Every value of every row, by table and column."""
    search.document("journal", path.name, path.read_bytes())
    database = sqlite3.connect(path)
    try:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            rows = database.execute(f'SELECT * FROM "{table}"')
            columns = [column[0] for column in rows.description]
            for row in rows:
                for column, value in zip(columns, row, strict=True):
                    if isinstance(value, str | bytes):
                        data = value.encode() if isinstance(value, str) else value
                        search.document("journal", f"{table}.{column}", data)
    finally:
        database.close()


def _read_files(server: ServerProcess, search: Search) -> None:
    """Every file below the state directory and HOME but the stores, and the modes of those."""
    for path in _files(server.state, server.home, server.directory / "workspace"):
        if path.name in STORES:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        elif not path.name.startswith("journal.sqlite3"):
            search.document("files", str(path.relative_to(server.directory)), path.read_bytes())


def _files(*roots: Path) -> Iterator[Path]:
    for root in roots:
        for path in sorted(root.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path
