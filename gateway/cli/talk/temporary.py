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
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from gateway.cli.client import Server
from gateway.cli.failures import BadInput, Failure, Unreachable
from gateway.cli.locations import TEMPORARY_FILE, read_known, started_at, state_directory
from gateway.cli.tasks import handling, heard
from gateway.configuration.keys import KeysError, find

USERS_FILE: Final = "temporary-server.lock"
START_FILE: Final = f"{USERS_FILE}.start"
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
    arguments: Namespace, env: Mapping[str, str], note: Callable[[str], None]
) -> Iterator[Server]:
    """Yield the server to use while the block runs; start a temporary one if necessary.

    A server that --url or OSTLER_URL names is never started. `note` gets a line for people before a start.
    Raises Failure.
    """
    if arguments.url or env.get("OSTLER_URL"):
        yield Server.of(arguments.url, env)
        return
    state = state_directory(arguments.state, env)
    if read_known(state) is None:
        named = arguments.state is not None or bool(env.get("OSTLER_STATE"))
        running = _running(env, state, note, named=named)
        # One that another command is just starting answers before it is written down.
        if running is not None and not _begins(state) and _is_ours(running):
            yield running
            return
    # SIGTERM and SIGHUP end the block like an exception, so that what it began is ended too.
    with handling(heard(signal.SIGTERM, signal.SIGHUP), _exit), _temporary(state, env, note) as server:
        yield server


def _running(
    env: Mapping[str, str], state: Path, note: Callable[[str], None], *, named: bool
) -> Server | None:
    """The running server: that of this environment, else that of the state directory, wherever it listens.

    None if there is none. Something else at its address does not count: development servers like port 8000,
    too. `named`: only the one with that state directory. Raises BadInput.
    """
    of_state = {**env, "OSTLER_STATE": str(state)}
    for each in ([] if named else [env]) + [of_state]:
        try:
            server = Server.of(None, each)
        except BadInput:
            if each.get("OSTLER_PORT") != "0":
                raise
            continue  # it could be at any port, and has no control socket
        if not _is_ours(server):
            continue
        try:
            if not named or server.serves(of_state):
                return server
        except Failure:  # it has not our key, and so not our state directory
            continue
        note(f"the server at {server.url} has another state directory, {server.state}")
    return None


def _is_ours(server: Server) -> bool:
    try:
        return server.is_ostler
    except Failure:
        return False


def _begins(state: Path) -> bool:
    """Whether a temporary server runs, after waiting for a start or an end under way."""
    path = state / START_FILE
    if path.exists():
        with _locked(path):
            pass
    return read_known(state) is not None


def _exit(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


class _CalledOff(Exception):
    """A signal arrived while a server was being started; it is delivered afterwards."""


@contextmanager
def _signals_wait() -> Iterator[list[int]]:
    """Defer signals to the end of the block, and yield the list of those pending: no exception may be raised
    between the start of a process and the moment at which its id is recorded."""
    pending: list[int] = []
    try:
        with handling(SIGNALS, lambda number, frame: pending.append(number)):
            yield pending
    finally:
        for number in pending[:1]:
            signal.raise_signal(number)


@contextmanager
def _temporary(state: Path, env: Mapping[str, str], note: Callable[[str], None]) -> Iterator[Server]:
    """Join the temporary server of the directory, or start it; the last user ends it. Raises Failure."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        users = os.open(state / USERS_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        reason = "Not a directory" if isinstance(error, FileExistsError) else error.strerror or error
        raise Failure(
            f"the state directory {state} cannot be used: {reason}; name another one with --state"
        ) from None
    process: subprocess.Popen[bytes] | None = None
    leave = partial(os.close, users)
    try:
        with _signals_wait() as pending:
            # Exclusive: no other command starts or ends a server meanwhile. Waits for a start under way.
            with _locked(state / START_FILE):
                known = read_known(state)
                if known is None:
                    note("starting a temporary server")
                    known, process = _start(state, env, pending)
                fcntl.flock(users, fcntl.LOCK_SH)
            leave = partial(_leave, state, users)
        server = Server(known["url"], known["key"])
        server.temporary = True
        yield server
    finally:
        # Signals wait for that: it takes a second or two.
        with handling(SIGNALS, signal.SIG_IGN):
            leave()
        if process is not None:
            process.poll()


def _leave(state: Path, users: int) -> None:
    """End the server, unless another command uses it."""
    with _locked(state / START_FILE):
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            known = read_known(state)
            if known is not None:
                _end(known["pid"])
            (state / TEMPORARY_FILE).unlink(missing_ok=True)
        finally:
            os.close(users)  # within the lock: the next to leave must not take this command for a user


def _start(
    state: Path, env: Mapping[str, str], pending: Sequence[int]
) -> tuple[dict[str, Any], subprocess.Popen[bytes]]:
    """Start the server, unless a signal is pending. Raises Failure, _CalledOff."""
    key = secrets.token_urlsafe(24)
    try:
        place = find(None, None, env)
        given = _without_session_keys(place.read() if place is not None else {})
    except KeysError as error:
        raise Failure(str(error)) from None
    # -P: the current directory, which is a project's, must not be searched for our modules.
    command = [sys.executable, "-P", "-m", "gateway", "serve", "--host", "127.0.0.1", "--port", "0"]
    with (
        _private(state / LOG_FILE) as log,
        _readable({**given, "OSTLER_SESSION_API_KEY": key}) as keys,
    ):
        try:
            process = subprocess.Popen(
                # Not by a variable: others of the user could read that at first.
                [*command, "--state", str(state), "--keys-fd", str(keys)],
                env=_without_session_keys(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=[keys],
                start_new_session=True,  # Ctrl-C is for us
            )
        except OSError as error:
            raise Failure(f"cannot start a server: {error}") from None
    try:
        url = _address(state, process, pending)
        known = {"url": url, "key": key, "pid": process.pid, "started": started_at(process.pid)}
        written = (state / TEMPORARY_FILE).with_suffix(".new")
        with _private(written) as file:
            file.write(json.dumps(known).encode())
        written.replace(state / TEMPORARY_FILE)
    except BaseException:
        _end(process.pid)
        process.wait()
        raise
    return known, process


def _address(state: Path, process: subprocess.Popen[bytes], pending: Sequence[int]) -> str:
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
                raise Unreachable(_reason(state / LOG_FILE))
    raise Unreachable(f"the temporary server did not listen within {START_SECONDS:g} s")


def _reason(log: Path) -> str:
    """Why the server did not start, from the last line for people in its log."""
    with suppress(OSError):
        for line in reversed(log.read_text(errors="replace").splitlines()):
            if line.startswith("ostler: "):
                return (
                    f"no server answers, and none could be started: {line.removeprefix('ostler: ')}. If one "
                    "runs elsewhere, name it with --url or OSTLER_URL"
                )
    return f"cannot start a server; read {log}"


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
