"""The warden, the parent process of the server: it ends what the server leaves, and restarts the server.

The process that the operator started becomes the warden, before it has imported much (lifeline.py): the
standard library alone, some 10 MB. It is the subreaper, so every orphan that the server leaves is reparented
to it, regardless of its session and environment.

Servers are forked from the warden, and execute no program. An exec would open the environment to every
process of the user until the new program hides itself, and a process that has opened /proc/<pid>/mem in that
moment could read it from then on. The child of a hidden process is hidden from the start (prctl.py).

When the server ends, the warden kills its children until none is left, then ends with the server's status, or
with 128 + n for signal n. A server that was killed, or crashed after it had begun to serve, is restarted
instead. It has sent its listening sockets to the warden by then, which passes them to the next one. So the
port stays, and clients that connect meanwhile wait instead of being refused.

A server among several sends the end of its lease as well. When that comes before a later one, another server
may take its conversations, so the warden kills it with its agents, even if it is stopped or hangs.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time

SERVING = b"serving"
"""On the channel, a packet with the listening sockets: the server serves."""

CLOSING = b"closing"
"""On the channel, a packet: the server is stopping and accepts no more clients."""

LEASE = b"lease "
"""On the channel, the beginning of a packet: until when the server may live, in seconds of CLOCK_MONOTONIC as
decimal text; the last one counts. 0: without end, as before the first."""

WORD_BYTES = 64
"""Bytes of a packet: more than any message has. Unknown messages are dropped."""

MOST_SOCKETS = 64
"""The most listening sockets in one packet: far more than a host name has addresses."""

MOST_PACKETS = 64
"""Packets read at once: between them the warden checks signals and the server's end."""

BUDGET_VARIABLE = "OSTLER_SERVER_RESTARTS"
BUDGET = 5
BUDGET_SECONDS = 60.0
"""Seconds of the window in which at most `BUDGET` restarts are made; more would not help the server."""

FIRST_PAUSE_SECONDS = 0.1
"""Seconds before the first restart: a single crash should cost clients next to nothing."""

PAUSE_FACTOR = 3.0
"""The factor by which pauses grow, up to 8 s within the budget: time to clear a full disk or memory."""

DRAIN_VARIABLE = "OSTLER_DRAIN_SECONDS"
DRAIN_SECONDS = 5.0
"""Seconds that turns may continue in a stopping server before it cancels them. The whole end stays below the
ten seconds that service managers and container runtimes commonly grant."""

END_SECONDS = 20.0
"""Seconds that the end may take after that, several times the usual; then the server is killed."""

KILL_SECONDS = 10.0
"""Seconds of killing. Only processes that hang in the kernel, or belong to other users, are left by then."""

KILL_POLL_SECONDS = 0.01
"""Seconds between two passes of killing, unless a child ends before."""

BAD_INPUT = 2
"""The exit status of a usage error; a restart would not help."""

PROC = "/proc"

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that are passed on to the server."""


WardenLink = tuple[int, socket.socket, list[int], int]
"""A server's link to its warden: the warden's PID, the server's end of the channel, the previous server's
sockets as descriptors, the number of restarts before."""


class Warden:
    """Runs one server, and restarts it."""

    def __init__(self, budget: int = BUDGET, drain: float = DRAIN_SECONDS) -> None:
        self._budget = budget
        self._patience = drain + END_SECONDS
        self._restarts: list[float] = []
        """When those were made that the budget counts."""
        self._restarted = 0
        self._received: list[int] = []
        """Signals to pass on."""
        self._before: dict[int, object] = {}
        """The signal handlers to restore in the server."""
        self._stopping = False
        self._lease: float | None = None
        """The end of the running server's lease, by time.monotonic()."""
        self._lease_ended = False
        """Whether the last server was killed for it."""
        self._served = False
        """Whether any server of this warden has ever served."""
        self._listening: list[int] = []
        self._channel: socket.socket | None = None
        self._awake, self._wake = os.pipe()
        self._poll = select.poll()

    def run(self) -> int | WardenLink:
        """Run servers until the last one ends, and return the exit status.

        Each server returns from here as well, as a child of the warden, with its link.
        """
        self._listen_to_signals()
        while True:
            how = ""
            try:
                begun = self._start()
            except OSError as error:  # no process or no memory available: that may pass
                status, how = 1, f"cannot start: {error.strerror}"
            else:
                if isinstance(begun, tuple):
                    return begun
                status = self._watch(begun)
            # Before the status is looked at: however the server ended, its agents must not outlive it.
            left = self._kill()
            if left:
                _say(f"cannot kill processes {left} of the server")
            if not (self._worth_a_restart(status) or (how and not self._stopping)):
                return _exit_code(status)
            pause = FIRST_PAUSE_SECONDS if self._lease_ended else self._next_pause()
            how = how or (f"was killed by signal {-status}" if status < 0 else f"ended with status {status}")
            if pause is None:
                _say(f"the server {how}; giving up after {self._budget} restarts in {BUDGET_SECONDS:.0f} s")
                return _exit_code(status)
            self._restarted += 1
            _say(f"the server {how}; restarting it")
            if not self._rest(pause):
                return _exit_code(status)

    def _listen_to_signals(self) -> None:
        # A signal writes to this pipe, and must not block on a full one.
        os.set_blocking(self._wake, False)
        os.set_blocking(self._awake, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._poll.register(self._awake, select.POLLIN)
        # Any handler will do: an ignored signal would not wake `_wait`.
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                self._before[number] = signal.signal(number, lambda number, _: self._received.append(number))

    def _wait(self, seconds: float | None = None) -> None:
        """Wait for a signal or a packet of the server."""
        self._poll.poll(None if seconds is None else seconds * 1000)
        try:
            while os.read(self._awake, 4096):
                pass
        except BlockingIOError:
            pass

    # -- the server ----------------------------------------------------------------------------------------

    def _start(self) -> int | WardenLink:
        """Fork the next server. Return its PID; in the server itself, its link. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        warden = os.getpid()
        # Blocked, so that a signal to the server is kept until the server has replaced the warden's handlers.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, self._before)
        try:
            pid = os.fork()
            if pid == 0:
                self._let_go()
                ours.close()
                return warden, theirs, self._listening, self._restarted
        except OSError:
            ours.close()
            theirs.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()
        # A separate process group: a terminal's signals go to the warden's group, which passes them on once.
        with contextlib.suppress(OSError):  # the server does it too, and the second call may be too late
            os.setpgid(pid, pid)
        ours.setblocking(False)
        self._lease, self._lease_ended = None, False
        self._channel = ours
        self._poll.register(ours, select.POLLIN)
        return pid

    def _let_go(self) -> None:
        """In the server: reset what the warden has set up."""
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(self._awake)
        os.close(self._wake)

    def _watch(self, pid: int) -> int:
        """Wait for the end of the server. Return its exit code, or minus the signal's number."""
        status = None
        until: float | None = None
        while status is None:
            ends = [moment for moment in (until, self._lease) if moment is not None]
            self._wait(max(0.0, min(ends) - time.monotonic()) if ends else None)
            self._hear()
            for number in self._take_signals():
                # It is not reaped yet, so its PID is not reused. A lost terminal (SIGHUP) is an orderly stop.
                os.kill(pid, signal.SIGTERM if number == signal.SIGHUP else number)
            status = self._reap(pid)
            if status is None and self._lease is not None and time.monotonic() >= self._lease:
                _say("the server's lease ended, and another server may have its conversations; killing it")
                os.kill(pid, signal.SIGKILL)
                _kill_each(descendants(os.getpid()))  # a server that hangs in the kernel ends later
                self._lease, self._lease_ended = None, True
            if until is None:
                until = time.monotonic() + self._patience if self._stopping else None
            elif status is None and time.monotonic() >= until:
                _say(f"the server did not end within {self._patience:g} s; killing it")
                os.kill(pid, signal.SIGKILL)
                until += KILL_SECONDS
        for _ in range(MOST_PACKETS):  # bounded: a fork of the server may hold its end and continue to send
            if not self._hear():
                break
        self._hang_up()
        return status

    def _hear(self) -> bool:
        """Read packets of the server. Return True if there may be more, for the next call."""
        for _ in range(MOST_PACKETS):
            if self._channel is None:
                return False
            try:
                word, descriptors, _, _ = socket.recv_fds(
                    self._channel, WORD_BYTES, MOST_SOCKETS, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return False
            except OSError:
                word, descriptors = b"", []
            self._take(word, descriptors)
        return True

    def _take(self, word: bytes, descriptors: list[int]) -> None:
        """Handle a packet. Unknown ones are dropped with their descriptors."""
        if word == SERVING:
            self._served = True
            self._drop_sockets()
            self._listening = [each for each in descriptors if _listens(each)]
        elif word == CLOSING:
            # The warden's copies would keep the port open, and clients waiting at it.
            self._stopping = True
            self._drop_sockets()
        elif word.startswith(LEASE):
            self._take_lease(word[len(LEASE) :])
        elif not word and not descriptors:
            self._hang_up()
        for each in descriptors:
            # The server could send any descriptor; one that is kept and not used is a leak.
            if each not in self._listening:
                os.close(each)

    def _take_lease(self, text: bytes) -> None:
        try:
            moment = float(text)
        except ValueError:
            return
        # After the kill no packet counts that was sent before. Neither does infinity, or what is no number.
        if not self._lease_ended and 0 <= moment < float("inf"):
            self._lease = moment or None

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._poll.unregister(self._channel)
            self._channel.close()
            self._channel = None

    def _drop_sockets(self) -> None:
        for descriptor in self._listening:
            os.close(descriptor)
        self._listening = []

    def _take_signals(self) -> list[int]:
        received, self._received = self._received, []
        self._stopping = self._stopping or bool(received)
        return received

    # -- its end -------------------------------------------------------------------------------------------

    def _reap(self, server: int | None = None) -> int | None:
        """Reap every dead child. Return the status of the server if it is among them.

        Raises ChildProcessError if there is no child any more.
        """
        found = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if found is None:
                    raise
                return found
            if pid == 0:
                return found
            if pid == server:
                found = os.waitstatus_to_exitcode(status)

    def _kill(self) -> list[int]:
        """Kill until there is no child. Return the PIDs that are left after KILL_SECONDS.

        The children of a dead process are reparented to the warden, so no child means that nothing is left.
        """
        until = time.monotonic() + KILL_SECONDS
        while True:
            try:
                self._reap()
            except ChildProcessError:
                return []
            # All generations at once: a grandchild becomes a child only when its parent is dead.
            pids = descendants(os.getpid())
            if time.monotonic() > until:
                return pids
            _kill_each(pids)
            # One pass misses what is forked meanwhile.
            self._wait(KILL_POLL_SECONDS)

    def _worth_a_restart(self, status: int) -> bool:
        self._take_signals()
        if self._stopping or status in (0, BAD_INPUT):
            return False
        # A server that exits before any has served cannot be started; it has reported why.
        return status < 0 or self._served

    def _next_pause(self) -> float | None:
        """Count a restart after a crash, and return the seconds before it; None if the budget is spent.

        The end of a lease is not counted: it is the fault of the database or of the way to it, and a warden
        that gives up would leave a machine without a server after an outage. It cannot be fast either: a
        server has a lease after it has reached the database, and then for a whole TTL.
        """
        now = time.monotonic()
        self._restarts = [moment for moment in self._restarts if now - moment < BUDGET_SECONDS]
        if len(self._restarts) >= self._budget:
            return None
        self._restarts.append(now)
        return float(FIRST_PAUSE_SECONDS * PAUSE_FACTOR ** min(len(self._restarts) - 1, 4))

    def _rest(self, seconds: float) -> bool:
        """Wait. Return False if a signal asked to stop meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._wait(left)
            if self._take_signals():
                return False
        return True


def descendants(root: int) -> list[int]:
    """Return the living and dead processes below `root`, by their parents."""
    children: dict[int, list[int]] = {}
    for name in os.listdir(PROC):  # noqa: PTH208 - no pathlib here: importing it takes as long as the rest
        if not name.isdigit():
            continue
        try:
            with open(f"{PROC}/{name}/stat", "rb", buffering=0) as file:  # noqa: PTH123
                text = file.read(4096)
        except OSError:
            continue
        # The command name, in parentheses, may hold anything (proc(5)).
        fields = text[text.rfind(b")") + 2 :].split()
        if len(fields) > 1:
            children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _kill_each(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def budget() -> int:
    """The operator's budget of restarts."""
    text = os.environ.get(BUDGET_VARIABLE, "")
    return int(text) if text.isascii() and text.isdigit() else BUDGET


def drain() -> float:
    """Return the seconds for running turns at the end. The server rejects an invalid number."""
    try:
        return float(os.environ.get(DRAIN_VARIABLE, DRAIN_SECONDS))
    except ValueError:
        return DRAIN_SECONDS


def _listens(descriptor: int) -> bool:
    """Whether it is a listening socket: no server could serve on another one."""
    try:
        # A duplicate, since closing the object must not close the caller's descriptor.
        with contextlib.closing(socket.socket(fileno=os.dup(descriptor))) as sock:
            return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


def _exit_code(status: int) -> int:
    return status if status >= 0 else 128 - status


def _say(text: str) -> None:
    # In one write: the server writes lines to the same stream.
    try:
        os.write(2, f"ostler: {text}\n".encode())
    except OSError:
        return
