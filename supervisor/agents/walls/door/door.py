"""Opens the network door of one agent: takes over the listeners of its shim, and serves them.

The agent's network namespace has a loopback and nothing else. Before its program runs, the shim (shim.py)
listens on two ports there and passes the listeners out through a Unix socket. So the server accepts the
agent's connections inside of its own tasks, and no other process can reach them.

What the server runs for the agent (`terminal/create`) has a namespace of its own each time, and so listeners
of its own, which are handed over through a socket of their own and served by the same door.
"""

from __future__ import annotations

import array
import fcntl
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import attrs
import h11
import structlog
import trio

from supervisor.agent_connection import Left
from supervisor.agents.spawning.descriptors import DOOR_CONNECTIONS
from supervisor.agents.walls.door import shim
from supervisor.agents.walls.door.exchange import Answer, Exchange
from supervisor.agents.walls.door.hosts import AllowList, WayOut
from supervisor.agents.walls.door.proxies import Proxies, Refused
from supervisor.agents.walls.door.rewiring import Upstream
from supervisor.fairness import share
from supervisor.patience import KeyedLimiters, in_time

log = structlog.get_logger(__name__)

HANDOVER_SECONDS: Final = 10.0
"""Seconds from the shim's connection to its listeners: it has them already."""

ACCEPT_PAUSE_SECONDS: Final = 0.1
"""Seconds until the next attempt, where the server has no descriptor for a connection."""

SOCKET_NAME: Final = "door"
SHIM_NAME: Final = "shim.py"
"""Names in the directory of a door."""

PREFIX: Final = "door-"
"""Beginning of the name of such a directory."""

PYTHON: Final = "/usr/bin/python3"
"""The interpreter for the shim, as the agent sees it."""

RIGHTS_BYTES: Final = socket.CMSG_SPACE(2 * array.array("i").itemsize)
"""Bytes that the descriptors of two listeners take in a message."""

PEER_FORMAT: Final = "iII"
"""The kernel's `struct ucred`: process, user, group."""

MAKING_THREADS: Final = 4
"""Threads that make or remove doors below one directory at a time: it takes a millisecond."""

MAKING: Final = KeyedLimiters(MAKING_THREADS)

CLOSED: Final = -1
"""The descriptor of a closed socket."""

NAMESPACE_OF_SOCKET: Final = 0x894C
"""SIOCGSKNS (Linux 4.9): opens the network namespace of a socket."""


DIRECT: Final = WayOut()
"""No proxy."""


class NotADoor(Exception):
    """What was handed over are not the listeners of a shim in a namespace of its own. The message is a
    sentence."""


class Process(Protocol):
    """A process that was started, and is not reaped yet."""

    @property
    def pid(self) -> int:
        """Its PID."""


P = TypeVar("P", bound=Process)
T = TypeVar("T")


@attrs.define(eq=False)
class Door:
    """An open door; made by `open_door`, which owns it."""

    directory: Path
    """What the agent has to see, read-only: the shim, and the sockets to hand over through."""
    _proxies: Proxies
    _nursery: trio.Nursery
    _room: trio.Semaphore
    _owner: tuple[int, int] | None = None
    opened: trio.Event = attrs.field(factory=trio.Event)
    """Set when the agent's own listeners are served."""
    _further: int = attrs.field(default=0, init=False)
    """How many programs were started behind it besides the agent's own."""

    def allow(self, hosts: Iterable[str]) -> None:
        """Let the agent reach further hosts (`rewiring.Wiring.hosts`). Raises ValueError."""
        self._proxies.allowed = self._proxies.allowed.joined(hosts)

    def command(
        self, argv: Sequence[str], *, inside: str, python: str = PYTHON, name: str = SOCKET_NAME
    ) -> list[str]:
        """Return the command that opens the door and becomes `argv`, for a process in the agent's namespace.

        `inside`: where it finds `directory`. `python`: an interpreter that it finds, 3.9 or newer. `name`: of
        the socket to hand over through, which is for one process.
        """
        return [python, "-I", "-S", f"{inside}/{SHIM_NAME}", f"{inside}/{name}", "--", *argv]

    async def behind(self, start: Callable[[Sequence[str]], Awaitable[P]], *, inside: str | None = None) -> P:
        """Start another program of the agent, in a network namespace of its own, behind this door. Its
        listeners and connections are closed when the process ends. Return what `start` returns.

        `start`: gets the words that come before the program's command, and starts it. `inside`: where the
        program finds `directory`; the same path if None.

        Raises OSError where the socket cannot be made, and what `start` raises.

        Cancellation is passed on to `start`, and leaves nothing of the door's.
        """
        self._further += 1
        name = f"{SOCKET_NAME}-{self._further}"
        listening: socket.socket | None = None
        try:
            making = partial(_listen, self.directory, name, self._owner)
            listening = await self._in_thread(making, socket.socket.close)
            process = await start(self.command((), inside=inside or str(self.directory), name=name))
        except BaseException:
            if listening is not None:
                listening.close()
            with trio.CancelScope(shield=True):
                await self._unlink(name)
            raise
        # Nothing waits from here on, so that the process is not reaped yet, and its PID is no other's.
        try:
            ended = os.pidfd_open(process.pid)
        except OSError as error:  # no descriptor is left; the shim says that nothing listens
            log.warning("an agent's network door does not open for a terminal", reason=str(error))
            listening.close()
            self._nursery.start_soon(self._unlink, name)
        else:
            self._nursery.start_soon(_serve_until, self, listening, name, ended)
        return process

    async def _in_thread(self, work: Callable[[], T], wasted: Callable[[T], object] = lambda made: None) -> T:
        """Raises OSError. Cancellation abandons the thread."""
        limiter = MAKING.of(str(self.directory.parent))
        return await in_time(work, "to use an agent's network door", limiter=limiter, wasted=wasted)

    async def _unlink(self, name: str) -> None:
        """Remove a socket, if it is there."""
        with suppress(OSError):
            await self._in_thread(partial((self.directory / name).unlink, missing_ok=True))


@asynccontextmanager
async def open_door(
    *,
    upstreams: Sequence[Upstream],
    allowed: AllowList,
    refused: Refused,
    parent: Path,
    owner: tuple[int, int] | None = None,
    way_out: WayOut = DIRECT,
    connections: int = DOOR_CONNECTIONS,
) -> AsyncIterator[Door]:
    """Open a door for one start of an agent while the block runs.

    `upstreams`: where requests for APIs go; may grow (`rewiring.Wiring.upstreams`). `allowed`: other hosts
    that the agent reaches. `refused`: called for those that it does not reach; bounded in number, must not
    wait. `parent`: an existing directory for that of the door. `owner`: user and group of the agent, where
    they are not the server's. `way_out`: the proxy of the machine's network (`rewiring.Wiring.way_out`); it
    looks up names in place of the door. `connections`: the most at a time, of both listeners together and
    with those of terminals; further ones wait in the kernel, in a queue that is the agent's own.

    Raises OSError where the directory cannot be made. The block's own exception comes out unwrapped.

    Leaving the block, in any way, closes all connections and removes the directory.
    """
    limiter = MAKING.of(str(parent))
    making = partial(_made, parent, owner)
    directory, listening = await in_time(
        making, "to make an agent's network door", limiter=limiter, wasted=_discard
    )
    failure: BaseException | None = None
    proxies = Proxies(upstreams, allowed, refused, way_out)
    try:
        async with trio.open_nursery() as nursery:
            door = Door(directory, proxies, nursery, trio.Semaphore(connections), owner)
            nursery.start_soon(_serve_own, door, listening)
            try:
                yield door
            except BaseException as error:  # noqa: BLE001 - raised again below, outside of the nursery's group
                failure = error
            nursery.cancel_scope.cancel()
    finally:
        listening.close()
        removing = partial(shutil.rmtree, directory, ignore_errors=True)
        with trio.CancelScope(shield=True), suppress(OSError):
            await proxies.aclose()
            await in_time(removing, "to remove an agent's network door", limiter=limiter)
    if failure is not None:
        raise failure


def _made(parent: Path, owner: tuple[int, int] | None) -> tuple[Path, socket.socket]:
    """Make a private directory with the shim and a listening socket. Blocks. Raises OSError."""
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        shutil.copyfile(shim.__file__, directory / SHIM_NAME)
        (directory / SHIM_NAME).chmod(0o400)
        listening = _listen(directory, SOCKET_NAME, owner)
        if owner is not None:
            for path in (directory / SHIM_NAME, directory):
                os.chown(path, *owner)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return directory, listening


def _listen(directory: Path, name: str, owner: tuple[int, int] | None) -> socket.socket:
    """Make a listening socket of that name in the directory of a door. Blocks. Raises OSError."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Before it has a name, which an owner of the directory could give to another file.
        os.fchmod(listening.fileno(), 0o600)
        # By the descriptor of its directory: the path of a socket has 107 bytes at most.
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listening.bind(f"/proc/self/fd/{opened}/{name}")
        finally:
            os.close(opened)
        listening.listen(1)
        listening.setblocking(False)
        if owner is not None:
            os.chown(directory / name, *owner, follow_symlinks=False)
    except BaseException:
        listening.close()
        raise
    return listening


def _discard(made: tuple[Path, socket.socket]) -> None:
    directory, listening = made
    listening.close()
    shutil.rmtree(directory, ignore_errors=True)


async def _serve_own(door: Door, listening: socket.socket) -> None:
    """Serve what the agent's own program hands over, until cancelled."""
    await _serve(door, listening, SOCKET_NAME, door.opened)


async def _serve_until(door: Door, listening: socket.socket, name: str, ended: int) -> None:
    """Serve what another program hands over until it ends. `ended`: its pidfd, which is closed here."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_serve, door, listening, name, trio.Event())
            await trio.lowlevel.wait_readable(ended)
            nursery.cancel_scope.cancel()
    finally:
        os.close(ended)
        if listening.fileno() != CLOSED:  # it ended before it handed over
            listening.close()
            with trio.CancelScope(shield=True):
                await door._unlink(name)


async def _serve(door: Door, listening: socket.socket, name: str, opened: trio.Event) -> None:
    """Take over listeners, and serve them until cancelled."""
    try:
        handed, channel = await _handed_over(door, listening, name)
    except (NotADoor, OSError, trio.TooSlowError) as error:
        # The shim says so, too, and the program does not start.
        log.warning("an agent's network door does not open", reason=str(error) or "no listeners in time")
        return
    async with trio.open_nursery() as nursery:
        for each, answer in zip(handed, (door._proxies.api, door._proxies.other), strict=True):
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(each))
            nursery.start_soon(_accept, listener, answer, door._room)
        with channel, suppress(OSError):
            await channel.send(b"o")
        opened.set()


async def _handed_over(
    door: Door, listening: socket.socket, name: str
) -> tuple[list[socket.socket], trio.socket.SocketType]:
    """Wait for the shim. Return its listeners and the channel on which it waits, which are the caller's.

    Raises NotADoor, OSError, TooSlowError.
    """
    channel, _ = await trio.socket.from_stdlib_socket(listening).accept()
    try:
        # One program, one connection.
        listening.close()
        await door._in_thread(partial((door.directory / name).unlink, missing_ok=True))
        with trio.fail_after(HANDOVER_SECONDS):
            _, ancillary, _, _ = await channel.recvmsg(1, RIGHTS_BYTES, socket.MSG_CMSG_CLOEXEC)
        handed = _sockets(ancillary)
        try:
            _check(handed, channel)
        except BaseException:
            for each in handed:
                each.close()
            raise
    except BaseException:
        channel.close()
        raise
    return handed, channel


def _sockets(ancillary: Iterable[tuple[int, int, bytes]]) -> list[socket.socket]:
    """The sockets that came with a message, which are the caller's."""
    numbers = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    found = []
    for number in numbers:
        try:
            found.append(socket.socket(fileno=number))
        except OSError:  # not a socket
            os.close(number)
    return found


def _check(handed: Sequence[socket.socket], channel: trio.socket.SocketType) -> None:
    """Raise NotADoor unless these are the listeners of the shim, in another namespace than the server's."""
    wanted = [(shim.HOST, shim.API_PORT), (shim.HOST, shim.PROXY_PORT)]
    if [_listens_at(each) for each in handed] != wanted:
        raise NotADoor(
            f"the agent's start did not hand over listeners at {wanted}; start it through the shim"
        )
    for each in handed:
        if _in_our_network(each, channel):
            raise NotADoor(
                "the agent shares the server's network; start it in a network namespace of its own"
            )
        each.setblocking(False)


def _listens_at(candidate: socket.socket) -> tuple[str, int] | None:
    if candidate.family != socket.AF_INET or candidate.type != socket.SOCK_STREAM:
        return None
    if not candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return None
    host, port = candidate.getsockname()
    return host, port


def _in_our_network(handed: socket.socket, channel: trio.socket.SocketType) -> bool:
    """Whether a socket is of the server's own network namespace, or it cannot be known."""
    ours = os.stat("/proc/self/ns/net")  # noqa: PTH116 - not a path of a file
    try:
        opened = fcntl.ioctl(handed.fileno(), NAMESPACE_OF_SOCKET)
    except OSError:
        # Without rights over it, as over the machine's own.
        return _shares_network(channel, ours)
    try:
        return os.path.samestat(ours, os.fstat(opened))
    finally:
        os.close(opened)


def _shares_network(channel: trio.socket.SocketType, ours: os.stat_result) -> bool:
    peer = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(PEER_FORMAT))
    pid, _, _ = struct.unpack(PEER_FORMAT, peer)
    try:
        return os.path.samestat(ours, os.stat(f"/proc/{pid}/ns/net"))  # noqa: PTH116
    except OSError:
        return True


async def _accept(listener: trio.SocketListener, answer: Answer, room: trio.Semaphore) -> None:
    """Accept connections while there is room, each in a task of its own."""
    relaying = share()
    # Closed in any case: an open listener keeps the agent's network namespace.
    with listener.socket:
        async with trio.open_nursery() as nursery:
            while True:
                # A listener without a connection takes no room of another one.
                await trio.lowlevel.wait_readable(listener.socket)
                await room.acquire()
                try:
                    stream = await listener.accept()
                except BaseException as error:
                    room.release()
                    if not isinstance(error, OSError):
                        raise
                    await trio.sleep(ACCEPT_PAUSE_SECONDS)
                    continue
                nursery.start_soon(_connection, stream, answer, room)
                await relaying.turn()
                relaying.rest()


async def _connection(stream: trio.SocketStream, answer: Answer, room: trio.Semaphore) -> None:
    try:
        await Exchange(stream).serve(answer)
    except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, h11.ProtocolError, Left):
        pass
    except Exception:
        # Of one connection: the agent's others stay.
        log.exception("cannot answer a request of an agent")
    finally:
        room.release()
        await trio.aclose_forcefully(stream)
