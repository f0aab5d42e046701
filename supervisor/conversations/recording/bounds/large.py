"""Cuts large messages in the connection's worker thread, before a conversation sees them. Pure.

A text of megabytes becomes pieces, as if the agent had streamed it. Every other member is cut as an event
would cut it, with the original set aside, so that little is left for the Trio thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from supervisor.acp.schema import METHODS
from supervisor.acp.schema.extension import PREFIX
from supervisor.conversations.recording.bounds.attachments import (
    INLINE_CHARS,
    Attachment,
    Originals,
    is_picture,
    set_aside,
)
from supervisor.conversations.recording.bounds.truncation import PAYLOAD_BYTES, clip_payload
from supervisor.conversations.recording.tool_calls.blocks import text_block
from supervisor.credentials.masking import Masker
from supervisor.events import new_event_id

MEMBER_BYTES: Final = PAYLOAD_BYTES - 16 * 1024
"""Bytes that are left of one member of a large update.

That is so much less than an event's payload may have that the event does not cut it a second time.
"""

PIECE_CHARS: Final = 64 * 1024
"""Length of the pieces of a long text: each is masked, encoded and sent in some milliseconds."""

MESSAGE: Final = "agent_message_chunk"
CHUNKS: Final = (MESSAGE, "agent_thought_chunk")


IDS: Final = frozenset({"sessionUpdate", "toolCallId", "messageId"})
"""Members that must stay the same from one update to the next: what reads them makes them short."""


@attrs.frozen
class Relieved:
    """Parameters with attachments: the originals, masked, to be stored before the parameters are used."""

    params: Any
    attachments: tuple[Attachment, ...]


def relieve(method: str, params: Any, mask: Masker, originals: Originals) -> list[Any]:
    """Cut the parameters of a large message into one or several like them, some perhaps `Relieved`.

    `originals` has the limits of attachments, and counts them.
    """
    if not isinstance(params, dict):
        return [params]
    if method == "session/update" and isinstance(params.get("update"), dict):
        text = _text(params["update"])
        if text is not None:
            *pieces, last = _pieces(text)
            return [*(_with_text(params, piece) for piece in pieces), _last_of(params, last, originals)]
        return [_relieved(params, "update", originals)]
    if method == "session/request_permission" and isinstance(params.get("toolCall"), dict):
        # The connection does not mask requests. Mask this one as a whole, before it is cut.
        masked = {**params, "toolCall": mask.value(params["toolCall"])}
        return [_relieved(masked, "toolCall", originals)]
    if method not in METHODS and not method.startswith(PREFIX):
        clipped = clip_payload(params, f"{new_event_id()}-original", MEMBER_BYTES, originals)
        return [Relieved(clipped.value, clipped.attachments) if clipped.attachments else clipped.value]
    return [params]


def _text(update: Mapping[str, Any]) -> str | None:
    """The text of a chunk, None for anything else."""
    if update.get("sessionUpdate") not in CHUNKS:
        return None
    content = update.get("content")
    text = content.get("text") if isinstance(content, dict) and content.get("type") == "text" else content
    return text if isinstance(text, str) else None


def _with_text(params: Mapping[str, Any], text: str) -> dict[str, Any]:
    update = {key: value for key, value in params["update"].items() if key != "_meta"}
    return {**params, "update": {**update, "content": {"type": "text", "text": text}}}


def _last_of(params: Mapping[str, Any], text: str, originals: Originals) -> Any:
    """The last piece, with the update's other members."""
    update = params["update"]
    content = update["content"] if isinstance(update["content"], dict) else {"type": "text"}
    rest = {**params, "update": {**update, "content": {**content, "text": ""}}}
    relieved = _relieved(rest, "update", originals)
    small = (relieved.params if isinstance(relieved, Relieved) else relieved)["update"]
    block = small["content"] if small["content"].get("type") == "text" else {"type": "text"}
    small["content"] = {**block, "text": text}
    return relieved


def _pieces(text: str) -> list[str]:
    return [text[start : start + PIECE_CHARS] for start in range(0, len(text), PIECE_CHARS)] or [""]


def _relieved(params: Mapping[str, Any], name: str, originals: Originals) -> Any:
    attachments: list[Attachment] = []

    def cut(value: Any) -> Any:
        clipped = clip_payload(value, f"{new_event_id()}-original", MEMBER_BYTES, originals)
        attachments.extend(attrs.evolve(attachment, masked=True) for attachment in clipped.attachments)
        if isinstance(value, list) and not isinstance(clipped.value, list):
            return [text_block(clipped.value["truncated"])]
        return clipped.value

    small: dict[str, Any] = {}
    said = params[name].get("sessionUpdate") in CHUNKS
    for key, value in params[name].items():
        if key in IDS:
            small[key] = value
        elif said and key == "content" and isinstance(value, dict):
            # What a message may have of a picture, its event keeps; of anything else, the bytes are a blob.
            keep = INLINE_CHARS if params[name]["sessionUpdate"] == MESSAGE else 0
            block, stored = set_aside(value, f"{new_event_id()}-media", originals, keep)
            attachments.extend(attrs.evolve(attachment, masked=True) for attachment in stored)
            small[key] = block if is_picture(block) else cut(block)
        else:
            small[key] = _cut_output(value, cut) if key == "_meta" else cut(value)
    relieved = {**params, name: small}
    return Relieved(relieved, tuple(attachments)) if attachments else relieved


def _cut_output(meta: Any, cut: Callable[[Any], Any]) -> Any:
    """Cut the members one level further down: two agents stream the output of their shell there."""
    if not isinstance(meta, dict):
        return cut(meta)
    return {
        key: {name: cut(item) for name, item in value.items()} if isinstance(value, dict) else cut(value)
        for key, value in meta.items()
    }
