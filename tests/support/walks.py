"""Modules of clients have one walk for all their tests: one process must have all of a module.

xdist's own groups (`--dist loadgroup`) do nothing with pytest 9.2: xdist 3.8 writes them into a field that
pytest no longer reads.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


class Walks(LoadScopeScheduling):  # type: ignore[misc]
    """Gives out modules of clients as a whole, all other tests one by one."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return module if "clients" in PurePosixPath(module).parts else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What `--dist loadgroup` is in these tests."""
    return Walks(config, log) if config.getvalue("dist") == "loadgroup" else None
