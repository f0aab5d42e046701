"""Logging: one line per event on stderr. Never bodies, queries or keys."""

from __future__ import annotations

import sys

import structlog


def configure() -> None:
    """Set structlog up for this process. Colours only on a terminal; tracebacks without local variables."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
