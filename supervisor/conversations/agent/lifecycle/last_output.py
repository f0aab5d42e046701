"""What operators inspect of an agent: its last output, and the last frames of its processes."""

from __future__ import annotations

import math
import re
from typing import Final, Generic, TypeVar

import attrs

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


T = TypeVar("T")


@attrs.frozen
class Mark:
    """How far a follower is: the number of the next line or frame, over all processes. `epoch`: whose
    numbers they are, since they begin again when the conversation is loaded again."""

    epoch: object
    number: int


@attrs.frozen
class Fresh(Generic[T]):
    """What came after a mark, oldest first. `skipped`: how many before these are not kept any more. `again`:
    the mark was of other numbers, and these are all that there is."""

    mark: Mark
    items: list[T]
    skipped: int = 0
    again: bool = False


class LastOutput:
    """The last output of one conversation's agent."""

    def __init__(self, record: ConversationRecord) -> None:
        self._record = record
        self._last: StderrTail | None = None
        self._last_mask = NOTHING
        self._process = 0
        self._earlier: list[tuple[int, Trace, Masker, int]] = []
        """The traces of earlier processes, each with its number, its masker, and the frames before it."""
        self._epoch = object()
        self._lines_before = self._frames_before = 0
        """Those of earlier processes."""

    def begin(self, run: Incarnation) -> None:
        """Track the output of a new process, and keep the end of the previous one's trace."""
        if self._last is not None:
            self._last.trace.shrink(FRAMES_EARLIER)
            ended = (self._process, self._last.trace, self._last_mask, self._frames_before)
            self._earlier = [*self._earlier, ended][-TRACES_EARLIER:]
            first, lines = self._last.numbered()
            self._lines_before += first + len(lines)
            self._frames_before += self._last.trace.recorded
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
        return [line for _, lines in self._traces(-1) for line in lines]

    def stderr_after(self, mark: Mark | None) -> Fresh[str]:
        """The lines of standard error after this mark, masked; None is before the first one.

        A line counts when it has ended. Those of an earlier process are not kept: they are skipped.
        """
        first, lines = (0, []) if self._last is None else self._last.numbered()
        first += self._lines_before
        begin, again = self._begin(mark)
        shown = lines[max(0, begin - first) :]
        mask, session_id = self._last_mask, self._record.now.session_id
        masked = [shorten_session_id(mask.text(line), session_id) for line in shown]
        return self._fresh(masked, first + len(lines), begin, again=again)

    def trace_after(self, mark: Mark | None) -> Fresh[TraceLine]:
        """The frames after this mark, masked; None is before the first one. See `trace`."""
        begin, again = self._begin(mark)
        end = self._frames_before + (0 if self._last is None else self._last.trace.recorded)
        numbered = self._traces(begin)
        found = [line for first, lines in numbered for line in lines[max(0, begin - first) :]]
        return self._fresh(found, end, begin, again=again)

    def _begin(self, mark: Mark | None) -> tuple[int, bool]:
        known = mark is not None and mark.epoch is self._epoch
        return (mark.number, False) if mark is not None and known else (0, True)

    def _fresh(self, items: list[T], end: int, begin: int, *, again: bool) -> Fresh[T]:
        skipped = 0 if again else end - begin - len(items)
        return Fresh(Mark(self._epoch, end), items, skipped, again)

    def _traces(self, begin: int) -> list[tuple[int, list[TraceLine]]]:
        """The kept frames of each process that has some from this number on, and the number of its first."""
        traces = [*self._earlier]
        if self._last is not None:
            traces.append((self._process, self._last.trace, self._last_mask, self._frames_before))
        return [
            (before + each.first, each.render(mask.beginning, number))
            for number, each, mask, before in traces
            if before + each.recorded > begin
        ]
