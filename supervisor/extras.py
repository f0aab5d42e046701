"""Libraries that only an extra of the package installs."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from typing import Final

MODULES: Final = {"cli": "prompt_toolkit", "mcp": "mcp", "postgres": "psycopg"}
"""For each extra of setup.cfg, a module that comes with it."""


def missing(extra: str, what: str) -> str | None:
    """Return one line on how to install an extra that `what` needs; None where it is installed."""
    if find_spec(MODULES[extra]) is not None:
        return None
    return f"{what} needs the extra `{extra}`, which is not installed: {how_to_install(extra)}"


def how_to_install(extra: str) -> str:
    """The command that installs an extra's packages into this environment.

    It names them, and not `ostler[...]`: an installation from a clone or a wheel is on no index.
    """
    from importlib.metadata import PackageNotFoundError, requires  # late: it takes a moment

    try:
        declared = requires("ostler") or []
    except PackageNotFoundError:  # run from a directory
        declared = []
    parts = (each.partition(";") for each in declared)
    wanted = [name.strip() for name, _, marker in parts if f'"{extra}"' in marker.replace("'", '"')]
    command = [sys.executable, "-m", "pip", "install"]
    if find_spec("pip") is None:  # an environment that uv made
        command = ["uv", "pip", "install", "--python", sys.executable]
    return shlex.join([*command, *(wanted or [f"ostler[{extra}]"])])
