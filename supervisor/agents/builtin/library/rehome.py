"""Moves the library's directories in the user's home, which are constants set when its modules are imported.

A process may have imported the library before there was a conversation, with the server's home. What it finds
and keeps (skills, plugins, profiles, connections, caches) must still be in the home of its conversation.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

LIBRARY = "openhands"

_home = Path.home()


def follow() -> None:
    """Move the constants of all loaded modules to the home that HOME names now."""
    global _home
    old, new = _home, Path.home()
    if new == old:
        return
    _home = new
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != LIBRARY or module is None:
            continue
        for key, value in list(vars(module).items()):
            if isinstance(value, Path):
                setattr(module, key, _moved(value, old, new))
            elif isinstance(value, list):
                value[:] = [_moved(each, old, new) for each in value]  # in place: other modules may share it
            elif type(value) is tuple and any(isinstance(each, Path) for each in value):
                setattr(module, key, tuple(_moved(each, old, new) for each in value))


def _moved(value: Any, old: Path, new: Path) -> Any:
    """Return the path in the new home, if it is in one of the old home's hidden directories and no code."""
    if not isinstance(value, Path) or not value.is_relative_to(old) or value.is_relative_to(sys.prefix):
        return value
    inside = value.relative_to(old)
    return new / inside if inside.parts and inside.parts[0].startswith(".") else value
