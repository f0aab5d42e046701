"""Commands as processes, against a real server; the agents are the demo and the scripted one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.client import Server
from tests.support.inside import TIMEOUT_S, run_inside
from tests.support.scripted import scripted_command
from tests.support.server import ServerProcess, shared_server
from tests.support.terminal import Terminal

OSTLER = str(Path(sysconfig.get_path("scripts")) / "ostler")


class Place:
    """A home, a workspace and a state directory, and the command run in it."""

    def __init__(self, directory: Path, url: str | None = None) -> None:
        self.directory = directory
        self.home = directory / "home"
        self.state = directory / "state"
        self.work = directory / "work"
        for each in (self.home, self.work):
            each.mkdir(parents=True, exist_ok=True)
        kept = {name: os.environ[name] for name in ("PATH", "COVERAGE_PROCESS_START") if name in os.environ}
        # Port 1 has no server, and nobody can have one there by chance.
        self.env = {**kept, "HOME": str(self.home), "OSTLER_STATE": str(self.state), "OSTLER_PORT": "1"}
        if url is not None:
            self.env["OSTLER_URL"] = url

    def run(self, *arguments: str, given: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        """The command to its end, inside this process."""
        return run_inside(arguments, {**self.env, **more}, self.work, given)

    def process(self, *arguments: str, given: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        """The same as a process of its own: where one is what is tested."""
        return subprocess.run(
            [OSTLER, *arguments],
            input=given,
            capture_output=True,
            text=True,
            env={**self.env, **more},
            cwd=self.work,
            timeout=TIMEOUT_S,
            check=False,
        )

    def json(self, *arguments: str) -> Any:
        """What the command prints."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def going_on(
        self, *arguments: str, through: Sequence[str] = (), **more: str
    ) -> Iterator[subprocess.Popen[str]]:
        """The command for the time of a block. `through`: the program that becomes it."""
        with self.start(*arguments, through=through, **more) as process:
            try:
                yield process
            finally:
                process.kill()

    def start(self, *arguments: str, through: Sequence[str] = (), **more: str) -> subprocess.Popen[str]:
        """The command, going on, with pipes; nothing on standard input."""
        return subprocess.Popen(
            [*through, OSTLER, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.env, **more},
            cwd=self.work,
        )

    def terminal(self, *arguments: str, columns: int = 100, rows: int = 40, **more: str) -> Terminal:
        """The command in a terminal."""
        return Terminal([OSTLER, *arguments], {**self.env, **more}, self.work, columns, rows)


class Served(Place):
    """A place with a server. New conversations have the scripted agent; `--agent demo` has the demo."""

    def __init__(self, directory: Path, server: ServerProcess) -> None:
        super().__init__(directory, server.url)
        self.server = server

    def scripted(self, *modes: str) -> None:
        """The agent of new conversations is the scripted one, with these modes."""
        done = self.run(
            "settings", "set", "acp_command", shlex.join(scripted_command(*modes, home=self.home / "agent"))
        )
        assert done.returncode == 0, done.stderr

    @contextmanager
    def modes(self, *modes: str) -> Iterator[None]:
        """The same for the time of a block."""
        self.scripted(*modes)
        try:
            yield
        finally:
            self.scripted()

    def newest(self) -> str:
        """The id of the conversation begun last: a change may come late, of an earlier test's."""
        found = Server.of(self.server.url, self.env).get(
            "/api/conversations/search?limit=1&sort_order=CREATED_AT_DESC"
        )
        return str(found["items"][0]["id"])

    def events(self, conversation: str) -> list[dict[str, Any]]:
        """All of them."""
        done = self.run("conversations", "export", conversation)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def said_by_user(self, conversation: str) -> list[str]:
        return [
            event["llm_message"]["content"][0]["text"]
            for event in self.events(conversation)
            if event["kind"] == "MessageEvent" and event["source"] == "user"
        ]


@contextmanager
def serving(directory: Path, *arguments: str, **environment: str) -> Iterator[Served]:
    with shared_server(directory, environment, arguments) as server:
        place = Served(directory, server)
        if "OSTLER_SESSION_API_KEY" in environment:
            place.env["OSTLER_API_KEY"] = environment["OSTLER_SESSION_API_KEY"]
        place.scripted()
        yield place


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served")) as place:
        yield place


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts a server of the test's own."""
    with ExitStack() as stack:
        yield lambda *arguments, **environment: stack.enter_context(
            serving(tmp_path, *arguments, **environment)
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A place without a server."""
    return Place(tmp_path)
