"""Started as `python DIRECTORY` by the Python of the SDK's environment, which does not know this package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

NAME = "ostler_builtin"
HERE = Path(__file__).resolve().parent


def _load() -> None:
    """Make this directory a package by a name that cannot be taken, whatever is in the environment."""
    spec = importlib.util.spec_from_file_location(
        NAME, HERE / "__init__.py", submodule_search_locations=[str(HERE)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{HERE} is not a package")
    package = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    _load()
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    program = importlib.import_module(f"{NAME}.program")
    sys.exit(program.main())
