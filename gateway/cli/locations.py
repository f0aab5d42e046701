"""Directories, keys and the temporary server on this machine, as a server with this environment would find
them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.cli.failures import BadInput
from gateway.configuration.address import DEFAULT_STATE
from gateway.configuration.keys import KeysError, find

if TYPE_CHECKING:
    from supervisor.documents.port import Documents

TEMPORARY_FILE: Final = "temporary-server.json"
"""In the state directory, 0600. An object with `url`, `key`, `pid` and `started` (see `started_at`)."""

DATABASE: Final = "OSTLER_DATABASE"
"""Names the database that several servers share."""

CLIENT_KEYS_FILE: Final = "client-keys.json"
"""In the state directory, 0600. An object: addresses of servers, and the keys that people typed for them."""


def state_directory(argument: str | None, env: Mapping[str, str]) -> Path:
    """The state directory that `--state` or OSTLER_STATE names. Raises BadInput."""
    text = argument if argument is not None else env.get("OSTLER_STATE") or DEFAULT_STATE
    if not text.strip() or "\0" in text:
        raise BadInput(f"--state: {text!r} is not a directory")
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise BadInput(f"--state: {error}") from None


def agents_directory(state: Path, env: Mapping[str, str]) -> Path:
    """Where agents are installed."""
    named = env.get("OSTLER_AGENTS_DIR")
    return Path(named).expanduser().absolute() if named else state / "agents"


def with_server_keys(env: Mapping[str, str]) -> Mapping[str, str]:
    """The environment, plus the keys that a server would find in OSTLER_KEYS_FILE or systemd's credential.

    Never pass it to a child: that would show the keys. Raises BadInput.
    """
    try:
        place = find(None, None, env)
        return env if place is None else {**env, **place.read()}
    except KeysError as error:
        raise BadInput(str(error)) from None


def documents_of(state: Path, env: Mapping[str, str]) -> Documents:
    """The documents of a server with this state directory and environment. Raises BadInput."""
    from supervisor.documents.files import FileDocuments  # few commands need it

    address = with_server_keys(env).get(DATABASE)
    if not address:
        return FileDocuments(state)
    from supervisor.extras import missing

    if problem := missing("postgres", DATABASE):
        raise BadInput(problem)
    from supervisor.database.address import parse
    from supervisor.database.documents import PostgresDocuments

    try:
        return PostgresDocuments(parse(address), "ostler command")
    except ValueError as error:
        raise BadInput(f"{DATABASE}: {error}") from None


def typed_key(url: str, env: Mapping[str, str]) -> str | None:
    """The key that a person typed for the server at this address (`ostler acp --login`)."""
    try:
        found = json.loads((state_directory(None, env) / CLIENT_KEYS_FILE).read_text())[url.rstrip("/")]
    except (BadInput, OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def keep_typed_key(url: str, key: str, env: Mapping[str, str]) -> Path:
    """Keep such a key; return the file. Raises BadInput, OSError."""
    from supervisor.private_files import replace_private  # few commands need it

    path = state_directory(None, env) / CLIENT_KEYS_FILE
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        found = {}
    known = found if isinstance(found, dict) else {}
    replace_private(path, json.dumps({**known, url.rstrip("/"): key}).encode())
    return path


def read_known(state: Path) -> dict[str, Any] | None:
    """Return the server of the file, if it still runs."""
    try:
        known = json.loads((state / TEMPORARY_FILE).read_text())
        pid, started = int(known["pid"]), known["started"]
        whole = isinstance(known["url"], str) and isinstance(known["key"], str)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return known if whole and started_at(pid) == started else None


def started_at(pid: int) -> int | None:
    """When a process was started, in the kernel's ticks since the boot; None when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])
