"""What a process can tell the kernel about itself: who gets its orphans, what happens when its parent dies.

Linux only (prctl(2)); elsewhere everything here says that it cannot be had.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

from supervisor.switches import switched_on

__all__ = [
    "attachable", "be_subreaper", "hide_from_peers", "is_subreaper", "name_process",
    "signal_at_parents_death",
]  # fmt: skip

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_NAME: Final = 15
PR_SET_CHILD_SUBREAPER: Final = 36
PR_GET_CHILD_SUBREAPER: Final = 37


ATTACHABLE_VARIABLE: Final = "OSTLER_ATTACHABLE"
"""A switch. On: other processes of the user, agents too, can read the memory and the environment of warden
and server."""


def attachable() -> bool:
    """Whether the operator lets debuggers attach to the warden and the server.

    A value that is not a boolean counts as no; a server does not start with it (gateway/config.py).
    """
    try:
        return switched_on(os.environ, ATTACHABLE_VARIABLE)
    except ValueError:
        return False


def be_subreaper(wanted: bool = True) -> bool:
    """Become the process that orphans below are handed to; says whether that worked.

    Holds over exec; children do not inherit it.
    """
    return _prctl(PR_SET_CHILD_SUBREAPER, int(wanted))


def is_subreaper() -> bool:
    """Whether orphans below are handed to this process."""
    answer = ctypes.c_int(0)
    return _prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer)) and bool(answer.value)


def signal_at_parents_death(number: int) -> bool:
    """Ask for the signal at the end of the thread that started this process; says whether that worked.

    Whoever calls it compares `os.getppid()` afterwards: the parent may have died before.
    """
    return _prctl(PR_SET_PDEATHSIG, number)


def hide_from_peers() -> bool:
    """Keep this process's environment and memory from other processes of the same user; says whether that
    worked.

    The files in /proc that tell of them are root's from then on, no debugger of the user attaches to it, and
    it leaves no core dump. Who has opened them before reads on. It ends with an exec, since what is executed
    begins with a memory of its own that is not hidden; what is forked is hidden from its first moment on, and
    nobody can have opened its memory before.
    """
    return _prctl(PR_SET_DUMPABLE, 0)


def name_process(name: str) -> bool:
    """What the main thread is called in lists of processes, 15 bytes at most; says whether that worked."""
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
