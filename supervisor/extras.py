"""Libraries that only an extra of the package installs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

MODULES: Final = {"cli": "prompt_toolkit", "mcp": "mcp"}
"""For each extra of setup.cfg, a module that comes with it."""


def missing(extra: str, what: str) -> str | None:
    """Return one line on how to install an extra that `what` needs; None where it is installed."""
    if find_spec(MODULES[extra]) is not None:
        return None
    return f"{what} needs the extra `{extra}`, which is not installed: pip install 'ostler[{extra}]'"
