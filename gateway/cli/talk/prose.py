"""An agent's text as it streams in: whole blocks of Markdown, or lines folded at words. Pure."""

from __future__ import annotations

import re
from typing import Final

from gateway.cli.text import width_of

BLOCK_CHARS: Final = 4_000
"""Most characters of a block that is still open: it is rendered again as it grows, which takes 0.3 s for
this much code."""

FENCE: Final = re.compile(r"\s*(`{3,40}(?!`)|~{3,40}(?!~))(.*)")
"""Fences of at most 40 marks: a fence is repeated, so it must be much shorter than a block."""

PIECE: Final = re.compile(r"\n|[^\S\n]+|\S+")


class Blocks:
    """Divides Markdown at blank lines, but not in fenced code and not before what belongs to a list's
    item."""

    def __init__(self) -> None:
        self.open = ""
        """What follows the last whole block."""

    def feed(self, text: str) -> list[str]:
        """Add text. Returns the blocks that are whole with it."""
        whole = []
        for start in range(0, len(text), BLOCK_CHARS):  # each step looks at all that is open
            self.open += text[start : start + BLOCK_CHARS]
            while (end := self._end()) is not None:
                whole.append(self.open[:end])
                self.open = self.open[end:]
            while len(self.open) > BLOCK_CHARS:
                whole.append(self._part())
        return [block for block in whole if block.strip()]

    def _end(self) -> int | None:
        position, blank = 0, False
        fence: str | None = None
        for line in self.open.splitlines(keepends=True):
            if fence is None and blank and not line[0].isspace():
                return position
            fence = _fence_after(fence, line)
            position += len(line)
            blank = not line.strip()
        return None

    def _part(self) -> str:
        """Take the first part of a block that is too long. Code continues as code."""
        half = BLOCK_CHARS // 2
        end = max(self.open.rfind(mark, half, BLOCK_CHARS) for mark in ("\n", " ")) + 1 or BLOCK_CHARS
        part, rest = self.open[:end], self.open[end:]
        fence: str | None = None
        opening = ""
        for line in part.splitlines(keepends=True):
            before, fence = fence, _fence_after(fence, line)
            opening = line if before is None else opening
        if fence is None:
            self.open = rest
            return part
        # A long opening is not repeated: the rest has to be shorter than it was.
        again = opening.rstrip("\n") if len(opening) < half // 2 else fence
        self.open = f"{again}\n{rest}"
        return f"{part}\n{fence}"


def _fence_after(fence: str | None, line: str) -> str | None:
    """The fence that is open after a line; None outside of code."""
    found = FENCE.match(line)
    if found is None:
        return fence
    if fence is None:
        return found[1]
    closes = found[1].startswith(fence) and not found[2].strip()
    return None if closes else fence


class Folding:
    """Folds lines at words. The last word is held, since more of it may come."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._column = 0
        self._space = ""
        self._word = ""

    def feed(self, text: str) -> str:
        """The lines so far."""
        pieces = PIECE.findall(self._word + text)
        last = pieces[-1] if pieces else ""
        self._word = pieces.pop() if last.strip() and len(last) < self._width else ""
        return "".join(map(self._placed, pieces))

    def end(self) -> str:
        """The word that was held."""
        word, self._word = self._word, ""
        return self._placed(word)

    def _placed(self, piece: str) -> str:
        if piece == "\n":
            self._column, self._space = 0, ""
            return piece
        if not piece.strip():
            self._space = (self._space + piece)[: self._width]
            return ""
        columns, space, self._space = width_of(piece), self._space, ""
        if space and self._column and self._column + len(space) + columns > self._width:
            self._column, space = 0, "\n"
        total = self._column + (len(space) if space != "\n" else 0) + columns
        # The terminal folds a word that is longer than a line.
        self._column = total if total <= self._width else total % self._width
        return space + piece
