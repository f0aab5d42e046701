"""Calls a person who does not look: a bell and a notification of the terminal, and a command of theirs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Final

from gateway.cli.present import warn
from gateway.cli.text import SHORT_ID, one_line

NOTIFY_SECONDS: Final = 10.0
"""Seconds for the command that notifies; after that it is killed, so that the wait continues."""

LONG_SECONDS: Final = 15.0
"""Seconds without a key of a person, after which they may look elsewhere."""


def notify(command: str | None, conversation_id: str, status: str, title: str, *, ring: bool = True) -> None:
    """Ring the terminal's bell and send it a notification (OSC 9), and run the command."""
    title = one_line(title)
    if ring and sys.stderr is not None and sys.stderr.isatty():
        text = one_line(f"{conversation_id[:SHORT_ID]} {status} {title}")
        print(f"\a\x1b]9;{text}\a", end="", file=sys.stderr, flush=True)
    if command is None:
        return
    variables = {"OSTLER_ID": conversation_id, "OSTLER_STATUS": status, "OSTLER_TITLE": title}
    try:
        subprocess.run(
            ["/bin/sh", "-c", command],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=2,  # standard output is for the answer
            timeout=NOTIFY_SECONDS,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        warn(f"--notify: {error}")


class Caller:
    """Calls the person at a terminal when a turn is done or waits, if they have typed nothing for a while."""

    def __init__(self, command: str | None = None) -> None:
        self._command = command
        self._typed_at = time.monotonic()

    def typed(self) -> None:
        """Note that the person has just typed something."""
        self._typed_at = time.monotonic()

    def call(self, conversation_id: str, status: str, title: str) -> None:
        """Ring after a while; run the command each time. Blocks for at most NOTIFY_SECONDS."""
        ring = time.monotonic() - self._typed_at >= LONG_SECONDS
        notify(self._command, conversation_id, status, title, ring=ring)
