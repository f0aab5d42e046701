"""Attachments: originals that are too large for an event, stored as blobs within a limit. Pure.

The limit holds for each turn and for each conversation, so that an agent cannot fill the disk. Bytes beyond
it are dropped and counted, and the event says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

BLOB_BYTES: Final = 4 * 1024 * 1024
"""The most bytes of an original in one blob.

A blob is held in memory until it is full, is one row of the journal, and one answer to the client that
fetches it.
"""

TURN_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of attachments in one turn.

That is some twenty outputs of megabytes each, far more than an agent's model can have read.
"""

CONVERSATION_BYTES: Final = 1024 * 1024 * 1024
"""The most bytes of attachments in one conversation."""

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"

CHARACTER_BYTES: Final = 4
"""The most bytes of a character in UTF-8."""


@attrs.frozen(kw_only=True)
class Allowance:
    """The limits of attachments in a turn and in a conversation, in bytes."""

    turn_bytes: int = TURN_BYTES
    conversation_bytes: int = CONVERSATION_BYTES


@attrs.frozen
class Attachment:
    """An original, or a piece of one, stored as a blob: fetch it by `blob_id` from its conversation.

    `masked`: it contains no secret, and need not be searched again.
    """

    blob_id: str
    body: bytes
    media_type: str
    masked: bool = False


@attrs.define
class Originals:
    """The attachments of one conversation so far, and the rest of its limit."""

    allowance: Allowance = attrs.field(factory=Allowance)
    kept: int = 0
    """Bytes of the conversation, those of earlier turns too."""
    _kept_before: int = attrs.field(default=attrs.Factory(lambda self: self.kept, takes_self=True))
    """The part of `kept` from earlier turns."""
    dropped: int = 0
    """Bytes dropped over the limit since the server loaded this conversation."""

    def new_turn(self) -> None:
        """Reset the allowance of a turn."""
        self._kept_before = self.kept

    def apart(self) -> Originals:
        """The same limits for a worker thread; `charge` counts what it used there."""
        return attrs.evolve(self)

    def charge(self, size: int) -> None:
        """Count bytes that were stored elsewhere."""
        self.kept += size

    def take(self, size: int) -> bool:
        """Take bytes from the allowance. Returns whether they fit."""
        allowed = self.allowance
        if (
            self.kept - self._kept_before + size > allowed.turn_bytes
            or self.kept + size > allowed.conversation_bytes
        ):
            self.dropped += size
            return False
        self.kept += size
        return True


@attrs.define
class Original:
    """One original, in as many blobs as it needs: `blob_id`, then `blob_id-2` and so on."""

    blob_id: str
    originals: Originals
    media_type: str
    masked: bool = False
    blobs: int = 0
    kept: int = 0
    dropped: int = 0

    def put(self, raw: bytes) -> list[Attachment]:
        """Store the next bytes, as far as there is room. After the first that do not fit, nothing is
        stored."""
        attachments: list[Attachment] = []
        for piece in pieces(raw):
            if self.dropped or not self.originals.take(len(piece)):
                self.dropped += len(piece)
                continue
            self.blobs += 1
            self.kept += len(piece)
            blob_id = self.blob_id if self.blobs == 1 else f"{self.blob_id}-{self.blobs}"
            # A piece of a document cannot be read as a document.
            whole = len(piece) == len(raw) and self.blobs == 1
            media_type = self.media_type if whole else TEXT if self.media_type in (TEXT, JSON) else OCTETS
            attachments.append(Attachment(blob_id, piece, media_type, self.masked))
        return attachments

    def where(self) -> str:
        """The place of the original, in words."""
        if not self.blobs:
            return "the rest is lost: the turn or the conversation is at its limit of attachments"
        last = "" if self.blobs == 1 else f" to {self.blob_id}-{self.blobs}"
        blobs = f"{'blob' if self.blobs == 1 else 'blobs'} {self.blob_id}{last}"
        if not self.dropped:
            return f"all of it is in {blobs}"
        return (
            f"the first {self.kept} bytes are in {blobs}, the next {self.dropped} are lost: "
            "the turn or the conversation is at its limit of attachments"
        )


def pieces(raw: bytes) -> Iterator[bytes]:
    """`raw` in pieces for blobs, cut between characters where it is text."""
    start = 0
    while len(raw) - start > BLOB_BYTES:
        end = start + BLOB_BYTES
        while end > start + BLOB_BYTES - CHARACTER_BYTES and raw[end] & 0xC0 == 0x80:
            end -= 1
        yield raw[start:end]
        start = end
    yield raw[start:] if start else raw
