"""Finds the logins that providers' own tools left on this machine. Blocking, except what is async."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import structlog

from supervisor.agents.catalog import Descriptor, Selected
from supervisor.agents.homes.credential import Found, held_in, member_of, members, tokens_in
from supervisor.patience import KeyedLimiters, PathTimeout, in_time, read_regular

MAX_FILE_BYTES: Final = 1 << 20
"""Bytes of a file that is looked into: logins take a few kilobytes."""

LOOKING: Final = KeyedLimiters(2)
"""Threads that may look into the same files at the same time.

An agent whose own files hang must not use up the threads of others.
"""

log = structlog.get_logger(__name__)


@attrs.frozen(kw_only=True)
class Logins:
    """The logins that were found, and the values in them that must never be shown."""

    found: tuple[Found, ...] = ()
    tokens: frozenset[str] = attrs.field(default=frozenset(), repr=False)


async def find_logins(descriptor: Descriptor, env: Mapping[str, str]) -> Logins:
    """Look for logins where the agent would, with `env`, its composed environment.

    A file that cannot be read counts as empty. If one file does not answer within PATH_SECONDS, all count as
    empty.

    Runs in a thread; cancellation abandons it.
    """
    try:
        work = partial(_find, descriptor, env)
        places = {str(_place(source.files, env)) for source in descriptor.credentials}
        return await in_time(work, "to look for logins", limiter=LOOKING.of("\0".join(sorted(places))))
    except PathTimeout as error:
        log.warning("cannot look for logins", agent=descriptor.key, error=str(error))
        return Logins()


def _find(descriptor: Descriptor, env: Mapping[str, str]) -> Logins:
    found: dict[str, Found] = {}
    tokens: set[str] = set()
    for source in descriptor.credentials:
        path = _place(source.files, env)
        if path is None or source.name in found:
            continue
        if source.selected is not None and not _is_selected(source.selected, env):
            continue
        text = _read(path)
        if text is not None:
            holds = held_in(text, members(descriptor, source.name))
            found[source.name] = Found(place=source.name, path=path, holds=holds)
            tokens |= tokens_in(text)
    return Logins(found=tuple(found.values()), tokens=frozenset(tokens))


def _place(files: tuple[str, ...], env: Mapping[str, str]) -> Path | None:
    """Return the first place whose variable is set: an agent with a relocated home does not look into the
    usual one."""
    for file in files:
        path = expand(file, env)
        if path is not None:
            return path
    return None


def expand(file: str, env: Mapping[str, str]) -> Path | None:
    """Return a descriptor's path with its leading `$NAME` replaced; None if that variable is not set."""
    if not file.startswith("$"):
        return Path(file)
    name, slash, rest = file[1:].partition("/")
    value = env.get(name)
    return Path(value + slash + rest) if value else None


def _is_selected(selected: Selected, env: Mapping[str, str]) -> bool:
    path = expand(selected.file, env)
    text = None if path is None else _read(path)
    try:
        value = member_of(json.loads(text or "{}"), selected.member)
    except (ValueError, RecursionError):
        return True  # settings that cannot be parsed select nothing, so any source may count
    return not value or value == selected.value


def _read(path: Path) -> str | None:
    try:
        return read_regular(path, MAX_FILE_BYTES).decode()
    except (OSError, ValueError):
        return None
