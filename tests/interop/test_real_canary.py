"""Real agents that know secrets and say them: none is found in what the server wrote, sent or showed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.attack.canary_search import Search
from tests.interop.model_api.server import ModelApi
from tests.interop.real_agents import KEY, REAL_AGENTS, RealAgent
from tests.interop.talk import ASK_ME, TURN_S, Open, Talk
from tests.support.client import summary
from tests.support.server import ServerProcess
from tests.support.sockets import Collector, collect, session_socket

pytestmark = pytest.mark.interop

SECRETS = {
    "CANARY_PLAIN": "canary-9vQx2LmTt0aB8yRk3WcE7",
    "CANARY_ODD": 'oD5"quo\\te/slash+plus=%25&<é>{}-w81LmKj',
}
API_KEY = "sk-canary-Rf5TgYh2Uj9IkOl4ZsXdCv"  # in place of every agent's key

PIECE = 7  # characters of each delta of the answer
NAMES_OF_KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENCODE_CONFIG_CONTENT")

PRINT = (
    f"printenv {' '.join(SECRETS)}; printenv CANARY_ODD >&2; printenv CANARY_PLAIN | base64 -w0; "
    + "".join(f"printenv {name}; " for name in NAMES_OF_KEYS)
    + "true"
)

STORES = ("secrets.json", "master.key")  # where the server keeps secrets
# What the agents keep for themselves, and where they run.
THEIRS = (".cache", ".claude", ".claude.json", ".codex", ".config", ".gemini", ".local")

LOOK_S = 0.03  # between two looks at the processes
SETTLED = ("finished", "error", "paused")

Frames = dict[str, Collector]


@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize("agent", REAL_AGENTS.values(), ids=REAL_AGENTS)
async def test_no_secret_that_an_agent_says_is_found(
    talk: Open, agents_server: ServerProcess, agent: RealAgent, model_api: ModelApi
) -> None:
    search = Search({**SECRETS, "key": API_KEY})
    keyed = replace(agent, secrets=lambda url: {**SECRETS, **with_our_key(agent.secrets(url))})
    command_lines: set[bytes] = set()
    async with (
        watched_processes(command_lines),
        talk(keyed, confirmation_policy=ASK_ME, event_vocabulary="extended") as one,
        collect(session_socket(agents_server.url, one.id)) as session,
    ):
        told = one.workspace / "told.txt"
        await confirmed(one, f"TELL {PIECE} {told}: {PRINT}")
        # It did know them, and was not kept from writing them where it wanted to.
        for value in SECRETS.values():
            assert value in told.read_text()
        assert API_KEY in {call.key for call in model_api.calls}

        for kind, socket in {"events socket": one.socket, "session socket": session}.items():
            search_frames(search, kind, socket.frames)
        await search_rest(search, one)
        search_journal(search, agents_server.state / "journal.sqlite3")
    search.document("server log", "standard output and error", agents_server.output.read_bytes())
    for line in command_lines:
        search.document("processes", "cmdline", line)
    for path in files_of(agents_server):
        search.document("files", str(path), path.read_bytes())

    kinds = list(search.looked_at)
    assert "\n".join(filter(None, (search.report(kind) for kind in kinds))) == ""
    for kind in ("events socket", "session socket", "REST", "journal", "stderr and trace"):
        assert search.hidden[kind] >= len(SECRETS), kind
    assert all(search.looked_at[kind] for kind in ("server log", "processes", "files"))


def with_our_key(secrets: dict[str, str]) -> dict[str, str]:
    return {name: value.replace(KEY, API_KEY) for name, value in secrets.items()}


async def confirmed(one: Talk, text: str) -> None:
    """A turn whose every question is answered with yes."""
    before = await one.begin(text)
    with trio.fail_after(TURN_S):
        while (status := await one.rest.status(one.id)) not in SETTLED:
            if status == "waiting_for_confirmation":
                await one.rest.respond(one.id, accept=True)
            await trio.sleep(LOOK_S)
    events = await one.settle(before, "finished")
    assert any(event["kind"] == "ActionEvent" for event in events), summary(events)


@asynccontextmanager
async def watched_processes(command_lines: set[bytes]) -> AsyncIterator[None]:
    async def look() -> None:
        while True:
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    try:
                        command_lines.add((entry / "cmdline").read_bytes())
                    except OSError:
                        continue
            await trio.sleep(LOOK_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        yield
        nursery.cancel_scope.cancel()


def search_frames(search: Search, kind: str, frames: list[dict[str, Any]]) -> None:
    """Each as it came, and what was streamed put together."""
    streamed: dict[str, list[str]] = {}
    for frame in frames:
        event = frame.get("event") or frame
        name = f"{event.get('kind') or frame.get('type')} {event.get('key') or ''}".strip()
        search.document(kind, name, json.dumps(frame, ensure_ascii=False).encode())
        for part in ("content", "reasoning_content", "delta", "text"):
            if isinstance(event.get(part), str):
                streamed.setdefault(f"{name} {part}", []).append(event[part])
    for name, pieces in streamed.items():
        search.joined(kind, name, pieces)


async def search_rest(search: Search, one: Talk) -> None:
    """Every answer that tells of the conversation, the agent or the settings."""
    places = {"REST": [f"/api/conversations/{one.id}", f"/api/conversations?ids={one.id}"]}
    places["REST"] += [f"/api/conversations/{one.id}/agent_final_response", f"/api/agents/{one.id}"]
    places["REST"] += ["/api/conversations/search", "/api/settings", "/api/settings/secrets", "/api/agents"]
    places["REST"] += ["/api/agents/credentials", "/api/status", "/metrics"]
    places["stderr and trace"] = [f"/api/agents/{one.id}/stderr", f"/api/agents/{one.id}/trace"]
    for kind, paths in places.items():
        for path in paths:
            answer = await one.rest.http.get(path)
            assert answer.status_code == 200, (path, answer.text)
            search.document(kind, f"GET {path.replace(one.id, 'ID')}", answer.content)
    for event in await one.rest.events(one.id):
        name = f"{event['kind']} {event.get('key') or ''}".strip()
        search.document("REST", f"GET .../events/search, {name}", json.dumps(event).encode())


def search_journal(search: Search, path: Path) -> None:
    """The files as a killed server would leave them, and every value in them, blobs too."""
    for file in path.parent.glob(f"{path.name}*"):
        search.document("journal", file.name, file.read_bytes())
    database = sqlite3.connect(path)
    try:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in database.execute(f'SELECT * FROM "{table}"'):
                for value in row:
                    if isinstance(value, str | bytes):
                        data = value.encode() if isinstance(value, str) else value
                        search.document("journal", table, data)
    finally:
        database.close()


def files_of(server: ServerProcess) -> Iterator[Path]:
    """What lies below the state directory and HOME, but for the agents' own and the server's stores."""
    roots = [path for path in server.state.iterdir() if path.name not in (*STORES, "agents", "data")]
    roots += [path for path in server.home.iterdir() if path.name not in THEIRS]
    for root in roots:
        for path in [root, *root.rglob("*")]:
            if path.is_file() and not path.is_symlink():
                yield path
