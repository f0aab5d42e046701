"""The filter of system calls, run step by step as the kernel does."""

from __future__ import annotations

import struct

import pytest

from supervisor.agents.walls import system_calls
from supervisor.agents.walls.system_calls import ENOSYS, EPERM, MACHINES

ALLOWED = 0x7FFF0000
INTEL = MACHINES["x86_64"]


def judged(machine, number, *, audit=None, first=0, second=0, others=True):
    """What the kernel would answer: None to let the call happen, else the error."""
    seen = struct.pack(
        "=IIQQQ", number, MACHINES[machine].audit if audit is None else audit, 0, first, second
    )
    steps = list(struct.iter_unpack("=HBBI", system_calls.program(machine, others=others)))
    at = value = 0
    while True:
        code, if_true, if_false, operand = steps[at]
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("=I", seen, operand)
        elif code == 0x15:
            at += if_true if value == operand else if_false
        elif code == 0x45:
            at += if_true if value & operand else if_false
        else:
            assert code == 0x06
            return None if operand == ALLOWED else operand & 0xFFFF


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_what_namespaces_do_not_cover_is_refused_and_the_rest_is_not(machine):
    known = MACHINES[machine]
    refused = set(known.refused) | set(known.missing)
    for number in range(600):
        wanted = EPERM if number in known.refused else ENOSYS if number in known.missing else None
        assert judged(machine, number) == wanted, number
    assert len(refused) == 7


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_of_sockets_those_of_the_virtual_machines_host_are_refused(machine):
    number = MACHINES[machine].socket
    for family in range(50):
        assert judged(machine, number, first=family) == (EPERM if family == 40 else None)


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_priority_and_limits_of_other_processes_are_refused_where_these_are_seen(machine):
    known = MACHINES[machine].others
    assert len(known) == 6
    for number, argument in known:
        other = {("first", "second")[argument]: 4711}
        assert judged(machine, number, others=False, **other) == EPERM
        assert judged(machine, number, **other) is None
        assert judged(machine, number, others=False) is None  # its own
    for number in range(600):
        if number not in dict(known):
            assert judged(machine, number, others=False, first=1, second=1) == judged(
                machine, number, first=1
            )


def test_calls_of_another_architecture_do_not_pass_it_by():
    assert judged("x86_64", 20, audit=0x40000003) == ENOSYS  # i386
    assert judged("x86_64", 0x40000000 + 250) == ENOSYS  # x32


def test_an_unknown_machine_has_none():
    assert system_calls.program("s390x") is None
