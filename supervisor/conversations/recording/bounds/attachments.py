"""Originals that are too large for an event, and the bytes of pictures and files: stored as blobs. Pure.

The limit holds for each turn and for each conversation, so that an agent cannot fill the disk. Bytes beyond
it are dropped and counted, and the event says so.

ACP has pictures, sound and files as base64 in a block of content: `data` of an image or a sound, `blob` of an
embedded resource. A block whose bytes are a blob names it: `uri` is `blob:ID`, of a resource `blob_uri`. The
blob has the bytes, not their base64, and their media type, so that a client can show what it fetches.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from supervisor.acp.schema import NAME_CHARS, cut

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


SCHEME: Final = "blob:"
"""Before the id of a blob of the conversation, where a client expects an address. A fork has the blobs, too,
which an address with the id of a conversation would not say."""

INLINE_CHARS: Final = 1024 * 1024
"""Most characters of base64 of the pictures of one message that its event has itself, as data URLs: every
client can show these, and most pictures are smaller. It is as much as the message's text may have."""

SMALL_CHARS: Final = 4 * 1024
"""Base64 that stays where it is, also in a payload that is over its limit: an icon."""

DEPTH: Final = 40
"""Deepest nesting of a payload that is walked, for pictures or to cut its strings."""

WALKED_MAX: Final = 20_000
"""The most values of a payload that are looked at for pictures, or cut one by one."""


def is_picture(block: Any) -> bool:
    """Whether a block is an image with its bytes or an address."""
    return isinstance(block, Mapping) and block.get("type") == "image" and picture(block) is not None


def picture(block: Mapping[str, Any]) -> str | None:
    """The address of an image as clients of the wire take it: a data URL, `blob:ID`, or the agent's own."""
    data, uri = block.get("data"), block.get("uri")
    if isinstance(data, str) and data:
        return f"data:{_media_type(block) or 'image/png'};base64,{data}"
    return uri if isinstance(uri, str) and uri else None


def set_aside(
    block: Mapping[str, Any], blob_id: str, originals: Originals, keep: int = 0
) -> tuple[Mapping[str, Any], tuple[Attachment, ...]]:
    """A block without its bytes, and the blobs that these are now, as far as there is room.

    `keep`: characters of an image's base64 that it may keep; what it keeps counts as stored, too.
    """
    kind = block.get("type")
    if kind in ("image", "audio"):
        data = block.get("data")
        if not isinstance(data, str) or not data:
            return block, ()
        body = _decoded(data)
        small = kind == "image" and body is not None and len(data) <= keep
        if small and originals.take(len(data)):
            return block, ()
        uri, attachments = _stored(data, body, _media_type(block), blob_id, originals)
        before = {"source_uri": block["uri"]} if block.get("uri") else {}
        return {**block, **before, "data": "", "uri": uri}, attachments
    resource = block.get("resource") if kind == "resource" else None
    if isinstance(resource, Mapping):
        data = resource.get("blob")
        if isinstance(data, str) and data:
            uri, attachments = _stored(data, _decoded(data), _media_type(resource), blob_id, originals)
            return {**block, "resource": {**resource, "blob": "", "blob_uri": uri}}, attachments
    return block, ()


def _stored(
    data: str, body: bytes | None, media_type: str, blob_id: str, originals: Originals
) -> tuple[str, tuple[Attachment, ...]]:
    if body is None:  # it is not base64, and kept as it came
        body, media_type = data.encode("utf-8", "replace"), TEXT
    original = Original(blob_id, originals, media_type or OCTETS)
    attachments = tuple(original.put(body))
    return (f"{SCHEME}{blob_id}" if original.kept == len(body) else original.where()), attachments


def _media_type(block: Mapping[str, Any]) -> str:
    given = block.get("mimeType") or block.get("mime_type")
    # It becomes a header of the answer to the client that fetches the blob.
    if not isinstance(given, str) or not given.isascii() or not given.isprintable() or "/" not in given:
        return ""
    return cut(given, NAME_CHARS)


def _decoded(data: str) -> bytes | None:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


@attrs.define
class Lifted:
    """Takes the bytes out of every block with large ones, wherever it is within a payload. The blobs are
    `BLOB_ID-media-1` and so on."""

    blob_id: str
    originals: Originals
    attachments: list[Attachment] = attrs.field(factory=list)
    _left: int = WALKED_MAX
    _found: int = 0

    def value(self, value: Any, depth: int = DEPTH) -> Any:
        """The payload without these; the same object where there are none."""
        self._left -= 1
        if self._left < 0 or depth == 0:
            return value
        if isinstance(value, dict):
            if _has_large(value):
                self._found += 1
                block, attachments = set_aside(value, f"{self.blob_id}-media-{self._found}", self.originals)
                self.attachments += attachments
                return block
            return {key: self.value(item, depth - 1) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, depth - 1) for item in value]
        return value


def _has_large(block: Mapping[str, Any]) -> bool:
    kind = block.get("type")
    if kind in ("image", "audio"):
        data = block.get("data")
    elif kind == "resource" and isinstance(block.get("resource"), dict):
        data = block["resource"].get("blob")
    else:
        return False
    return isinstance(data, str) and len(data) > SMALL_CHARS
