"""`ostler mcp import`: servers of other clients, in a home and a project of the test."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.commands.harness import Place
from tests.commands.test_completion import bash

SECRET = "sk-s3cr3t-value"

VSCODE = """{
  // What VS Code asks for.
  "inputs": [{"type": "promptString", "id": "tracker-key", "password": true}],
  "servers": {
    "io.example/tracker": {
      "type": "http", "url": "https://mcp.example/tracker", /* not a // comment */
      "headers": {"Authorization": "Bearer ${input:tracker-key}"},
    },
    "files": {"command": "npx", "args": ["-y", "files", "${workspaceFolder}/docs"], "envFile": ".env"},
  },
}"""


def wrote(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.fixture
def clients(place: Place) -> Place:
    """A place where each client has servers."""
    wrote(
        place.work / ".mcp.json",
        {"mcpServers": {"search": {"command": "search", "env": {"KEY": "${SEARCH_KEY:-none}"}}}},
    )
    wrote(place.work / ".vscode" / "mcp.json", VSCODE)
    wrote(
        place.home / ".claude.json",
        {
            "history": ["x" * 100_000],
            "mcpServers": {"files": {"type": "stdio", "command": "other", "args": [], "env": {}}},
            "projects": {
                str(place.work): {"mcpServers": {"here": {"type": "sse", "url": "https://mcp.example/sse"}}},
                "/elsewhere": {"mcpServers": {"not-here": {"command": "c"}}},
            },
        },
    )
    wrote(
        place.home / ".cursor" / "mcp.json",
        {
            "mcpServers": {
                "web": {"url": f"https://mcp.example/?key={SECRET}", "headers": {"A": "${env:WEB}"}}
            }
        },
    )
    wrote(
        place.home / ".config" / "Claude" / "claude_desktop_config.json",
        {"mcpServers": {"desktop": {"command": "npx", "args": ["--api-key", SECRET]}, "broken": {"url": 7}}},
    )
    return place


def servers(place: Place) -> dict[str, Any]:
    file = place.state / "mcp.json"
    return json.loads(file.read_text())["mcpServers"] if file.exists() else {}


def test_nothing_is_imported_unasked(clients: Place) -> None:
    done = clients.process("mcp", "import")
    assert done.returncode == 2
    assert "nothing is imported: name the servers, or give --all" in done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [(row[0], row[1], row[-1]) for row in rows[1:3]] == [
        ("search", "new", "search"),
        ("io.example-tracker", "new", "https://mcp.example/tracker"),
    ]
    assert {row[0]: row[1] for row in rows[1:]} == {
        "search": "new", "io.example-tracker": "new", "files": "hidden", "here": "new", "web": "new",
        "desktop": "new", "broken": "unusable",
    }  # fmt: skip
    assert re.search(r"broken: .* \(in /.*\)\n", done.stderr)
    assert SECRET not in done.stdout + done.stderr
    assert not clients.state.exists()
    listed = clients.run("mcp", "import", "--json")
    assert json.loads(listed.stdout)["imported"] == []
    assert SECRET not in listed.stdout
    assert not clients.state.exists()


def test_all(clients: Place) -> None:
    wrote(clients.state / "mcp.json", {"mcpServers": {"search": {"command": "mine"}}})
    done = clients.process("mcp", "import", "--all")
    assert done.returncode == 0, done.stderr
    assert servers(clients) == {
        "search": {"command": "mine"},
        "io.example-tracker": {
            "url": "https://mcp.example/tracker",
            "headers": {"Authorization": "Bearer ${TRACKER_KEY}"},
            "transport": "http",
            "enabled": True,
        },
        "files": {"command": "npx", "args": ["-y", "files", f"{clients.work}/docs"], "enabled": True},
        "here": {"url": "https://mcp.example/sse", "transport": "sse", "enabled": True},
        "web": {
            "url": f"https://mcp.example/?key={SECRET}", "headers": {"A": "${WEB}"},
            "transport": "http", "enabled": True,
        },
        "desktop": {"command": "npx", "args": ["--api-key", SECRET], "enabled": True},
    }  # fmt: skip
    assert "they need TRACKER_KEY, WEB: store each with `ostler secrets set NAME`" in done.stderr
    assert "files: envFile is left out" in done.stderr
    assert "'io.example/tracker' is called io.example-tracker here" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert [line.split()[1] for line in clients.run("mcp", "list").stdout.splitlines()[1:]] == ["enabled"] * 6


def test_by_name(clients: Place) -> None:
    done = clients.process("mcp", "import", "search", "io.example/tracker")
    assert done.returncode == 0, done.stderr
    assert list(servers(clients)) == ["search", "io.example-tracker"]
    assert servers(clients)["search"]["env"] == {"KEY": "${SEARCH_KEY}"}
    assert "search: the default of SEARCH_KEY is left out" in done.stderr
    before = servers(clients)
    for name, words in (
        ("search", "search is in mcp.json already; `ostler mcp remove search` first"),
        ("serch", "no file has an MCP server serch; did you mean search?"),
        ("broken", "broken of "),
        ("not-here", "no file has an MCP server not-here"),
        ("project", "no file has an MCP server project; to choose where to look: --from project"),
    ):
        done = clients.run("mcp", "import", name)
        assert done.returncode == 1
        assert words in done.stderr
    assert servers(clients) == before


def test_from_one_client_or_file(clients: Place) -> None:
    assert clients.run("mcp", "import", "files", "--from", "claude-code").returncode == 0
    assert servers(clients)["files"]["command"] == "other"
    wrote(clients.directory / "other" / ".vscode" / "mcp.json", VSCODE)
    path = str(clients.directory / "other" / ".vscode" / "mcp.json")
    clients.run("mcp", "remove", "files")
    assert clients.run("mcp", "import", "files", "--from", path).returncode == 0
    assert servers(clients)["files"]["args"][-1] == f"{clients.directory}/other/docs"
    wrong = clients.run("mcp", "import", "--from", "cursr")
    assert wrong.returncode == 2
    assert "did you mean cursor?" in wrong.stderr
    wrote(clients.directory / "bad.json", "{")
    bad = clients.run("mcp", "import", "--from", str(clients.directory / "bad.json"))
    assert bad.returncode == 0
    assert "bad.json cannot be read: it is not JSON" in bad.stderr
    assert bad.stdout.startswith("nothing to import; this looked into:\n  ")
    assert bad.stdout.endswith("bad.json\n")


def test_a_person_chooses(clients: Place) -> None:
    with clients.terminal("mcp", "import") as terminal:
        terminal.wait_for("Import which?")
        assert SECRET not in terminal.text
        terminal.type("serch\n")
        terminal.wait_for("did you mean search?")
        terminal.type("search, web\n")
        assert terminal.end() == 0
        assert "imported search, web; agents see the change at their next start" in terminal.text
    assert list(servers(clients)) == ["search", "web"]
    for keys, status in (("n\n", 0), ("\x04", 0), ("\x03", 130)):
        with clients.terminal("mcp", "import") as terminal:
            terminal.wait_for("Import which?")
            terminal.type(keys)
            assert terminal.end() == status
            assert "Traceback" not in terminal.text
    assert list(servers(clients)) == ["search", "web"]


def test_completion_knows_them(clients: Place) -> None:
    assert bash(clients, "mcp", "import", "s") == ["search"]
    assert bash(clients, "mcp", "import", "--from", "cl") == ["claude-code", "claude-desktop"]
