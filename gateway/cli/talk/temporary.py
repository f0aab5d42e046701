"""The server of a command that requires one: the running server, else a temporary one.

Several commands may need one at the same time, and a state directory has one server. So the first command
starts it and writes its address and a new key to `TEMPORARY_FILE` (0600). Commands that come while it runs
join it, and the last one to leave ends it. Each command holds a shared lock on `USERS_FILE` while it uses the
server. The kernel frees the lock however a command ends: the command that gets the exclusive lock is the
last.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

from gateway.cli.client import Server
from gateway.cli.failures import BadInput, Failure, Unreachable
from gateway.cli.locations import state_directory
from gateway.cli.temporary_file import TEMPORARY_FILE, read_known, started_at
from gateway.configuration.keys import KeysError, find

USERS_FILE: Final = "temporary-server.lock"
LOG_FILE: Final = "temporary-server.log"
"""What the last one wrote to standard error."""

START_SECONDS: Final = 60.0
"""Seconds for a start: half a second, or a minute on a busy machine with much to recover."""

END_SECONDS: Final = 30.0
"""Seconds for an orderly end; then it is killed, and its warden ends what it leaves."""

LOOK_SECONDS: Final = 0.05

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""By which a person ends a command."""

LISTENING: Final = re.compile(r"Ostler is listening on (http://\S+)\n")

LEFT_OUT: Final = (
    "OSTLER_KEYS_FILE",
    "OSTLER_SESSION_API_KEY",
    "OSTLER_SESSION_API_KEYS",
    "OH_SESSION_API_KEYS",
    "SESSION_API_KEY",
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
)
"""Variables that a temporary server does not get: it has one key, and no service manager."""


@contextmanager
def found_or_started(
    arguments: Namespace, env: Mapping[str, str], starting: Callable[[], None] = lambda: None
) -> Iterator[Server]:
    """Yield the server to use while the block runs; start a temporary one if necessary.

    A server that --url or OSTLER_URL names is never started. `starting` is called before a start. Raises
    Failure.
    """
    if arguments.url or env.get("OSTLER_URL"):
        yield Server.of(arguments.url, env)
        return
    state = state_directory(arguments.state, env)
    temporary = _Temporary(state)
    if not temporary.runs:
        running = _running(env, state, named=arguments.state is not None)
        # One that another command is just starting answers before it is written down.
        if running is not None and not temporary.begins() and _is_ours(running):
            yield running
            return
    with _ending_in_order():
        entered = False
        try:
            with _signals_wait() as pending:
                server = temporary.enter(env, starting, pending)
                entered = True
            yield server
        finally:
            if entered:
                temporary.leave()


def _running(env: Mapping[str, str], state: Path, *, named: bool) -> Server | None:
    """The running server: that of this environment, else that of the state directory, wherever it listens.

    None if there is none. Something else at its address does not count: development servers like port 8000,
    too. `named`: only the one with that state. Raises BadInput.
    """
    of_state = {**env, "OSTLER_STATE": str(state)}
    for each in ([] if named else [env]) + [of_state]:
        try:
            server = Server.of(None, each)
        except BadInput:
            if each.get("OSTLER_PORT") != "0":
                raise
            continue  # it could be at any port, and has no control socket
        if _is_ours(server) and (not named or server.by_socket or _has_state(server, state)):
            return server
    return None


def _is_ours(server: Server) -> bool:
    try:
        info = server.get("/server_info")
    except Failure:
        return False
    return isinstance(info, dict) and info.get("title") == "Ostler"


def _has_state(server: Server, state: Path) -> bool:
    return Path(server.get("/api/status")["state"]) == state


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block like an exception, so that what it began is ended too."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _CalledOff(Exception):
    """A signal arrived while a server was being started; it is delivered afterwards."""


@contextmanager
def _signals_wait() -> Iterator[list[int]]:
    """Defer signals to the end of the block, and yield the list of those pending: no exception may be raised
    between the start of a process and the moment at which its id is recorded."""
    pending: list[int] = []
    before = {number: signal.signal(number, lambda got, frame: pending.append(got)) for number in SIGNALS}
    try:
        yield pending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for came in pending[:1]:
            signal.raise_signal(came)


class _Temporary:
    """The temporary server of one state directory."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._users: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        """Whether there is one already."""
        return self.known() is not None

    def begins(self) -> bool:
        """Whether a server runs, after waiting for a start or an end under way."""
        path = self._state / f"{USERS_FILE}.start"
        if path.exists():
            with _locked(path):
                pass
        return self.runs

    def enter(self, env: Mapping[str, str], starting: Callable[[], None], pending: Sequence[int]) -> Server:
        """Join the running server, or start one, unless a signal is pending. Raises Failure, _CalledOff."""
        try:
            self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._users = os.open(self._state / USERS_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Failure(f"cannot use the state directory: {error}") from None
        try:
            # Exclusive: no other command starts or ends a server meanwhile. Waits for a start under way.
            with _locked(self._state / f"{USERS_FILE}.start"):
                known = self.known()
                if known is None:
                    starting()
                    known = self._start(env, pending)
                fcntl.flock(self._users, fcntl.LOCK_SH)
        except BaseException:
            self._abandon()
            raise
        return Server(known["url"], known["key"])

    def leave(self) -> None:
        """End the server, unless another command uses it. Signals wait for that: it takes a second or two."""
        before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
        try:
            self._leave()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _leave(self) -> None:
        assert self._users is not None
        with _locked(self._state / f"{USERS_FILE}.start"):
            try:
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                known = self.known()
                if known is not None:
                    _end(known["pid"])
                (self._state / TEMPORARY_FILE).unlink(missing_ok=True)
            finally:
                os.close(self._users)
                self._users = None
        if self._process is not None:
            self._process.poll()

    def _abandon(self) -> None:
        if self._users is not None:
            os.close(self._users)
            self._users = None

    def known(self) -> dict[str, Any] | None:
        """The one that was written down, if it still runs."""
        return read_known(self._state)

    def _start(self, env: Mapping[str, str], pending: Sequence[int]) -> dict[str, Any]:
        key = secrets.token_urlsafe(24)
        try:
            place = find(None, None, env)
            given = _without_session_keys(place.read() if place is not None else {})
        except KeysError as error:
            raise Failure(str(error)) from None
        kept = _without_session_keys(env)
        # -P: the current directory, which is a project's, must not be searched for our modules.
        command = [sys.executable, "-P", "-m", "gateway", "serve", "--host", "127.0.0.1", "--port", "0"]
        with (
            _private(self._state / LOG_FILE) as log,
            _readable({**given, "OSTLER_SESSION_API_KEY": key}) as keys,
        ):
            try:
                process = subprocess.Popen(
                    # Not by a variable: others of the user could read that at first.
                    [*command, "--state", str(self._state), "--keys-fd", str(keys)],
                    env=kept,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    pass_fds=[keys],
                    start_new_session=True,  # Ctrl-C is for us
                )
            except OSError as error:
                raise Failure(f"cannot start a server: {error}") from None
        self._process = process
        try:
            url = self._address(process, pending)
            known = {"url": url, "key": key, "pid": process.pid, "started": started_at(process.pid)}
            _write_private(self._state / TEMPORARY_FILE, json.dumps(known))
        except BaseException:
            _end(process.pid)
            process.wait()
            raise
        return known

    def _address(self, process: subprocess.Popen[bytes], pending: Sequence[int]) -> str:
        """What it says on standard output when it listens."""
        assert process.stdout is not None
        said = b""
        until = time.monotonic() + START_SECONDS
        with process.stdout:
            while (left := until - time.monotonic()) > 0:
                readable, _, _ = select.select([process.stdout], [], [], min(left, LOOK_SECONDS))
                if pending:
                    raise _CalledOff
                data = os.read(process.stdout.fileno(), 4096) if readable else b""
                said += data
                match = LISTENING.search(said.decode(errors="replace"))
                if match is not None:
                    return match[1]
                if readable and not data:
                    process.wait()
                    raise Unreachable(self._reason())
        raise Unreachable(f"the temporary server did not listen within {START_SECONDS:g} s")

    def _reason(self) -> str:
        with suppress(OSError):
            text = (self._state / LOG_FILE).read_text(errors="replace")
            lines = [
                line.removeprefix("ostler: ") for line in text.splitlines() if line.startswith("ostler: ")
            ]
            if lines:
                return (
                    f"no server answers, and none could be started: {lines[-1]}. If one runs elsewhere, name "
                    "it with --url or OSTLER_URL"
                )
        return f"cannot start a server; read {self._state / LOG_FILE}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _readable(keys: Mapping[str, str]) -> Iterator[int]:
    """A descriptor from which they can be read, one in a line."""
    descriptor = os.memfd_create("keys")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.writelines(f"{name}={value}\n".encode() for name, value in keys.items())
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _private(path: Path) -> IO[bytes]:
    """A file that only this user reads, emptied."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb")


def _without_session_keys(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables without session keys, and without others that a temporary server must not get."""
    return {
        name: value
        for name, value in variables.items()
        if name not in LEFT_OUT and not name.startswith("OH_SESSION_API_KEYS_")
    }


def _write_private(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    with _private(beside) as file:
        file.write(text.encode())
    beside.replace(path)


def _end(pid: int) -> None:
    """SIGTERM, and wait; SIGKILL to one that does not end."""
    started = started_at(pid)
    for number, seconds in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, END_SECONDS)):
        if started is None or started_at(pid) != started:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        until = time.monotonic() + seconds
        while started_at(pid) == started and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
