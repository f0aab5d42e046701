"""An agent's text and thoughts, in segments. Pure.

A segment's id is minted when it opens, and the streamed deltas announce it. When it closes, it becomes the
durable event of that id (see `translate.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from supervisor.acp.schema import Members, bounded
from supervisor.conversations.recording.answers import (
    BY_OSTLER,
    NO_ANSWER,
    finish_of,
    message_of,
    thoughts_alone,
)
from supervisor.conversations.recording.bounds.attachments import (
    INLINE_CHARS,
    Originals,
    is_picture,
    picture,
    set_aside,
)
from supervisor.conversations.recording.bounds.truncation import TEXT_BYTES, THOUGHT_BYTES, Clipped, Gathered
from supervisor.conversations.recording.effects import Delta, Effect, Kind, Opened, Recorded
from supervisor.conversations.recording.tool_calls.blocks import describe
from supervisor.credentials.masking import Masker, StreamMask
from supervisor.events import ActionEvent

DELTA_CHARS: Final = 64 * 1024
"""Longest piece of a segment in one frame, so that any client accepts it."""


THOUGHTS_APART: Final = "\n\n"
"""Separates thoughts before and after a tool call."""

LAST_CHARS: Final = 16
"""Characters at the end of a text that are kept to decide whether the next text continues it."""

DETAILS: Final = "message_details"
"""The state key for details of a message that the message's event cannot hold."""

DETAILS_BYTES: Final = 16 * 1024
"""About the most bytes of such a state: an id, links, a few private members of the agent."""

BLOCKS_MAX: Final = 20
"""The most non-text blocks of one message whose members that state has, and the most pictures in its
event."""

IN_WORDS: Final = frozenset({"type", "name", "uri", "mimeType"})
"""Members of a block that its description in text contains."""


@attrs.define
class Segment:
    """Text and thoughts that become one event. `deltas` counts those that were streamed."""

    item_id: str
    masks: dict[Kind, StreamMask]
    said: dict[Kind, Gathered]
    message_id: str | None = None
    deltas: int = 0
    broken: bool = False
    """A tool call came after the last thought."""
    parted: bool = False
    """A tool call continued or ended after the last text."""
    last: str = ""
    """The last piece of text."""
    blocks: int = 0
    """How many blocks came that are not texts."""
    pictures: list[str] = attrs.field(factory=list)
    """Addresses of those that its event is to show."""
    inline: int = 0
    """Characters of these that are data URLs."""
    details: dict[str, Any] = attrs.field(factory=dict)
    """Details that its event cannot hold."""
    marks: dict[str, Members] = attrs.field(factory=dict)
    """Such details of its pieces: `_meta`, `annotations`."""


@attrs.define(eq=False)
class Response:
    """The id of the model's response under way, which the events that come from it have in common."""

    _mint: Callable[[], str]
    _id: str | None = None

    def __call__(self) -> str:
        """The id."""
        if self._id is None:
            self._id = self._mint()
        return self._id

    def end(self) -> None:
        """End the current response: later events belong to the model's next one."""
        self._id = None


@attrs.define(eq=False)
class Speech:
    """Collects one agent's text and thoughts. The results go to `effects`."""

    _effects: list[Effect]
    _mint: Callable[[], str]
    mask: Masker
    _originals: Originals
    _response: Response
    _tell: Callable[[str, Any], None]
    segment: Segment | None = None
    """The open segment."""
    gathered: int = 0
    """Characters collected in the turn."""

    def chunk(self, text: str, message_id: str | None) -> None:
        """A piece of a message."""
        segment = self._segment_of(text, message_id)
        segment.last = text[-LAST_CHARS:]
        self._say(segment, "text", segment.masks["text"].feed(text))

    def _segment_of(self, text: str, message_id: str | None) -> Segment:
        """The segment that a piece of a message belongs to."""
        segment = self.segment
        if segment is not None and message_id and segment.message_id not in (None, message_id):
            self.close()
            segment = None
        if segment is not None and segment.parted:
            segment.parted = False
            if not message_id and not continues(segment.last, text):
                self.close()
                segment = None
        if segment is None:
            segment = self._open_segment()
        if message_id:
            segment.message_id = message_id
        return segment

    def block(self, content: Mapping[str, Any], message_id: str | None, *, thought: bool = False) -> bool:
        """Add a non-text block of a message or a thought: described in text, and a picture also for the
        event. Returns False for an unknown kind, which is ignored."""
        words = describe(content)
        if not words:
            return False
        segment = (self.segment or self._open_segment()) if thought else self._segment_of(words, message_id)
        segment.blocks += 1
        keep = 0 if thought or len(segment.pictures) >= BLOCKS_MAX else INLINE_CHARS - segment.inline
        blob_id = f"{segment.item_id}-{segment.blocks}"
        shown, attachments = set_aside(content, blob_id, self._originals, keep)
        self._effects.extend(attachments)
        if not thought and is_picture(shown) and len(segment.pictures) < BLOCKS_MAX:
            segment.pictures.append(picture(shown) or "")
            segment.inline += len(shown.get("data") or "")
        members = {key: value for key, value in shown.items() if key != "data"}
        if not IN_WORDS.issuperset(members) and segment.blocks <= BLOCKS_MAX:
            segment.details.setdefault("blocks", []).append(bounded(members, DETAILS_BYTES // BLOCKS_MAX))
        words = describe(shown)
        if thought:
            self.thought(words)
        else:
            self.chunk(words, message_id)
        return True

    def note(self, raw: Mapping[str, Any], content: Mapping[str, Any]) -> None:
        """Keep a piece's members besides its text: `_meta` of it or of its block, `annotations`; the latest
        value of each. Does nothing for a piece without text."""
        if self.segment is None:
            return
        marks = self.segment.marks
        for name, given in (
            ("_meta", raw.get("_meta")),
            ("_meta", content.get("_meta")),
            ("annotations", content.get("annotations")),
        ):
            if isinstance(given, Mapping) and given:
                if name not in marks:
                    marks[name] = Members(DETAILS_BYTES // 2)
                marks[name].take(given)

    def _tell_details(self, segment: Segment) -> None:
        """Emit the details that the event of a segment cannot hold."""
        details = segment.details | {name: each.values for name, each in segment.marks.items()}
        if segment.message_id:
            details = {"message_id": segment.message_id, **details}
        if details:
            self._tell(DETAILS, {"event_id": segment.item_id, **bounded(details, DETAILS_BYTES)})

    def part(self) -> None:
        """Note another activity of the agent, so that its next text is not joined to the previous one."""
        if self.segment is not None and self.segment.last:
            self.segment.parted = True

    def thought(self, text: str) -> None:
        """A piece of a thought."""
        segment = self.segment
        if segment is None:
            segment = self._open_segment()
        if segment.broken:
            segment.broken = False
            text = THOUGHTS_APART + text
        self._say(segment, "reasoning", segment.masks["reasoning"].feed(text))

    def _say(self, segment: Segment, kind: Kind, text: str) -> None:
        if text:
            self.gathered += len(text)
            self._effects.extend(segment.said[kind].add(text))
            for start in range(0, len(text), DELTA_CHARS):
                piece = text if len(text) <= DELTA_CHARS else text[start : start + DELTA_CHARS]
                self._effects.append(Delta(segment.item_id, kind, piece, segment.deltas))
                segment.deltas += 1

    def _new_segment(self) -> Segment:
        item_id = self._mint()
        return Segment(
            item_id,
            {"text": self.mask.stream(), "reasoning": self.mask.stream()},
            {
                "text": Gathered(f"{item_id}-text", TEXT_BYTES, self._originals),
                "reasoning": Gathered(f"{item_id}-thoughts", THOUGHT_BYTES, self._originals),
            },
        )

    def _open_segment(self) -> Segment:
        segment = self.segment = self._new_segment()
        self._effects.append(Opened(segment.item_id))
        return segment

    def interrupt(self) -> None:
        """A tool call follows: close the segment as a message. Thoughts alone wait for a later event."""
        segment = self.segment
        if segment is None or not self._thoughts_alone(segment):
            self.close()
        else:
            segment.broken = True

    def _thoughts_alone(self, segment: Segment) -> bool:
        """Whether the segment has no text, not even held back by the masks."""
        for kind, mask in segment.masks.items():
            self._say(segment, kind, mask.flush())
        return not segment.said["text"]

    def with_thoughts(self, make: Callable[[str], Recorded]) -> None:
        """An action event, which has the thoughts that led to it, and then their id, too."""
        segment = self.segment
        if segment is None or not self._thoughts_alone(segment):
            self._effects.append(make(self._mint()))
            return
        self.segment = None
        recorded, thoughts = make(segment.item_id), segment.said["reasoning"].close()
        event = recorded.event
        assert isinstance(event, ActionEvent)
        self._effects.append(
            Recorded(
                attrs.evolve(event, reasoning_content=thoughts.value or None),
                (*thoughts.attachments, *recorded.attachments),
            )
        )
        self._tell_details(segment)

    def close(self) -> None:
        """Close the segment as a message or a thought."""
        segment = self.segment
        if segment is None:
            return
        self.segment = None
        text, thoughts = self._all_said(segment)
        if text.value:
            self._effects.append(
                message_of(segment.item_id, text, thoughts, self._response, segment.pictures)
            )
        else:
            self._effects.extend(thoughts_alone(segment.item_id, thoughts, self._response, self._mint))
        self._tell_details(segment)

    def _all_said(self, segment: Segment) -> tuple[Clipped, Clipped]:
        """The segment's text and thoughts, including what the masks held back."""
        for kind, mask in segment.masks.items():
            self._say(segment, kind, mask.flush())
        return segment.said["text"].close(), segment.said["reasoning"].close()

    def finish(self, note: str | None, unsaid: str | None = None) -> None:
        """What was said is the turn's answer. `note` and `unsaid` are as in `Translator.end_turn`."""
        segment = self.segment or self._new_segment()
        self.segment = None
        text, thoughts = self._all_said(segment)
        if segment.pictures:  # a finish event is text alone
            shown = message_of(self._mint(), Clipped(""), Clipped(None), self._response, segment.pictures)
            self._effects.append(shown)
        if unsaid is not None:
            text, note = Clipped(unsaid), NO_ANSWER
        self._effects.extend(finish_of(segment.item_id, text, thoughts, self._response, self._mint, note))
        self._tell_details(segment)

    def answer(self, text: str) -> None:
        """An answer by Ostler itself, in the form of an agent's."""
        self.close()
        segment = self.segment = self._new_segment()
        self._effects.extend(segment.said["text"].add(text))
        self.finish(BY_OSTLER)


ENDS: Final = frozenset(".!?:…。")
"""Characters that end a sentence or an announcement."""

CONTINUES: Final = frozenset(",.;:!?)]}'\"-")
"""Characters at the beginning of a text that continues a sentence."""


def continues(before: str, text: str) -> bool:
    """Whether `text` continues the sentence that `before` began. A tool call came between the two: most
    agents write complete sentences before and after it, some write while it runs."""
    if before.rstrip(" ")[-1:] in ENDS or before.endswith("\n"):
        return False
    return before.endswith(" ") or text[:1].isspace() or text[:1] in CONTINUES
