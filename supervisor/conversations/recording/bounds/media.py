"""Pictures, sound and files in what an agent sends: their bytes are blobs, where an event has no room. Pure.

ACP has them as base64 in a block of content: `data` of an image or a sound, `blob` of an embedded resource. A
block whose bytes are a blob names it: `uri` is `blob:ID`, of a resource `blob_uri`. The blob has the bytes,
not their base64, and their media type, so that a client can show what it fetches.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

import attrs

from supervisor.acp.schema import NAME_CHARS, cut
from supervisor.conversations.recording.bounds.attachments import (
    OCTETS,
    TEXT,
    Attachment,
    Original,
    Originals,
)

SCHEME: Final = "blob:"
"""Before the id of a blob of the conversation, where a client expects an address. A fork has the blobs, too,
which an address with the id of a conversation would not say."""

INLINE_CHARS: Final = 1024 * 1024
"""Most characters of base64 of the pictures of one message that its event has itself, as data URLs: every
client can show these, and most pictures are smaller. It is as much as the message's text may have."""

SMALL_CHARS: Final = 4 * 1024
"""Base64 that stays where it is, also in a payload that is over its limit: an icon."""

DEPTH: Final = 40
"""Deepest nesting of a payload in which pictures are looked for."""

WALKED_MAX: Final = 20_000
"""The most values of a payload that are looked at for pictures."""


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
