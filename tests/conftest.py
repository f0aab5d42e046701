"""What holds for all tests. Fixtures are in the `harness.py` of the room that they belong to.

A module may replace a fixture by one of its own of the same name.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

pytest_plugins = [
    "tests.support.walks",
    "tests.support.documents",
    "tests.support.postgres",
    "tests.commands.harness",
    "tests.gateway.harness",
    "tests.interop.harness",
    "tests.interop.editors.harness",
    "tests.clients.harness",
    "tests.journal.harness",
    "tests.mcp.harness",
    "tests.walls.harness",
]

# Thousands of tests are collected, and stay: to look for garbage among them again and again took a third of
# the time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()  # with what is garbage: to look for it would take half a second in each process
    gc.enable()


_configure = structlog.configure


def configure(**settings: Any) -> None:
    """Configure without a cache: a logger that has been used could not be captured any more. The lines of a
    server in this process do not go into the output that a test looks at."""
    if "logger_factory" in settings:
        settings["logger_factory"] = structlog.PrintLoggerFactory(sys.__stderr__)
    _configure(**(settings | {"cache_logger_on_first_use": False}))


structlog.configure = configure  # what a server in this process calls, too

# Tracebacks are plain: with local variables they would take seconds to draw.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


@pytest.fixture(autouse=True)
def _same_log_lines() -> Iterator[None]:
    """A command that runs inside a test silences all lines; the next test captures them again."""
    before = structlog.get_config()
    yield
    _configure(**before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `scripts/test --thorough` runs: modules that try more then."""
    for item in items:
        module = item.getparent(pytest.Module)
        if module is not None and hasattr(module.obj, "everyday"):
            item.add_marker(pytest.mark.thorough)


# Who runs tests in the background has Ctrl-C ignored, with nohup SIGHUP too: in all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
