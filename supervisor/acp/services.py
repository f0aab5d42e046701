"""The client methods that Ostler serves to an agent: files and terminals inside the workspace."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import trio

from supervisor.acp.errors import INTERNAL_ERROR, RESOURCE_NOT_FOUND, RpcError
from supervisor.acp.files import Jail
from supervisor.acp.output import DEFAULT_OUTPUT_BYTES, MAX_OUTPUT_BYTES, OutputPool, OutputRing, Seen
from supervisor.acp.schema.bounds import short_id
from supervisor.acp.schema.read import Json, as_object, integer, objects, text
from supervisor.acp.terminal import OutputWatch, StartProcess, Terminal
from supervisor.patience import PathTimeout, in_time

MAX_TERMINALS: Final = 64
"""The most terminals of one agent. An agent that does not release its terminals must not fill the process
table."""

FILE_THREADS: Final = 4
"""The most concurrent reads and writes of one agent."""

FILE_SECONDS: Final = 10.0
"""Seconds that one read or write may take.

A disk needs far less for the content of one message; a FUSE file system of the agent may never answer. An
ending conversation waits that long for a write.
"""


class TerminalSlots(Protocol):
    """The terminal slots that all agents share."""

    def take(self, held: int = 0) -> bool:
        """Take a slot, which the caller must release. False if none is free, or if the caller, which holds
        `held` slots, would hold more than are left for all others."""

    def give(self) -> None:
        """Give a slot back."""


T = TypeVar("T")

Server = Callable[[Json], Awaitable[Any]]


class Services:
    """Serves `fs/*` and `terminal/*` to one agent.

    `jail`: the workspace. Files and working directories must lie in it, after symlinks are resolved. A
    command in a terminal is not confined to it: it may do what the agent itself may.

    `environment`: the environment of commands (without the server's own variables), to which the agent may
    add.

    `watch(terminal_id)` returns the watch that receives the terminal's output as it arrives.

    `start`: starts each command; without it there are no terminals. Each terminal takes a slot of `slots`.

    The tasks of the terminals run in `nursery`; `close` ends them, and so does cancelling the nursery.
    """

    def __init__(
        self,
        jail: Jail,
        nursery: trio.Nursery,
        *,
        environment: Mapping[str, str] | None = None,
        fs: bool = True,
        terminal: bool = True,
        start: StartProcess | None = None,
        slots: TerminalSlots | None = None,
        watch: Callable[[str], OutputWatch] | None = None,
    ) -> None:
        self._watch = watch
        self._released: dict[str, OutputRing] = {}
        self._slots = slots
        self._jail = jail
        self._nursery = nursery
        self._environment = dict(environment or {})
        self._start = start
        self._held = 0
        self._closed = False
        self._limiter = trio.CapacityLimiter(FILE_THREADS)
        self._terminals: dict[str, Terminal] = {}
        self.released_at = -math.inf
        """When the agent last released a terminal (Trio's clock)."""
        self._last_terminal = 0
        self._outputs = OutputPool()
        self._servers: dict[str, Server] = {}
        self.offer(fs=fs, terminal=terminal)

    def offer(self, *, fs: bool, terminal: bool) -> None:
        """Serve these methods from now on, and no others."""
        self._servers.clear()
        if fs:
            self._servers |= {"fs/read_text_file": self._read, "fs/write_text_file": self._write}
        if terminal and self._start is not None:
            self._servers |= {
                "terminal/create": self._create,
                "terminal/output": self._show,
                "terminal/wait_for_exit": self._wait,
                "terminal/kill": self._kill,
                "terminal/release": self._drop,
            }

    @property
    def terminals(self) -> int:
        """The number of open terminals."""
        return len(self._terminals)

    def output(self, terminal_id: str) -> Seen | None:
        """The output of a terminal so far, also of a recently released one; None for an unknown terminal."""
        terminal = self._terminals.get(terminal_id)
        ring = self._released.get(terminal_id) if terminal is None else terminal.ring
        return None if ring is None else ring.seen()

    def serves(self, method: str) -> bool:
        """Whether `handle` knows this method."""
        return method in self._servers

    async def handle(self, method: str, params: Any) -> Any:
        """Answer a request of the agent. Raises RpcError, with -32601 for methods that are not served.

        Cancellation is possible at any time; a write in progress is finished first, for at most FILE_SECONDS.
        """
        server = self._servers.get(method)
        if server is None:
            raise RpcError.method_not_found(method)
        return await server(as_object(params))

    async def close(self) -> None:
        """Kill and release every terminal. Returns when their processes are gone.

        Cancellation does not cut it short.
        """
        self._closed = True
        terminals = list(self._terminals.values())
        self._terminals.clear()
        for terminal in terminals:
            terminal.kill()
            terminal.release()
        with trio.CancelScope(shield=True):  # bounded: each `run` has a deadline
            for terminal in terminals:
                await terminal.finished.wait()

    # -- files ---------------------------------------------------------------------------------------------

    async def _read(self, params: Json) -> Json:
        first = integer(params, "line")
        count = integer(params, "limit")
        read = partial(
            self._jail.read_text,
            _required(params, "path"),
            max(1, 1 if first is None else first),
            None if count is None else max(0, count),
            check=trio.from_thread.check_cancelled,
        )
        return {"content": await self._in_thread(read)}

    async def _write(self, params: Json) -> Json:
        write = partial(self._jail.write_text, _required(params, "path"), _required(params, "content"))
        await trio.lowlevel.checkpoint_if_cancelled()
        # A write is finished or not begun.
        await self._in_thread(write, shield=True)
        return {}

    async def _in_thread(
        self, work: Callable[[], T], *, shield: bool = False, wasted: Callable[[T], object] = lambda _: None
    ) -> T:
        """Run `work` in a thread, and return its result. Raises RpcError after FILE_SECONDS.

        The thread is then abandoned, and counts against FILE_THREADS until it ends; `wasted` gets its result.
        With `shield`, cancellation does not abandon the thread.
        """
        try:
            return await in_time(
                work,
                "to use a file",
                limiter=self._limiter,
                seconds=FILE_SECONDS,
                shield=shield,
                wasted=wasted,
            )
        except PathTimeout:
            reason = f"The file system did not answer within {FILE_SECONDS:g} s"
            raise RpcError(INTERNAL_ERROR, reason) from None

    # -- terminals -----------------------------------------------------------------------------------------

    async def _create(self, params: Json) -> Json:
        command = _required(params, "command")
        args = params.get("args")
        limit = integer(params, "outputByteLimit")
        size = DEFAULT_OUTPUT_BYTES if limit is None else min(max(0, limit), MAX_OUTPUT_BYTES)
        open_directory = partial(self._jail.open_directory, text(params, "cwd"))
        assert self._start is not None
        self._take_slot()
        self._last_terminal += 1
        terminal_id = f"term_{self._last_terminal}"
        try:
            directory = await self._in_thread(open_directory, wasted=os.close)
            try:
                terminal = await Terminal.start(
                    _argv(command, args if isinstance(args, list) else []),
                    # The descriptor, since the path may have changed its meaning.
                    cwd=directory,
                    env=self._environment | _variables(params),
                    ring=OutputRing(size, self._outputs),
                    start=self._start,
                    watch=None if self._watch is None else self._watch(terminal_id),
                )
            finally:
                os.close(directory)
        except BaseException:
            self._give_slot()
            raise
        # No checkpoint between the start and the task that owns the process.
        self._nursery.start_soon(self._run, terminal, name=f"terminal {terminal_id}")
        if self._closed:  # `close` ran during the start
            terminal.release()
            raise RpcError(INTERNAL_ERROR, "The agent is stopping")
        self._terminals[terminal_id] = terminal
        return {"terminalId": terminal_id}

    async def _run(self, terminal: Terminal) -> None:
        try:
            await terminal.run()
        finally:
            self._give_slot()

    def _take_slot(self) -> None:
        # Released terminals count until their processes are gone.
        if self._held >= MAX_TERMINALS:
            raise RpcError(
                INTERNAL_ERROR, f"The agent has {MAX_TERMINALS} terminals, which is the limit; release some"
            )
        if self._slots is not None and not self._slots.take(self._held):
            raise RpcError(
                INTERNAL_ERROR,
                f"The agent has {self._held} terminals, and the server has file descriptors "
                "for as many others at most; release some, or try again later",
            )
        self._held += 1

    def _give_slot(self) -> None:
        self._held -= 1
        if self._slots is not None:
            self._slots.give()

    async def _show(self, params: Json) -> Json:
        return await self._terminal(params).output()

    async def _wait(self, params: Json) -> Json:
        terminal = self._terminal(params)
        await terminal.exited.wait()
        return terminal.exit_status()

    async def _kill(self, params: Json) -> Json:
        terminal = self._terminal(params)
        terminal.kill()
        await terminal.exited.wait()
        return {}

    async def _drop(self, params: Json) -> Json:
        terminal = self._terminal(params)
        terminal_id = _required(params, "terminalId")
        del self._terminals[terminal_id]
        self.released_at = trio.current_time()
        # Agents refer to a terminal in a call's content after they have released it.
        self._released[terminal_id] = terminal.ring
        if len(self._released) > MAX_TERMINALS:
            del self._released[next(iter(self._released))]
        terminal.kill()
        terminal.release()
        await terminal.finished.wait()
        return {}

    def _terminal(self, params: Json) -> Terminal:
        terminal_id = _required(params, "terminalId")
        terminal = self._terminals.get(terminal_id)
        if terminal is None:
            raise RpcError(RESOURCE_NOT_FOUND, "No such terminal", {"terminalId": short_id(terminal_id)})
        return terminal


def _required(params: Json, key: str) -> str:
    value = text(params, key)
    if value is None:
        raise RpcError.invalid_params(f"{key} is required and must be a string")
    return value


_SHELL_SYNTAX: Final = re.compile(r"[\s;&|<>$`*?(){}\"']")


def _argv(command: str, args: list[Any]) -> list[str]:
    """The program and its arguments. Some agents send a whole shell line as the command, and no arguments."""
    if not args and _SHELL_SYNTAX.search(command):
        return ["/bin/sh", "-c", command]
    return [command, *map(str, args)]


def _variables(params: Json) -> dict[str, str]:
    """The `env` of a request: a list of names and values."""
    return {
        name: value
        for item in objects(params, "env") or ()
        if (name := text(item, "name")) and (value := text(item, "value")) is not None
    }
