"""What a process can tell the kernel about itself: who gets its orphans, what happens when its parent dies.

Linux only (prctl(2)); elsewhere everything here says that it cannot be had.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

__all__ = ["be_subreaper", "hide_from_peers", "is_subreaper", "signal_at_parents_death"]

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_CHILD_SUBREAPER: Final = 36
PR_GET_CHILD_SUBREAPER: Final = 37


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
    it leaves no core dump. It ends with an exec: what is started from here is not hidden.
    """
    return _prctl(PR_SET_DUMPABLE, 0)


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
