"""Lazy imports for packages: the names of a package are imported from its modules at their first use.

The start of the server needs a few names of each package, and loading all modules takes several times as
long, and as much memory. Imports nothing of Ostler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def names_of(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package (PEP 562). `homes` maps its modules to the names that the package
    takes from each, separated by spaces.

    No name may be that of one of its modules: importing the module would overwrite the name.
    """
    found = {name: module for module, names in homes.items() for name in names.split()}

    def look_up(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{found[name]}"), name)
        setattr(sys.modules[package], name, value)  # later look-ups do not come here
        return value

    return look_up
