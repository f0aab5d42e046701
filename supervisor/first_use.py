"""Packages whose names are imported at their first use: who needs one module of a package loads that one.

The start of the server needs a few names of each room, and loading all of every room takes several times as
long, and as much memory. Knows nobody.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def names_of(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562). `homes`: its modules, each with the names that the package
    has from there, separated by spaces.

    No name may be that of one of its modules: whoever imports the module would put it in the name's place.
    """
    found = {name: module for module, names in homes.items() for name in names.split()}

    def look_up(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{found[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next one finds it without asking
        return value

    return look_up
