"""A run of the fuzzers: so many inputs for each target, each with a seed of its own and a deadline."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType

import attrs
import trio

from tests.attack import pure_targets, served_targets
from tests.attack.known import FAILURES

CASE_SECONDS = 10.0
"""For one case. Thousands of times what it takes; only something that hangs takes so long."""

TURN_SECONDS = 60.0
"""For one turn of an agent with a hundred lines."""

SHARES: Mapping[str, float] = {
    **dict.fromkeys(("framing", "json-rpc", "connection", "updates", "events", "settings"), 0.09),
    "answers": 0.04,
    "weight": 0.04,
    "mcp-file": 0.04,
    "agent": 0.1,
    "patch-settings": 0.05,
    "patch-conversation": 0.05,
    "query": 0.051,
    "events-socket": 0.03,
    "session-socket": 0.03,
    "http-bytes": 0.02,
    "impolite": 0.006,
    "said": 0.003,
}
"""The part of all inputs that each target gets."""

FAILURES_KEPT = 20  # of one target: the first ones say enough
TRACE_LINES = 3  # frames of a traceback that are shown


class HungError(Exception):
    """A case took longer than its deadline without giving way."""


@attrs.frozen
class Failure:
    """`seed` and `case` make the input again: `scripts/fuzz --seed SEED --target TARGET --case CASE`."""

    target: str
    seed: int
    case: int
    what: str


@attrs.define
class Report:
    seed: int
    inputs: Counter[str] = attrs.field(factory=Counter)
    seconds: dict[str, float] = attrs.field(factory=dict)
    failed: Counter[str] = attrs.field(factory=Counter)
    known: Counter[str] = attrs.field(factory=Counter)
    failures: list[Failure] = attrs.field(factory=list)


def random_of(seed: int, target: str, case: int) -> Random:
    """Everything that is chance in a case."""
    return Random(f"{seed}/{target}/{case}")


def plan(inputs: int, only: str | None = None) -> dict[str, int]:
    """How many inputs each target gets, of so many in all."""
    if only is not None:
        return {only: inputs}
    return {target: max(1, round(inputs * share)) for target, share in SHARES.items()}


async def fuzz(
    directory: Path, seed: int, inputs: Mapping[str, int], *, first: int = 0, until: float = float("inf")
) -> Report:
    """Attack. `directory` is for the server; `first` is the number of the first case; `until` a time of
    the monotonic clock after which no case begins."""
    report = Report(seed)
    for target, count in inputs.items():
        if target in pure_targets.TARGETS:
            await _attack(report, target, count, pure_targets.TARGETS[target], first, until)
    served = {target: count for target, count in inputs.items() if target in served_targets.TARGETS}
    if served:
        try:
            async with served_targets.open_site(directory) as site:
                for target, count in served.items():
                    attack = partial(served_targets.TARGETS[target], site)
                    await _attack(report, target, count, attack, first, until)
        except Exception as error:  # what the server or its journal looked like afterwards
            report.failed["server"] += 1
            report.failures.append(Failure("server", seed, -1, _described(error)))
    return report


async def _attack(
    report: Report,
    target: str,
    count: int,
    attack: Callable[[Random], Awaitable[None]],
    first: int,
    until: float,
) -> None:
    each = served_targets.INPUTS_OF_A_CASE.get(target, 1)
    deadline = TURN_SECONDS if each > 1 else CASE_SECONDS
    began = time.monotonic()
    for case in range(first, first + max(1, count // each)):
        if time.monotonic() > until:
            break
        report.inputs[target] += each
        try:
            with _alarm(2 * deadline), trio.fail_after(deadline):
                await attack(random_of(report.seed, target, case))
        except Exception as error:
            what = _described(error)
            if target in FAILURES and FAILURES[target].search(what):
                report.known[target] += 1
                continue
            report.failed[target] += 1
            if report.failed[target] <= FAILURES_KEPT:
                report.failures.append(Failure(target, report.seed, case, what))
    report.seconds[target] = time.monotonic() - began


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Ends what does not even give way to other tasks, so that its deadline cannot."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise HungError(f"no way out within {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _described(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)[-TRACE_LINES:]
    where = " < ".join(f"{os.path.basename(f.filename)}:{f.lineno} {f.name}" for f in reversed(frames))
    return f"{type(error).__name__}: {str(error)[:1000]} [{where}]"
