"""Attachments: originals that are too large for an event, stored as blobs within a limit. Pure.

The limit holds for each turn and for each conversation, so that an agent cannot fill the disk. Bytes beyond
it are dropped and counted, and the event says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

BLOB_BYTES: Final = 4 * 1024 * 1024
"""Most of an original that goes into one blob, bytes. It is held in memory until it is full, it is one row of
the journal, and one answer to the client that fetches it."""

TURN_BYTES: Final = 64 * 1024 * 1024
"""Most that is set aside in one turn, bytes: some twenty outputs of megabytes each, far more than an agent's
model can have read."""

CONVERSATION_BYTES: Final = 1024 * 1024 * 1024
"""Most that is set aside in one conversation, bytes."""

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


@attrs.frozen(kw_only=True)
class Allowance:
    """How much of originals may be set aside: in a turn, and in a conversation, bytes."""

    turn_bytes: int = TURN_BYTES
    conversation_bytes: int = CONVERSATION_BYTES


@attrs.frozen
class Attachment:
    """An original, or a piece of one, that was set aside: fetch it by `blob_id` from its conversation.

    `masked` tells that no secret is in it: it need not be searched again.
    """

    blob_id: str
    body: bytes
    media_type: str
    masked: bool = False


@attrs.define
class Originals:
    """What one conversation has set aside so far, and what it still may."""

    allowance: Allowance = attrs.field(factory=Allowance)
    kept: int = 0
    """Bytes of the conversation, those of earlier turns too."""
    _kept_before: int = 0
    dropped: int = 0
    """Bytes that found no room, since the server has this conversation in memory."""

    def __attrs_post_init__(self) -> None:
        self._kept_before = self.kept

    def new_turn(self) -> None:
        """The allowance of a turn begins anew."""
        self._kept_before = self.kept

    def apart(self) -> Originals:
        """The same allowance for a worker thread; what it took there is counted here with `charge`."""
        return attrs.evolve(self)

    def charge(self, size: int) -> None:
        """So many bytes have been set aside."""
        self.kept += size

    def take(self, size: int) -> bool:
        """Whether so many bytes may be set aside; they count from now on."""
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
    """One original that is set aside, in as many blobs as it needs: `blob_id`, then `blob_id-2` and so on."""

    blob_id: str
    originals: Originals
    media_type: str
    masked: bool = False
    blobs: int = 0
    kept: int = 0
    dropped: int = 0

    def put(self, raw: bytes) -> list[Attachment]:
        """Set the next bytes aside, as far as there is room. After the first that found none, nothing is."""
        attachments: list[Attachment] = []
        for piece in pieces(raw):
            if self.dropped or not self.originals.take(len(piece)):
                self.dropped += len(piece)
                continue
            self.blobs += 1
            self.kept += len(piece)
            blob_id = self.blob_id if self.blobs == 1 else f"{self.blob_id}-{self.blobs}"
            # A piece of a document is no document.
            media_type = self.media_type if len(piece) == len(raw) and self.blobs == 1 else TEXT
            attachments.append(Attachment(blob_id, piece, media_type, self.masked))
        return attachments

    def where(self) -> str:
        """In words, where the original is."""
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
    """`raw` in pieces for blobs, cut between characters."""
    start = 0
    while len(raw) - start > BLOB_BYTES:
        end = start + BLOB_BYTES
        while end > start and raw[end] & 0xC0 == 0x80:
            end -= 1
        yield raw[start:end]
        start = end
    yield raw[start:] if start else raw
