"""The fixtures of this room. Their packages are there only where clients are tested."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("playwright") is None:
    collect_ignore_glob = ["*.py"]
else:
    from tests.console.harness import api, browser, console, server, shots  # noqa: F401 - fixtures
