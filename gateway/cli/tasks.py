"""Trio and signals for the commands that follow a conversation. The others do not import Trio: it takes a
moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, TypeVar, TypeVarTuple

import trio

Handler = Callable[[int, FrameType | None], None] | signal.Handlers

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals whose handlers may raise."""


def run_tasks(command: Callable[[*Ts], Awaitable[T]], *arguments: *Ts) -> T:
    """Run a command in Trio. Exceptions of its tasks and signal handlers are raised alone, not in a group."""
    raised: list[BaseException] = []
    with _set_aside() as handlers:

        async def main() -> T:
            _raise_safely(handlers, raised)
            return await command(*arguments)

        try:
            return trio.run(main)
        except (KeyboardInterrupt, BaseExceptionGroup) as error:
            found: BaseException = raised[0] if raised else error
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            raise found from None


@contextmanager
def handling(numbers: Iterable[int], handler: Handler) -> Iterator[None]:
    """Let this handle the signals during the block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, each in before.items():
            signal.signal(number, each)


def heard(*numbers: signal.Signals) -> list[signal.Signals]:
    """Those of the signals that are not ignored, as SIGHUP is under nohup."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def _set_aside() -> Iterator[Mapping[int, Any]]:
    """Yield the handlers of signals, which come back after the block. Meanwhile Trio handles Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield {}
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in ENDING}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which Trio replaces
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise_safely(handlers: Mapping[int, Any], raised: list[BaseException]) -> None:
    """Install the handlers so that what they raise interrupts the tasks, as Ctrl-C does, and not Trio itself.

    No task waits for signals: it would not run while a full pipe or a stopped terminal blocks the process.
    """
    interrupt: Any = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            handlers[number](number, frame)
        except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt and SystemExit
            raised.append(error)
            interrupt(signal.SIGINT, frame)

    for number, handler in handlers.items():
        signal.signal(number, handle if callable(handler) else handler)
