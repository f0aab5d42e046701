"""Streams the events that the built-in agent is still producing: masked, and without repetition. Pure.

When a request to the model is retried, the new attempt is compared with what was already streamed. An equal
prefix is not streamed again, and a longer text continues the stream. Only a different text restarts the item
for clients. A retried model may repeat itself, and the events socket cannot retract anything.
"""

from __future__ import annotations

from typing import Final

import attrs

from supervisor.acp.schema.extension import ItemAborted, ItemDelta, ItemStarted
from supervisor.conversations.recording.effects import Aborted, Call, Delta, Effect, Kind, Opened
from supervisor.credentials.masking import NOTHING, Masker, StreamMask

ITEMS_MAX: Final = 64
"""The most open items: the tool calls in one answer of a model."""

COMPARED_CHARS: Final = 256 * 1024
"""Characters of an item that are kept to compare them with a retry. An item with more is restarted by every
retry."""

FAILED: Final = "failed"


@attrs.define
class _Item:
    item_id: str
    attempt: int
    """The attempt that clients see."""
    masks: dict[Kind, StreamMask] = attrs.field(factory=dict)
    order: int = 0
    call: Call | None = None
    size: int = 0
    said: dict[Kind, list[str]] = attrs.field(factory=dict)
    """The streamed text, while it is short enough to keep."""
    new_attempt: int = 0
    before: dict[Kind, str] | None = None
    """While a new attempt matches: the text streamed before it began."""
    again: dict[Kind, int] = attrs.field(factory=dict)
    """Characters of the new attempt so far: those beyond `before` are streamed, and all are in `said`."""

    def tell(self, kind: Kind, text: str) -> Delta:
        """Stream a piece of it."""
        self.order += 1
        self.size += len(text)
        if self.size <= COMPARED_CHARS:
            self.said.setdefault(kind, []).append(text)
        else:
            self.said.clear()
        call = self.call if kind == "arguments" else None
        return Delta(self.item_id, kind, text, self.order - 1, self.attempt, call)

    def compare(self, attempt: int) -> None:
        """A new attempt begins."""
        self.masks.clear()
        self.new_attempt = attempt
        self.before = {kind: "".join(pieces) for kind, pieces in self.said.items()}
        self.said = {kind: [text] for kind, text in self.before.items()}
        self.again = {}

    @property
    def differs(self) -> bool:
        """Whether the new attempt has not reached the end of the streamed text."""
        if self.before is None:
            return False
        return any(self.again.get(kind, 0) < len(text) for kind, text in self.before.items())

    def say(self, kind: Kind, piece: str) -> list[Effect]:
        """Stream the next piece, as far as the attempt before had not."""
        if self.before is None:
            return [self.tell(kind, piece)]
        before, at = self.before.get(kind, ""), self.again.get(kind, 0)
        same = max(0, min(len(piece), len(before) - at))
        if same and not before.startswith(piece[:same], at):
            return self.restart((kind, piece))
        rest = piece[same:]
        self.again[kind] = at + len(piece)
        if not self.differs:
            self.before = None
        elif self.size + len(rest) > COMPARED_CHARS:  # too long to keep for a comparison of the other kinds
            self.again[kind] = at
            return self.restart((kind, piece))
        return [self.tell(kind, rest)] if rest else []

    def restart(self, more: tuple[Kind, str] | None = None) -> list[Effect]:
        """Restart the item: stream the new attempt from its beginning."""
        self.before = None
        texts = {kind: "".join(self.said[kind])[:at] for kind, at in self.again.items() if at}
        if more is not None:
            texts[more[0]] = texts.get(more[0], "") + more[1]
        self.attempt, self.order, self.size = self.new_attempt, 0, 0
        self.said.clear()
        return [
            Opened(self.item_id, self.attempt, alongside=True),
            *(self.tell(kind, text) for kind, text in texts.items()),
        ]


@attrs.define
class NativeItems:
    """The open items of one conversation."""

    mask: Masker = NOTHING
    _items: dict[str, _Item] = attrs.field(factory=dict)

    @property
    def open(self) -> bool:
        """Whether any item is open."""
        return bool(self._items)

    def take(self, reported: ItemStarted | ItemDelta | ItemAborted) -> list[Effect]:
        """Handle a notification; return what to stream. Raises ValueError for more than ITEMS_MAX items."""
        match reported:
            case ItemStarted():
                return self._begin(reported)
            case ItemDelta():
                item = self._items.get(reported.item_id)
                return [] if item is None else self._piece(reported, item)
            case ItemAborted():
                item = self._items.pop(reported.item_id, None)
                return [] if item is None else [Aborted(reported.item_id, item.attempt, reported.reason)]

    def becomes(self, event_id: str) -> list[Effect]:
        """Close an item whose event arrives; return the rest of its stream."""
        item = self._items.pop(event_id, None)
        if item is None:
            return []
        effects: list[Effect] = []
        for kind, mask in item.masks.items():
            if held := mask.flush():
                effects += item.say(kind, held)
        return [*effects, *item.restart()] if item.differs else effects

    def close(self) -> list[Effect]:
        """Abort the open items."""
        items, self._items = self._items, {}
        return [Aborted(item_id, item.attempt, FAILED) for item_id, item in items.items()]

    def _begin(self, reported: ItemStarted) -> list[Effect]:
        item = self._items.get(reported.item_id)
        if item is None:
            if len(self._items) >= ITEMS_MAX:
                raise ValueError(f"more than {ITEMS_MAX} items are open")
            self._items[reported.item_id] = _Item(reported.item_id, reported.attempt)
            return [Opened(reported.item_id, reported.attempt, alongside=True)]
        item.compare(reported.attempt)
        return item.restart() if item.size > COMPARED_CHARS else []

    def _piece(self, reported: ItemDelta, item: _Item) -> list[Effect]:
        mask = item.masks.get(reported.kind)
        if mask is None:
            mask = item.masks[reported.kind] = self.mask.stream()
        if reported.kind == "arguments":
            item.call = Call(reported.tool_call_id, reported.tool_name)
        piece = mask.feed(reported.content)
        return item.say(reported.kind, piece) if piece else []
