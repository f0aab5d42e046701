"""A user's message as the content of a prompt. Pure.

Text and links are what every agent takes; pictures go only to agents that say they take them, and are
named in words to the others, so that nothing a person sent vanishes without a trace.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any, Final

from supervisor.acp.schema import image_block, resource_link_block, text_block
from supervisor.events import ImageContent, Message, TextContent

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
    "Use no tools and change nothing; what you were doing goes on elsewhere.\n\n"
)
"""In front of a question that is asked beside the conversation."""

TRANSCRIPT_BYTES: Final = 64 * 1024
"""The most bytes of a transcript for a new session: about 16,000 tokens, the newest part."""

_DATA_URI: Final = re.compile(r"data:(?P<mime>[\w.+-]+/[\w.+-]+)(;[\w=.+-]+)*;base64,(?P<data>.*)", re.DOTALL)


def blocks(message: Message, *, images: bool) -> list[dict[str, Any]]:
    """The prompt blocks of a message. Never empty, since an agent requires some content."""
    out: list[dict[str, Any]] = []
    for part in message.content:
        if isinstance(part, TextContent):
            if part.text.strip():
                out.append(text_block(part.text))
        elif isinstance(part, ImageContent):
            out.extend(_image(url, images=images) for url in part.image_urls)
    return out or [text_block("(empty message)")]


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
