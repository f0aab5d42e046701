"""`ostler open`, and the links to the console that `run` and `chat` print."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.cli.client import Server
from gateway.cli.operate.console import console_url
from gateway.serving.control import URL_FILE
from tests.support.processes import wait_until
from tests.support.terminal import CTRL_D

PROGRAM = f"""#!{sys.executable}
import os, pathlib, sys
keys = [name for name in os.environ if name.startswith("OSTLER_")]
pathlib.Path(sys.argv[0] + ".shown").write_text(" ".join([*sys.argv[1:], *keys]))
"""


@pytest.fixture
def browser(tmp_path: Path) -> Path:
    """A browser, which writes down what it is started with."""
    program = tmp_path / "browser"
    program.write_text(PROGRAM)
    program.chmod(0o700)
    return program


def shown(browser: Path) -> str:
    found = Path(f"{browser}.shown")
    assert wait_until(lambda: found.exists() and found.read_text() != "")
    return found.read_text()


def test_a_browser_is_opened_without_a_key_and_the_address_is_printed(served, browser):
    done = served.process("open", BROWSER=f"{browser} %s", OSTLER_API_KEY="secret")
    assert (done.returncode, done.stdout) == (0, f"{served.server.url}/\n"), done.stderr
    assert shown(browser) == f"{served.server.url}/"


def test_a_conversation_is_opened_by_the_beginning_of_its_id(served, browser):
    assert served.run("run", "hi").returncode == 0
    conversation = served.newest()
    done = served.process("open", conversation[:8], "--json", BROWSER=f"{browser} %s")
    assert f'"url": "{served.server.url}/#/c/{conversation}"' in done.stdout
    assert '"opened": true' in done.stdout
    assert shown(browser).endswith(f"/#/c/{conversation}")


def test_without_a_display_the_address_is_printed(served):
    assert served.json("open") == {"url": f"{served.server.url}/", "opened": False}


def test_what_is_not_there_is_not_opened(served, place):
    done = served.run("open", "00000000-0000-4000-8000-000000000000")
    assert (done.returncode, done.stdout) == (1, "")
    assert place.run("open").returncode == 3


def test_the_address_is_found_by_the_state_directory(served):
    env = {name: value for name, value in served.env.items() if name != "OSTLER_URL"}
    server = Server.of(None, {**env, "OSTLER_STATE": str(served.server.state)})
    server.get("/server_info")
    assert server.by_socket
    assert console_url(server, "0f8f") == f"{served.server.url}/#/c/0f8f"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("http://0.0.0.0:9000", "http://127.0.0.1:9000/"),
        ("http://[::]:9000", "http://[::1]:9000/"),
        ("http://box:9000", "http://box:9000/"),
        ("", None),
    ],
)
def test_an_address_to_listen_on_becomes_one_to_open(tmp_path, written, read):
    (tmp_path / URL_FILE).write_text(f"{written}\n")
    server = Server("http://127.0.0.1:8000", None, tmp_path / "control.sock")
    server.by_socket = True
    assert console_url(server) == read


def test_keys_in_an_address_are_left_out_and_a_proxys_path_stays():
    server = Server("https://user:secret@box.example/ostler/", "key")
    assert console_url(server, "0f8f") == "https://box.example/ostler/#/c/0f8f"


def test_a_temporary_server_has_no_link():
    server = Server("http://127.0.0.1:8000", None)
    server.temporary = True
    assert console_url(server) is None


def test_a_person_gets_the_link_and_a_pipe_does_not(served):
    done = served.process("run", "!text answer")
    assert done.stdout == "answer\n"
    assert "#/c/" not in done.stderr
    with served.terminal("run", "!text answer") as terminal:
        assert terminal.end() == 0
        conversation = served.newest()
        assert terminal.text.count(f"{served.server.url}/#/c/{conversation}") == 1
    with served.terminal("chat", "--resume", conversation) as terminal:
        terminal.wait_for(f"{served.server.url}/#/c/{conversation}")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
