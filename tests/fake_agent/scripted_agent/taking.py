"""Directives that take what agents are limited in: memory, processes, open files, disk."""

from __future__ import annotations

import os
import sys

from scripted_agent.directives import directive, numbers
from scripted_agent.processes import LIFETIME_S
from scripted_agent.turn import Turn

HOARD = f"import time; kept = b'x' * {{}}; print(flush=True); time.sleep({LIFETIME_S})"

kept: list[object] = []
"""What this process holds on to."""


@directive("hoard", "BYTES [CHILDREN] take memory, here (and die without) or in each of so many children")
def _hoard(turn: Turn, rest: str) -> None:
    size, children = (int(number) for number in numbers(rest, 1, 0))
    if not children:
        try:
            kept.append(b"x" * size)
        except MemoryError:
            print("MemoryError", file=sys.stderr, flush=True)
            os._exit(1)
    for _ in range(children):
        _child(HOARD.format(size))
    turn.say("hoarded ")


@directive("fork", "N start so many children; says how many there are, and why no more")
def _fork(turn: Turn, rest: str) -> None:
    made, why = 0, ""
    try:
        for _ in range(int(rest)):
            _child(f"import time; print(flush=True); time.sleep({LIFETIME_S})")
            made += 1
    except (OSError, ValueError) as error:
        why = f" {error}"
    turn.say(f"forked {made}{why} ")


@directive("open", "N open so many files for a moment; says how many there were, and why no more")
def _open(turn: Turn, rest: str) -> None:
    made, why = 0, ""
    files = []
    try:
        for _ in range(int(rest)):
            files.append(os.open(os.devnull, os.O_RDONLY))
            made += 1
    except OSError as error:
        why = f" {error}"
    for each in files:
        os.close(each)
    turn.say(f"opened {made}{why} ")


@directive("fill", "NAME BYTES write a file in the home, and die of it where it may not be that large")
def _fill(turn: Turn, rest: str) -> None:
    import ctypes  # few agents need them
    import signal

    # Python ignores it, and lets only the main thread change that.
    ctypes.CDLL(None).signal(int(signal.SIGXFSZ), None)
    name, size = rest.split()
    with open(os.path.join(os.environ["HOME"], name), "wb") as file:
        file.write(b"x" * int(size))
    turn.say("filled ")


def _child(code: str) -> None:
    """Start a child, and wait until it has done what it does."""
    import subprocess

    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    kept.append(child)
    assert child.stdout is not None
    if not child.stdout.readline():
        raise ValueError("the child has ended")
