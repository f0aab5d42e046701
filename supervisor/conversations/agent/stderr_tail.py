"""The tail of an agent's output outside the protocol: standard error, and non-protocol lines on stdout."""

from __future__ import annotations

import math
import re
from typing import Final

from supervisor.acp import Connection
from supervisor.acp.reader import NON_PROTOCOL_BYTES
from supervisor.agents.endings import ExitStatus
from supervisor.agents.pipes import TAIL_LINE_BYTES
from supervisor.agents.process import AgentProcess
from supervisor.credentials.masking import Masker

ANY: Final = re.compile(r"\S")
"""Every line that is not blank."""

TAIL_LINES: Final = 8
"""Lines of each of the two streams in a report: enough for an error and its origin."""


class StderrTail:
    """The last output of one agent process: lines on standard error, and non-protocol lines on standard
    output. Masked; at most WORDS_LINES of each, of at most 4 KiB."""

    def __init__(self, process: AgentProcess, connection: Connection, mask: Masker) -> None:
        self._process: AgentProcess | None = process
        self._errors: list[tuple[float, str]] = []
        self._first = 0
        """The number of the first of these, counted from the process's first line."""
        self._non_protocol = connection.non_protocol_lines
        self._mask = mask
        self.trace = connection.trace
        """The last frames between it and the server, not masked."""

    def ended(self) -> None:
        """Keep the lines and release the ended process, which takes more memory."""
        if self._process is not None:
            self._errors = self._process.stderr_timed()
            self._first = self._process.stderr_numbered()[0]
            self._process = None

    def numbered(self) -> tuple[int, list[str]]:
        """The kept lines of standard error, not masked, and the number of the first. A line that has not
        ended counts when its process has."""
        if self._process is not None:
            return self._process.stderr_numbered()
        return self._first, [line for _, line in self._errors]

    def errors(self) -> list[tuple[float, str]]:
        """All kept lines of standard error, not masked, each with its arrival time."""
        return self._errors if self._process is None else self._process.stderr_timed()

    def lines(self, since: float = -math.inf) -> list[str]:
        """The last lines that arrived at `since` (Trio's clock) or later: those on standard error first,
        since the order between the two streams is unknown."""
        return [line for _, line in self.timed(since)]

    def timed(self, since: float = -math.inf, about: re.Pattern[str] = ANY) -> list[tuple[float, str]]:
        """The lines of `lines`, each with its arrival time. `about`: only lines with a match of it."""
        errors = self._kept(self.errors(), TAIL_LINE_BYTES, since, about)
        non_protocol = [(at, line.decode("utf-8", "replace")) for at, line in self._non_protocol]
        return [*errors, *self._kept(non_protocol, NON_PROTOCOL_BYTES, since, about)]

    def _kept(
        self, lines: list[tuple[float, str]], most: int, since: float, about: re.Pattern[str]
    ) -> list[tuple[float, str]]:
        last = [(at, line) for at, line in lines if at >= since and about.search(line)][-TAIL_LINES:]
        # A cut line may end within a secret.
        return [
            (at, self._mask.beginning(line) if len(line.encode()) >= most else self._mask.text(line))
            for at, line in last
        ]


def account(status: ExitStatus, tail: list[str], suspicion: str | None = None) -> str:
    """Describe how an agent ended, with its last output, which explains it unless it was killed from
    outside. `suspicion`: a sentence about what may have been the reason."""
    how = f"was {status}" if status.signal is not None else str(status)
    if status.from_outside:
        return (
            f"The agent {how}: it was ended from outside (by a person, a program, or the system for lack "
            "of memory). `ostler logs` shows what it wrote before."
        )
    return with_tail(" ".join(filter(None, (f"The agent {how}.", suspicion))), tail)


def with_tail(text: str, tail: list[str]) -> str:
    """Add an agent's last output, if any, to what is said of its end."""
    return "\n".join([f"{text} Its last words:", *tail]) if tail else text
