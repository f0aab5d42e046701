"""A transcript of the conversation, for an agent that lost its memory."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import orjson

from supervisor.conversations.history import prompt
from supervisor.conversations.history.history import speech
from supervisor.journal import Log

EVENTS_MAX: Final = 400
"""Newest events that a transcript is made of: more than its byte limit lets through."""

PAGE_EVENTS: Final = 20
"""Events of it that are read at once."""


READ_MAX: Final = 4_000
"""The most events read in all, including those that are not on the active branch."""


async def transcript(log: Log, branch: Container[int], waiting: Container[str]) -> str:
    """Return the newest part of the conversation, bounded, without the messages of the ids in `waiting`.

    `branch`: the sequence numbers that are part of it.

    Raises JournalError. Cancellation changes nothing.
    """
    lines: list[tuple[str, str]] = []
    read = own = size = 0
    page_id: str | None = None
    # Newest first, and no more than the transcript needs: a page may have a hundred large events.
    while read < READ_MAX and own < EVENTS_MAX and size <= prompt.TRANSCRIPT_BYTES:
        page = await log.search(order="desc", limit=PAGE_EVENTS, page=page_id)
        for item in page.items:
            if item.seq not in branch:
                continue
            own += 1
            line = None if item.id in waiting else speech(orjson.loads(item.body))
            if line is not None:
                lines.append(line)
                size += len(line[1])
        read += len(page.items)
        page_id = page.next_page_id
        if page_id is None:
            break
    return prompt.transcript(reversed(lines))
