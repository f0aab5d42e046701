"""Errors of installing and starting an agent's program."""

from __future__ import annotations


class InstallError(Exception):
    """The agent could not be installed. The message says why."""


class NodeMissing(InstallError):
    """No sufficiently new Node.js was found. The message says what to install."""


class PythonMissing(InstallError):
    """No Python of the versions that an agent needs was found. The message says what to install."""


class SpawnError(Exception):
    """The command could not be started. The message says which one and why."""
