"""Errors of commands: one line on the terminal, and an exit status."""

from __future__ import annotations


class Failure(Exception):
    """The command could not be done. The message is one line; `status` is the exit status."""

    status = 1


class BadInput(Failure):
    """The command was called wrongly."""

    status = 2


class Missing(Failure):
    """What the command is about does not exist."""


class Unreachable(Failure):
    """There is no server to talk to, or it does not answer."""

    status = 3
