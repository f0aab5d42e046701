"""The default title of a conversation: the beginning of its first message."""

from __future__ import annotations

from typing import Final

from supervisor.conversations.history.prompt import stands_for
from supervisor.events import Message, TextContent

TITLE_CHARS: Final = 50
"""Longest default title, characters; other servers of this API use the same limit."""


def title_of(message: Message) -> str | None:
    """The title for a message; None if it has no text."""
    parts = [part for part in message.content if isinstance(part, TextContent) and stands_for(part) is None]
    text = " ".join(part.text for part in parts).strip()
    text = " ".join(text.split())
    return text if len(text) <= TITLE_CHARS else text[: TITLE_CHARS - 3].rstrip() + "..."
