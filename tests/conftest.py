"""What holds for all tests. Fixtures are in the `harness.py` of the room that they belong to.

A module may replace a fixture by one of its own of the same name.
"""

from __future__ import annotations

import signal

import structlog

pytest_plugins = [
    "tests.commands.harness",
    "tests.gateway.harness",
    "tests.interop.harness",
    "tests.journal.harness",
]

# Tracebacks are plain: with local variables they would take seconds to draw.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)

# Who runs tests in the background has Ctrl-C ignored, in all that is started from there, too.
signal.signal(signal.SIGINT, signal.default_int_handler)
