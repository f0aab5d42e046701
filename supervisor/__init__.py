"""Supervises ACP agents: protocol, processes, events, journal and conversations. Knows no web framework.

`supervisor.open` is the entry point for programs; see `composition`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__all__ = ["Ostler", "Supervision", "open"]

if TYPE_CHECKING:
    from supervisor.composition import Ostler, Supervision, open  # noqa: A004
else:

    def __getattr__(name):
        # Imported at first use: small programs of this package start much faster without all of it.
        if name in __all__:
            return getattr(importlib.import_module("supervisor.composition"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
