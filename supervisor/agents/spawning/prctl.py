"""Calls of prctl(2) for this process: adopt orphans, die with the parent, hide the memory.

Each returns whether that worked: never on systems other than Linux.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

from supervisor.switches import switched_on

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_NAME: Final = 15
PR_SET_CHILD_SUBREAPER: Final = 36
PR_GET_CHILD_SUBREAPER: Final = 37

ATTACHABLE_VARIABLE: Final = "OSTLER_ATTACHABLE"
"""A switch. On: other processes of the user, agents included, can read the memory and the environment of the
warden and the server."""


def attachable() -> bool:
    """Whether the operator lets debuggers attach to the warden and the server.

    A value that is not a boolean counts as no; a server refuses to start with it (`gateway.configuration`).
    """
    try:
        return switched_on(os.environ, ATTACHABLE_VARIABLE)
    except ValueError:
        return False


def be_subreaper(wanted: bool = True) -> bool:
    """Become a subreaper: the kernel reparents orphans below this process to it. It stays one over exec;
    children do not inherit it."""
    return _prctl(PR_SET_CHILD_SUBREAPER, int(wanted))


def is_subreaper() -> bool:
    """Whether this process is a subreaper."""
    answer = ctypes.c_int(0)
    return _prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer)) and bool(answer.value)


def signal_at_parents_death(number: int) -> bool:
    """Ask the kernel for a signal when the thread that started this process ends. The caller compares
    `os.getppid()` afterwards: the parent may have died before."""
    return _prctl(PR_SET_PDEATHSIG, number)


def hide_from_peers() -> bool:
    """Hide this process's environment and memory from other processes of the same user.

    From then on its files in /proc belong to root, no debugger of the user attaches to it, and it leaves no
    core dump. A process that opened the files before can still read them. An exec ends the hiding. A forked
    child is hidden from the start, so its memory cannot have been opened before.
    """
    return _prctl(PR_SET_DUMPABLE, 0)


def name_process(name: str) -> bool:
    """Name the main thread in process lists, at most 15 bytes."""
    return _prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()))


def _prctl(option: int, argument: object) -> bool:
    if sys.platform != "linux":
        return False
    if isinstance(argument, int):
        argument = ctypes.c_ulong(argument)
    zero = ctypes.c_ulong(0)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        return int(libc.prctl(ctypes.c_int(option), argument, zero, zero, zero)) == 0
    except (AttributeError, OSError):
        return False
