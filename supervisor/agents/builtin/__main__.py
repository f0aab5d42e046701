"""Started as `python DIRECTORY` by the Python of the SDK's environment, which does not know this package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

NAME = "ostler_builtin"
HERE = Path(__file__).resolve().parent


def load() -> Any:
    """Load the program. This directory becomes a package under a name that the environment cannot contain, so
    no other module can take the place of one of its modules."""
    spec = importlib.util.spec_from_file_location(
        NAME, HERE / "__init__.py", submodule_search_locations=[str(HERE)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{HERE} is not a package")
    package = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = package
    spec.loader.exec_module(package)
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    return importlib.import_module(f"{NAME}.program")


if __name__ == "__main__":
    sys.exit(load().main())
