"""Cuts large messages in the connection's worker thread, before a conversation sees them. Pure.

A text of megabytes becomes pieces, as if the agent had streamed it. Every other member is cut as an event
would cut it, with the original set aside, so that little is left for the Trio thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from supervisor.conversations.recording.attachments import Attachment, Originals
from supervisor.conversations.recording.tool_calls import text_block
from supervisor.conversations.recording.truncation import PAYLOAD_BYTES, clip_payload
from supervisor.credentials.masking import Masker
from supervisor.events import new_event_id

MEMBER_BYTES: Final = PAYLOAD_BYTES - 16 * 1024
"""Bytes that are left of one member of a large update.

That is so much less than an event's payload may have that the event does not cut it a second time.
"""

PIECE_CHARS: Final = 64 * 1024
"""Length of the pieces of a long text: each is masked, encoded and sent in some milliseconds."""

CHUNKS: Final = ("agent_message_chunk", "agent_thought_chunk")


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
            return [_with_text(params, piece) for piece in _pieces(text)]
        return [_relieved(params, "update", originals)]
    if method == "session/request_permission" and isinstance(params.get("toolCall"), dict):
        # What an agent asks for is not masked at the door. Masked as a whole, before it is in pieces.
        masked = {**params, "toolCall": mask.value(params["toolCall"])}
        return [_relieved(masked, "toolCall", originals)]
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
    for key, value in params[name].items():
        if key in IDS:
            small[key] = value
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
