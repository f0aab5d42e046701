"""Where things are on this machine, as a server with this environment would have them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.cli.client import BadInput

DEFAULT_STATE: Final = "~/.ostler"
AGENTS: Final = "agents"


def state_directory(argument: str | None, env: Mapping[str, str]) -> Path:
    """The state directory that `--state` or OSTLER_STATE names. Raises BadInput."""
    text = argument if argument is not None else env.get("OSTLER_STATE") or DEFAULT_STATE
    if not text.strip() or "\0" in text:
        raise BadInput(f"--state: {text!r} is no directory")
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise BadInput(f"--state: {error}") from None


def agents_directory(state: Path, env: Mapping[str, str]) -> Path:
    """Where agents are installed."""
    named = env.get("OSTLER_AGENTS_DIR")
    return Path(named).expanduser().absolute() if named else state / AGENTS
