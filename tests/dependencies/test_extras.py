"""Without its extras Ostler runs, and what needs one says how to install it."""

from __future__ import annotations

import shlex
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.cli.failures import Failure
from gateway.cli.parser import build_parser
from gateway.cli.talk import chat
from supervisor import extras
from supervisor.conversations.mcp.helper import HelperFailed, ask_helper
from tests.dependencies.test_declared import imported
from tests.support.requirements import EXTRAS, NAME, declared, normal

USERS = {
    "cli": {"gateway/cli/talk/line_editor.py"},
    "mcp": {f"supervisor/mcp/{name}.py" for name in ("answers", "helper", "registration", "renewal")},
}
"""The modules that import what an extra brings: themselves imported late, or in a process of their own."""

ROOMS = {
    "postgres": (
        "supervisor/database/",
        "supervisor/journal/postgres/",
        "supervisor/machines/",
        "supervisor/offline/copying/postgres.py",
    )
}
"""The same for an extra with rooms of its own."""

START = """
import sys
sys.modules.update(dict.fromkeys(("prompt_toolkit", "mcp", "psycopg", "pydantic", "anyio")))
import gateway.serving.server
import gateway.cli.talk.run, gateway.cli.talk.chat, gateway.cli.mcp.mcp, gateway.cli.mcp.connect
import supervisor.composition
"""


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No extra is installed."""
    monkeypatch.setattr(extras, "find_spec", lambda _: None)


def test_only_their_users_import_what_extras_bring() -> None:
    found = imported("supervisor", "gateway")
    for extra, brought in EXTRAS.items():
        users = set().union(*(found[name] for name in brought))
        rooms = ROOMS.get(extra, ())
        assert {each for each in users if not each.startswith(rooms or " ")} == USERS.get(extra, set())


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_is_known_by_a_module_that_it_brings(extra: str) -> None:
    assert PathFinder.find_spec(extras.MODULES[extra]) is not None
    assert extras.MODULES[extra].replace("_", "-") in EXTRAS[extra]
    assert extras.missing(extra, "it") is None


@pytest.mark.parametrize("extra", [*EXTRAS, "node"])
def test_what_to_install_is_what_the_extra_declares(extra: str) -> None:
    command = shlex.split(extras.how_to_install(extra))
    assert sys.executable in command
    named = {normal(found[0]) for each in command if (found := NAME.match(each)) and each != found[0]}
    assert named == set(declared("options.extras_require", extra))


async def test_server_and_commands_start_without_extras() -> None:
    # A module that is None in sys.modules cannot be imported.
    done = await trio.run_process([sys.executable, "-c", START], capture_stderr=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


async def test_a_test_of_an_mcp_server_says_what_to_install(bare: None, tmp_path: Path) -> None:
    with pytest.raises(HelperFailed, match=r"^testing an MCP server .* pip install .*'mcp[<>]"):
        await ask_helper({"op": "test", "server": {}}, environment={}, cwd=tmp_path, seconds=1.0)


def test_a_chat_says_what_to_install(bare: None, monkeypatch: Any) -> None:
    monkeypatch.setattr(chat, "asks", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(
        Failure, match=r"^ostler chat needs .* pip install .*'prompt-toolkit>=[0-9.]+'; `ostler run` works"
    ):
        chat.run(build_parser().parse_args(["chat"]))
