"""Errors of commands: one line on the terminal, and an exit status."""

from __future__ import annotations


class Failure(Exception):
    """The command failed. The message is one line; `status` is the exit status."""

    status = 1


class BadInput(Failure):
    """The command was used wrongly."""

    status = 2


class Missing(Failure):
    """The object of the command does not exist."""


class Unreachable(Failure):
    """There is no server, or it does not answer."""

    status = 3


class Foreign(Failure):
    """What answers is no Ostler server."""

    status = 3


def leaves(group: ExceptionGroup) -> list[Exception]:
    """The exceptions of a group and of the groups in it, in order.

    For `except*`, which must not raise: up to Python 3.11.3 what is raised there comes out in a group.
    """
    found: list[Exception] = []
    for each in group.exceptions:
        found += leaves(each) if isinstance(each, ExceptionGroup) else [each]
    return found


def first(error: BaseException) -> BaseException:
    """The first exception of a group and of the groups in it; an interrupt goes before all others."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    interrupts = error.subgroup(KeyboardInterrupt)
    return first((interrupts or error).exceptions[0])
