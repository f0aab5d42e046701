"""A real server process for tests, and the certainty that nothing of it is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sysconfig
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import trio

from tests.support.client import Rest, rest_client
from tests.support.processes import ProcessInfo, descendants, kill, kill_mentioning, mentioning
from tests.support.sockets import events_socket

START_TIMEOUT_S = 30.0  # a cold start on a busy machine, far above the aim of half a second
STOP_TIMEOUT_S = 20.0  # SIGTERM to exit, agents included
READY = re.compile(r"Ostler is listening on (http://\S+)")
INHERITED = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "COVERAGE_PROCESS_START",
    "OSTLER_WALLS",
    "OSTLER_WALLS_READ",
    "OSTLER_AGENT_NETWORK",
)
OUTPUT_TAIL = 8000  # characters of the server's output shown when a test fails


class ServerProcess:
    """One `ostler serve` with everything it needs below one directory."""

    def __init__(
        self,
        directory: Path,
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        *,
        prefix: Sequence[str] = (),
        umask: int = -1,
    ) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.home = directory / "home"
        self.output = directory / "server.log"
        self.url = ""
        self.rest: Rest
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = dict(environment or {})
        self._arguments = list(arguments)
        self._prefix = list(prefix)
        self._umask = umask

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start and wait for the line that tells the address."""
        self.home.mkdir(parents=True, exist_ok=True)
        environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
        # Most tests are about something else, and must mean the same where there are walls.
        environment["OSTLER_WALLS"] = os.environ.get("OSTLER_WALLS", "off")
        environment |= {"HOME": str(self.home), **self._environment}
        program = Path(sysconfig.get_path("scripts")) / "ostler"
        command = [*self._prefix, str(program), "serve", "--host", "127.0.0.1", "--port", "0"]
        command += ["--state", str(self.state)]
        with self.output.open("ab") as output:
            begin = output.tell()
            self._process = subprocess.Popen(
                [*command, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=environment,
                start_new_session=True,
                umask=self._umask,
            )
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            text = self.output.read_bytes()[begin:].decode(errors="replace")
            ready = READY.search(text)
            if ready:
                self.url = ready[1].rstrip("/")
                return
            code = self._process.poll()
            assert code is None, f"the server ended with {code}:\n{text[-OUTPUT_TAIL:]}"
            assert time.monotonic() < until, f"not ready after {START_TIMEOUT_S} s:\n{text[-OUTPUT_TAIL:]}"
            await trio.sleep(0.01)

    def signal(self, number: int) -> None:
        """To the started process alone."""
        kill([self.pid], number)

    async def wait(self, timeout: float = STOP_TIMEOUT_S) -> int:
        """The exit code (negative: signal) of the started process."""
        assert self._process is not None
        until = time.monotonic() + timeout
        while (code := self._process.poll()) is None:
            assert time.monotonic() < until, f"the server is still there after {timeout} s"
            await trio.sleep(0.01)
        return code

    async def stop(self) -> int:
        """SIGTERM, and wait for the end."""
        self.signal(signal.SIGTERM)
        return await self.wait()

    def tree(self) -> list[ProcessInfo]:
        """Living processes below the server."""
        return descendants(self.pid)

    def lose_power(self) -> None:
        """SIGKILL of warden, server and agents, as if at one moment. Stopped first: a server that sees its
        warden die ends its turns; the warden last, since its death has the kernel wake what was stopped."""
        everything = [*(each.pid for each in self.tree()), self.pid]
        kill(everything, signal.SIGSTOP)
        kill(everything)

    def left(self) -> list[int]:
        """Living processes that have anything to do with this server's directory."""
        return mentioning(self.directory)

    def output_tail(self) -> str:
        if not self.output.exists():
            return ""
        return self.output.read_bytes().decode(errors="replace")[-OUTPUT_TAIL:]

    def events_socket(self, conversation: str, query: str = "resend_mode=all") -> str:
        return events_socket(self.url, conversation, query)

    def clean_up(self) -> list[int]:
        """Kill the server and whatever mentions its directory; returns what had to be killed."""
        if self._process is not None:
            if self._process.poll() is None:
                kill([process.pid for process in self.tree()] + [self.pid])
            self._process.wait()
        return kill_mentioning(self.directory)


@contextmanager
def shared_server(
    directory: Path, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
) -> Iterator[ServerProcess]:
    """The same where no Trio runs, without `rest`: for a fixture that several tests share."""
    server = ServerProcess(directory, environment, arguments)
    try:
        trio.run(server.start)
        yield server
        if server._process is not None and server._process.poll() is None:
            trio.run(server.stop)
    except BaseException:
        print(f"--- output of the server\n{server.output_tail()}")
        raise
    finally:
        server.clean_up()


@asynccontextmanager
async def running_server(
    directory: Path,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    *,
    prefix: Sequence[str] = (),
    umask: int = -1,
) -> AsyncIterator[ServerProcess]:
    """A started server with a `rest` client; leaving the block stops it in order, or kills it.

    The same directory may be used again, one server after the other: its state is kept. Workspaces belong
    below `directory` too, so that `kill_mentioning` finds whatever an agent left behind.
    """
    server = ServerProcess(directory, environment, arguments, prefix=prefix, umask=umask)
    try:
        await server.start()
        async with rest_client(server.url) as rest:
            server.rest = rest
            yield server
        if server._process is not None and server._process.poll() is None:
            await server.stop()
    except BaseException:
        print(f"--- output of the server\n{server.output_tail()}")
        raise
    finally:
        server.clean_up()
