"""The active branch of a conversation, as parts of its log. Pure.

The log is never rewritten: when a client moves to an earlier event, the next events follow that one, and
those between stay in the log, on another branch. A move is a pair: the sequence number of the first event
after it, and that of the event moved to (-1: before the first). The moves determine the tree of events, in
either vocabulary.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import attrs

MOVES_MAX: Final = 1_000
"""The most moves of one conversation: they are in its record, which is written often."""

Moves = Sequence[Sequence[int]]


@attrs.frozen
class Branch:
    """Parts of a log, oldest first: the first and the last sequence number of each."""

    parts: tuple[tuple[int, int], ...]

    def __contains__(self, seq: object) -> bool:
        return isinstance(seq, int) and any(first <= seq <= last for first, last in self.parts)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.parts)

    @property
    def last(self) -> int:
        """The last sequence number; -1 when it is empty."""
        return self.parts[-1][1] if self.parts else -1

    def until(self, seq: int) -> int:
        """How many of its events have a sequence number up to this one."""
        return sum(min(last, seq) - first + 1 for first, last in self.parts if first <= seq)


def leading_to(moves: Moves, seq: int) -> Branch:
    """The branch that ends with this event (-1: the empty one)."""
    parts: list[tuple[int, int]] = []
    while seq >= 0:
        index = bisect_right(moves, seq, key=lambda move: move[0]) - 1
        first, seq_before = (0, -1) if index < 0 else (moves[index][0], moves[index][1])
        parts.append((first, seq))
        seq = seq_before
    return Branch(tuple(reversed(parts)))


def active(moves: Moves, last_seq: int) -> Branch:
    """The branch that the next event follows; `last_seq` is the end of the log."""
    if moves and last_seq < moves[-1][0]:
        return leading_to(moves, moves[-1][1])
    return leading_to(moves, last_seq)


def moved(moves: Moves, last_seq: int, to: int) -> list[list[int]]:
    """The moves with one more: the next event follows `to`."""
    kept = [list(move) for move in moves if move[0] <= last_seq]
    return [*kept, [last_seq + 1, to]]
