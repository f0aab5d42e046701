"""Deduplicates the streamed text of one item: each part is returned once. Pure.

A server repeats an item from its start to a client that reconnects, and to one that fell far behind.
"""

from __future__ import annotations


class Streamed:
    """One item. `said` is the text returned so far, by kind: `text` and `reasoning`."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {"text": "", "reasoning": ""}
        self._at = {"text": 0, "reasoning": 0}
        """Offset of the next piece, since the item began or was last repeated."""
        self._order = -1
        self._broken = False
        """A repetition differs from the text returned before: the rest is printed when the message is
        complete."""

    def begin(self) -> None:
        """The item begins, or is repeated from its start."""
        self._at = {"text": 0, "reasoning": 0}
        self._order = -1

    def take(self, kind: str, content: str, order: object) -> str:
        """Take the next piece. Returns its part that was not returned before."""
        if isinstance(order, int):
            if order <= self._order:
                return ""
            self._order = order
        said, at = self.said[kind], self._at[kind]
        again = said[at : at + len(content)]
        self._at[kind] += len(content)
        self._broken = self._broken or not content.startswith(again)
        fresh = "" if self._broken else content[len(again) :]
        if fresh:
            self.said[kind] = said + fresh
        return fresh
