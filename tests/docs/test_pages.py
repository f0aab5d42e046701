"""README, tutorial, how-tos and the curl quickstart: every block is run, in one shell for each page.

What a page says that a block prints (a block `text` behind it) is printed; `…` is anything. A block of
Python is a program of the interface's own client.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.interop.peer_environment import QUIET, PeerEnvironment
from tests.support.processes import kill_mentioning
from tests.support.server import shared_server
from tests.support.terminal import Terminal

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-_=>])")
WAIT_S = 90.0
KEY = "a-key-of-the-test"

STAND_INS = {
    # No container runtime and no systemd is there, and no index has the package.
    "docker": ":",
    "pipx": ":",
    "uv": ":",
    "sudo": '"$@"',
    "sleep": "command sleep 0.1",  # nothing is waited for longer than it takes
    "systemctl": "case $1 in restart) halt; start;; stop) halt;; start) start;; esac",
}
"""Commands that cannot run here, and what runs in their place."""

REPLACED = (
    # Real agents need keys and the network; tests/interop drives them.
    ("--agent claude-code", "--agent demo"),
    ("--agent codex", "--agent demo"),
    ("--agent $agent", "--agent demo"),
    ('"acp_server": "claude-code"', '"acp_server": "demo"'),
    # There is one terminal, and the places are the test's.
    ("ostler serve\n", "start\n"),
    ("scripts/run\n", "start\n"),
    ("127.0.0.1:8000", "127.0.0.1:$OSTLER_PORT"),
    ("/data/project", "'$HOME'/project"),
)
"""What is written otherwise for the test."""

ANSWERS = {
    "Allow it?": "y\n",
    # `ostler chat` is left again; tests/commands/test_chat.py speaks to it.
    "Ctrl-D leaves.": "\x04",
    "Value of ANTHROPIC_API_KEY": "a-key-that-is-typed\n",
}
"""What is typed when a question appears."""

FUNCTIONS = """
start() {
    ! curl -sf "http://127.0.0.1:$OSTLER_PORT/ready" >/dev/null || return 0
    setsid ostler serve >>"$HOME/serve.log" 2>&1 &
    echo $! >"$HOME/serve.pid"
    disown
    until curl -sf "http://127.0.0.1:$OSTLER_PORT/ready" >/dev/null; do sleep 0.05; done
}
halt() {
    kill "$(cat "$HOME/serve.pid")"
    while kill -0 "$(cat "$HOME/serve.pid")" 2>/dev/null; do sleep 0.05; done
}
"""

SLOW_TURN = """ostler run "Be slow, please." &
until ostler ps | grep -q running; do sleep 0.1; done"""

REPOSITORY = "mkdir repo; cd repo; git init -q; touch README; git add README; git commit -qm first"


@attrs.frozen
class Page:
    """A page, or a section of it, and what is there before its first block."""

    file: str
    before: str = "start"
    section: str = ""
    key: bool = False

    def blocks(self) -> list[tuple[str, str]]:
        text = (DOCS / self.file).read_text()
        if self.section:
            text = text.partition(f"\n## {self.section}\n")[2].partition("\n## ")[0]
        return BLOCK.findall(text)


PAGES = (
    Page("../README.md", before=":"),
    Page("tutorial.md", before=":"),
    Page("several-agents.md", before=f"start; {REPOSITORY}"),
    Page("operating.md", before=f"start; {SLOW_TURN}"),
    Page("container.md", key=True),
    Page("clients.md", section="A conversation with curl"),
)


class Shell:
    """Runs the blocks of a page below one directory."""

    def __init__(self, directory: Path, page: Page) -> None:
        self.home = directory / "home"
        self.home.mkdir(parents=True)
        self.page = page
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.env = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "OSTLER_PORT": str(port),
            "OSTLER_KEYRING": "off",
            "PAGER": "cat",
            **{
                f"GIT_{who}_{what}": "test@example.com"
                for who in ("AUTHOR", "COMMITTER")
                for what in ("NAME", "EMAIL")
            },
        }
        if page.key:
            self._keys(directory)

    def _keys(self, directory: Path) -> None:
        """As a container's runtime hands them in."""
        keys, secrets = directory / "ostler.keys", directory / "agent-keys"
        keys.write_text(f"OSTLER_SESSION_API_KEY={KEY}\nOSTLER_MASTER_KEY=a phrase of the test\n")
        keys.chmod(0o400)
        secrets.mkdir()
        (secrets / "ANTHROPIC_API_KEY").write_text("a-key-that-is-injected")
        self.env |= {"OSTLER_KEYS_FILE": str(keys), "OSTLER_SECRETS_DIR": str(secrets), "OSTLER_API_KEY": KEY}

    def script(self) -> Iterator[str]:
        yield "set -eE; trap 'echo \"FAILED: $BASH_COMMAND\"' ERR; cd\n" + FUNCTIONS
        yield from (f"{name}() {{ {instead}; }}\n" for name, instead in STAND_INS.items())
        yield f"{self.page.before}\n"
        for number, (language, text) in enumerate(self.page.blocks()):
            if language == "sh":
                yield f"echo '<{number}>'\n{rewritten(text)}echo '</{number}>'\n"

    def run(self) -> str:
        """What was printed, without colours. Asserts that every command went well."""
        script = self.home.parent / "script.sh"
        script.write_text("".join(self.script()))
        answered = dict.fromkeys(ANSWERS, 0)
        until = time.monotonic() + WAIT_S
        with Terminal(["bash", str(script)], self.env, self.home) as terminal:
            while terminal.read(0.1) or terminal.process.poll() is None:
                printed = plain(terminal.raw)
                assert time.monotonic() < until, f"no end:\n{printed}"
                for question, keys in ANSWERS.items():
                    if printed.count(question) > answered[question]:
                        answered[question] += 1
                        terminal.type(keys)
            printed = plain(terminal.raw)
            assert terminal.process.returncode == 0, printed
        return printed


def plain(raw: bytes) -> str:
    return ESCAPE.sub("", raw.decode(errors="replace")).replace("\r", "")


def rewritten(text: str) -> str:
    for found, instead in REPLACED:
        text = text.replace(found, instead)
    return text


def says(printed: str, wanted: str) -> bool:
    """Whether these lines were printed, in this order; `…` stands for anything."""
    pieces = [piece.strip() for line in wanted.splitlines() for piece in line.split("…")]
    return re.search(".*?".join(map(re.escape, pieces)), printed, re.DOTALL) is not None


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    kill_mentioning(tmp_path)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the pages show requests with curl: none is on PATH")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.file)
def test_every_block_of_a_page_runs(directory: Path, page: Page) -> None:
    blocks = page.blocks()
    printed = Shell(directory, page).run()
    before = ""
    for number, (language, text) in enumerate(blocks):
        if language == "sh":
            before = printed.partition(f"<{number}>\n")[2].partition(f"</{number}>\n")[0]
        elif language == "text" and blocks[number - 1][0] == "sh":
            assert says(before, text), f"{text}\nis not in\n{before}"
    assert {language for language, _ in blocks} <= {"sh", "text", "python"}


def test_what_is_replaced_is_on_a_page() -> None:
    shown = "".join(text for page in PAGES for _, text in page.blocks())
    assert [name for name in STAND_INS if f"{name} " not in shown] == []
    assert [found for found, _ in REPLACED if found not in shown] == []


def test_the_program_of_the_readme_runs(directory: Path) -> None:
    [program] = [text for language, text in Page("../README.md").blocks() if language == "python"]
    with shared_server(directory / "served") as server:
        done = subprocess.run(
            [sys.executable, "-c", program.replace("http://127.0.0.1:8000", server.url)],
            env={"PATH": os.environ["PATH"], "HOME": str(directory)},
            cwd=directory, capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "You said: Hello! Who are you?" in done.stdout


@pytest.mark.clients
def test_the_program_of_the_tutorial_runs(directory: Path, peer: PeerEnvironment) -> None:
    blocks = Page("tutorial.md").blocks()
    [number] = [number for number, (language, _) in enumerate(blocks) if language == "python"]
    with shared_server(directory / "served") as server:
        program = blocks[number][1].replace("http://127.0.0.1:8000", server.url)
        done = subprocess.run(
            [peer.python, "-c", program.replace("/tmp/play", str(directory / "play"))],
            env={"PATH": os.environ["PATH"], "HOME": str(directory), **QUIET},
            capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert says(done.stdout, blocks[number + 1][1])
