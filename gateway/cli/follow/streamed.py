"""The text of one item while it streams: each part of it is given out once. Pure.

A server tells an item again from its start to a client that comes back, and to one that fell far behind.
"""

from __future__ import annotations


class Streamed:
    """One item. `said` is what was given out, by kind: `text` and `reasoning`."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {"text": "", "reasoning": ""}
        self._at = {"text": 0, "reasoning": 0}
        """How far it was told since it began, or began anew."""
        self._order = -1
        self._broken = False
        """What comes is not what was given out: the rest is given out when the message is whole."""

    def begin(self) -> None:
        """What comes next is its start."""
        self._at = {"text": 0, "reasoning": 0}
        self._order = -1

    def take(self, kind: str, content: str, order: object) -> str:
        """Take the next piece. Returns what of it was not given out yet."""
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
