"""A filter of system calls (seccomp) for what namespaces do not cover. Pure.

It refuses the kernel's keyrings, which belong to the user and not to a namespace; io_uring, through which
calls reach the kernel that a filter does not see; `userfaultfd`, which serves attacks on the kernel alone;
and sockets to the virtual machine's host (AF_VSOCK), which no network namespace holds back. Where there is no
PID namespace, it also refuses calls that change the priority or limits of another process by its number.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Mapping
from typing import Final

import attrs

EPERM: Final = 1
ENOSYS: Final = 38

AF_VSOCK: Final = 40


@attrs.frozen
class _Machine:
    """Numbers of an architecture (linux/audit.h, its table of system calls)."""

    audit: int
    refused: tuple[int, ...]
    missing: tuple[int, ...]
    socket: int
    others: tuple[tuple[int, int], ...]
    """Calls that change a process, and which argument is its number; 0 is the caller. Not that of the
    processors it may use: libraries name their own threads there."""
    foreign_bit: int = 0


_IO_URING: Final = (425, 426, 427)

MACHINES: Final[Mapping[str, _Machine]] = {
    "x86_64": _Machine(
        audit=0xC000003E,
        refused=(248, 249, 250, 323),  # add_key, request_key, keyctl, userfaultfd
        missing=_IO_URING,
        socket=41,
        others=(
            *((302, 0), (141, 1), (251, 1)),  # prlimit64, setpriority, ioprio_set
            *((144, 0), (142, 0), (314, 0)),  # sched_setscheduler, sched_setparam, sched_setattr
        ),
        foreign_bit=0x40000000,  # x32
    ),
    "aarch64": _Machine(
        audit=0xC00000B7,
        refused=(217, 218, 219, 282),
        missing=_IO_URING,
        socket=198,
        others=((261, 0), (140, 1), (30, 1), (119, 0), (118, 0), (274, 0)),
    ),
}

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K

_ALLOW: Final = 0x7FFF0000
_ERROR: Final = 0x00050000

_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
"""Offsets in `struct seccomp_data`, of little-endian machines."""

_ARGUMENT_BYTES: Final = 8


def program(machine: str | None = None, *, others: bool = True) -> bytes | None:
    """The filter as `struct sock_filter`s; None for an architecture without one. `machine`: this one's if
    None. `others`: whether it may change processes by their number. Calls of other architectures (32-bit
    programs) get ENOSYS, or they would pass the filter by."""
    found = MACHINES.get(machine or platform.machine())
    if found is None:
        return None
    steps = [
        _step(_LOAD, _ARCHITECTURE_AT),
        _step(_EQUAL, found.audit, 1, 0),
        _step(_RETURN, _ERROR | ENOSYS),
        _step(_LOAD, _NUMBER_AT),
    ]
    if found.foreign_bit:
        steps += [_step(_ANY_BIT, found.foreign_bit, 0, 1), _step(_RETURN, _ERROR | ENOSYS)]
    for numbers, error in ((found.refused, EPERM), (found.missing, ENOSYS)):
        for number in numbers:
            steps += [_step(_EQUAL, number, 0, 1), _step(_RETURN, _ERROR | error)]
    for number, argument in () if others else found.others:
        steps += [
            _step(_EQUAL, number, 0, 4),
            _step(_LOAD, _FIRST_ARGUMENT_AT + argument * _ARGUMENT_BYTES),
            _step(_EQUAL, 0, 1, 0),
            _step(_RETURN, _ERROR | EPERM),
            _step(_RETURN, _ALLOW),
        ]
    steps += [
        _step(_EQUAL, found.socket, 0, 3),
        _step(_LOAD, _FIRST_ARGUMENT_AT),
        _step(_EQUAL, AF_VSOCK, 0, 1),
        _step(_RETURN, _ERROR | EPERM),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(steps)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
