"""The hooks of a project: `.openhands/hooks.json` in its directory."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import orjson
import structlog

from supervisor.hooks.config import HookConfig, read_hook_config
from supervisor.patience import KeyedLimiters, in_time, read_regular

log = structlog.get_logger(__name__)

HOOKS_FILE: Final = ".openhands/hooks.json"

FILE_BYTES: Final = 256 * 1024
"""The most bytes of such a file; a start request's configuration may have as many."""

_LIMITERS: Final = KeyedLimiters(2)
"""Threads at a time for one project's directory, which may not answer."""


async def read_project_hooks(path: str | Path) -> HookConfig | None:
    """The hooks of the project in the directory `path`; None if there are none, or they cannot be used.

    What is wrong with the file is logged. In a thread, within a deadline; cancellation abandons the thread.
    """
    file = Path(path) / HOOKS_FILE
    try:
        read = partial(read_regular, file, FILE_BYTES + 1)
        data = await in_time(read, "to read the project's hooks", limiter=_LIMITERS.of(str(path)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        _unused(file, error)
        return None
    return hooks_of(data, file)


def hooks_of(data: bytes, file: Path) -> HookConfig | None:
    """The hooks in the first `FILE_BYTES` + 1 bytes of the file; None if there are none, or they cannot be
    used, which is logged."""
    if len(data) > FILE_BYTES:
        _unused(file, f"it has more than {FILE_BYTES} bytes")
        return None
    try:
        found = read_hook_config(orjson.loads(data))
    except ValueError as error:
        _unused(file, error)
        return None
    return None if found.empty else found


def _unused(file: Path, reason: object) -> None:
    log.warning("project's hooks are not used", file=str(file), reason=str(reason))
