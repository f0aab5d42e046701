"""Some tests share what is expensive to make: one process must have all of them.

Modules of clients have one walk for all their tests, those of editors a server for each agent. Some modules
of interop share a server, or a process that has imported the SDK, which takes six seconds of the processor.
Tests of one real agent share what was started of it.

xdist's own groups (`--dist loadgroup`) do nothing with pytest 9.2: xdist 3.8 writes them into a field that
pytest no longer reads.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

WHOLE = ("test_builtin.py",)
"""Modules of interop whose tests share a fixture of their own."""

PEER = ("test_peer_sdk.py", "test_python_sdk.py", "test_real_agent.py")
"""Modules that all share the fixture `peer`, which has imported the SDK once in each process."""

PROGRAM = "test_builtin_*.py"
"""Modules that all share the fixture `program`."""

KEPT = ("test_conversation_operations.py", "test_real_agents.py", "test_real_permissions.py")
"""Modules whose tests of one agent share its server and its conversations (the fixture `keep`)."""


def group_of(nodeid: str) -> str:
    """What a test is given out with: its group, or itself."""
    module, _, test = nodeid.partition("::")
    path = PurePosixPath(module)
    if path.name in PEER:
        return "peer"
    if {"clients", "editors"} & set(path.parts) or path.name in WHOLE:
        return module
    if path.parts[-2:-1] == ("interop",) and path.name in KEPT and test.endswith("]"):
        return f"kept {test.partition('[')[2]}"
    return PROGRAM if path.match(PROGRAM) else nodeid


LONGEST = (
    PROGRAM,
    "test_canvas.py",
    "test_builtin.py",
    "kept gemini-cli]",
    "peer",
    "kept claude-code]",
    "kept opencode]",
    "test_sequences.py",
    "kept codex]",
)
"""Groups that take more than a minute, the longest first: what begins last must not take long."""


def rank(group: str) -> int:
    """Which group is given out before which."""
    name = PurePosixPath(group).name
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


class Walks(LoadScopeScheduling):  # type: ignore[misc]
    """Gives out groups as a whole, the longest first, and all other tests one by one."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=rank), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What `--dist loadgroup` is in these tests."""
    return Walks(config, log) if config.getvalue("dist") == "loadgroup" else None
