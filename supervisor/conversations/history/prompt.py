"""A user's message as the content of a prompt. Pure.

Every agent accepts text and links. Pictures, sound and embedded resources go only to agents that announce the
capability; the others get a description in text, so that nothing is dropped silently.

API clients know only texts and images. Any other block is stored as a blob of the conversation, `EVENTID-1`
and so on, and the message's event has a placeholder text that names the blob. Only placeholders for blobs of
the same event are replaced by their blocks: senders cannot know the event's id in advance, so a text cannot
reference other blobs.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
import orjson

from supervisor.acp.schema import image_block, resource_link_block, text_block
from supervisor.conversations.recording.bounds.attachments import JSON, Attachment
from supervisor.events import Enclosed, ImageContent, Message, TextContent

CONTINUE: Final = (
    "The previous turn was interrupted before it was finished. Continue where you left off; "
    "check first what has been done already."
)
"""The prompt of an explicit run after a turn that did not end well, if nothing else is queued."""

MCP_COMMAND: Final = "/mcp"
"""The message that Ostler answers by itself: which MCP servers the conversation has."""

TRANSCRIPT_HEAD: Final = (
    "<<RESUMED CONVERSATION>>\nYour memory of this conversation was lost. "
    "This is what was said and done so far:\n"
)
TRANSCRIPT_TAIL: Final = "<<END OF TRANSCRIPT>>\nThe user's next message follows.\n"

SIDE_HEAD: Final = (
    "This is a side question about the conversation so far. Answer it from what you know, in plain text. "
    "Use no tools and change nothing; what you were doing continues elsewhere.\n\n"
)
"""The preface of a side question."""

TRANSCRIPT_BYTES: Final = 64 * 1024
"""The most bytes of a transcript for a new session: about 16,000 tokens, the newest part."""

TAKES: Final = "acp_prompt_capabilities"
"""The member of `agent_state` with the agent's prompt capabilities. None before its first start."""

NEEDED: Final = {"image": "image", "audio": "audio", "resource": "embeddedContext"}
"""By the type of a block, the prompt capability that it needs."""

Blocks = Mapping[str, Mapping[str, Any]]
"""The blocks behind a message's placeholder texts, by blob id."""

NO_BLOCKS: Final[Blocks] = {}

_STANDS_FOR: Final = re.compile(r"\[.* blob:(?P<id>\S+)\]", re.DOTALL)

_DATA_URI: Final = re.compile(r"data:(?P<mime>[\w.+-]+/[\w.+-]+)(;[\w=.+-]+)*;base64,(?P<data>.*)", re.DOTALL)


def set_aside(message: Message, event_id: str) -> tuple[Message, tuple[Attachment, ...]]:
    """Replace the blocks of a message by placeholder texts; return it with the blobs for the blocks."""
    content: list[TextContent | ImageContent] = []
    attachments: list[Attachment] = []
    for part in message.content:
        if isinstance(part, Enclosed):
            blob_id = f"{event_id}-{len(attachments) + 1}"
            # A person's input is never masked.
            attachments.append(Attachment(blob_id, orjson.dumps(part.block), JSON, masked=True))
            content.append(TextContent(text=f"[{part.text} blob:{blob_id}]"))
        else:
            content.append(part)
    return (attrs.evolve(message, content=tuple(content)) if attachments else message), tuple(attachments)


def stands_for(part: TextContent | ImageContent) -> str | None:
    """The blob id in a placeholder text of `set_aside`; None for any other part."""
    match = _STANDS_FOR.fullmatch(part.text) if isinstance(part, TextContent) else None
    return None if match is None else match["id"]


def own_blobs(message: Message, event_id: str) -> list[str]:
    """The ids of the blobs that `set_aside` made of this message."""
    prefix = f"{event_id}-"
    named = [stands_for(part) or "" for part in message.content]
    return [each for each in named if each.startswith(prefix) and each[len(prefix) :].isdecimal()]


def not_taken(message: Message, takes: Iterable[str], enclosed: Blocks = NO_BLOCKS) -> list[tuple[int, str]]:
    """The parts that an agent does not accept: (index, missing capability)."""
    out = []
    for index, part in enumerate(message.content):
        block = _block(part, enclosed)
        if isinstance(part, ImageContent):
            needed = NEEDED["image"] if any(url.startswith("data:") for url in part.image_urls) else None
        else:
            needed = None if block is None else NEEDED.get(block["type"])
        if needed is not None and needed not in takes:
            out.append((index, needed))
    return out


def blocks(message: Message, takes: Iterable[str], enclosed: Blocks = NO_BLOCKS) -> list[Mapping[str, Any]]:
    """The prompt blocks of a message. Never empty, since an agent requires some content."""
    out: list[Mapping[str, Any]] = []
    lacking = dict(not_taken(message, takes, enclosed))
    for index, part in enumerate(message.content):
        block = _block(part, enclosed)
        if block is not None:
            out.append(text_block(_in_words(block)) if index in lacking else block)
        elif isinstance(part, ImageContent):
            out.extend(_image(url, images=index not in lacking) for url in part.image_urls)
        elif part.text.strip():
            out.append(text_block(part.text))
    return out or [text_block("(empty message)")]


def in_words(message: Message, enclosed: Blocks) -> Message:
    """The message with its placeholders replaced by descriptions of the blocks."""
    parts = [(part, _block(part, enclosed)) for part in message.content]
    content = [part if block is None else TextContent(text=_in_words(block)) for part, block in parts]
    return attrs.evolve(message, content=tuple(content))


def _block(part: TextContent | ImageContent, enclosed: Blocks) -> Mapping[str, Any] | None:
    return part.block if isinstance(part, Enclosed) else enclosed.get(stands_for(part) or "")


def _in_words(block: Mapping[str, Any]) -> str:
    if block["type"] == "resource_link":
        return f"[{block['name']}]({block['uri']})"
    if block["type"] == "audio":
        return f"[a sound ({block['mimeType']}) that this agent does not support]"
    resource = block["resource"]
    if "text" in resource:
        return f"[{resource['uri']}]\n{resource['text']}"
    return f"[a file ({resource['uri']}) that this agent does not support]"


def is_command(message: Message, command: str) -> bool:
    """Whether a message is this command and nothing else."""
    texts = [part.text for part in message.content if isinstance(part, TextContent)]
    return len(texts) == len(message.content) and "".join(texts).strip() == command


def _image(url: str, *, images: bool) -> dict[str, Any]:
    match = _DATA_URI.fullmatch(url)
    if match is None:
        if url.startswith("data:"):
            return text_block("[an image that could not be read]")
        return resource_link_block(url, url.rsplit("/", 1)[-1] or "picture")
    try:
        base64.b64decode(match["data"], validate=True)
    except (binascii.Error, ValueError):
        return text_block("[an image that could not be read]")
    if not images:
        return text_block(f"[an image ({match['mime']}) that this agent does not support]")
    return image_block(match["data"], match["mime"])


def transcript(lines: Iterable[tuple[str, str]], limit: int = TRANSCRIPT_BYTES) -> str:
    """Render a transcript for an agent without memory, from pairs of speaker and text, oldest first.

    If it exceeds `limit` bytes, the newest part is kept.
    """
    kept: list[str] = []
    left = limit
    for speaker, words in reversed(list(lines)):
        line = f"{speaker}: {words}\n"
        size = len(line.encode("utf-8", "replace"))
        if size > left:
            kept.append("[... earlier parts left out ...]\n")
            break
        left -= size
        kept.append(line)
    return TRANSCRIPT_HEAD + "".join(reversed(kept)) + TRANSCRIPT_TAIL


TITLE_CHARS: Final = 50
"""Longest default title, characters; other servers of this API use the same limit."""


def title_of(message: Message) -> str | None:
    """The title for a message; None if it has no text."""
    parts = [part for part in message.content if isinstance(part, TextContent) and stands_for(part) is None]
    text = " ".join(part.text for part in parts).strip()
    text = " ".join(text.split())
    return text if len(text) <= TITLE_CHARS else text[: TITLE_CHARS - 3].rstrip() + "..."
