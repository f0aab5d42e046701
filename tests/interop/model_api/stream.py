"""What the providers' streams have in common."""

from __future__ import annotations

import uuid
from typing import Any

Event = tuple[str | None, Any]  # the SSE event name, if the provider uses one, and its data

INPUT_TOKENS = 100  # reported for every request
PIECE = 24  # characters of arguments per delta


def new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex[:20]


def pieces(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)] or [""]
