"""Following an agent's own updates among the events: from the log, and live before their events are written.

All that a reader gets, put together, is what the agent sent, each piece once: however slow it is, and also
when it comes back with a position after a restart of the server.
"""

from __future__ import annotations

import re
from typing import Final

import attrs
import trio

from supervisor.conversations.recording.agent_updates import AgentUpdates
from supervisor.conversations.recording.update_lines import START, Place, lines_of, unshown
from supervisor.journal.log import Log
from supervisor.journal.rows import Frame, Piece, Stored

_POSITION: Final = re.compile(r"(-1|[0-9]{1,18})(?:\.([0-9]{1,18})\.([0-9]{1,18})\.([0-9a-f]{1,32}))?")


@attrs.frozen
class AgentUpdate:
    """One update, or a piece of a text. `body`: a JSON object, the value of `update` of a `session/update`.
    `position`: the reader's after it."""

    body: bytes
    position: str


class UpdateReader:
    """A reader of one conversation's updates and events, for one task. It needs no closing.

    The updates of an event come before it; those that were shown live do not come again.
    """

    def __init__(self, journal_log: Log, updates: AgentUpdates, after: str | None) -> None:
        """`after`: None begins now, with what waits for an event; "" at the beginning of the log; else a
        position.

        Raises ValueError for what is no position, JournalError.
        """
        seq, self._place, self._group = None, START, ""
        if after == "":
            seq = -1
        elif after is not None:
            seq, self._place, self._group = _parsed(after)
        self._cursor = journal_log.subscribe(seq, follows=False, updates=True)
        self._seq = self._cursor.after_seq
        if seq is not None and seq > self._seq:
            self._place = START
        self._oldest = updates.group
        snapshot = updates.snapshot()
        self._snapshot = snapshot if snapshot.lines else None
        self._since = journal_log.last_seq
        """The event that the snapshot comes after."""

    @property
    def position(self) -> str:
        """The place after all that `next` has returned."""
        return self._at(self._place, self._group)

    def _at(self, place: Place, group: str) -> str:
        return str(self._seq) if place == START else f"{self._seq}.{place[0]}.{place[1]}.{group}"

    async def next(self) -> list[AgentUpdate | Stored]:
        """Wait for the next updates and events; return them in order, at least one.

        Cancellation takes nothing: the next call returns what this one would have returned. Raises LogDeleted
        when the conversation is deleted, JournalError when the journal fails.
        """
        shown: list[AgentUpdate | Stored] = []
        if self._snapshot is not None and self._seq >= self._since:
            await trio.lowlevel.checkpoint()
            self._show_snapshot(shown)
        while not shown:
            for item in await self._cursor.next():
                if isinstance(item, Stored):
                    self._take_event(item, shown)
                elif isinstance(item.frame, Frame) and item.frame.piece is not None:
                    self._take_piece(item.frame.piece, shown)
        return shown

    def _shown_of(self, group: str) -> Place:
        return self._place if group == self._group else START

    def _take_event(self, row: Stored, shown: list[AgentUpdate | Stored]) -> None:
        if row.updates:
            group, lines = lines_of(row.updates)
            self._take_lines(group, lines, shown)
        if row.seq > self._since:
            self._snapshot = None  # its lines are those of an event by now
        self._seq, self._place, self._group = row.seq, START, ""
        shown.append(row)

    def _take_lines(
        self, group: str, lines: list[tuple[int, bytes]], shown: list[AgentUpdate | Stored]
    ) -> None:
        place = self._shown_of(group)
        for index, line in lines:
            body = unshown(line, index, place)
            if body is not None:
                shown.append(AgentUpdate(body, self._at((index + 1, 0), group)))

    def _show_snapshot(self, shown: list[AgentUpdate | Stored]) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            return
        before = self._shown_of(snapshot.group)
        self._take_lines(snapshot.group, snapshot.lines, shown)
        if snapshot.place > before:
            self._place, self._group = snapshot.place, snapshot.group
            if shown:
                last = shown[-1]
                assert isinstance(last, AgentUpdate)
                shown[-1] = attrs.evolve(last, position=self.position)

    def _take_piece(self, piece: Piece, shown: list[AgentUpdate | Stored]) -> None:
        if piece.group < self._oldest:
            return  # what was lost before this reader began
        if self._snapshot is not None and self._seq >= self._since:
            self._show_snapshot(shown)
        # Where a piece was missed, all waits for the event.
        if piece.before == self._shown_of(piece.group):
            self._place, self._group = piece.after, piece.group
            shown.append(AgentUpdate(piece.body, self.position))


def _parsed(position: str) -> tuple[int, Place, str]:
    match = _POSITION.fullmatch(position)
    if match is None:
        raise ValueError(f"Not a position: {position[:100]!r}.")
    seq, lines, chars, group = match.groups()
    return int(seq), (int(lines or 0), int(chars or 0)), group or ""
