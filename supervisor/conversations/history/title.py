"""The title of a conversation that nobody has given one: the beginning of its first message."""

from __future__ import annotations

from typing import Final

from supervisor.conversations.history.prompt import stands_for
from supervisor.events import Message, TextContent

TITLE_CHARS: Final = 50
"""Characters of a title made from the first message, as other servers of this wire cut it."""


def title_of(message: Message) -> str | None:
    """None for a message without text."""
    parts = [part for part in message.content if isinstance(part, TextContent) and stands_for(part) is None]
    text = " ".join(part.text for part in parts).strip()
    text = " ".join(text.split())
    return text if len(text) <= TITLE_CHARS else text[: TITLE_CHARS - 3].rstrip() + "..."
