"""What operators inspect of an agent: its last output, and the last frames of its processes."""

from __future__ import annotations

import math
import re
from collections import deque
from typing import Final

from supervisor.acp import TraceLine, shorten_session_id
from supervisor.acp.trace import Trace
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.stderr_tail import ANY, StderrTail
from supervisor.conversations.state.record import ConversationRecord
from supervisor.credentials.masking import NOTHING, Masker

TRACES_EARLIER: Final = 3
"""How many earlier processes of an agent keep their last frames, which show why a process ended."""

FRAMES_EARLIER: Final = 64
"""The most frames kept of each: with texts of 512 bytes, some 100 KiB for the three."""


class LastOutput:
    """The last output of one conversation's agent."""

    def __init__(self, record: ConversationRecord) -> None:
        self._record = record
        self._last: StderrTail | None = None
        self._last_mask = NOTHING
        self._process = 0
        self._earlier: deque[tuple[int, Trace, Masker]] = deque(maxlen=TRACES_EARLIER)
        """The traces of earlier processes, each with its number and its masker."""

    def begin(self, run: Incarnation) -> None:
        """Track the output of a new process, and keep the end of the previous one's trace."""
        if self._last is not None:
            self._last.trace.shrink(FRAMES_EARLIER)
            self._earlier.append((self._process, self._last.trace, self._last_mask))
        self._process += 1
        self._last, self._last_mask = run.stderr_tail, run.plan.mask

    def tail(self, since: float = -math.inf, about: re.Pattern[str] = ANY) -> list[tuple[float, str]]:
        """The agent's last output lines since `since`, masked, each with its arrival time (Trio's clock).
        `about`: only lines with a match of it."""
        return [] if self._last is None else self._last.timed(since, about)

    def stderr_tail(self) -> list[str]:
        """The last lines of the agent's standard error, masked; without a process, those of the previous
        incarnation."""
        if self._last is None:
            return []
        mask, session_id = self._last_mask, self._record.now.session_id
        return [shorten_session_id(mask.text(line), session_id) for _, line in self._last.errors()]

    def trace(self) -> list[TraceLine]:
        """The last frames, masked, oldest first: those of the newest process, preceded by the last ones of up
        to TRACES_EARLIER earlier processes."""
        traces = [*self._earlier]
        if self._last is not None:
            traces.append((self._process, self._last.trace, self._last_mask))
        return [line for number, each, mask in traces for line in each.render(mask.beginning, number)]
