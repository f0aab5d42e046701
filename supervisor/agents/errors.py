"""Errors of installing and starting an agent's program."""

from __future__ import annotations

__all__ = ["InstallError", "NodeMissing", "SpawnError"]


class InstallError(Exception):
    """The agent could not be installed; the message says why, for the person who asked for it."""


class NodeMissing(InstallError):
    """No Node.js that is new enough was found; the message says what to install."""


class SpawnError(Exception):
    """The command could not be started; the message says which and why."""
