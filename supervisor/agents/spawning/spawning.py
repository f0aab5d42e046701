"""Starts a process without blocking the event loop or holding the GIL during the exec.

The spawner (link.py) starts it or, where there is none, a thread.
"""

from __future__ import annotations

import errno
import marshal
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import attrs
import structlog
import trio

from supervisor.agents.containment import tree
from supervisor.agents.containment.marker import ProcessMarker
from supervisor.agents.containment.tree import ProcessId
from supervisor.agents.spawning import descriptors, spawner
from supervisor.agents.spawning.confinement import Confinement
from supervisor.agents.spawning.link import SpawnerGone, receive

log = structlog.get_logger(__name__)

SPAWN_SECONDS: Final = 10.0
"""Seconds from the request for a process until its program runs.

That takes milliseconds; but opening the program, or entering its directory, may block without limit, on a
file system or on another process's lease.
"""

ANSWER_SECONDS: Final = 3.0
"""Seconds from a request to the PID, for which the spawner forks twice; a slower one counts as stopped."""

LONGEST_STRING: Final = 128 * 1024 - 1
"""Bytes that one argument or variable can have on Linux (execve(2), MAX_ARG_STRLEN)."""

MOST_STRINGS_BYTES: Final = 6 * 1024 * 1024
"""Bytes that arguments and variables can have together, regardless of the system's limits.

That is three quarters of what the kernel accepts for a stack. A larger request is refused before it is
encoded and sent to the spawner.
"""

LONGEST_PATH: Final = 4095
"""Bytes of a path (PATH_MAX)."""

ATTEMPTS: Final = 3
"""Attempts to start a process, in case the spawner is killed each time. No program has run by then."""

THREADS: Final = 16
"""Threads that start processes at a time, where there is no spawner."""

_threads: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("spawning")

# With vfork, the thread that starts a process holds the GIL until the exec (see the documentation of
# `subprocess`).
subprocess._USE_VFORK = False  # type: ignore[misc]


class StartTimeout(TimeoutError):
    """The program did not run within its time: its file or file system does not answer."""


@attrs.frozen(kw_only=True)
class Request:
    """A process to start, in its own session. The descriptors stay the caller's."""

    argv: Sequence[str]
    cwd: Path | int
    """A path, or the descriptor of a directory."""
    env: Mapping[str, str] = attrs.field(repr=False)
    stdin: int
    stdout: int
    stderr: int
    needs: str | None = None
    """A program that must exist as well: the one that `argv` starts in turn."""
    confinement: Confinement | None = None
    """For the spawner; without one, `argv` has to apply it."""


@attrs.frozen(eq=False)
class Child:
    """A child of the server. Its owner calls `reap` once it has ended."""

    id: ProcessId
    _process_marker: ProcessMarker
    _collect: Callable[[], bool]
    """Reaps it, and returns whether it had ended."""

    @property
    def pid(self) -> int:
        """Its PID, which is also its process group and session."""
        return self.id.pid

    def reap(self) -> None:
        """Reap it if it has ended; from then on its PID may be reused."""
        if self.id in self._process_marker.owned and self._collect():
            self._process_marker.disown(self.id)


class Starter(Protocol):
    """A process that forks on request: the spawner, or an agent's preloaded program (`forker`)."""

    async def send(self, handed: Sequence[int]) -> socket.socket:
        """Send a request, and return the channel that carried it. Raises SpawnerGone, OSError."""

    def lost(self, channel: socket.socket) -> None:
        """Note that the process is gone or does not answer."""


async def start_child(
    request: Request, process_marker: ProcessMarker, seconds: float = SPAWN_SECONDS, by: Starter | None = None
) -> Child:
    """Start a process of the agent with this `process_marker`, and wait until its program runs.

    `by`: the process that forks it, instead of the process marker's spawner.

    The process marker owns the process before any code of the program runs.

    Raises OSError (`filename` is the directory if that is the reason), including StartTimeout, and
    ValueError.

    Cancellation ends a start in progress.
    """
    _check(request)
    with trio.move_on_after(seconds):
        # Of this agent alone: starts that hang delay no other's.
        async with process_marker.starts:
            process_marker.starting += 1
            try:
                starter = by or process_marker.spawner
                if starter is None:
                    return await _start_in_thread(request, process_marker)
                return await _start_by_spawner(request, process_marker, starter)
            finally:
                process_marker.starting -= 1
    raise StartTimeout(
        f"did not start within {seconds:g} s: its file or file system does not answer. "
        "Find out who holds the file, or allow more time (OSTLER_DEADLINE_SPAWN)"
    )


def _check(request: Request) -> None:
    """Raise ValueError, or OSError, for a request that cannot succeed. The errors do not quote what is too
    long."""
    if not request.argv:
        raise ValueError("the command is empty")
    cwd = () if isinstance(request.cwd, int) else (str(request.cwd),)
    for path in (request.argv[0], *cwd):
        if len(path) > LONGEST_PATH:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    # Characters, of which there are never more than bytes: the kernel checks exactly.
    sizes = [*map(len, request.argv), *(len(name) + len(value) for name, value in request.env.items())]
    if max(sizes) > LONGEST_STRING or sum(sizes) > MOST_STRINGS_BYTES:
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
    if any("\0" in text for text in (*request.argv, *cwd, *request.env, *request.env.values())):
        raise ValueError("embedded null byte")
    if any(not name or "=" in name for name in request.env):
        raise ValueError("illegal environment variable name")


# -- by the spawner ------------------------------------------------------------------------------------------


async def _start_by_spawner(request: Request, process_marker: ProcessMarker, by: Starter) -> Child:
    content = _encode(request, process_marker)
    for _ in range(ATTEMPTS):
        try:
            return await _ask(request, content, process_marker, by)
        except SpawnerGone:
            continue
    raise OSError("the spawner, which starts agents, was killed during the start")


async def _ask(request: Request, content: bytes, process_marker: ProcessMarker, by: Starter) -> Child:
    with ExitStack() as stack:
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        stack.enter_context(theirs)
        ours.setblocking(False)
        with _in_memory(content) as memory:
            directory = [request.cwd] if isinstance(request.cwd, int) else []
            standard = [request.stdin, request.stdout, request.stderr]
            channel = await by.send([memory, theirs.fileno(), *standard, *directory])
        # This copy must go, or the end of file would not come when the starting process closes its own.
        theirs.close()
        with trio.move_on_after(ANSWER_SECONDS) as waiting:
            word = await receive(ours)
        if waiting.cancelled_caught:
            try:
                word = ours.recv(256)  # it may have come while this loop was busy
            except BlockingIOError:
                by.lost(channel)
                raise SpawnerGone from None
        if word.startswith(b"e"):
            raise _error(word, request)
        if not word.startswith(b"p"):
            # The spawner is gone, or its resource limits were lowered (prlimit(2)): try another one.
            by.lost(channel)
            raise SpawnerGone
        # The server knows the process from here on; its program waits for `GO`.
        pid = int(word[1:])
        process = process_marker.own(pid)
        try:
            # It is owned now, so an end of the agent reaches it from its first instruction on.
            ours.send(spawner.GO)
            word = await receive(ours)
        except BaseException:
            # Disowned, so that `Containment.keep_orphans` reaps it.
            process_marker.disown(process)
            with suppress(ProcessLookupError, PermissionError):
                tree.kill(process, signal.SIGKILL)
            raise
        if word:
            process_marker.disown(process)
            raise _error(word, request)
    return Child(process, process_marker, partial(_collected, pid))


def _encode(request: Request, process_marker: ProcessMarker) -> bytes:
    path = os.get_exec_path(dict(request.env))
    group = None if process_marker.group is None else os.fsencode(process_marker.group / "cgroup.procs")
    return marshal.dumps(
        {
            "argv": [os.fsencode(word) for word in request.argv],
            "env": {os.fsencode(name): os.fsencode(value) for name, value in request.env.items()},
            "cwd": None if isinstance(request.cwd, int) else os.fsencode(request.cwd),
            "path": [os.fsencode(directory) for directory in path],
            "needs": None if request.needs is None else os.fsencode(request.needs),
            "tag": process_marker.tag,
            "group": group,
            "confine": None if request.confinement is None else request.confinement.encoded(),
        }
    )


@contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    """Yield a descriptor of an anonymous memory file with this content."""
    descriptor = os.memfd_create("start")
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        yield descriptor
    finally:
        os.close(descriptor)


def _error(word: bytes, request: Request) -> OSError:
    """The spawner's error: `e<errno> <step>`."""
    number, _, step = word[1:].decode("ascii", "replace").partition(" ")
    code = int(number) if number.isdigit() else 0
    names = {"chdir": str(request.cwd), "exec": request.needs or request.argv[0]}
    return OSError(code, os.strerror(code), names.get(step, step))


def _collected(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


# -- by a thread ---------------------------------------------------------------------------------------------


async def _start_in_thread(request: Request, process_marker: ProcessMarker) -> Child:
    """Start with `subprocess` in a thread. If the start is given up, the thread kills what it starts."""
    try:
        limiter = _threads.get()
    except LookupError:
        limiter = trio.CapacityLimiter(THREADS)
        _threads.set(limiter)
    work = _Work(request)
    try:
        popen = await trio.to_thread.run_sync(work.run, limiter=limiter, abandon_on_cancel=True)
    except BaseException:
        work.give_up()
        raise
    return Child(process_marker.own(popen.pid), process_marker, lambda: popen.poll() is not None)


class _Work:
    """A start in a thread.

    It works on copies of the descriptors: the caller's may be closed and reused by the time it forks.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._lock = threading.Lock()
        self._begun = self._given_up = False
        self._popen: subprocess.Popen[bytes] | None = None
        cwd = (request.cwd,) if isinstance(request.cwd, int) else ()
        self._own = [os.dup(each) for each in (request.stdin, request.stdout, request.stderr, *cwd)]

    def run(self) -> subprocess.Popen[bytes]:
        request = self._request
        with self._lock:
            if self._given_up:
                raise ChildProcessError
            self._begun = True
        stdin, stdout, stderr, *cwd = self._own
        directory = f"/proc/self/fd/{cwd[0]}" if cwd else str(request.cwd)
        try:
            if request.needs is not None:
                _require(request.needs, directory, request.env)
            popen = subprocess.Popen(
                request.argv,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=directory,
                env=dict(request.env),
                start_new_session=True,
            )
        finally:
            self._close()
        # The server's own raised limit is not for its children: old programs walk all descriptors up to it.
        descriptors.restore_limit(popen.pid)
        self._finish(popen)
        return popen

    def _finish(self, popen: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._popen = popen
            if self._given_up:
                _end(popen)

    def give_up(self) -> None:
        """Abandon the start: the thread kills the process once it has started."""
        with self._lock:
            self._given_up = True
            if self._popen is not None:
                _end(self._popen)
            elif not self._begun:
                self._close()

    def _close(self) -> None:
        for descriptor in self._own:
            os.close(descriptor)


def _end(popen: subprocess.Popen[bytes]) -> None:
    popen.kill()
    popen.wait()


def _require(name: str, cwd: str, env: Mapping[str, str]) -> None:
    """Raise the error of a missing program: a wrapper would start first and hide it."""
    if not os.path.isdir(cwd):  # noqa: PTH112
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), cwd)
    if shutil.which(str(Path(cwd, name)) if "/" in name else name, path=env.get("PATH")) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
